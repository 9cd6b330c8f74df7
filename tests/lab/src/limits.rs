//! Limits and time-outs of the test lab. The loaded machine of CI has two cores.

use std::time::Duration;

/// Machines of a lab. Their addresses end with 11 and more; each takes some 150 MB of memory, and 1 GB with Kubernetes.
pub const MAX_MACHINES: usize = 16;
/// Time limit of the keeper's answer, which takes 50 ms.
pub(crate) const KEEPER_WITHIN: Duration = Duration::from_secs(30);
/// Time limit of a change of namespaces, mounts or devices: 100 ms.
pub(crate) const CHANGE_WITHIN: Duration = Duration::from_secs(30);
/// Time limit of an image: 1 s for etcd's, 3 s for that of Kubernetes.
pub(crate) const IMAGE_WITHIN: Duration = Duration::from_secs(60);
/// Time limit of a machine's start, with dockerd and sshd: 2 s, with the cores shared by others up to 10 s.
pub(crate) const START_WITHIN: Duration = Duration::from_secs(60);
/// Time limit of a command on a machine, of which loading an image and stopping a container are the longest.
pub(crate) const COMMAND_WITHIN: Duration = Duration::from_secs(60);
/// Time limit of a client's end: it waits 30 s for the last events, and as long for the answer about its objects.
pub(crate) const JUDGE_WITHIN: Duration = Duration::from_secs(120);
/// Interval between two looks at a machine that starts: a twentieth of the usual start.
pub(crate) const GLANCE: Duration = Duration::from_millis(100);
/// Bytes that a message shows of a program's errors or of a log: its last lines.
pub(crate) const MAX_TOLD: usize = 2000;

const _: () = assert!(GLANCE.as_millis() < START_WITHIN.as_millis());
const _: () = assert!(
    CHANGE_WITHIN.as_secs() <= COMMAND_WITHIN.as_secs() && COMMAND_WITHIN.as_secs() < JUDGE_WITHIN.as_secs()
);
