//! Test support: the machine's processes from `/proc`, and waiting for a state.

use std::fs;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(90);

/// Repeats `look` until it returns a value; `glance` is the pause between two calls.
pub(crate) async fn found<T>(what: &str, glance: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: not found within {PATIENCE:?}");
        sleep(glance).await;
    }
}

pub(crate) fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The command line; empty if the process is gone.
pub(crate) fn words(process: i32) -> Vec<String> {
    let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).split('\0').map(str::to_owned).collect()
}

/// The process with this word on its command line: for the address of an instance there is only one.
pub(crate) fn with_word(word: &str) -> Option<i32> {
    processes().find(|process| words(*process).iter().any(|other| other == word))
}

/// The parent of a process; 0 if the process is gone.
pub(crate) fn parent(process: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The second field is a name in parentheses, which may contain anything.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().with_number(1).and_then(|parent| parent.parse().ok()).unwrap_or(0)
}
