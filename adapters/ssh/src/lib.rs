//! Nodes over SSH (the port `NodeDriver`), with the docker command line of the node behind it.
//!
//! Each command on a node runs in two steps, so that it never outlives its deadline, however late the network delivers
//! it:
//!
//! ```text
//! client                                        node (process group of its own)
//!   exec: shell with a script  ─────────────▶
//!                              ◀─────────────   nonce, process id, uptime U
//!   the uptime D at which it must have ended,
//!   the standard input         ─────────────▶   exec timeout (D - uptime) the script
//!                              ◀─────────────   output, exit code
//! ```
//!
//! Guarantees:
//! - A connection has proved the pinned host key, if there is one.
//! - A private key of a source is used at most an hour after it was read, and asked for again after a refused login.
//! - An action begins only with a valid permit, and has ended on the node before the permit does. A pull is the
//!   exception.
//! - A command that is late, or whose future is dropped, is killed with its process group. Without a connection it ends
//!   at its deadline.
//! - An answer is bounded in size and time, and is used whole or not at all.
//! - No file stays on a node. Private contents appear in no argument, error or log.
//!
//! Assumes: a login shell that understands POSIX syntax; `/proc`, coreutils and docker 20.10 or later on the node; a
//! login that may use docker; an SSH server that starts each command as the leader of a process group (OpenSSH does).
//!
//! Does not: retry, back off, or keep host keys. The engine may complete a request that a killed client has sent.

mod connection;
mod driver;
mod host_key;
mod key;
mod keyring;
mod label;
pub mod limits;
mod remote;
mod script;
mod status;
mod stream;
mod tar;

#[cfg(test)]
mod tests;

pub use driver::{SshDriver, SshOptions};
pub use key::{KeyError, SshKey, read_key};
