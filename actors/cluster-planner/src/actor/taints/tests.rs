use std::collections::BTreeSet;
use std::sync::Mutex;

use async_trait::async_trait;
use madako_domain::kubernetes::{EvictionOutcome, KubeNode, Pod, PodId};
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::latest::Subscriber;
use madako_protocol::permit::Permit;

use super::*;

const INTERVAL: Duration = Duration::from_secs(60);
const MOST: Duration = Duration::from_secs(180);

/// An API server that lists its nodes after a delay, or fails.
#[derive(Default)]
struct Api {
    nodes: Mutex<Vec<KubeNode>>,
    takes: Mutex<Duration>,
    fails: Mutex<bool>,
    asked: Mutex<u32>,
}

#[async_trait]
impl Kubernetes for Api {
    async fn nodes(&self) -> Result<Vec<KubeNode>, KubernetesError> {
        *self.asked.lock().unwrap() += 1;
        let takes = *self.takes.lock().unwrap();
        tokio::time::sleep(takes).await;
        if *self.fails.lock().unwrap() {
            return Err(KubernetesError::Refused { what: "nodes".into(), status: 403, why: "no".into() });
        }
        Ok(self.nodes.lock().unwrap().clone())
    }

    async fn namespaces(&self, _: &str) -> Result<BTreeSet<String>, KubernetesError> {
        unreachable!("the planner asks for nodes alone")
    }

    async fn pods_on(&self, _: &str) -> Result<Vec<Pod>, KubernetesError> {
        unreachable!("the planner asks for nodes alone")
    }

    async fn on_delete_pods(&self, _: &str) -> Result<Vec<PodId>, KubernetesError> {
        unreachable!("the planner asks for nodes alone")
    }

    async fn cordon(&self, _: &Permit, _: &str) -> Result<(), KubernetesError> {
        unreachable!("the planner writes nothing")
    }

    async fn uncordon(&self, _: &Permit, _: &str) -> Result<(), KubernetesError> {
        unreachable!("the planner writes nothing")
    }

    async fn evict(&self, _: &Permit, _: &PodId, _: bool) -> Result<EvictionOutcome, KubernetesError> {
        unreachable!("the planner writes nothing")
    }

    async fn delete(&self, _: &Permit, _: &PodId) -> Result<(), KubernetesError> {
        unreachable!("the planner writes nothing")
    }
}

fn taints(key: &str) -> Vec<Taint> {
    vec![Taint { key: key.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() }]
}

fn node(name: &str, key: &str) -> KubeNode {
    KubeNode { name: name.to_owned(), taints: taints(key), ..KubeNode::default() }
}

/// Starts the reads without an actor.
fn asking(api: &Arc<Api>) -> (Task, Subscriber<Arc<TaintsPoll>>) {
    let (polls, seen) = latest::channel();
    (Task::start(poll_taints(Arc::clone(api) as Arc<dyn Kubernetes>, INTERVAL, polls)), seen)
}

/// Taints before the first answer.
fn unlooked() -> NodeTaints {
    let idle = || Task::start(std::future::pending());
    NodeTaints {
        feeds: Some([idle(), idle()]),
        known: BTreeMap::new(),
        last_success: None,
        polled: false,
        reported: None,
    }
}

fn answer(started: Instant, nodes: &[(&str, &str)]) -> TaintsPoll {
    let known = nodes.iter().map(|(name, key)| ((*name).to_owned(), taints(key)));
    TaintsPoll { result: Ok(known.collect()), started }
}

fn failure(started: Instant) -> TaintsPoll {
    TaintsPoll { result: Err("no".to_owned()), started }
}

#[tokio::test(start_paused = true)]
async fn nodes_are_listed_once_an_interval_and_only_tainted_nodes_are_reported() {
    let api = Arc::new(Api::default());
    *api.nodes.lock().unwrap() =
        vec![node("10.0.0.1", "broken"), KubeNode { name: "10.0.0.2".into(), ..KubeNode::default() }];
    let begun = Instant::now();
    let (_task, mut polls) = asking(&api);
    let first = polls.next().await;
    assert_eq!(*first, answer(begun, &[("10.0.0.1", "broken")]));
    for round in 1..4 {
        polls.next().await;
        assert_eq!((begun.elapsed(), *api.asked.lock().unwrap()), (INTERVAL * round, round + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_does_not_answer_is_not_waited_for_beyond_the_interval() {
    let api = Arc::new(Api::default());
    *api.takes.lock().unwrap() = Duration::from_secs(3600);
    let begun = Instant::now();
    let (_task, mut polls) = asking(&api);
    // The first plan of an epoch waits for this answer.
    assert!(polls.next().await.result.is_err());
    assert_eq!(begun.elapsed(), FIRST_READ_WITHIN);
    // The second read is under way then; the third begins when the second times out.
    tokio::time::sleep(INTERVAL).await;
    *api.takes.lock().unwrap() = Duration::from_secs(30);
    assert!(polls.next().await.result.is_err());
    assert_eq!(begun.elapsed(), 2 * INTERVAL);
    assert!(polls.next().await.result.is_ok());
    assert_eq!(begun.elapsed(), 2 * INTERVAL + Duration::from_secs(30));
    *api.fails.lock().unwrap() = true;
    let error = polls.next().await.result.clone().unwrap_err();
    assert!(error.contains("403"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_last_good_answer_counts_until_it_is_too_old() {
    let mut known = unlooked();
    assert!(known.is_awaiting_first_poll());
    let start = Instant::now();
    let (changed, event) = known.update(&answer(start, &[("10.0.0.1", "broken")]), MOST, 0.0);
    assert!(changed && !known.is_awaiting_first_poll());
    assert!(matches!(event, Some(Event::TaintsKnown { nodes: 1 })), "{event:?}");

    // An equal answer is not news, and changes no plan.
    let (changed, event) = known.update(&answer(start + INTERVAL, &[("10.0.0.1", "broken")]), MOST, 60.0);
    assert!(!changed && event.is_none(), "{event:?}");

    for minutes in 2..=4 {
        let (changed, event) = known.update(&failure(start + INTERVAL * minutes), MOST, 0.0);
        assert!(!changed && event.is_none(), "{minutes}: {event:?}");
        assert_eq!(known.known()["10.0.0.1"], taints("broken"));
    }
    let late = start + INTERVAL + MOST + Duration::from_secs(1);
    let (changed, event) = known.update(&failure(late), MOST, 0.0);
    assert!(changed && known.known().is_empty());
    assert!(matches!(event, Some(Event::TaintsUnknown { age: Some(age), .. }) if age > MOST), "{event:?}");
    let (changed, event) = known.update(&failure(late + INTERVAL), MOST, 0.0);
    assert!(!changed && event.is_none(), "the event is reported once: {event:?}");

    let (changed, event) = known.update(&answer(late + 2 * INTERVAL, &[("10.0.0.2", "broken")]), MOST, 0.0);
    assert!(changed && matches!(event, Some(Event::TaintsKnown { nodes: 1 })), "{event:?}");
    assert_eq!(known.known().keys().collect::<Vec<_>>(), ["10.0.0.2"]);
}

#[tokio::test(start_paused = true)]
async fn first_failure_of_the_taint_query_allows_plans_without_taints() {
    let mut known = unlooked();
    let (changed, event) = known.update(&failure(Instant::now()), MOST, 0.0);
    assert!(changed && !known.is_awaiting_first_poll() && known.known().is_empty());
    assert!(matches!(event, Some(Event::TaintsUnknown { age: None, .. })), "{event:?}");
    // Without an API server no answer is awaited.
    let none =
        NodeTaints { feeds: None, known: BTreeMap::new(), last_success: None, polled: false, reported: None };
    assert!(!none.is_awaiting_first_poll());
}
