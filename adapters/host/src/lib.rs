//! Commands on the host that the service runs on (the port `Host`), and the end of everything that they start.
//!
//! ```text
//! service ── madako __watch-command ── madako __start-command = the command ── whatever it starts
//!            a session of its own,      another session; becomes the command
//!            child subreaper
//! ```
//!
//! Each command has a watcher: this same program, started once more with a hidden word. It is a *child subreaper*, so
//! that whoever loses its parent below it becomes its own child, however often it forked and whatever session it moved to.
//! The service holds a pipe to it; when that is closed, the watcher kills. The service is a child subreaper too: what a
//! watcher leaves that was killed itself becomes the service's own child, and is killed by it (see `orphans`).
//!
//! Guarantees:
//! - A command is over when the last process that it started is. Its exit code is that of its first process, as soon as
//!   nothing of it runs any more: a job that it left in the background may finish its work, until the deadline.
//! - At the deadline, and when the future is dropped, or the service ends, is killed, or stands still for longer than it
//!   may, every descendant is killed, by `SIGKILL` and without a warning: another leader may be about to act on
//!   the same machine, and there is no time to be polite. So it is when the watcher itself is killed, at once.
//! - What the command prints is read to its end and kept up to `MAX_OUTPUT`; it can neither block nor fill memory.
//! - The command begins only while the permit is valid, by a look at the clock right before it is executed.
//! - It gets `/dev/null` as its standard input, the environment of the service without what is the service's own
//!   (see `environment`), and no file that the service opened.
//!
//! - Where notes are kept (see `notes`), a later process knows which commands of an earlier one still have a watcher.
//!
//! Assumes: Linux 5.4 or later with `/proc`; a program that gives its command line to [`entry`] first.
//!
//! Does not: reach what a descendant had started by somebody else (a service manager, a container engine, another host),
//! nor processes of other users when the service does not run as root. What cannot be killed is reported as lost. When the
//! service and a watcher are both killed at once, the command is killed with them, but not what it had started.

mod descendants;
mod environment;
mod limits;
mod notes;
mod orphans;
mod protocol;
mod runner;
mod telemetry;
mod watcher;

pub use notes::{CommandsLeft, LeftCommands};
pub use runner::CommandsOnHost;
pub use telemetry::describe_metrics;
pub use watcher::entry;
