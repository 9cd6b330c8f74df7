//! Tests of the check of drains: requests by leaders and by other instances, and cordons that stay.

use madako_domain::repair::{RepairStatus, RepairStepStatus};
use madako_faults::{Injection, Span, Target};

use super::*;
use crate::observer::Change;

const SECOND: Micros = 1_000_000;

/// Requests to Kubernetes while instance 1 leads from 10 s to 20 s, and instance 2 from 25 s on.
#[derive(Default)]
struct Story {
    journal: Vec<Line>,
    held: Vec<HoldingFault>,
    /// The entry of the node "n13" at the end.
    entry: Option<RepairQueueEntry>,
}

impl Story {
    /// Adds a request to Kubernetes; `at` is in seconds.
    fn record_request(&mut self, at: f64, instance: u32, action: KubernetesRequest, node: &str) {
        let pod = matches!(action, KubernetesRequest::Evict | KubernetesRequest::Delete)
            .then(|| "web/front-1".to_owned());
        let what = LineContent::Kubernetes { instance, action, node: node.to_owned(), pod, refused: false };
        #[expect(clippy::cast_possible_truncation, reason = "times of a test")]
        self.journal.push(Line { at: (at * 1e6) as i64, what });
    }

    /// Adds the requests of a drain.
    fn drain(&mut self, at: f64, instance: u32, node: &str) {
        self.record_request(at, instance, KubernetesRequest::Cordon, node);
        self.record_request(at + 0.1, instance, KubernetesRequest::Evict, node);
        self.record_request(at + 6.0, instance, KubernetesRequest::Delete, node);
    }

    /// Violations by name, with their numbers.
    fn judged(&mut self) -> Vec<(String, u64)> {
        self.journal.sort_by_key(|line| line.at);
        let effects = effects_of(&self.journal, OffsetDateTime::UNIX_EPOCH);
        let leading = [(10 * SECOND, Some(5)), (20 * SECOND, None), (25 * SECOND, Some(9))];
        let epochs = BTreeMap::from([(5, 1), (9, 2)]);
        let mut verdicts = Verdicts::default();
        judge_drains(&effects, &leading, &epochs, &self.held, &mut verdicts);
        assert_eq!(verdicts.verdict_of("I1").judged, effects.len() as u64);
        let (key, value) = (format!("{PREFIX}{}n13", keys::REPAIRS), serde_json::to_vec(&self.entry).ok());
        let change = Change { key, value, created: 2, modified: 2, lease: 0 };
        let revision = Revision { revision: 2, at: 0, changes: vec![change] };
        judge_calm(&effects, &[revision], &mut verdicts);
        let broken = verdicts.0.into_iter().filter(|(_, verdict)| verdict.broken > 0);
        broken.map(|(name, verdict)| (name, verdict.broken)).collect()
    }
}

fn one(name: &str) -> Vec<(String, u64)> {
    vec![(name.to_owned(), 1)]
}

/// A drain by each leader.
fn good() -> Story {
    let mut story = Story::default();
    story.drain(11.0, 1, "n11");
    story.record_request(18.5, 1, KubernetesRequest::Uncordon, "n11");
    story.drain(27.5, 2, "n12");
    story.record_request(41.0, 2, KubernetesRequest::Uncordon, "n12");
    story
}

#[test]
fn correct_requests_of_the_leader_pass() {
    assert_eq!(good().judged(), []);
    let counted = count_effects(&effects_of(&good().journal, OffsetDateTime::UNIX_EPOCH));
    assert_eq!(counted, EffectCounts { cordoned: 2, uncordoned: 2, evicted: 2, refused: 0, deleted: 2 });
}

#[test]
fn a_request_of_an_instance_that_does_not_lead_is_found() {
    for (at, instance) in [(22.0, 1), (28.0, 1), (12.0, 2)] {
        let mut story = good();
        story.record_request(at, instance, KubernetesRequest::Uncordon, "n13");
        assert_eq!(story.judged(), one("I1"), "instance {instance} at {at} s");
    }
}

#[test]
fn a_request_that_a_fault_held_back_is_judged_by_its_earliest_start() {
    let mut story = good();
    story.record_request(28.0, 1, KubernetesRequest::Evict, "n11");
    assert_eq!(story.judged(), one("I1"));
    // A server was stopped during the cut of an instance.
    let held = |instance, from, until| HoldingFault { instance, from: from * SECOND, until: until * SECOND };
    story.held = vec![held(None, 24, 29), held(Some(1), 17, 25)];
    assert_eq!(story.judged(), []);
    story.held[1].instance = Some(2);
    assert_eq!(story.judged(), one("I1"), "the fault cut off another instance");
}

#[test]
fn a_node_that_is_left_cordoned_is_found_when_all_is_calm() {
    let mut story = good();
    story.drain(37.0, 2, "n13");
    assert_eq!(story.judged(), one("I17"));
    story.entry = Some(RepairQueueEntry {
        nodename: "n13".to_owned(),
        status: RepairStatus::Processing,
        step_status: RepairStepStatus::Watching,
        ..RepairQueueEntry::new("o", "t", "10.0.0.13")
    });
    assert_eq!(story.judged(), [], "its repair goes on");
}

#[test]
fn faults_that_hold_back_are_those_of_the_network_and_a_server_that_stands_still() {
    let mut events = Vec::new();
    let mut schedule = Schedule { injections: Vec::new(), events: Vec::new(), draws: Vec::new() };
    let mut fault = |act, on: &str, [begins, ends]: [Micros; 2]| {
        let injection = schedule.injections.len();
        let at = Span::from_millis(0);
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
        find_held_requests(&events, &schedule),
        [
            HoldingFault { instance: Some(2), from: SECOND, until: 10 * SECOND },
            HoldingFault { instance: None, from: 7 * SECOND, until: 10 * SECOND },
        ]
    );
}
