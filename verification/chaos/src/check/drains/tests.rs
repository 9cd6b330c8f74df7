//! Valid drains, and a violation of each rule.

use madako_domain::cluster::Node as Member;
use madako_domain::repair::RepairStatus;
use madako_faults::{Injection, Span, Target};
use madako_json::go::RawJson;

use super::*;
use crate::observer::Change;

const SECOND: Micros = 1_000_000;
/// Control plane nodes are those below 10; instance 1 leads from 10 s to 20 s, instance 2 from 25 s on.
const API_SERVERS: [&str; 2] = ["n1", "n2"];

/// A store that allows two concurrent repairs, and the requests to Kubernetes.
struct Story {
    revisions: Vec<Revision>,
    journal: Vec<Line>,
    held: Vec<Held>,
    calm: bool,
}

impl Story {
    fn new() -> Self {
        let node = |address: &str| Member {
            address: address.to_owned(),
            control_plane: API_SERVERS.contains(&address),
            ..Member::default()
        };
        let cluster = Cluster {
            nodes: ["n1", "n2", "n11", "n12", "n13"].map(node).to_vec(),
            repair: RawJson::from_text(r#"{"max_concurrent_repairs": 2}"#.to_owned()).unwrap(),
            ..Cluster::default()
        };
        let mut story = Self { revisions: Vec::new(), journal: Vec::new(), held: Vec::new(), calm: true };
        story.put(0, keys::CLUSTER, Some(&cluster));
        story
    }

    fn put(&mut self, at: Micros, key: &str, value: Option<&impl serde::Serialize>) {
        let revision = self.revisions.len() as i64 + 2;
        let (key, value) = (format!("{PREFIX}{key}"), value.map(|value| serde_json::to_vec(value).unwrap()));
        let change = Change { key, value, created: 2, modified: revision, lease: 0 };
        self.revisions.push(Revision { revision, at: at * SECOND, changes: vec![change] });
    }

    /// Writes the repair of a node with this step status.
    fn repair(&mut self, at: Micros, node: &str, step_status: RepairStepStatus) {
        let entry = RepairQueueEntry {
            nodename: node.to_owned(),
            status: RepairStatus::Processing,
            step_status,
            ..RepairQueueEntry::new("o", "t", node)
        };
        self.put(at, &format!("{}{node}", keys::REPAIRS), Some(&entry));
    }

    /// The repair of a node is draining between two times.
    fn draining(&mut self, [from, until]: [Micros; 2], node: &str) {
        self.repair(from, node, RepairStepStatus::Draining);
        self.put(until, &format!("{}{node}", keys::REPAIRS), None::<&()>);
    }

    /// Adds a request to Kubernetes; `at` is in seconds.
    fn asked(&mut self, at: f64, instance: u32, asked: KubernetesRequest, node: &str) {
        let pod = matches!(asked, KubernetesRequest::Evict | KubernetesRequest::Delete)
            .then(|| "web/front-1".to_owned());
        let what = What::Kubernetes { instance, asked, node: node.to_owned(), pod, refused: false };
        #[expect(clippy::cast_possible_truncation, reason = "times of a test")]
        self.journal.push(Line { at: (at * 1e6) as i64, what });
    }

    /// Adds a valid drain of a node, which takes six seconds.
    fn drain(&mut self, at: f64, instance: u32, node: &str) {
        self.asked(at, instance, KubernetesRequest::Cordon, node);
        self.asked(at + 0.1, instance, KubernetesRequest::Evict, node);
        self.asked(at + 6.0, instance, KubernetesRequest::Delete, node);
    }

    /// Violations by name, with their numbers.
    fn judged(&mut self) -> Vec<(String, u64)> {
        self.revisions.sort_by_key(|revision| revision.at);
        self.journal.sort_by_key(|line| line.at);
        let effects = effects(&self.journal, OffsetDateTime::UNIX_EPOCH);
        let leading = [(10 * SECOND, Some(5)), (20 * SECOND, None), (25 * SECOND, Some(9))];
        let epochs = BTreeMap::from([(5, 1), (9, 2)]);
        let mut verdicts = Verdicts::default();
        let (revisions, held, calm) = (&self.revisions, &self.held, self.calm);
        let seen = Evidence { revisions, leading: &leading, epochs: &epochs, held, calm };
        judge(&effects, &seen, &mut verdicts);
        assert_eq!(verdicts.of("I1").judged, effects.len() as u64);
        let broken = verdicts.0.into_iter().filter(|(_, verdict)| verdict.broken > 0);
        broken.map(|(name, verdict)| (name, verdict.broken)).collect()
    }
}

fn one(name: &str) -> Vec<(String, u64)> {
    vec![(name.to_owned(), 1)]
}

/// Two drains in sequence, two concurrent ones, and one that the next leader continues.
fn good() -> Story {
    let mut story = Story::new();
    for (from, until, node) in [(10, 17, "n11"), (11, 18, "n1"), (17, 40, "n12"), (26, 35, "n2")] {
        story.draining([from, until], node);
    }
    story.drain(11.0, 1, "n11");
    story.drain(11.5, 1, "n1");
    story.asked(18.5, 1, KubernetesRequest::Uncordon, "n11");
    story.asked(17.5, 1, KubernetesRequest::Cordon, "n12");
    story.asked(19.0, 1, KubernetesRequest::Evict, "n12");
    story.asked(27.0, 2, KubernetesRequest::Uncordon, "n1");
    story.drain(27.5, 2, "n2");
    story.drain(30.0, 2, "n12");
    for node in ["n2", "n12"] {
        story.asked(41.0, 2, KubernetesRequest::Uncordon, node);
    }
    story
}

#[test]
fn drains_that_the_store_announces_are_right() {
    assert_eq!(good().judged(), []);
    let counted = counted(&effects(&good().journal, OffsetDateTime::UNIX_EPOCH));
    assert_eq!(counted, Counted { cordoned: 5, uncordoned: 4, evicted: 5, refused: 0, deleted: 4 });
}

#[test]
fn who_asks_without_leading_is_found() {
    for (at, instance) in [(22.0, 1), (28.0, 1), (12.0, 2)] {
        let mut story = good();
        story.asked(at, instance, KubernetesRequest::Uncordon, "n13");
        assert_eq!(story.judged(), one("I1"), "instance {instance} at {at} s");
    }
}

#[test]
fn what_a_fault_held_back_is_judged_by_when_it_may_have_been_sent() {
    let mut story = good();
    story.asked(28.0, 1, KubernetesRequest::Evict, "n1");
    assert_eq!(story.judged(), [("I1".to_owned(), 1), (DRAINS.to_owned(), 1)]);
    // A server was stopped during the cut of an instance.
    let held = |instance, from, until| Held { instance, from: from * SECOND, until: until * SECOND };
    story.held = vec![held(None, 24, 29), held(Some(1), 17, 25)];
    assert_eq!(story.judged(), []);
    story.held[1].instance = Some(2);
    assert_eq!(story.judged(), [("I1".to_owned(), 1), (DRAINS.to_owned(), 1)], "another one was cut off");
}

#[test]
fn what_no_drain_announced_is_found() {
    for asked in [KubernetesRequest::Cordon, KubernetesRequest::Evict, KubernetesRequest::Delete] {
        // A node without a repair, one whose repair is over, and one whose repair is being watched.
        for (at, node) in [(12.0, "n13"), (33.0, "n11"), (37.0, "n13")] {
            let mut story = good();
            story.repair(36, "n13", RepairStepStatus::Watching);
            story.put(45, &format!("{}n13", keys::REPAIRS), None::<&()>);
            story.asked(at, if at < 20.0 { 1 } else { 2 }, asked, node);
            story.asked(50.0, 2, KubernetesRequest::Uncordon, node);
            assert_eq!(story.judged(), one(DRAINS), "{asked:?} of {node} at {at} s");
        }
    }
}

#[test]
fn a_node_that_is_uncordoned_while_its_repair_goes_on_is_found() {
    let uncordoned = |at| {
        let mut story = good();
        story.repair(50, "n13", RepairStepStatus::Draining);
        story.repair(60, "n13", RepairStepStatus::Watching);
        story.put(70, &format!("{}n13", keys::REPAIRS), None::<&()>);
        story.drain(51.0, 2, "n13");
        story.asked(at, 2, KubernetesRequest::Uncordon, "n13");
        story.judged()
    };
    for at in [58.0, 61.0, 68.0] {
        assert_eq!(uncordoned(at), one(DRAINS), "at {at} s");
    }
    assert_eq!(uncordoned(70.5), []);
}

#[test]
fn more_drains_at_once_than_may_be_are_found() {
    let mut story = good();
    story.draining([10, 19], "n13");
    story.drain(12.0, 1, "n13");
    story.asked(19.0, 1, KubernetesRequest::Uncordon, "n13");
    assert_eq!(story.judged(), one(DRAINS));
}

#[test]
fn two_control_plane_nodes_that_are_drained_at_once_are_found() {
    let mut story = Story::new();
    for (at, node) in [(11.0, "n1"), (12.0, "n2")] {
        story.draining([10, 19], node);
        story.drain(at, 1, node);
        story.asked(19.5, 1, KubernetesRequest::Uncordon, node);
    }
    assert_eq!(story.judged(), one("I8"));
}

#[test]
fn a_node_that_is_left_cordoned_is_found_when_all_is_calm() {
    let mut story = good();
    story.draining([36, 44], "n13");
    story.drain(37.0, 2, "n13");
    assert_eq!(story.judged(), one("I12"));
    story.calm = false;
    assert_eq!(story.judged(), []);
    story.calm = true;
    story.repair(45, "n13", RepairStepStatus::Watching);
    assert_eq!(story.judged(), [], "its repair goes on");
}

#[test]
fn faults_that_hold_back_are_those_of_the_network_and_a_server_that_stands_still() {
    let mut events = Vec::new();
    let mut schedule = Schedule { injections: Vec::new(), events: Vec::new(), draws: Vec::new() };
    let mut fault = |act, on: &str, [begins, ends]: [Micros; 2]| {
        let injection = schedule.injections.len();
        let at = Span::millis(0);
        schedule.injections.push(Injection {
            fault: 0,
            act,
            target: Target::Registry,
            begins: at,
            ends: None,
        });
        for (at, change) in [(begins, "begins"), (ends, "ends")] {
            let (what, on) = (String::new(), Some(on.to_owned()));
            events
                .push((at * SECOND, Event::Fault { injection, what, change, on, dropped: None, why: None }));
        }
    };
    fault(Act::Cut, "instance=2", [1, 5]);
    fault(Act::Pause, "instance=2", [1, 5]);
    fault(Act::Pause, "registry", [7, 8]);
    fault(Act::Kill, "registry", [7, 8]);
    fault(Act::Cut, "store=1", [7, 8]);
    assert_eq!(
        held(&events, &schedule),
        [
            Held { instance: Some(2), from: SECOND, until: 10 * SECOND },
            Held { instance: None, from: 7 * SECOND, until: 10 * SECOND },
        ]
    );
}
