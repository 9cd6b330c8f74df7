//! Limits and timeouts of this crate, with their units and derivations.

use std::time::Duration;

use madako_protocol::limits::MAX_OUTPUT;

/// Upper bound of a process's `stat` line in `/proc`, in bytes: its name (at most 64, escaped) and 51 numbers.
pub(crate) const MAX_STAT: u64 = 2048;
/// Pause between two scans while new descendants appear; too short for a process to fork away.
pub(crate) const EAGER_PAUSE: Duration = Duration::from_micros(200);
/// Longest pause between two scans, for killed descendants that do not end.
pub(crate) const PATIENT_PAUSE: Duration = Duration::from_millis(200);
/// Number of processes that an error names if they do not end: more do not fit on a line.
pub(crate) const MAX_NAMED: usize = 5;

/// Time for the outputs to close after the last process of the command has ended: the command may have passed them to
/// another process.
pub(crate) const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);
/// Time for which a watcher continues to kill after it has reported a failure. A process that survives this long cannot
/// be killed.
pub(crate) const LAST_PATIENCE: Duration = Duration::from_secs(600);

/// Bytes per read: the capacity of a pipe.
pub(crate) const STREAM_BUFFER: usize = 64 * 1024;

/// Upper bound of an order in bytes. Linux allows 128 KiB for one argument; a command has few arguments.
pub(crate) const MAX_ORDER: usize = 1024 * 1024;
/// Upper bound of all reports of a watcher in bytes: two outputs of 4 KiB, in which each byte may take six in JSON, and
/// room for an error. They fit into a pipe (64 KiB), so a watcher never waits for the service.
pub(crate) const MAX_REPORTS: u64 = 60 * 1024;
/// Time for killing before the watcher reports a failure. A killed process ends within milliseconds, unless it waits
/// for an unresponsive disk or network file system.
pub(crate) const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Silence of a watcher after a command's deadline and [`KILL_PATIENCE`] before it counts as lost: time to read the
/// rest of the outputs on a busy host.
pub(crate) const REPORT_PATIENCE: Duration = Duration::from_secs(10);
/// Time to read the error output of a watcher that has ended: the output is in the pipe by then.
pub(crate) const COMPLAINT_PATIENCE: Duration = Duration::from_secs(1);
/// Kept bytes of a watcher's error output: a few sentences, or the first lines of a panic.
pub(crate) const MAX_COMPLAINT: u64 = 1024;
/// Heartbeats per allowed silence: three may be late before a watcher kills.
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
