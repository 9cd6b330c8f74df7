//! Disks that fail: one that forgets what was not synced, and that fills up.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use madako_embedded_etcd::StorageBackend;

use crate::generate::Dice;

const SECTOR_BYTES: usize = 512;

/// A disk in memory, and the hand of the test on it.
#[derive(Debug, Clone)]
pub(crate) struct UnsafeDisk(Arc<Mutex<Contents>>);

#[derive(Debug, Default)]
struct Contents {
    /// What reads see.
    current: Vec<u8>,
    /// What survives for certain.
    synced: Vec<u8>,
    /// What was done since the last sync.
    unsynced: Vec<Change>,
    /// Changes until every further one fails, `None` for never.
    left: Option<u64>,
    /// Bytes that the disk has room for.
    room: Option<u64>,
    /// Whether syncs fail.
    sync_fails: bool,
    /// Whether even overwriting fails for want of room.
    full: bool,
    /// Whether writing fails for another reason.
    writes_fail: bool,
    /// Whether who writes panics, as redb does on a page that holds what no page can.
    panics: bool,
    /// How often somebody asked how long it is, as everyone does who opens it.
    looks: u64,
}

#[derive(Debug, Clone)]
enum Change {
    SetLen(u64),
    Write(u64, Vec<u8>),
}

/// The storage of one life: after power was lost it is dead, whatever still holds it.
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

    /// As when somebody empties the file below a running process.
    pub(crate) fn empty(&self) {
        let mut contents = self.contents();
        contents.current.clear();
        contents.synced.clear();
    }

    pub(crate) fn looks(&self) -> u64 {
        self.contents().looks
    }

    /// What was synced stays; of the rest any part, in any order, torn at sectors.
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
            // Not with the lock held: the test goes on.
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
