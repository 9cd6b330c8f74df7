//! Test support: a disk that loses unsynced data, and a disk that fills up.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use madako_embedded_etcd::StorageBackend;

use crate::generate::Dice;

const SECTOR_BYTES: usize = 512;

/// A disk in memory that the test controls.
#[derive(Debug, Clone)]
pub(crate) struct UnsafeDisk(Arc<Mutex<Contents>>);

#[derive(Debug, Default)]
struct Contents {
    /// Contents that reads return.
    current: Vec<u8>,
    /// Contents that survive a loss of power.
    synced: Vec<u8>,
    /// Changes since the last sync.
    unsynced: Vec<Change>,
    /// Number of changes until every further one fails; `None` for no limit.
    left: Option<u64>,
    room: Option<u64>,
    sync_fails: bool,
    /// True if even overwriting fails for lack of space.
    full: bool,
    writes_fail: bool,
    /// True if writes panic, as redb does on some inconsistent pages.
    panics: bool,
    /// Number of calls of `len`; every opening makes one.
    looks: u64,
}

#[derive(Debug, Clone)]
enum Change {
    SetLen(u64),
    Write(u64, Vec<u8>),
}

/// The storage until the next loss of power. After it every operation fails, even on open handles.
#[derive(Debug)]
struct Life {
    disk: UnsafeDisk,
}

impl UnsafeDisk {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn storage(&self) -> Arc<dyn StorageBackend> {
        Arc::new(Life { disk: self.clone() })
    }

    pub(crate) fn fail_after(&self, changes: Option<u64>) {
        self.contents().left = changes;
    }

    pub(crate) fn set_room(&self, bytes: Option<u64>) {
        self.contents().room = bytes;
    }

    pub(crate) fn fail_sync(&self, fails: bool) {
        self.contents().sync_fails = fails;
    }

    pub(crate) fn set_full(&self, full: bool) {
        self.contents().full = full;
    }

    pub(crate) fn fail_writes(&self, fail: bool) {
        self.contents().writes_fail = fail;
    }

    pub(crate) fn set_panics(&self, panics: bool) {
        self.contents().panics = panics;
    }

    /// Truncates the file to zero below a running process.
    pub(crate) fn empty(&self) {
        let mut contents = self.contents();
        contents.current.clear();
        contents.synced.clear();
    }

    pub(crate) fn looks(&self) -> u64 {
        self.contents().looks
    }

    /// Keeps synced data, and of the rest any part, in any order, torn at sectors.
    pub(crate) fn lose_power(&self, dice: &mut Dice) {
        let mut contents = self.contents();
        let mut survived = std::mem::take(&mut contents.synced);
        let mut changes = std::mem::take(&mut contents.unsynced);
        while !changes.is_empty() {
            let change = changes.swap_remove(dice.below(changes.len() as u64) as usize);
            match change {
                Change::SetLen(len) if dice.one_in(2) => survived.resize(len as usize, 0),
                Change::SetLen(_) => {}
                Change::Write(offset, data) => {
                    let lost = dice.below(3);
                    for (number, sector) in data.chunks(SECTOR_BYTES).enumerate() {
                        // All, none, or any sectors of a write.
                        if lost == 0 || (lost == 1 && dice.one_in(2)) {
                            let start = offset as usize + number * SECTOR_BYTES;
                            if survived.len() < start + sector.len() {
                                survived.resize(start + sector.len(), 0);
                            }
                            survived[start..start + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
            }
        }
        contents.current = survived.clone();
        contents.synced = survived;
        contents.left = Some(0);
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().expect("no test panics with it")
    }
}

impl Contents {
    fn count(&mut self) -> io::Result<()> {
        match &mut self.left {
            Some(0) => Err(io::Error::other("the power is gone")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn count_change(&mut self) -> io::Result<()> {
        self.count()?;
        if self.writes_fail { Err(io::Error::other("the disk does not take it")) } else { Ok(()) }
    }
}

impl StorageBackend for Life {
    fn len(&self) -> io::Result<u64> {
        let mut contents = self.disk.contents();
        contents.looks += 1;
        Ok(contents.current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let contents = self.disk.contents();
        let start = offset as usize;
        let stored = contents.current.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(stored);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut contents = self.disk.contents();
        contents.count_change()?;
        if contents.room.is_some_and(|room| len > room) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        contents.current.resize(len as usize, 0);
        contents.unsynced.push(Change::SetLen(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut contents = self.disk.contents();
        contents.count()?;
        if contents.sync_fails {
            return Err(io::Error::other("the disk does not answer"));
        }
        contents.synced = contents.current.clone();
        contents.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut contents = self.disk.contents();
        if contents.panics {
            // Release the lock, because the test goes on after the panic.
            drop(contents);
            panic!("a write that panics was asked for");
        }
        contents.count_change()?;
        if contents.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let start = offset as usize;
        if contents.current.len() < start + data.len() {
            contents.current.resize(start + data.len(), 0);
        }
        contents.current[start..start + data.len()].copy_from_slice(data);
        contents.unsynced.push(Change::Write(offset, data.to_vec()));
        Ok(())
    }
}
