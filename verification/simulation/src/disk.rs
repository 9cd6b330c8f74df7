//! A disk in memory that loses unsynced writes in a crash, and can be full.
//!
//! Guarantees: data of a completed sync survives every crash. Of later writes a crash keeps random sectors, so that
//! writes are dropped, torn and reordered. A process that opened the disk before a crash can no longer use it.
//!
//! Does not: damage the data that it keeps, or answer a sync falsely.

use std::io;
use std::sync::{Arc, Mutex};

use madako_embedded_etcd::StorageBackend;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

/// Unit of an atomic write: the smallest sector of real disks.
const SECTOR: usize = 512;

/// A write or a change of the length after the last sync.
#[derive(Debug)]
enum UnsyncedWrite {
    Written { at: usize, data: Vec<u8> },
    Length(usize),
}

#[derive(Debug)]
struct DiskState {
    /// Data that a read returns.
    present: Vec<u8>,
    /// Data that every crash keeps.
    synced: Vec<u8>,
    unsynced: Vec<UnsyncedWrite>,
    full: bool,
    /// Number of crashes; an [`OpenedDisk`] of an older generation fails.
    generation: u64,
    chance: ChaCha8Rng,
    syncs: u64,
}

/// The disk. Clones are the same one.
#[derive(Debug, Clone)]
pub struct ForgetfulDisk(Arc<Mutex<DiskState>>);

/// Result of a crash for unsynced writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForgottenWrites {
    pub unsynced: u64,
    /// Unsynced sectors that the crash lost.
    pub lost: u64,
}

impl ForgetfulDisk {
    /// An empty disk; `chance` decides which sectors a crash keeps.
    #[must_use]
    pub fn new(chance: ChaCha8Rng) -> Self {
        Self(Arc::new(Mutex::new(DiskState {
            present: Vec::new(),
            synced: Vec::new(),
            unsynced: Vec::new(),
            full: false,
            generation: 0,
            chance,
            syncs: 0,
        })))
    }

    /// Opens the disk until the next crash.
    #[must_use]
    pub fn open(&self) -> Arc<dyn StorageBackend> {
        let generation = self.0.lock().unwrap().generation;
        Arc::new(OpenedDisk { disk: self.clone(), generation })
    }

    /// Makes the disk refuse writes, or accept them again.
    pub fn set_full(&self, full: bool) {
        self.0.lock().unwrap().full = full;
    }

    #[must_use]
    pub fn count_syncs(&self) -> u64 {
        self.0.lock().unwrap().syncs
    }

    /// Loses a random part of the unsynced writes.
    pub fn crash(&self) -> ForgottenWrites {
        let mut inner = self.0.lock().unwrap();
        inner.generation += 1;
        let mut forgotten = ForgottenWrites::default();
        let mut left = std::mem::take(&mut inner.synced);
        for write in std::mem::take(&mut inner.unsynced) {
            match write {
                UnsyncedWrite::Length(length) => {
                    forgotten.unsynced += 1;
                    if inner.chance.random_range(0..2_u32) == 0 {
                        left.resize(length, 0);
                    } else {
                        forgotten.lost += 1;
                    }
                }
                UnsyncedWrite::Written { at, data } => {
                    for (sector, part) in data.chunks(SECTOR).enumerate() {
                        forgotten.unsynced += 1;
                        if inner.chance.random_range(0..2_u32) == 0 {
                            write_bytes(&mut left, at + sector * SECTOR, part);
                        } else {
                            forgotten.lost += 1;
                        }
                    }
                }
            }
        }
        inner.present.clone_from(&left);
        inner.synced = left;
        forgotten
    }
}

fn write_bytes(bytes: &mut Vec<u8>, at: usize, data: &[u8]) {
    if bytes.len() < at + data.len() {
        bytes.resize(at + data.len(), 0);
    }
    bytes[at..at + data.len()].copy_from_slice(data);
}

#[derive(Debug)]
struct OpenedDisk {
    disk: ForgetfulDisk,
    generation: u64,
}

impl OpenedDisk {
    fn with_state<T>(&self, act: impl FnOnce(&mut DiskState) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.disk.0.lock().unwrap();
        if inner.generation != self.generation {
            return Err(io::Error::other("the process that had this disk open is gone"));
        }
        act(&mut inner)
    }
}

fn to_index(offset: u64) -> usize {
    usize::try_from(offset).expect("a simulated disk is far smaller than memory")
}

impl StorageBackend for OpenedDisk {
    fn len(&self) -> io::Result<u64> {
        self.with_state(|inner| Ok(inner.present.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = to_index(offset);
        self.with_state(|inner| match inner.present.get(at..at + out.len()) {
            Some(there) => {
                out.copy_from_slice(there);
                Ok(())
            }
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let length = to_index(len);
        self.with_state(|inner| {
            if inner.full && length > inner.present.len() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            inner.present.resize(length, 0);
            inner.unsynced.push(UnsyncedWrite::Length(length));
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with_state(|inner| {
            inner.syncs += 1;
            for write in std::mem::take(&mut inner.unsynced) {
                match write {
                    UnsyncedWrite::Length(length) => inner.synced.resize(length, 0),
                    UnsyncedWrite::Written { at, data } => write_bytes(&mut inner.synced, at, &data),
                }
            }
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let at = to_index(offset);
        self.with_state(|inner| {
            if inner.full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            write_bytes(&mut inner.present, at, data);
            inner.unsynced.push(UnsyncedWrite::Written { at, data: data.to_vec() });
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::SeedableRng as _;

    use super::*;

    fn disk(seed: u64) -> ForgetfulDisk {
        ForgetfulDisk::new(ChaCha8Rng::seed_from_u64(seed))
    }

    fn contents(disk: &ForgetfulDisk) -> Vec<u8> {
        let opened = disk.open();
        let mut all = vec![0; to_index(opened.len().unwrap())];
        opened.read(0, &mut all).unwrap();
        all
    }

    #[test]
    fn synced_sectors_survive_a_crash_and_unsynced_ones_in_part() {
        let (mut kept, mut lost) = (false, false);
        for seed in 0..20 {
            let disk = disk(seed);
            let opened = disk.open();
            opened.set_len(4 * SECTOR as u64).unwrap();
            opened.write(0, &[1; 2 * SECTOR]).unwrap();
            opened.sync_data().unwrap();
            opened.write(SECTOR as u64, &[2; 3 * SECTOR]).unwrap();
            let forgotten = disk.crash();
            assert_eq!(forgotten.unsynced, 3);
            let after = contents(&disk);
            assert_eq!(after[..SECTOR], [1; SECTOR], "seed {seed}");
            for sector in after[SECTOR..].chunks(SECTOR) {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is whole");
                kept |= sector[0] == 2;
                lost |= sector[0] != 2;
            }
            let found = after[SECTOR..].chunks(SECTOR).filter(|sector| sector[0] != 2).count() as u64;
            assert_eq!(found, forgotten.lost, "seed {seed}");
        }
        assert!(kept && lost);
    }

    #[test]
    fn crash_of_the_disk_depends_only_on_the_seed_and_closes_open_handles() {
        let after = |seed| {
            let disk = disk(seed);
            let opened = disk.open();
            opened.write(0, &[3; 64 * SECTOR]).unwrap();
            disk.crash();
            assert!(opened.len().is_err() && opened.write(0, &[4]).is_err() && opened.sync_data().is_err());
            contents(&disk)
        };
        assert_eq!(after(1), after(1));
        assert_ne!(after(1), after(2));
    }

    #[test]
    fn full_simulated_disk_refuses_writes_and_keeps_its_data() {
        let disk = disk(1);
        let opened = disk.open();
        opened.write(0, &[5; SECTOR]).unwrap();
        opened.sync_data().unwrap();
        disk.set_full(true);
        assert_eq!(opened.write(0, &[6]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(opened.set_len(9999).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(contents(&disk), [5; SECTOR]);
        disk.set_full(false);
        opened.write(0, &[6]).unwrap();
    }
}
