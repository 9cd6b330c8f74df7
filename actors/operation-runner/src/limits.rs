//! Limits of this crate, with units and derivations.

use std::time::Duration;

/// Nodes on which one operation starts or restarts rivers (CKE's default of `--max-concurrent-updates`).
pub const MAX_CONCURRENT_UPDATES: usize = 10;
/// Time between two removals of expired certificates from Vault (CKE's default of `--certs-gc-interval`).
pub const CERTS_GC_INTERVAL: Duration = Duration::from_secs(3600);
/// Members below which the service restarts none by itself: with two members, one that is down stops etcd.
pub const LEAST_MEMBERS_TO_RESTART: usize = 3;

/// Time for which a node is left out after a failed command: a restarted container engine is back within it.
pub(crate) const BACK_OFF_FIRST: Duration = Duration::from_secs(30);
/// Maximum time for which a node is left out: an operator waits no longer after the repair of a node.
pub(crate) const BACK_OFF_MOST: Duration = Duration::from_secs(600);
/// Time for which a resource that fails holds resources of later ranks: an operator notices the failure, and resources
/// that do not need it are not delayed for long.
pub(crate) const RANK_HOLD: Duration = Duration::from_secs(30);
/// Node objects that one operation changes: an API server changes so many within [`NODE_CHANGES_DEADLINE`] with 0.3 s for each.
pub(crate) const MAX_NODE_CHANGES: usize = 100;
/// Time after which a command begins no further change of a Node object: with a webhook that does not answer, each change takes
/// 10 s, and a stopped API server waits for the end of the command.
pub(crate) const NODE_CHANGES_DEADLINE: Duration = Duration::from_secs(30);
/// Resources that are read at the same time: an API server answers some thousands of small reads a second.
pub(crate) const MOST_READS: usize = 16;
/// Time for the read of one resource at all API servers together. A server answers within milliseconds; a conversion webhook that
/// does not answer at one server does not answer at the next one.
pub(crate) const RESOURCE_DEADLINE: Duration = Duration::from_secs(5);
/// Restarted containers that the state of a node names: enough to find the pods of one application.
pub(crate) const MOST_CONTAINERS_SHOWN: usize = 3;
/// Refusals of Secrets that an error names: one webhook refuses all of them for the same reason.
pub(crate) const MOST_REFUSALS_SHOWN: usize = 3;
/// Refusals of Secrets in a row after which a command rewrites no further Secret: a webhook refuses all of them for the same reason,
/// and may take some seconds for each.
pub(crate) const REFUSALS_IN_A_ROW: usize = 10;
/// Time after which a command begins no further rewrite of a Secret. An API server rewrites some ten thousand within it, and a
/// stopped member of etcd waits for the end of the command.
pub(crate) const REWRITES_DEADLINE: Duration = Duration::from_secs(120);
/// Configuration files of a component whose comparison is kept: those of some releases and settings of a fleet.
pub(crate) const MAX_KNOWN_FILES: usize = 64;
/// Objects that a pass reads while nothing is to be done, at least. With the health checks, leases and versions of five API
/// servers, and their measurements every 10 s, a service at rest sends fewer than 60 requests in a minute.
pub(crate) const LEAST_REST_READS: usize = 6;
/// Passes within which each object is read while nothing is to be done: ten minutes with the default interval.
pub(crate) const REST_PASSES: usize = 10;
/// Time for the reads of all objects, and for those of the pods of a wave: the answers of a slow API server to a thousand resources
/// still fit.
pub(crate) const OBJECTS_DEADLINE: Duration = Duration::from_secs(60);
/// Time for the versions of all API servers. A server answers within milliseconds, the port gives up one that does not answer
/// after 5 s, and a certificate for the first request may be issued before.
pub(crate) const SERVER_VERSIONS_DEADLINE: Duration = Duration::from_secs(10);
/// Least pause before the next look at objects that wait. A controller manager begins its work some seconds after its
/// start, and each look asks all nodes.
pub(crate) const LEAST_OBJECTS_PAUSE: Duration = Duration::from_secs(10);
/// Passes for which many Node objects are surplus before they are removed, as polls of the registry for the removal guard.
pub(crate) const PASSES_TO_AGREE: u32 = madako_domain::guard::POLLS_TO_AGREE;
/// Time for the states of all nodes and of etcd. A node answers within 10 s of its connection, which takes up to 15 s.
pub(crate) const COLLECT_DEADLINE: Duration = Duration::from_secs(30);
/// Time for the start of a node's actor: the roster starts the actors of a new cluster within a second.
pub(crate) const ACTOR_DEADLINE: Duration = Duration::from_secs(2);
/// Interval at which the runner checks whether that actor exists: the question costs a message.
pub(crate) const ACTOR_POLL: Duration = Duration::from_millis(100);
/// Time after which a command counts as lost: three pulls of an image with 10 min each, and their pauses.
pub(crate) const COMMAND_LOST: Duration = Duration::from_secs(32 * 60);
/// Attempts of a command that waits for etcd, as in CKE.
pub(crate) const WAIT_TRIES: u32 = 10;
/// Pause between these attempts, as in CKE.
pub(crate) const WAIT_PAUSE: Duration = Duration::from_secs(2);
/// Checks that an API server passes after its start before it counts as healthy, and its address as ready. Each asks whether it is
/// ready and reads from etcd: a server that ends soon after its start passes one of them at most.
pub(crate) const GATE_CHECKS: u32 = 3;
/// Pause between two of them.
pub(crate) const GATE_PAUSE: Duration = Duration::from_secs(1);
/// Time within which the end of a component after its start counts as a fault of its arguments or files: a program that does not
/// know an argument ends at once, and one that misses a file or a permission after some retries.
pub(crate) const EARLY_END: Duration = Duration::from_secs(60);
/// Time for an API server to pass the gate after a start, as for the nodes of a wave.
pub(crate) const GATE_DEADLINE: Duration = Duration::from_secs(300);
/// Time for which all other API servers are healthy before one restarts: rivers check their upstreams every 20 s, and take a
/// server back only then.
pub const API_SETTLED: Duration = Duration::from_secs(25);
/// Time that the restart of an API server takes in a fleet without records of one: a graceful end, and the start.
pub(crate) const EXPECTED_OF_SERVERS: Duration = Duration::from_secs(60);
/// Time that another operation on components takes in a fleet without records of one.
pub(crate) const EXPECTED_OF_NODES: Duration = Duration::from_secs(20);
/// Time that the drain of a node takes in a fleet without records of one: twice the usual grace period of a pod.
pub(crate) const EXPECTED_OF_DRAINS: Duration = Duration::from_secs(60);
/// Time for which the nodes of a wave are Ready before the next wave begins: longer than a kubelet with a bad argument runs.
pub(crate) const WAVE_GOOD: Duration = Duration::from_secs(30);
/// Time after which a node of a wave that is not good has failed, as for the health of an API server.
pub(crate) const WAVE_DEADLINE: Duration = Duration::from_secs(300);
/// Least pause before the next look at the nodes of a wave: each look asks all nodes.
pub(crate) const LEAST_WAVE_PAUSE: Duration = Duration::from_secs(5);
/// Time between two measurements of API servers.
pub(crate) const LOAD_INTERVAL: Duration = Duration::from_secs(10);
/// Age up to which an answer of an API server is a present one: half a minute of load is the median of it.
pub(crate) const LOAD_PRESENT: Duration = Duration::from_secs(60);
/// Time before it, which shows how long an API server usually takes.
pub(crate) const LOAD_HISTORY: Duration = Duration::from_secs(3600);
/// Answers of which a median is taken, at least.
pub(crate) const LEAST_SAMPLES: usize = 3;
/// An API server is slow above so many times its usual time.
pub(crate) const SLOW_FACTOR: u32 = 4;
/// Time within which an answer is never slow: four times a few milliseconds are not a load.
pub(crate) const NEVER_SLOW: Duration = Duration::from_millis(50);
/// Time for a kubelet to register its node: some seconds, and more on a busy machine.
pub(crate) const REGISTERED: time::Duration = time::Duration::seconds(60);
/// Time for an API server to complete its requests after SIGTERM: a request lasts up to 60 s.
pub(crate) const API_SERVER_GRACE: Duration = Duration::from_secs(70);
/// Time for the end of an API server before the reboot of its node: its grace, and the commands that end it afterwards.
pub(crate) const END_BEFORE_REBOOT: Duration = Duration::from_secs(85);
/// Time after the end of a reboot command within which the processes of the node may still run.
pub(crate) const GOES_DOWN: Duration = Duration::from_secs(60);
/// Time after the begin of a reboot, apart from that of the command, within which the processes of the node may still run: the
/// checks of the reboot queue take two minutes.
pub(crate) const REBOOT_BEGINS: Duration = Duration::from_secs(120 + GOES_DOWN.as_secs());
/// Health checks at the same time: with 30 dead nodes in 1,000, all checks end within half a minute.
pub(crate) const MOST_CHECKS: usize = 64;
/// Attempts to promote a learner. A database of 8 GiB takes some minutes to reach it.
pub(crate) const PROMOTE_TRIES: u32 = 150;
/// Bytes of an error in a record: the last lines of a program's output, and far below the size of a value in etcd.
pub(crate) const MAX_ERROR: usize = 2048;
/// Validity of the certificates of etcd's members: leaves are valid for a year.
pub(crate) const CERTIFICATE_VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);
/// Validity of Kubernetes' certificates, as in CKE: they are issued anew at each start of their program.
pub(crate) const KUBERNETES_CERTIFICATE_VALIDITY: Duration = Duration::from_secs(87_600 * 3600);
/// Validity of the certificates of webhooks, as in CKE.
pub(crate) const WEBHOOK_CERTIFICATE_VALIDITY: Duration = Duration::from_secs(175_200 * 3600);
/// Difference of two clocks up to which the order of their times is not known: clocks that NTP keeps differ by less than a
/// second, and Vault issues certificates that are valid from 30 s before on.
pub(crate) const CLOCK_SKEW: time::Duration = time::Duration::minutes(5);
/// Id of the first record of a store, as in CKE; ids count upwards by one.
pub(crate) const FIRST_RECORD: i64 = 1;

const _: () = assert!(BACK_OFF_FIRST.as_secs() < BACK_OFF_MOST.as_secs());
const _: () = assert!(
    RANK_HOLD.as_secs() <= BACK_OFF_FIRST.as_secs(),
    "later resources go on before the failed one is tried again"
);
const _: () = assert!(
    ACTOR_POLL.as_millis() < ACTOR_DEADLINE.as_millis()
        && ACTOR_DEADLINE.as_millis() < COLLECT_DEADLINE.as_millis()
);
const _: () = assert!(LEAST_OBJECTS_PAUSE.as_secs() < OBJECTS_DEADLINE.as_secs());
const _: () = assert!(
    SERVER_VERSIONS_DEADLINE.as_secs() < COLLECT_DEADLINE.as_secs(),
    "an API server that does not answer costs a pass less than a node does"
);
const _: () = assert!(
    LEAST_WAVE_PAUSE.as_secs() < WAVE_GOOD.as_secs() && WAVE_GOOD.as_secs() < WAVE_DEADLINE.as_secs(),
    "a wave is looked at several times before it is good, and is good before it fails"
);
const _: () = assert!(
    MAX_NODE_CHANGES as u64 * 300 <= NODE_CHANGES_DEADLINE.as_secs() * 1000,
    "an API server that answers changes all Node objects of an operation in time"
);
const _: () = assert!(
    NODE_CHANGES_DEADLINE.as_secs() + 3 * 15 < COMMAND_LOST.as_secs(),
    "the last change takes 15 s with each of three permits"
);
const _: () = assert!(
    RESOURCE_DEADLINE.as_secs() < OBJECTS_DEADLINE.as_secs(),
    "resources that are not answered leave their places to others"
);
const _: () = assert!(MOST_REFUSALS_SHOWN < REFUSALS_IN_A_ROW);
const _: () = assert!(
    5 * 120 + REWRITES_DEADLINE.as_secs() + 3 * 15 < COMMAND_LOST.as_secs(),
    "five API servers with two minutes each for the list of Secrets, the rewrites, and the last one of them"
);
const _: () = assert!(API_SERVER_GRACE.as_secs() < END_BEFORE_REBOOT.as_secs());
const _: () = assert!(
    END_BEFORE_REBOOT.as_secs() + 65 <= 150,
    "with endpoints, proxies, checks and etcd: the preparation"
);
