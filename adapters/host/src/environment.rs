//! What of the service's environment a command does not get.

/// Beginnings of names of variables that are the service's own.
///
/// `MADAKO_` is ours. `OS_` is where `madako os` looks for passwords of OpenStack, and a service that was started from such a
/// shell has them. The others are how systemd talks to the service: with them a command could report in its name, take its
/// sockets, or read its credentials.
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

/// Whether a variable stays with the service.
pub(crate) fn is_ours(name: &std::ffi::OsStr) -> bool {
    let name = name.as_encoded_bytes();
    OURS.iter().any(|ours| name.starts_with(ours.as_bytes()))
}
