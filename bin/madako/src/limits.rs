//! The limits and time-outs of this crate, with units and derivations.

use std::time::Duration;

use madako_domain::limits::MOST_OPERATIONS;
use madako_http::limits::BLOCKING;

/// Levels of nesting of a document: as many as the API accepts.
pub(crate) const MAX_DEPTH: usize = madako_json::krake::json::MAX_JSON_DEPTH;
/// Parser events of a file: a hundred manifests of a thousand values each have fewer.
pub(crate) const MAX_EVENTS: usize = 1_000_000;
/// Parser events that aliases may add in total: as many as in a template. An alias bomb needs millions.
pub(crate) const MAX_REPLAYED_EVENTS: usize = 100_000;
/// Bytes of a file of settings; real ones have some hundred.
pub(crate) const MAX_SETTINGS_BYTES: u64 = 1 << 20;

/// Examples in the help of a group of commands: more would take the screen from its list of commands.
pub(crate) const MAX_GROUP_EXAMPLES: usize = 4;

/// Mean time of a boot of a simulated machine: an operator who tries a reboot waits for it.
pub(crate) const SIMULATED_BOOT: Duration = Duration::from_secs(10);
/// Time in which a pod on a simulated machine ends after its eviction: as in most clusters.
pub(crate) const SIMULATED_POD_END: Duration = Duration::from_secs(2);
/// Pause between two looks of the simulated Kubernetes and etcd at the committed cluster. An answer of etcd is valid for three
/// intervals of the service, which are rarely below a second.
pub(crate) const SIMULATED_FOLLOW: Duration = Duration::from_millis(200);

/// Serials or addresses that a message names: about as many as fit on a line.
pub(crate) const MAX_FILES_NAMED: usize = 5;

/// Longest line in bytes; cybozu-go/log has the same limit.
pub(crate) const MAX_LINE: usize = 1 << 20;

/// Divisor of the session lease's time to live: for this part of it the service may stall before its commands are
/// killed. The service renews the lease three times in that time, so that at least two parts remain when it stops.
pub(crate) const SILENCE_SHARE: u32 = 3;

/// Time limit of one export, and of the last one when the service ends.
pub(crate) const EXPORT_DEADLINE: Duration = Duration::from_secs(5);

/// Concurrent requests to providers: half as many as the fetcher of the running service has.
pub(crate) const FETCHES_AT_ONCE: usize = 16;
/// Time limit for all providers together; a value that is missing then is assumed. Six deadlines of one provider.
pub(crate) const PROVIDERS_TAKE: Duration = Duration::from_secs(60);

/// Attempts of a change that depends on a read value, against concurrent changes.
pub(crate) const MAX_ACCESS_TRIES: usize = 5;
/// Bytes of a value: the embedded store accepts requests of 10 MiB, and etcd advises against more. The rest of a
/// request needs some, too.
pub(crate) const MAX_VALUE: usize = (10 << 20) - (1 << 12);

/// Time limit of a request: the API answers within milliseconds, or its actor is restarting.
pub(crate) const DEMO_DEADLINE: Duration = Duration::from_secs(5);
/// Bytes of an answer: the demo's lists have some 30 KiB.
pub(crate) const MAX_DEMO_ANSWER: usize = 4 << 20;
/// Characters of a refusal in a message: a few lines of a terminal.
pub(crate) const MAX_SERVER_TEXT: usize = 300;

/// Items of one file that an error names; the operator corrects them in a few rounds.
pub(crate) const MAX_PROBLEMS: usize = 20;

/// Resources in one transaction: etcd's own limit on operations (`--max-txn-ops`).
pub(crate) const MAX_RESOURCES: usize = 128;
/// Attempts of a replacement, against concurrent changes of the resource.
pub(crate) const MAX_BOOTSTRAP_TRIES: usize = 5;
/// Characters of a text from outside in a message: more do not fit on a line.
pub(crate) const MAX_TEXT_SHOWN: usize = 60;

/// Records shown before new ones without a given number (ckecli's default).
pub(crate) const FIRST_FOLLOWED: usize = 20;
/// Time limit of a completion: an operator presses a key and waits.
pub(crate) const COMPLETION_DEADLINE: Duration = Duration::from_secs(2);
/// Names that a completion offers; a shell asks before it shows more than about a hundred.
pub(crate) const MAX_COMPLETED: usize = 1_000;
/// Maximum number of records: etcd would not hold as many.
pub(crate) const MOST_RECORDS: u32 = u32::MAX;

/// Bytes of a line with a user name; a longer one is none.
pub(crate) const MAX_LOGIN_NAME: u64 = 256;

/// Bytes of a certificate's common name: the upper bound of X.520.
pub(crate) const MAX_COMMON_NAME: usize = 64;
/// Validity of a certificate for etcd's root, as ckecli issues it.
pub(crate) const ROOT_VALIDITY: Duration = Duration::from_secs(3600);
/// Maximum validity of a certificate for another user: CKE's role of Vault has the same.
pub(crate) const MAX_USER_VALIDITY: Duration = Duration::from_secs(87_600 * 3600);

/// Maximum validity of a certificate for a user of Kubernetes: CKE's role of Vault has the same.
pub(crate) const MAX_KUBERNETES_VALIDITY: Duration = Duration::from_secs(48 * 3600);
/// Time limit of a look-up of the API server's name; where it does not resolve, the address of a node is used.
pub(crate) const LOOK_UP: Duration = Duration::from_secs(5);
/// Time for which a command of an operator may begin an effect: the longest proof of a backup lasts less.
pub(crate) const OPERATOR_ACTS: Duration = Duration::from_secs(3600);
/// Time for which a command may stall before the programs that it started are killed: a host that pages is slow.
pub(crate) const COMMAND_SILENCE: Duration = Duration::from_secs(20);

/// Time limit of the leader's page: the leader answers from memory.
pub(crate) const OPS_DEADLINE: Duration = Duration::from_secs(10);
/// Time limit of the pages that `madako status` shows: with a silent leader, the screen comes later by this time.
pub(crate) const STATUS_DEADLINE: Duration = Duration::from_secs(2);
/// Bytes that the file system of the embedded store should have left: its file grows by up to its size when it is compacted.
pub(crate) const FREE_SPACE: u64 = 256 << 20;
/// Time before the end of a certificate in which an operator should replace it: the service renews its own as
/// early.
pub(crate) const SOON: time::Duration = time::Duration::days(30);
/// Difference of clocks that an operator should correct: a date in HTTP has whole seconds, and its transport takes time.
pub(crate) const CLOCK_SKEW: time::Duration = time::Duration::seconds(3);
/// Repairs, racks, machines and keys that a line of `madako status` names; lists have all.
pub(crate) const MAX_NAMED_IN_LINE: usize = 5;
/// Racks and stored values that `madako status` shows as items of their own: a large failure fits the screen.
pub(crate) const MAX_ITEMS_OF_RULE: usize = 3;
/// Operations in the story of a node: an operator looks at the last ones, and `madako history` has all.
pub(crate) const NODE_RECORDS: usize = 10;
/// Interval at which `--watch` reads the store or a page of the leader, which changes once in a reconcile pass.
pub(crate) const LIST_PAUSE: Duration = Duration::from_secs(2);
/// Interval at which `--watch` queries the registry, whose answer has thousands of machines.
pub(crate) const REGISTRY_PAUSE: Duration = Duration::from_secs(10);
/// Interval at which `--watch` reads all nodes, each over its own SSH connection.
pub(crate) const NODES_PAUSE: Duration = Duration::from_secs(30);
/// Applications whose explanations a list shows: the leader explains one in a millisecond or so beside hundreds of clusters.
pub(crate) const MAX_EXPLAINED: usize = 500;
/// Concurrent requests for explanations: the leader answers one after another, so that more would only queue up there.
pub(crate) const EXPLAINED_AT_ONCE: usize = 8;
/// Time for the explanations of a list: an operator waits for the list.
pub(crate) const EXPLAINING_TAKES: Duration = Duration::from_secs(5);
/// Bytes of a path of a snapshot: Linux allows 4,096.
pub(crate) const MAX_SNAPSHOT_PATH: usize = 4096;
/// Bytes of the leader's page: 5,000 nodes with errors of 1 KiB each have a third of it.
pub(crate) const MAX_OPS_PAGE: usize = 16 << 20;

/// Attempts of an update, against concurrent changes of the resource.
pub(crate) const MAX_TRIES: usize = 5;

/// Bytes of a certificate or key: a bundle has some hundred kilobytes.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 20;

/// Time limit of connecting, including TLS: over slow links, a lost SYN costs a second and its repetition two.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of a request with its answer: a list of all applications of a large site takes a few seconds in Krake.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// Additional time for a request that waits for a state: the service itself waits for up to 60 s.
pub(crate) const WAIT: Duration = Duration::from_secs(60);
/// Bytes of an answer: 100,000 applications of Krake's usual size.
pub(crate) const MAX_ANSWER_BYTES: usize = 192 << 20;
/// Bytes of a certificate or key file: a chain has a few kilobytes, a bundle of all authorities some hundred.
pub(crate) const MAX_PEM_BYTES: u64 = 4 << 20;
/// Characters of the service's text in a message: a screen.
pub(crate) const MAX_ANSWER_SHOWN: usize = 2000;

/// Dependents named before the question: more would scroll the first ones off a terminal.
pub(crate) const MAX_NAMED: usize = 20;

/// Bytes of a password; longer input is a file given by mistake.
pub(crate) const MAX_PASSWORD_BYTES: usize = 4096;

/// Attempts of a change, against concurrent writes of the service to the entry.
pub(crate) const MAX_CHANGE_TRIES: usize = 20;

/// Attempts of an addition, against concurrent additions: each failed attempt means that another one succeeded.
pub(crate) const MAX_ADD_TRIES: usize = 100;

/// Bytes of a user-defined resource: a transaction with it stays below 1.5 MiB, etcd's own limit.
pub(crate) const MAX_RESOURCE_BYTES: usize = 1 << 20;
/// Resources of one file that are set or deleted; neco has about a hundred.
pub(crate) const MAX_FILE_RESOURCES: usize = 1_000;

/// Entries that one command adds to the reboot queue: the largest cluster has 5,000 nodes.
pub(crate) const MAX_REBOOTS_ADDED: usize = 5_000;
/// Entries in one transaction: with the counter, fewer than etcd's limit on operations.
pub(crate) const REBOOTS_AT_ONCE: usize = 100;
/// Pause between two dry runs of evictions: at most 20 a second, so that a forecast does not disturb the API server.
pub(crate) const DRY_RUN_PAUSE: Duration = Duration::from_millis(50);

const _: () =
    assert!(REBOOTS_AT_ONCE < MOST_OPERATIONS, "one transaction stores the entries and the counter");
const _: () = assert!(CONNECT_TIMEOUT.as_secs() < DEADLINE.as_secs());
const _: () = assert!(WAIT.as_secs() >= BLOCKING.as_secs(), "a command outlasts the service's own waiting");
const _: () = assert!(MAX_RESOURCES <= MOST_OPERATIONS, "one transaction stores the resources");
