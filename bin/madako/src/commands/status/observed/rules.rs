//! The table of the rules. Where an alert of `grafana/rules` is about the same fault, its summary is the reason that an
//! operator reads.

use super::{Rule, Since, Values, When};

const MINUTES: f64 = 60.0;
const HOURS: f64 = 60.0 * MINUTES;
const DAYS: f64 = 24.0 * HOURS;

/// Obstacles of repairs that do not clear by themselves.
const REPAIRS_NEED_OPERATOR: &[&str] =
    &["missing", "unusable-configuration", "no-cluster", "no-kubernetes", "no-host", "no-records"];
/// Obstacles of repairs that other rules report.
const REPAIRS_ELSEWHERE: &[&str] = &["disabled", "rack-held", "hold-unreadable", "rack-unknown"];
const REBOOTS_NEED_OPERATOR: &[&str] =
    &["no-command", "unusable-configuration", "no-cluster", "no-kubernetes", "no-host"];
const REBOOTS_ELSEWHERE: &[&str] = &["disabled", "stuck"];
/// Obstacles of operations on nodes that do not clear by themselves.
const OPERATIONS_NEED_OPERATOR: &[&str] = &[
    "authorities",
    "unclear-image",
    "foreign-container",
    "few-members",
    "volume-changed",
    "older-image",
    "restore-refused",
    "other-runtime",
    "unusable-options",
];
const OPERATIONS_ELSEWHERE: &[&str] = &["unreachable", "backing-off", "unclear-bootstrap"];

const REPAIRS_SINCE: &str = "madako_repair_waiting_since_timestamp_seconds";
const REBOOTS_SINCE: &str = "madako_reboot_waiting_since_timestamp_seconds";
const HELD_SINCE: &str = "madako_operations_held_since_timestamp_seconds";
const ETCD_SINCE: &str = "madako_etcd_fault_since_timestamp_seconds";
const BLOCKED_SINCE: &str = "madako_planner_blocked_since_timestamp_seconds";
const APPLICATIONS: &str = "madako_placement_applications";
const APPLICATIONS_SINCE: Since = Since::Gauge("madako_placement_applications_since_timestamp_seconds");

const BASE: Rule = Rule {
    rule: "",
    alert: None,
    what: "",
    metric: "",
    label: None,
    values: Values::All,
    when: When::Positive,
    since: Since::Unknown,
    lasting_seconds: 0.0,
    is_of_owner: false,
    why: None,
    remedy: "",
};
/// A rule on a time since which something waits, by reason.
const WAITING: Rule = Rule { label: Some("reason"), since: Since::Value, ..BASE };
const ETCD: Rule = Rule {
    what: "etcd of the cluster",
    metric: ETCD_SINCE,
    label: Some("state"),
    since: Since::Value,
    ..BASE
};
const PLACEMENT: Rule = Rule { what: "placement", is_of_owner: true, ..BASE };
const OUTCOMES: Rule =
    Rule { metric: APPLICATIONS, label: Some("outcome"), since: APPLICATIONS_SINCE, ..PLACEMENT };

/// In the order of the screen.
pub(super) const RULES: &[Rule] = &[
    Rule {
        rule: "invariant-violation",
        alert: Some("MadakoInvariantViolation"),
        what: "decisions",
        metric: "madako_invariant_violation_timestamp_seconds",
        label: Some("invariant"),
        when: When::NewerThan(HOURS),
        since: Since::Value,
        remedy: "report this fault of Madako, with the log of the leader, which has the refused decision",
        ..BASE
    },
    Rule {
        rule: "actor-down",
        alert: Some("MadakoActorDown"),
        what: "actors",
        metric: "madako_actor_up",
        since: Since::Recorded,
        label: Some("actor"),
        values: Values::Only(&[
            "leader",
            "http",
            "placement-api",
            "reign",
            "sabakan-poller",
            "cluster-planner",
            "repair-queue",
            "reboot-queue",
            "nodes",
            "operation-runner",
        ]),
        when: When::Zero,
        remedy: "look for the actor in the log of the leader; a restart of the leader lets another instance lead",
        ..BASE
    },
    Rule {
        rule: "actor-down",
        alert: Some("MadakoActorDown"),
        metric: "madako_actor_up",
        since: Since::Recorded,
        label: Some("actor"),
        values: Values::Only(&["metrics-fetcher", "app-scheduler"]),
        when: When::Zero,
        remedy: "look for the actor in the log of the leader; a restart of the leader lets another instance lead",
        ..PLACEMENT
    },
    Rule {
        rule: "actor-stuck",
        alert: Some("MadakoActorStuck"),
        what: "actors",
        metric: "madako_actor_handling_since_timestamp_seconds",
        label: Some("actor"),
        since: Since::Value,
        lasting_seconds: MINUTES,
        remedy: "restart the leader: another instance leads at once",
        ..BASE
    },
    Rule {
        rule: "store-failed",
        alert: Some("MadakoStoreFailed"),
        what: "store",
        metric: "madako_store_failure_timestamp_seconds",
        when: When::NewerThan(HOURS),
        since: Since::Value,
        remedy: "madako store snapshot --to FILE on another machine, then check the disk",
        ..BASE
    },
    Rule {
        rule: "open-files",
        alert: Some("MadakoOpenFiles"),
        what: "process of the leader",
        metric: "process_open_fds",
        when: When::Exceeds("process_max_fds", 0.8),
        remedy: "find the clients with many connections or watches, or raise LimitNOFILE of the unit",
        ..BASE
    },
    Rule {
        rule: "unusable-value",
        alert: Some("MadakoStateFaults"),
        what: "stored values",
        metric: "madako_state_faults",
        since: Since::Recorded,
        remedy: "the log of the leader names key and field; store a valid value",
        ..BASE
    },
    Rule {
        rule: "registry-silent",
        alert: Some("MadakoRegistryUnanswered"),
        what: "plans",
        metric: BLOCKED_SINCE,
        values: Values::Only(&["no-observation", "stale-observation"]),
        lasting_seconds: 10.0 * MINUTES,
        remedy: "check sabakan and the log of the leader; madako doctor asks the registry",
        ..WAITING
    },
    Rule {
        rule: "registry-silent",
        what: "plans",
        metric: BLOCKED_SINCE,
        values: Values::Only(&["other-query"]),
        lasting_seconds: 30.0,
        why: Some("the registry has not answered since its URL or the variables of the query changed"),
        remedy: "madako doctor asks the registry; madako sabakan set-url URL corrects the URL",
        ..WAITING
    },
    Rule {
        rule: "planner-blocked",
        alert: Some("MadakoPlannerBlocked"),
        what: "plans",
        metric: BLOCKED_SINCE,
        values: Values::Only(&["no-state", "operation-due", "quorum"]),
        lasting_seconds: 15.0 * MINUTES,
        remedy: "madako plan has the reason; madako ops shows operations and members of etcd",
        ..WAITING
    },
    Rule {
        rule: "duplicate-addresses",
        alert: Some("MadakoDuplicateAddresses"),
        what: "registry",
        metric: "madako_duplicate_addresses",
        since: Since::Recorded,
        remedy: "remove the older entries from sabakan; the log of the leader names addresses and serials",
        ..BASE
    },
    Rule {
        rule: "reports-refused",
        alert: Some("MadakoReportsRefused"),
        what: "automatic repairs",
        metric: "madako_reports_refused",
        since: Since::Recorded,
        label: Some("reason"),
        values: Values::Only(&["too-many"]),
        remedy: "madako repair-queue explain names them and the limit; look for a common cause. madako repair-queue delete-finished removes ended entries, which count; madako constraints set maximum-repair-queue-entries N sets the limit",
        ..BASE
    },
    Rule {
        rule: "repairs-blocked",
        alert: Some("MadakoRepairBlocked"),
        what: "repairs",
        metric: REPAIRS_SINCE,
        values: Values::Only(REPAIRS_NEED_OPERATOR),
        remedy: "madako repair-queue explain has the reason of each entry",
        ..WAITING
    },
    Rule {
        rule: "repairs-wait",
        alert: Some("MadakoRepairWaits"),
        what: "repairs",
        metric: REPAIRS_SINCE,
        values: Values::Except(&[REPAIRS_NEED_OPERATOR, REPAIRS_ELSEWHERE]),
        lasting_seconds: 6.0 * HOURS,
        remedy: "madako repair-queue explain has the reason of each entry",
        ..WAITING
    },
    Rule {
        rule: "reboots-stuck",
        what: "reboots",
        metric: REBOOTS_SINCE,
        values: Values::Only(&["stuck"]),
        why: Some("nodes did not boot in time, so no other node is rebooted"),
        remedy: "madako reboot-queue explain names them; repair the nodes, or madako reboot-queue cancel INDEX",
        ..WAITING
    },
    Rule {
        rule: "reboots-blocked",
        what: "reboots",
        metric: REBOOTS_SINCE,
        values: Values::Only(REBOOTS_NEED_OPERATOR),
        why: Some("Reboots wait for an operator: {{ $labels.reason }}"),
        remedy: "madako reboot-queue explain has the reason of each entry",
        ..WAITING
    },
    Rule {
        rule: "reboots-wait",
        what: "reboots",
        metric: REBOOTS_SINCE,
        values: Values::Except(&[REBOOTS_NEED_OPERATOR, REBOOTS_ELSEWHERE]),
        lasting_seconds: 6.0 * HOURS,
        why: Some("Reboots have been waiting for hours: {{ $labels.reason }}"),
        remedy: "madako reboot-queue explain has the reason of each entry",
        ..WAITING
    },
    Rule {
        rule: "kubernetes-unreachable",
        alert: Some("MadakoTaintsUnknown"),
        what: "Kubernetes",
        metric: "madako_node_taints_known",
        when: When::Zero,
        since: Since::Gauge("madako_node_taints_timestamp_seconds"),
        why: Some("the API server gives no good answer: taints are unknown, and drains wait"),
        remedy: "madako doctor asks the API server; check the kubeconfig of kubernetes.kubeconfig",
        ..BASE
    },
    Rule {
        rule: "nodes-unreachable",
        alert: Some("MadakoNodeUnreachable"),
        what: "nodes",
        metric: "madako_nodes",
        label: Some("state"),
        values: Values::Only(&["unreachable"]),
        since: Since::Gauge("madako_nodes_unreachable_since_timestamp_seconds"),
        why: Some("nodes that do not answer over SSH: {{ $value }}"),
        remedy: "madako node list --sort-by state names each with its error",
        ..BASE
    },
    Rule {
        rule: "nodes-parked",
        alert: Some("MadakoNodeParked"),
        what: "nodes",
        metric: "madako_actor_parked",
        since: Since::Recorded,
        remedy: "the log of the leader has the errors of the actors; look for something unusual on these nodes",
        ..BASE
    },
    Rule {
        rule: "bootstrap-unclear",
        alert: Some("MadakoBootstrapUnclear"),
        what: "etcd of the cluster",
        metric: HELD_SINCE,
        values: Values::Only(&["unclear-bootstrap"]),
        remedy: "madako ops has the contradiction, and what each control plane node has",
        ..WAITING
    },
    Rule {
        rule: "etcd-unhealthy",
        alert: Some("MadakoEtcdUnhealthy"),
        values: Values::Only(&["no-majority"]),
        remedy: "madako ops shows its members; madako etcd restore, if a majority of their data is lost",
        ..ETCD
    },
    Rule {
        rule: "etcd-members",
        alert: Some("MadakoEtcdMemberOutOfSync"),
        values: Values::Only(&["out-of-sync", "missing"]),
        lasting_seconds: 15.0 * MINUTES,
        why: Some("etcd survives fewer failures than it should: members are {{ $labels.state }}"),
        remedy: "madako ops shows its members and what is held; look at etcd's log on these nodes",
        ..ETCD
    },
    Rule {
        rule: "etcd-backup-old",
        alert: Some("MadakoEtcdBackupOld"),
        what: "etcd of the cluster",
        metric: "madako_etcd_backup_age_seconds",
        since: Since::Age,
        when: When::Exceeds("madako_etcd_backup_interval_seconds", 2.0),
        remedy: "madako etcd local-backup --prove on the leader's host shows the error",
        ..BASE
    },
    Rule {
        rule: "certificate-ends",
        alert: Some("MadakoCertificateEnds"),
        what: "certificates",
        metric: "madako_certificates_end_timestamp_seconds",
        label: Some("of"),
        when: When::EndsWithin(14.0 * DAYS),
        since: Since::Before(14.0 * DAYS),
        why: Some("the next end of a certificate of {{ $labels.of }}: {{ $value }}; it was not renewed"),
        remedy: "madako ops and madako history show the operation of its renewal; madako ca get tells which authorities exist",
        ..BASE
    },
    Rule {
        rule: "certificates-unreadable",
        alert: Some("MadakoCertificateUnreadable"),
        what: "certificates",
        metric: "madako_nodes_with_unreadable_certificates",
        since: Since::Recorded,
        why: Some("nodes whose certificates cannot be read, and so are not renewed: {{ $value }}"),
        remedy: "madako node list names the nodes; madako node show ADDRESS names the files",
        ..BASE
    },
    Rule {
        rule: "operations-held",
        alert: Some("MadakoOperationHeld"),
        what: "operations on nodes",
        metric: HELD_SINCE,
        values: Values::Only(OPERATIONS_NEED_OPERATOR),
        lasting_seconds: MINUTES,
        why: Some("Operations on nodes wait for an operator: {{ $labels.reason }}"),
        remedy: "madako ops has the operation, its nodes and the reason in words",
        ..WAITING
    },
    Rule {
        rule: "operations-held",
        alert: Some("MadakoOperationHeld"),
        what: "operations on nodes",
        metric: HELD_SINCE,
        values: Values::Except(&[OPERATIONS_NEED_OPERATOR, OPERATIONS_ELSEWHERE]),
        lasting_seconds: HOURS,
        remedy: "madako ops has the operation, its nodes and the reason in words",
        ..WAITING
    },
    Rule {
        rule: "operations-fail",
        alert: Some("MadakoOperationFails"),
        what: "operations on nodes",
        metric: HELD_SINCE,
        values: Values::Only(&["backing-off"]),
        lasting_seconds: 5.0 * MINUTES,
        why: Some("operations failed on nodes, and are tried again after a pause of up to ten minutes"),
        remedy: "madako ops names the nodes; madako history has the errors",
        ..WAITING
    },
    Rule {
        rule: "placement-unowned",
        alert: Some("MadakoPlacementUnowned"),
        what: "placement",
        metric: "madako_placement_owner",
        since: Since::Recorded,
        when: When::Zero,
        remedy: "set placement.controllers: false here, or in the deployment that the log of the leader names",
        ..BASE
    },
    Rule {
        rule: "applications-failed",
        alert: Some("MadakoApplicationsUnplaced"),
        values: Values::Only(&["failed"]),
        why: Some("applications that no cluster takes, and that are not tried again: {{ $value }}"),
        remedy: "madako kube app list names them, madako kube app explain NAME has the reason; madako kube app retry NAME",
        ..OUTCOMES
    },
    Rule {
        rule: "applications-degraded",
        alert: Some("MadakoApplicationsUnplaced"),
        values: Values::Only(&["degraded"]),
        why: Some("applications that no cluster takes at present: {{ $value }}"),
        remedy: "madako kube app list names them; madako kube app explain NAME has the reason",
        ..OUTCOMES
    },
    Rule {
        rule: "applications-wait",
        alert: Some("MadakoApplicationsWait"),
        values: Values::Only(&["waits-for-metric", "waits-for-cluster", "creates"]),
        lasting_seconds: 30.0 * MINUTES,
        remedy: "madako kube app explain NAME names the metric or the cluster; madako kube cluster list",
        ..OUTCOMES
    },
    Rule {
        rule: "moves-held",
        alert: Some("MadakoMovesHeld"),
        values: Values::Only(&["held"]),
        lasting_seconds: HOURS,
        remedy: "madako kube app explain NAME has the better cluster; raise placement.scheduler.max_moves if the moves must end sooner",
        ..OUTCOMES
    },
    Rule {
        rule: "metrics-failed",
        alert: Some("MadakoMetricsMissing"),
        metric: "madako_metrics",
        since: Since::Recorded,
        label: Some("condition"),
        values: Values::Only(&["failed", "undefined"]),
        remedy: "madako kube cluster get NAME shows each metric of a cluster, its provider and the error; the log of the leader names all",
        ..PLACEMENT
    },
    Rule {
        rule: "providers-down",
        alert: Some("MadakoMetricsProviderDown"),
        metric: "madako_metrics_providers_down",
        since: Since::Recorded,
        label: Some("kind"),
        remedy: "the log of the leader names them; madako core globalmetricsprovider get NAME has the address",
        ..PLACEMENT
    },
    Rule {
        rule: "resources-unreadable",
        alert: Some("MadakoResourceFaults"),
        what: "placement",
        metric: "madako_objects_faults",
        since: Since::Recorded,
        remedy: "the log of the leader names each key; add a missing decryption key, correct the value or delete it",
        ..BASE
    },
    Rule {
        rule: "resources-circular",
        alert: Some("MadakoResourcesCircular"),
        metric: "madako_placement_circular",
        since: Since::Recorded,
        remedy: "the log of the leader names them at level debug; remove an owner of one of them",
        ..PLACEMENT
    },
];
