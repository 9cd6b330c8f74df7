use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase, StorageBackend, TableDefinition};

use super::{Disk, FILL_BYTES, MAX_FILL_BYTES, ZEROS};

fn contents(storage: &dyn StorageBackend) -> Vec<u8> {
    let mut bytes = vec![0; storage.len().unwrap() as usize];
    storage.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_rehearsal_reads_its_own_writes_and_reaches_the_storage_only_when_accepted() {
    let storage: Arc<dyn StorageBackend> = Arc::new(InMemoryBackend::new());
    storage.set_len(6000).unwrap();
    storage.write(0, &[7; 6000]).unwrap();
    let before = contents(&*storage);
    let disk = Disk::for_rehearsal(Arc::clone(&storage)).unwrap();
    let handle = disk.create_handle();
    handle.set_len(10_000).unwrap();
    handle.write(4090, &[1; 12]).unwrap();
    handle.set_len(5000).unwrap();
    handle.sync_data().unwrap();
    handle.set_len(9000).unwrap();
    handle.write(8999, &[9]).unwrap();
    let rehearsed = contents(&handle);
    let mut expected = vec![7; 5000];
    expected[4090..4102].fill(1);
    expected.resize(9000, 0);
    expected[8999] = 9;
    assert_eq!(rehearsed, expected);
    assert_eq!(contents(&*storage), before);
    disk.accept_changes().unwrap();
    assert_eq!(contents(&*storage), expected);
    handle.write(0, &[3]).unwrap();
    assert_eq!(contents(&*storage)[0], 3, "after the rehearsal writes go through");
}

/// Counts the written bytes.
#[derive(Debug)]
struct Counting(InMemoryBackend, AtomicU64);

impl StorageBackend for Counting {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.1.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.0.write(offset, data)
    }
}

#[test]
fn file_space_is_filled_once_ahead_of_use_and_never_over_data() {
    let storage = Arc::new(Counting(InMemoryBackend::new(), AtomicU64::new(0)));
    let written = || storage.1.load(Ordering::Relaxed);
    let len = 3 * MAX_FILL_BYTES;
    storage.set_len(len).unwrap();
    storage.write(100, &[7; 50]).unwrap();
    let disk = Disk::for_rehearsal(Arc::clone(&storage) as Arc<dyn StorageBackend>).unwrap();
    disk.accept_changes().unwrap();
    let handle = disk.create_handle();
    let mut expected = vec![0; len as usize];
    expected[100..150].fill(7);
    let mut put = |offset: u64, byte| {
        let before = written();
        handle.write(offset, &[byte; 10]).unwrap();
        expected[offset as usize..offset as usize + 10].fill(byte);
        assert_eq!(contents(&*storage), expected, "after a write at {offset}");
        written() - before - 10
    };
    assert_eq!(put(120, 1), 0, "it was in use");
    assert_eq!(put(1000, 2), 1010 + FILL_BYTES - 150, "the first beyond it");
    assert_eq!(put(2000, 3), 0, "filled already");
    assert_eq!(put(len / 2, 4), FILL_BYTES, "too far: the gap stays");
    assert_eq!(put(len - 10, 5), 0, "too far, and at the end");
    assert_eq!(put(5 * FILL_BYTES, 6), 0, "in the gap");
    handle.set_len(1500).unwrap();
    handle.set_len(3000).unwrap();
    let before = written();
    handle.write(1600, &[8; 10]).unwrap();
    assert_eq!(written() - before, 1510, "the part that was cut off is filled again");
    // After reopening, all used space counts as filled.
    let disk = Disk::for_rehearsal(Arc::clone(&storage) as Arc<dyn StorageBackend>).unwrap();
    disk.accept_changes().unwrap();
    let before = written();
    disk.create_handle().write(1605, &[9; 5]).unwrap();
    assert_eq!(written() - before, 5);
    disk.create_handle().write(1605, &[9; 6]).unwrap();
    assert_eq!(written() - before, 5 + 3000 - 1610 + 6);
}

/// A storage that forces a race: a thread that starts to fill space waits briefly for a write of another thread.
#[derive(Debug, Default)]
struct Meeting {
    storage: InMemoryBackend,
    state: Mutex<Met>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Met {
    /// True if the last write consisted of zeros.
    was_zeros: bool,
    is_filling: bool,
    /// Number of other writes.
    writes: u64,
}

impl Meeting {
    /// Longer than an unobstructed write of the other thread takes; waited for once per 4 MiB.
    const PATIENCE: Duration = Duration::from_millis(50);

    fn wait_while(&self, state: MutexGuard<'_, Met>, condition: impl Fn(&Met) -> bool) {
        drop(self.changed.wait_timeout_while(state, Self::PATIENCE, |state| condition(state)).unwrap());
    }

    fn wait_until_filling(&self) {
        self.wait_while(self.state.lock().unwrap(), |state| !state.is_filling);
    }

    fn before_zeros(&self) {
        let mut state = self.state.lock().unwrap();
        if std::mem::replace(&mut state.was_zeros, true) || std::mem::replace(&mut state.is_filling, true) {
            return;
        }
        self.changed.notify_all();
        let before = state.writes;
        self.wait_while(state, |state| state.writes == before);
        self.state.lock().unwrap().is_filling = false;
    }
}

impl StorageBackend for Meeting {
    fn len(&self) -> io::Result<u64> {
        self.storage.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.storage.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.storage.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if data == &ZEROS[..data.len().min(ZEROS.len())] {
            self.before_zeros();
            return self.storage.write(offset, data);
        }
        self.storage.write(offset, data)?;
        let mut state = self.state.lock().unwrap();
        state.was_zeros = false;
        state.writes += 1;
        self.changed.notify_all();
        Ok(())
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "what is shown is what two threads do to one another")]
fn room_that_one_thread_fills_loses_nothing_that_another_writes() {
    let meeting = Arc::new(Meeting::default());
    meeting.set_len(FILL_BYTES).unwrap();
    let disk = Disk::for_rehearsal(Arc::clone(&meeting) as Arc<dyn StorageBackend>).unwrap();
    disk.accept_changes().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| disk.create_handle().write(0, &[1; 10]).unwrap());
        meeting.wait_until_filling();
        disk.create_handle().write(5_000, &[2; 10]).unwrap();
    });
    let contents = contents(&meeting.storage);
    assert_eq!((&contents[..10], &contents[5_000..5_010]), (&[1; 10][..], &[2; 10][..]));
}

const VALUES: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("values");

/// Signals the end of the writer to the readers, also on a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A read that misses redb's cache writes pages that wait in memory, including those of a running commit, on the
/// reader's thread.
#[test]
#[expect(clippy::disallowed_methods, reason = "what is shown is what several threads do to one another")]
fn concurrent_readers_do_not_damage_the_writers_data() {
    const COMMITS: u64 = 60;
    const PUTS: u64 = 3;
    /// Half of it holds the pages of a commit, but not those of all values: most reads miss.
    const CACHE_BYTES: usize = 2 * 1024 * 1024;
    const READERS: u64 = 2;
    let value = |number: u64| (number + 1).to_le_bytes().repeat(25_000);
    let meeting = Arc::new(Meeting::default());
    let disk = Disk::for_rehearsal(Arc::clone(&meeting) as Arc<dyn StorageBackend>).unwrap();
    let create =
        || Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(disk.create_handle()).unwrap();
    drop(create());
    disk.accept_changes().unwrap();
    let mut database = create();
    let (written, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    // A snapshot that is held at the end of a commit keeps redb from leaving pages in memory, so readers wait for the
    // fill.
    let read = |step: u64| {
        meeting.wait_until_filling();
        let there = written.load(Ordering::Acquire);
        if there > 0 {
            let number = step % there;
            let transaction = database.begin_read().unwrap();
            let stored = transaction.open_table(VALUES).unwrap().get(number).unwrap();
            assert!(stored.expect("it was committed").value() == value(number), "value {number} of {there}");
        }
        !ended.load(Ordering::Acquire)
    };
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let read = &read;
            scope.spawn(move || (0..).step_by(7).take_while(|step| read(reader + step)).count());
        }
        let _ends = Ends(&ended);
        for commit in 0..COMMITS {
            let transaction = database.begin_write().unwrap();
            for number in commit * PUTS..(commit + 1) * PUTS {
                transaction.open_table(VALUES).unwrap().insert(number, value(number).as_slice()).unwrap();
            }
            transaction.commit().unwrap();
            written.store((commit + 1) * PUTS, Ordering::Release);
        }
    });
    assert!(database.check_integrity().unwrap(), "pages were spoilt");
}
