use madako_domain::keys;
use madako_domain::kubernetes::workload::{DisruptionBudget, OwnerReference, ScheduledPod};
use madako_domain::kubernetes::{KubeNode, Pod, PodPhase};
use madako_domain::record::Record;
use serde_json::json;

use super::*;
use crate::testing::{NOW, Store};
use crate::transition::{DEQUEUE, DRAIN_START, REBOOT as COMMAND};

const CONFIG: &str = r#"{"reboot_command": ["reboot"], "boot_check_command": ["check"], "max_concurrent_reboots": 2,
    "eviction_timeout_seconds": 60, "evict_retries": 2}"#;

/// A cluster with control plane nodes `a` and `b` and workers `v` to `z`. The namespace `safe` is protected.
struct World {
    store: Store,
    workloads: Workloads,
    history: History,
    added: Vec<String>,
    answers: BTreeMap<String, DryRun>,
    protected: BTreeSet<String>,
}

impl World {
    fn new() -> Self {
        let mut store = Store::default();
        store.configure(&["a", "b"], &["v", "w", "x", "y", "z"], CONFIG);
        let node = |name: &str| KubeNode { name: name.to_owned(), ready: Some(true), ..KubeNode::default() };
        let nodes = ["a", "b", "v", "w", "x", "y", "z"].map(node).into();
        Self {
            store,
            workloads: Workloads { nodes, ..Workloads::default() },
            history: History::default(),
            added: Vec::new(),
            answers: BTreeMap::new(),
            protected: BTreeSet::from(["safe".to_owned()]),
        }
    }

    fn queued(nodes: &[&str]) -> Self {
        let mut world = Self::new();
        for (index, node) in (0..).zip(nodes) {
            world.store.reboot(index, node, RebootStatus::Queued);
        }
        world
    }

    /// Reboots whose drains took so long, and whose boots did.
    fn past(&mut self, pairs: &[(i64, i64)]) {
        let mut records = Vec::new();
        for (drain, boot) in pairs {
            for (operation, after) in [(DRAIN_START, 0), (COMMAND, *drain), (DEQUEUE, drain + boot)] {
                let at = NOW + time::Duration::seconds(after);
                records.push(Record::new(0, operation, vec!["v".to_owned()], at));
            }
        }
        self.history = History::from_records(&records);
    }

    fn pod(&mut self, namespace: &str, name: &str, node: &str, owner: Option<&str>) -> &mut ScheduledPod {
        let id = PodId { namespace: namespace.to_owned(), name: name.to_owned(), uid: format!("uid-{name}") };
        let owner = owner.map(|kind| OwnerReference {
            kind: kind.to_owned(),
            name: format!("{name}-owner"),
            uid: format!("uid-{name}-owner"),
        });
        self.workloads.pods.push(ScheduledPod {
            pod: Pod {
                id,
                phase: PodPhase::Running,
                controller: owner.as_ref().map(|owner| owner.kind.clone()),
                mirror: false,
                deleted_at: None,
            },
            node: node.to_owned(),
            labels: BTreeMap::from([("app".to_owned(), name[..1].to_owned())]),
            owner,
            started_at: Some(NOW - time::Duration::hours(3)),
        });
        self.workloads.pods.last_mut().unwrap()
    }

    /// A budget for the pods whose names begin with its name.
    fn budget(&mut self, namespace: &str, name: &str, allowed: i64) {
        let selector = json!({"matchLabels": {"app": name}});
        self.workloads.budgets.push(DisruptionBudget {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            selector: Some(serde_json::from_value(selector).unwrap()),
            allowed,
            healthy: 5,
            desired: 5 - allowed,
        });
    }

    fn input<R>(&self, act: impl FnOnce(&ForecastInput<'_>) -> R) -> R {
        act(&ForecastInput {
            state: &self.store.state(),
            added: &self.added,
            settings: RebootSettings::default(),
            history: &self.history,
            workloads: &self.workloads,
            protected: &self.protected,
            answers: &self.answers,
            now: NOW,
        })
    }

    fn forecast(&self) -> Forecast {
        self.input(forecast)
    }

    fn asked(&self) -> Vec<String> {
        self.input(pods_to_ask).into_iter().map(|pod| pod.name).collect()
    }
}

fn shown(forecast: &Forecast) -> Vec<(Vec<&str>, Option<u64>, Option<u64>)> {
    let mut waves = Vec::new();
    for Wave { nodes, begins_after_seconds, ends_after_seconds, .. } in &forecast.waves {
        let nodes = nodes.iter().map(|node| node.node.as_str()).collect();
        waves.push((nodes, *begins_after_seconds, *ends_after_seconds));
    }
    waves
}

fn node<'a>(forecast: &'a Forecast, address: &str) -> &'a NodeForecast {
    let nodes = forecast.waves.iter().flat_map(|wave| &wave.nodes);
    nodes.into_iter().find(|node| node.node == address).unwrap()
}

fn kinds(forecast: &Forecast, address: &str) -> Vec<&'static str> {
    node(forecast, address).blockers.iter().map(|blocker| blocker.kind).collect()
}

fn notes(forecast: &Forecast, address: &str) -> Vec<&'static str> {
    node(forecast, address).notes.iter().map(|note| note.kind).collect()
}

#[test]
fn waves_have_the_times_of_the_history() {
    let mut world = World::queued(&["a", "v", "w", "b", "x"]);
    world.past(&[(60, 120), (40, 300), (90, 100)]);
    world.added = vec!["y".to_owned(), "v".to_owned()];
    let found = world.forecast();
    // A drain takes 60 s and a boot 120 s.
    assert_eq!(
        shown(&found),
        [
            (vec!["v", "w"], Some(0), Some(180)),
            (vec!["x", "y"], Some(180), Some(360)),
            (vec!["v"], Some(360), Some(540)),
            (vec!["a"], Some(540), Some(720)),
            (vec!["b"], Some(720), Some(900)),
        ]
    );
    assert_eq!(
        found.waves.iter().map(|wave| wave.is_control_plane).collect::<Vec<_>>(),
        [false, false, false, true, true]
    );
    let indexes: Vec<_> = found.waves.iter().flat_map(|wave| &wave.nodes).map(|node| node.index).collect();
    assert_eq!(indexes, [Some(1), Some(2), Some(4), None, None, Some(0), Some(3)]);
    assert_eq!((found.duration.expected_seconds, found.duration.worst_seconds), (Some(900), Some(5 * 390)));
    assert_eq!(
        found.duration.drains,
        Some(MeasuredDuration { count: 3, median_seconds: 60, worst_seconds: 90 })
    );
    assert!(!found.is_blocked, "{found:?}");
}

#[test]
fn entries_under_way_and_in_back_off_delay_the_others() {
    let mut world = World::queued(&["v", "w", "x"]);
    world.past(&[(60, 120)]);
    let began = |ago| Some(NOW - time::Duration::seconds(ago));
    let entry = |index, node: &str, status, ago| RebootQueueEntry {
        index,
        status,
        last_transition_time: began(ago),
        ..RebootQueueEntry::new(node)
    };
    world.store.entry(&entry(3, "y", RebootStatus::Draining, 20));
    world.store.entry(&entry(4, "z", RebootStatus::Rebooting, 20));
    let until = Some(NOW + time::Duration::seconds(150));
    world.store.entry(&RebootQueueEntry {
        drain_backoff_count: 1,
        drain_backoff_expire: until,
        ..entry(0, "v", RebootStatus::Queued, 0)
    });
    let found = world.forecast();
    let waves = shown(&found);
    assert_eq!(
        waves,
        [
            (vec!["w"], Some(100), Some(280)),
            (vec!["v"], Some(160), Some(340)),
            (vec!["x"], Some(280), Some(460))
        ]
    );
    let under_way: Vec<_> = found
        .under_way
        .iter()
        .map(|entry| (entry.index, &*entry.node, &*entry.status, entry.ends_after_seconds))
        .collect();
    assert_eq!(under_way, [(3, "y", "draining", Some(160)), (4, "z", "rebooting", Some(100))]);
}

#[test]
fn without_a_history_the_duration_is_unknown() {
    let mut world = World::queued(&["v", "w", "x", "a"]);
    let found = world.forecast();
    assert_eq!(
        shown(&found),
        [(vec!["v", "w"], None, None), (vec!["x"], None, None), (vec!["a"], None, None)]
    );
    assert_eq!((found.duration.expected_seconds, found.duration.worst_seconds), (None, None));
    assert_eq!(found.duration.unknown, Some("no drain with its reboot is in the history"));
    let command = Record::new(0, COMMAND, vec!["v".to_owned()], NOW);
    let drain = Record::new(0, DRAIN_START, vec!["v".to_owned()], NOW);
    world.history = History::from_records(&[drain, command]);
    let found = world.forecast().duration;
    assert_eq!(
        (found.expected_seconds, found.unknown),
        (None, Some("no boot after a reboot is in the history"))
    );
}

#[test]
fn running_job_is_a_blocker_with_its_owners_and_its_age() {
    let mut world = World::queued(&["v", "w"]);
    world.pod("safe", "sum-1", "v", Some("Job"));
    let cron = OwnerReference { kind: "CronJob".to_owned(), name: "sum".to_owned(), uid: "c".to_owned() };
    world.workloads.owners.insert("uid-sum-1-owner".to_owned(), cron);
    world.pod("safe", "ended", "v", Some("Job")).pod.phase = PodPhase::Succeeded;
    world.pod("safe", "daemon", "v", Some("DaemonSet"));
    world.pod("open", "free", "v", Some("ReplicaSet"));
    let found = world.forecast();
    assert!(found.is_blocked);
    let NodeForecast { pods, blockers, .. } = node(&found, "v");
    assert_eq!((*pods, blockers.len()), (1, 1), "jobs that ended and DaemonSets stay: {blockers:?}");
    assert_eq!((blockers[0].kind, blockers[0].age_seconds), ("job", Some(10_800)));
    let owners: Vec<_> = blockers[0].owners.iter().map(|owner| (&*owner.kind, &*owner.name)).collect();
    assert_eq!(owners, [("Job", "sum-1-owner"), ("CronJob", "sum")]);
    assert_eq!(
        blockers[0].why,
        "the pod safe/sum-1 (Job sum-1-owner, CronJob sum) of a job runs since 2026-01-02T00:04:05Z: no drain begins \
         before it ends"
    );
    assert!(node(&found, "w").blockers.is_empty());
}

#[test]
fn a_cycle_of_owners_does_not_loop() {
    let mut world = World::queued(&["v"]);
    world.pod("safe", "j", "v", Some("Job"));
    let job = world.workloads.pods[0].owner.clone().unwrap();
    world.workloads.owners.insert(job.uid.clone(), job);
    assert_eq!(node(&world.forecast(), "v").blockers[0].owners.len(), crate::limits::MAX_OWNERS);
}

#[test]
fn dry_runs_decide_on_budgets_and_without_them_their_state_does() {
    let mut world = World::queued(&["v"]);
    world.pod("safe", "tight", "v", Some("ReplicaSet"));
    world.pod("safe", "loose", "v", Some("ReplicaSet"));
    world.budget("safe", "t", 0);
    world.budget("safe", "l", 1);
    let found = world.forecast();
    let [blocker] = &*node(&found, "v").blockers else { panic!("{found:?}") };
    assert_eq!((blocker.kind, blocker.pod.as_deref()), ("budget", Some("safe/tight")));
    let state = BudgetState {
        namespace: "safe".to_owned(),
        name: "t".to_owned(),
        allowed: 0,
        healthy: 5,
        desired: 5,
    };
    assert_eq!(blocker.budgets, [state]);
    assert_eq!(
        blocker.why,
        "the pod safe/tight (ReplicaSet tight-owner) cannot be evicted: the budget safe/t allows no eviction: 5 pods are \
         healthy, and it demands 5"
    );

    let refused = |why: &str| DryRun::Refused { why: why.to_owned() };
    world.answers = BTreeMap::from([
        ("uid-tight".to_owned(), DryRun::Accepted),
        ("uid-loose".to_owned(), refused("not now")),
    ]);
    let found = world.forecast();
    assert_eq!(node(&found, "v").blockers[0].pod.as_deref(), Some("safe/loose"));
    assert!(node(&found, "v").blockers[0].why.ends_with("cannot be evicted: not now"));
    assert_eq!((kinds(&found, "v"), found.dry_runs), (vec!["budget"], 2));
    let failed = DryRun::Failed { why: "a webhook".to_owned() };
    world.answers.insert("uid-loose".to_owned(), failed);
    assert_eq!(kinds(&world.forecast(), "v"), ["refused"]);
    // The API server evicts a pod that does not run, whatever budgets say.
    world.answers.clear();
    world.workloads.pods[0].pod.phase = PodPhase::Pending;
    assert!(!world.forecast().is_blocked);
}

#[test]
fn dry_runs_are_sent_only_for_protected_pods_with_a_budget_on_nodes_of_the_forecast() {
    let mut world = World::queued(&["v"]);
    world.added = vec!["w".to_owned()];
    for (namespace, name, node, owner) in [
        ("safe", "asked", "v", "ReplicaSet"),
        ("safe", "added", "w", "StatefulSet"),
        ("safe", "absent", "x", "ReplicaSet"),
        ("safe", "daemon", "v", "DaemonSet"),
        ("safe", "job", "v", "Job"),
        ("safe", "budgetless", "v", "ReplicaSet"),
        ("open", "another", "v", "ReplicaSet"),
    ] {
        world.pod(namespace, name, node, Some(owner));
    }
    world.pod("safe", "aging", "v", None).pod.deleted_at = Some(NOW);
    for name in ["a", "d", "j"] {
        world.budget("safe", name, 0);
        world.budget("open", name, 0);
    }
    assert_eq!(world.asked(), ["asked", "added"]);
}

#[test]
fn pods_that_do_not_end_and_nodes_that_are_down_are_blockers() {
    let mut world = World::queued(&["v", "w", "x", "y", "z"]);
    let set = "ReplicaSet";
    world.pod("open", "ending", "v", Some(set)).pod.deleted_at = Some(NOW - time::Duration::seconds(61));
    world.pod("open", "begins-to-end", "w", Some(set)).pod.deleted_at =
        Some(NOW - time::Duration::seconds(60));
    world.pod("open", "held", "x", Some(set));
    world.pod("open", "daemon", "y", Some("DaemonSet"));
    for node in &mut world.workloads.nodes {
        match &*node.name {
            "x" | "y" => node.ready = None,
            "w" => node.ready = Some(false),
            _ => {}
        }
    }
    world.workloads.nodes.retain(|node| node.name != "z");
    world.store.text(keys::CONSTRAINTS, r#"{"maximum-unreachable-nodes-for-reboot": 2}"#);
    let found = world.forecast();
    let all: Vec<_> = ["v", "w", "x", "y", "z"].map(|address| kinds(&found, address)).into();
    assert_eq!(all, [vec!["not-ending"], vec![], vec!["node-down"], vec![], vec!["no-node"]]);
    assert_eq!(node(&found, "v").blockers[0].age_seconds, Some(61));
    let down: Vec<_> = found.nodes_down.iter().map(|down| (&*down.node, down.why)).collect();
    assert_eq!(
        down,
        [
            ("w", "the kubelet reports that the node is not ready"),
            ("x", "the kubelet does not report"),
            ("y", "the kubelet does not report"),
            ("z", "Kubernetes has no such node")
        ]
    );
    assert_eq!(found.obstacles, [], "two nodes may be unreachable");
    world.store.text(keys::CONSTRAINTS, r#"{"maximum-unreachable-nodes-for-reboot": 1}"#);
    assert_eq!(world.forecast().obstacles[0].name, "too-many-unreachable");
}

#[test]
fn budgets_that_several_pods_share_are_noted() {
    let mut world = World::queued(&["v", "w", "x"]);
    for (name, node) in [("t1", "v"), ("t2", "v"), ("t3", "v"), ("t4", "w"), ("l1", "v"), ("t5", "x")] {
        world.pod("safe", name, node, Some("ReplicaSet"));
    }
    world.budget("safe", "t", 2);
    world.budget("safe", "l", 1);
    let found = world.forecast();
    assert!(!found.is_blocked, "the budgets allow the first evictions");
    assert_eq!(notes(&found, "v"), ["budget-rounds"]);
    let note = &node(&found, "v").notes[0];
    assert_eq!(note.pods, 3);
    assert_eq!(
        note.why,
        "the budget safe/t allows 2 evictions now, and 3 of its pods are on the node: they end in 2 rounds or more, each \
         after replacements became healthy; a pod that is refused 3 times aborts the drain"
    );
    assert_eq!(notes(&found, "w"), Vec::<&str>::new());
    let shared: Vec<_> =
        found.waves.iter().map(|wave| wave.notes.iter().map(|note| note.pods).collect::<Vec<_>>()).collect();
    assert_eq!(shared, [vec![4], vec![]], "v and w drain together");
}

#[test]
fn pods_that_a_drain_deletes_or_ends_for_good_are_noted() {
    let mut world = World::queued(&["v"]);
    world.pod("open", "tight", "v", Some("ReplicaSet"));
    world.pod("open", "loose", "v", Some("ReplicaSet"));
    world.pod("open", "alone", "v", None);
    world.budget("open", "t", 0);
    world.budget("open", "l", 1);
    let found = world.forecast();
    assert!(!found.is_blocked);
    assert_eq!(notes(&found, "v"), ["deleted", "not-replaced"]);
    let whys: Vec<&str> = node(&found, "v").notes.iter().map(|note| &*note.why).collect();
    assert!(whys[0].ends_with("as they do now: open/tight"), "{whys:?}");
    assert_eq!(whys[1], "pods without a controller end for good: open/alone");
}

#[test]
fn obstacles_of_the_whole_queue_block_the_forecast() {
    let names = |world: &World| {
        let found = world.forecast();
        assert_eq!(found.is_blocked, !found.obstacles.is_empty());
        found.obstacles.iter().map(|obstacle| obstacle.name).collect::<Vec<_>>()
    };
    let mut world = World::queued(&["v"]);
    assert_eq!(names(&world), Vec::<&str>::new());
    world.store.text(keys::REBOOTS_DISABLED, "true");
    assert_eq!(names(&world), ["disabled"]);
    world.store.text(keys::REBOOTS_DISABLED, "false");
    world.store.reboot(7, "a", RebootStatus::Rebooting);
    world.store.entry(&RebootQueueEntry {
        index: 7,
        status: RebootStatus::Rebooting,
        last_transition_time: Some(NOW - time::Duration::hours(2)),
        ..RebootQueueEntry::new("a")
    });
    assert_eq!(names(&world), ["boot-overdue"]);
    world.store.delete(&keys::reboot(7));
    world.store.repair(0, "v");
    assert_eq!(names(&world), ["repairs-first"]);
    let found = world.forecast();
    assert_eq!(kinds(&found, "v"), ["repaired"]);
    world.store.delete(&keys::repair(0));
    let without = CONFIG.replace("\"max_concurrent_reboots\": 2", "\"max_concurrent_reboots\": 0");
    world.store.configure(&["a"], &["v"], &without);
    assert_eq!(names(&world), ["slots"]);
    world.store.configure(&["a"], &["v"], "{}");
    assert_eq!(names(&world), ["no-command"]);
}

#[test]
fn cancelled_entries_and_nodes_that_left_have_no_reboot() {
    let mut world = World::queued(&["v", "outside"]);
    world.store.reboot(5, "w", RebootStatus::Cancelled);
    assert_eq!(shown(&world.forecast()), [(vec!["v"], None, None)]);
    let empty = World::new();
    empty.input(|input| {
        let found = forecast(input);
        assert!(found.waves.is_empty() && !found.is_blocked);
    });
}

#[test]
fn added_nodes_are_forecast_beside_drains_for_upgrades() {
    let mut world = World::new();
    world.store.reboot(-3, "w", RebootStatus::Drained);
    world.store.reboot(-2, "x", RebootStatus::Queued);
    world.added = vec!["v".to_owned()];
    let nodes: Vec<_> = shown(&world.forecast()).into_iter().map(|(nodes, ..)| nodes.join(" ")).collect();
    assert_eq!(nodes, ["v"]);
    assert_eq!(node(&world.forecast(), "v").index, None);
}
