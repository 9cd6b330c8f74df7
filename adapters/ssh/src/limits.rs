//! The limits and time-outs of this crate, with unit and derivation.

use std::time::Duration;

/// Time for each step of a connection (TCP, handshake, login), and for a session. CKE's value.
pub const STEP: Duration = Duration::from_secs(5);
/// Time for a session and the start of its command. The login shell may ask a directory service; CKE allows 10 min for
/// that. A status that begins so late still has a second.
pub const BEGIN: Duration = Duration::from_secs(7);
/// Silence after which the client asks the node for a sign of life. CKE's value.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Unanswered requests for a sign of life that a connection survives: a busy node may miss one or two.
pub(crate) const KEEP_ALIVE_MISSES: usize = 3;
/// Time without any progress after which a connection ends, also if its peer accepts no data. It exceeds the time in
/// which keep-alive notices a dead node.
pub(crate) const INACTIVITY: Duration = Duration::from_secs(30);
/// Handshakes at once over all nodes, logins included: each costs about a millisecond of computation, and 5,000 nodes may
/// return at once. TCP connections before them cost no computation, and each node has at most one.
pub const MAX_HANDSHAKES: usize = 64;

/// Bytes that a node may send before the client has read them. It fits a small container's memory 1,000 times.
pub(crate) const WINDOW: u32 = 64 * 1024;
/// Messages of a command that wait for their reader. A full queue stops reading from the node.
pub(crate) const CHANNEL_MESSAGES: usize = 8;

/// Upper bound of the standard output of a command in bytes. A status has some 10 KiB; each label with many extra
/// parameters adds its length.
pub const MAX_STDOUT: usize = 1024 * 1024;
/// Bytes of a certificate in a status. A certificate of CKE with an RSA key has 2 KiB; a longer one counts as unreadable.
pub(crate) const MAX_CERTIFICATE: usize = 16 * 1024;
/// Bytes of a configuration file of Kubernetes; a kubelet's with all its fields has 8 KiB.
pub(crate) const MAX_CONFIGURATION: usize = 64 * 1024;
/// Bytes to keep of the standard error of a command: an error message of the engine has a few hundred.
pub const MAX_STDERR: usize = 4096;
/// Upper bound of a remote command in bytes. Linux allows 128 KiB for one argument of a program.
pub(crate) const MAX_COMMAND: usize = 120 * 1024;
/// Upper bound of the text of a private key in bytes. An RSA key of 16,384 bits has 13 KiB.
pub const MAX_KEY: usize = 32 * 1024;
/// Time for which keys of a source are used without a question: after it a replaced key counts.
pub(crate) const KEYS_FRESH: Duration = Duration::from_secs(60);
/// Pause between two reads after a failed one, and after a refused login.
pub(crate) const KEYS_PAUSE: Duration = Duration::from_secs(10);
/// Time for which the last keys stay in use while their source does not answer: most outages of Vault are shorter.
pub(crate) const KEYS_KEPT: Duration = Duration::from_secs(3600);

/// Longest name of an entry of an archive in bytes: the header field for names.
pub(crate) const MAX_NAME: usize = 100;

/// Time for a status. CKE's value is 10 min; a status of this project is one command.
pub const STATUS_DEADLINE: Duration = Duration::from_secs(10);
/// Seconds in a status for the engine's sum of the sizes of files: the rest of a status takes less than a second.
pub(crate) const SIZE_PATIENCE: u64 = 3;
/// Seconds in a status for the engine's copy of a kubeconfig, of which a control plane node has three: each takes some tens of
/// milliseconds.
pub(crate) const COPY_PATIENCE: u64 = 1;
/// Time for an action, if its permit lasts longer. CKE's value.
pub const ACTION_DEADLINE: Duration = Duration::from_secs(600);
/// Time for all attempts of a pull: an image of 300 MB over 10 Mbit/s takes four minutes.
pub const PULL_DEADLINE: Duration = Duration::from_secs(600);
/// Time limit of the inspection of an etcd snapshot, including a trial restore: a snapshot of 2 GiB takes a minute on a slow disk.
pub const TRIAL_DEADLINE: Duration = Duration::from_secs(120);
/// Attempts of a pull: CKE's number.
pub(crate) const PULL_TRIES: u32 = 3;
/// Seconds between two attempts of a pull: CKE's value.
pub(crate) const PULL_PAUSE: u32 = 10;

/// Seconds between SIGTERM and SIGKILL for a container: docker's default.
pub(crate) const STOP_GRACE: u64 = 10;
/// The same for rivers, which refuse new connections from SIGTERM on: requests end within a second, and watches do not end.
pub(crate) const RIVERS_GRACE: u64 = 1;
/// Seconds of a permit that an action needs after the grace of a stopped container: remove it, and run a new one.
pub(crate) const AFTER_GRACE: u64 = 5;
/// Seconds that a remote command ends before its deadline: one because the clocks are compared in whole seconds, and one
/// in which the engine completes a request of a killed client.
pub(crate) const END_MARGIN: u64 = 2;
/// Shortest time in which an action may begin: two seconds for the network and the action itself.
pub const SHORTEST_ACTION: Duration = Duration::from_secs(END_MARGIN + 2);

const _: () = assert!(
    INACTIVITY.as_secs() > KEEP_ALIVE.as_secs() * (KEEP_ALIVE_MISSES as u64 + 1),
    "keep-alive notices a dead node before inactivity does"
);
const _: () =
    assert!(4 * MAX_CERTIFICATE < MAX_STDOUT / 2, "certificates leave room for the rest of a status");
const _: () =
    assert!(KEYS_PAUSE.as_secs() < KEYS_FRESH.as_secs() && KEYS_FRESH.as_secs() < KEYS_KEPT.as_secs());
const _: () = assert!(STEP.as_secs() < BEGIN.as_secs());
const _: () = assert!(BEGIN.as_secs() + END_MARGIN < STATUS_DEADLINE.as_secs(), "a late start leaves time");
const _: () =
    assert!(SIZE_PATIENCE * 2 + END_MARGIN < STATUS_DEADLINE.as_secs(), "a status does not depend on sizes");
const _: () =
    assert!(PULL_DEADLINE.as_secs() > (PULL_TRIES * PULL_PAUSE) as u64, "the pauses leave time for the pull");
