//! Commands on the service's own host (the port `Host`), and the end of all their processes.
//!
//! ```text
//! service ── madako __watch-command ── madako __start-command = the command ── its descendants
//!            a session of its own,      another session; becomes the command
//!            child subreaper
//! ```
//!
//! Each command has a watcher: this program, started again with a hidden word. The watcher is a *child subreaper*: a
//! process below it that loses its parent becomes the watcher's child, regardless of forks and sessions. The service
//! holds a pipe to the watcher; when the pipe closes, the watcher kills. The service is a child subreaper too: the
//! descendants of a killed watcher become children of the service, which kills them (see `orphans`).
//!
//! Guarantees:
//! - A command is over when its last process has ended. Its exit code is that of its first process. A background job
//!   may continue until the deadline.
//! - At the deadline, and when the future is dropped or the service ends, is killed, or stalls for longer than it may,
//!   the watcher kills every descendant at once with `SIGKILL`, because another leader may be about to act on the same
//!   machine. The service does the same when the watcher itself is killed.
//! - The output of the command is read to its end and kept up to `MAX_OUTPUT`, so it can neither block nor fill memory.
//! - The command starts only while the permit is valid; the clock is checked directly before the execution.
//! - It gets `/dev/null` as its standard input, the environment of the service without the service's own variables (see
//!   `environment`), and no file that the service opened.
//! - With notes (see `notes`), a later process knows which commands of an earlier one still have a watcher.
//!
//! Assumes: Linux 5.4 or later with `/proc`; a program that passes its command line to [`watcher_main`] first.
//!
//! Does not: reach processes that another program started on behalf of a descendant (a service manager, a container
//! engine, another host), or processes of other users if the service does not run as root. Processes that cannot be
//! killed are reported as lost. If the service and a watcher are killed at the same moment, the command is killed too,
//! but its descendants are not.

mod descendants;
mod environment;
mod limits;
mod notes;
mod orphans;
mod protocol;
mod runner;
mod telemetry;
mod watcher;

pub use notes::{CommandsLeft, EffectNote, LeftCommands};
pub use runner::CommandsOnHost;
pub use telemetry::METRICS;
pub use watcher::watcher_main;
