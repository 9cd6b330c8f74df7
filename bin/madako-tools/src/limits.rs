//! Limits and time-outs of the tools, with their units and derivations.

use std::time::Duration;

/// Upper bound of connections that rivers forward at a time. The API server keeps about a hundred connections to etcd,
/// a node a few dozen to the API servers. Each needs two file descriptors, and at worst two blocks of
/// [`RELAY_BUFFER`], which are 256 MiB for all. Further connections wait in the kernel's queue.
pub(crate) const MAX_CONNECTIONS: usize = 2048;
/// File descriptors beside those of connections: outputs, the log, the listener, the poller, signals, and the health
/// checks of [`MAX_UPSTREAMS`].
pub(crate) const RESERVED_FILES: u64 = 64;
/// Upper bound of upstreams, which are control plane nodes. Kubernetes advises against more than seven.
pub(crate) const MAX_UPSTREAMS: usize = 32;
/// Bytes per read. Bulk transfers need few system calls with it, and it fits into the second-level cache.
pub(crate) const RELAY_BUFFER: usize = 64 * 1024;
/// Pause after a failed accept, for example for want of file descriptors: the failure repeats until a connection ends.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time for connections to end after SIGTERM; CKE's default.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a connection to an upstream; CKE's default.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a connection where `--dial-timeout` is 0. Linux itself stops after 127 s (`tcp_syn_retries` = 6).
pub(crate) const LONGEST_DIAL: Duration = Duration::from_secs(130);
/// Time between keep-alive probes; CKE's default.
pub(crate) const DIAL_KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Shortest and longest time between keep-alive probes that Linux accepts (`TCP_KEEPINTVL`, in seconds).
pub(crate) const KEEP_ALIVE_RANGE: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(32767));
/// Time between health checks of an upstream; CKE's default.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(20);
/// Shortest time between health checks: each is a connection of each node to each upstream.
pub(crate) const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Upper bound of a file in bytes. Certificates and keys have some KiB, configuration files some tens of KiB.
pub(crate) const MAX_FILE: u64 = 1024 * 1024;
/// Upper bound of an archive in bytes. It is read and checked as a whole before the first file is written.
pub(crate) const MAX_ARCHIVE: u64 = 16 * 1024 * 1024;
/// Upper bound of plugins that an image holds. The project of the CNI plugins has twenty.
pub(crate) const MAX_PLUGINS: usize = 64;

const _: () = assert!(MAX_FILE < MAX_ARCHIVE);
const _: () = assert!(RESERVED_FILES as usize > MAX_UPSTREAMS + 16);
const _: () = assert!(DIAL_TIMEOUT.as_millis() < CHECK_INTERVAL.as_millis(), "a check ends before the next");
