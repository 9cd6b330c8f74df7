//! Names the environment variables of the service that a command on the host does not inherit.

/// Prefixes of the service's own variables.
///
/// `MADAKO_` belongs to this program. `OS_` holds OpenStack passwords for `madako os`; a service started from such a
/// shell has them. The others belong to systemd's protocols: with them a command could report in the service's name,
/// take its sockets, or read its credentials.
const OURS: [&str; 9] = [
    "MADAKO_",
    "OS_",
    "CREDENTIALS_DIRECTORY",
    "FDSTORE",
    "JOURNAL_STREAM",
    "LISTEN_",
    "MAINPID",
    "NOTIFY_SOCKET",
    "WATCHDOG_",
];

/// True if a variable is withheld from commands.
pub(crate) fn is_ours(name: &std::ffi::OsStr) -> bool {
    let name = name.as_encoded_bytes();
    OURS.iter().any(|ours| name.starts_with(ours.as_bytes()))
}
