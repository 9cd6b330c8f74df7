//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

use madako_protocol::limits::MAX_OUTPUT;

/// Greatest length of a process's line in `/proc`, in bytes: its name (at most 64, escaped) and 51 numbers.
pub(crate) const MAX_STAT: u64 = 2048;
/// Pause between two looks while new descendants appear: a process that forks must not have time for it.
pub(crate) const EAGER_PAUSE: Duration = Duration::from_micros(200);
/// Longest pause between two looks, for descendants that are killed and do not end.
pub(crate) const PATIENT_PAUSE: Duration = Duration::from_millis(200);
/// Most processes that are named when they do not end.
pub(crate) const MAX_NAMED: usize = 5;

/// How long the outputs may stay open after the last process of the command ended: another process may hold them, to which
/// the command handed them.
pub(crate) const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);
/// How long a watcher goes on killing after it has reported that it does not succeed. Processes that nothing can kill for
/// so long are beyond a watcher.
pub(crate) const LAST_PATIENCE: Duration = Duration::from_secs(600);

/// Bytes that are read at a time: as many as a pipe holds.
pub(crate) const STREAM_BUFFER: usize = 64 * 1024;

/// Greatest length of an order, in bytes. What Linux takes as one argument is 128 KiB; a command has few.
pub(crate) const MAX_ORDER: usize = 1024 * 1024;
/// Greatest length of all reports of a watcher, in bytes: two outputs of 4 KiB, in which each byte may take six in JSON,
/// and room to say what is wrong. It fits into a pipe (64 KiB), so that a watcher never waits for the service.
pub(crate) const MAX_REPORTS: u64 = 60 * 1024;
/// How long killing may take before the watcher reports that it does not succeed. A killed process ends within
/// milliseconds, unless it waits for a disk or a network file system that does not answer.
pub(crate) const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// How long a watcher may stay silent after a command's deadline and [`KILL_PATIENCE`] before it counts as lost: time to
/// read the rest of the outputs, on a busy host.
pub(crate) const REPORT_PATIENCE: Duration = Duration::from_secs(10);
/// How long the watcher's last words are waited for once it has ended.
pub(crate) const COMPLAINT_PATIENCE: Duration = Duration::from_secs(1);
/// Greatest length of a watcher's last words that is kept, in bytes.
pub(crate) const MAX_COMPLAINT: u64 = 1024;
/// How many signs of life fit into the time without one after which a watcher kills.
pub(crate) const SIGNS_IN_SILENCE: u32 = 4;

const _: () = assert!(
    MAX_REPORTS as usize >= 2 * 6 * MAX_OUTPUT && (MAX_REPORTS as usize) < STREAM_BUFFER,
    "reports of two outputs fit into a pipe"
);
const _: () = assert!(
    EAGER_PAUSE.as_micros() < PATIENT_PAUSE.as_micros()
        && PATIENT_PAUSE.as_millis() < KILL_PATIENCE.as_millis()
);
const _: () = assert!(
    OUTPUT_PATIENCE.as_millis() < REPORT_PATIENCE.as_millis(),
    "a watcher reports before it counts as lost"
);
const _: () = assert!(KILL_PATIENCE.as_millis() < LAST_PATIENCE.as_millis());
