use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::containers::{Container, ContainerName};
use madako_domain::node_status::NodeStatus;
use madako_protocol::actors::{CommitError, Committed, LeaderMessage};
use madako_protocol::latest;
use madako_protocol::node::{NodeAction, SnapshotContent};
use madako_protocol::permit::{Moment, Permit};
use tokio::sync::{Notify, oneshot};

use super::*;

/// Number of sites in this process, for their leaders' names.
static SITES: AtomicU64 = AtomicU64::new(0);
const ACT: NodeAction = NodeAction::StopContainer(ContainerName::for_container(Container::Etcd));

/// A node that connects with its present key. Actions wait for `release`.
#[derive(Default)]
struct World {
    key: Mutex<String>,
    refuses: Mutex<Option<NodeError>>,
    attempts: AtomicU64,
    targets: Mutex<Vec<Option<String>>>,
    broken: Notify,
    /// Attempts to connect do not end.
    hangs: AtomicBool,
    /// Each connection breaks at once.
    breaks: AtomicBool,
    release: Notify,
    /// Begun and ended actions.
    begun: AtomicU64,
    ended: AtomicU64,
    /// Actions that were cancelled.
    cancelled: AtomicU64,
    pins: Mutex<Vec<(PinnedKey, i64)>>,
    refuses_pins: Mutex<bool>,
    /// Another process pins this key while the node connects.
    pinned_meanwhile: Mutex<Option<String>>,
    state: Mutex<Option<latest::Publisher<Arc<ClusterState>>>>,
}

struct Driver(Arc<World>);
struct Wire(Arc<World>, HostKey);

fn key(name: &str) -> HostKey {
    HostKey { key: name.to_owned(), fingerprint: name.to_owned() }
}

fn unreachable() -> NodeError {
    NodeError::Unreachable { address: "n".to_owned(), why: "no route".to_owned() }
}

#[async_trait]
impl NodeDriver for Driver {
    async fn connect(&self, target: &NodeTarget) -> Result<Arc<dyn NodeConnection>, NodeError> {
        self.0.attempts.fetch_add(1, Ordering::SeqCst);
        let pinned = target.pinned.as_ref().map(|key| key.key.clone());
        // A driver accepts only the demanded key.
        let offered = target.pinned.clone().unwrap_or_else(|| key(&self.0.key.lock().unwrap()));
        self.0.targets.lock().unwrap().push(pinned);
        if let Some(name) = self.0.pinned_meanwhile.lock().unwrap().take() {
            let state = self.0.state.lock().unwrap();
            state.as_ref().unwrap().publish(state_with(Some((&name, ""))));
        }
        if self.0.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        match self.0.refuses.lock().unwrap().clone() {
            Some(error) => Err(error),
            None => Ok(Arc::new(Wire(Arc::clone(&self.0), offered))),
        }
    }
}

/// Counts a cancelled action.
struct Running<'w>(&'w World, bool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let counter = if self.1 { &self.0.ended } else { &self.0.cancelled };
        counter.fetch_add(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl NodeConnection for Wire {
    fn host_key(&self) -> &HostKey {
        &self.1
    }

    async fn status(&self, volume: &str) -> Result<NodeStatus, NodeError> {
        Ok(NodeStatus { reachable: true, etcd_data: volume == "v", ..NodeStatus::default() })
    }

    async fn snapshot(&self, _: &str, _: &str) -> Result<SnapshotContent, NodeError> {
        unreachable!("an actor reads no snapshot")
    }

    async fn act(&self, _: &Permit, action: &NodeAction) -> Result<String, NodeError> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        let mut running = Running(&self.0, false);
        self.0.release.notified().await;
        running.1 = true;
        Ok(action.to_string())
    }

    async fn closed(&self) {
        if self.0.breaks.load(Ordering::SeqCst) {
            return;
        }
        self.0.broken.notified().await;
    }
}

/// Answers commits of host keys.
struct Leader(Arc<World>);

impl Actor for Leader {
    type Msg = Envelope<LeaderMessage>;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Self::Msg>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: Self::Msg,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let LeaderMessage::Commit { epoch, mutation: Mutation::HostKey { pinned, revision, .. }, reply } =
            message.open()
        else {
            panic!("only host keys are committed");
        };
        let answer = if *self.0.refuses_pins.lock().unwrap() {
            Err(CommitError::NotLeader { epoch })
        } else {
            self.0.pins.lock().unwrap().push((pinned, revision));
            Ok(Committed { revision: 9 })
        };
        reply.send(answer)?;
        Ok(())
    }
}

/// A state with this pinned key of the node, and its serial.
fn state_with(pinned: Option<(&str, &str)>) -> Arc<ClusterState> {
    let pins = pinned.map(|(name, serial)| {
        let pin = PinnedKey { serial: serial.to_owned(), host_key: key(name), pinned_at: None };
        ("n".to_owned(), (pin, 5))
    });
    let host_keys = Arc::new(pins.into_iter().collect::<BTreeMap<_, _>>());
    Arc::new(ClusterState { host_keys, ..ClusterState::default() })
}

struct Site {
    world: Arc<World>,
    node: ActorRef<Envelope<NodeMessage>>,
}

/// A node with a pinned key and its serial, if there are some, and the serial of the present machine.
async fn site(pinned: Option<(&str, &str)>, serial: &str, policy: HostKeyPolicy) -> Site {
    let world = Arc::new(World { key: Mutex::new("k".to_owned()), ..World::default() });
    let leader = format!("leader {}", SITES.fetch_add(1, Ordering::SeqCst));
    Actor::spawn(Some(leader.clone()), Leader(Arc::clone(&world)), ()).await.unwrap();
    let (publisher, state) = latest::channel();
    publisher.publish(state_with(pinned));
    *world.state.lock().unwrap() = Some(publisher);
    let given = NodeArguments {
        address: "n".to_owned(),
        user: "u".to_owned(),
        serial: serial.to_owned(),
        host_keys: policy,
        key_writer: Some(PinnedKeyWriter { leader, epoch: 7 }),
        driver: Arc::new(Driver(Arc::clone(&world))),
        state,
        seed: 1,
    };
    let (node, _) = Actor::spawn(None, Node, given).await.unwrap();
    Site { world, node }
}

impl Site {
    async fn observe(&self) -> Result<NodeStatus, NodeError> {
        let (reply, answer) = oneshot::channel();
        self.node.cast(NodeMessage::Observe { volume: "v".to_owned(), reply }.into()).unwrap();
        answer.await.unwrap()
    }

    fn act(&self) -> oneshot::Receiver<Result<String, NodeError>> {
        let (reply, answer) = oneshot::channel();
        let permit = Permit::give(7, Moment::now() + Duration::from_secs(60));
        self.node.cast(NodeMessage::Act { permit, action: ACT, reply }.into()).unwrap();
        answer
    }

    /// Waits until a counter has a value.
    async fn count(&self, counter: fn(&World) -> &AtomicU64, wanted: u64) {
        let reached = async {
            while counter(&self.world).load(Ordering::SeqCst) != wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(600), reached).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_key_is_pinned_before_any_read() {
    let site = site(None, "s1", HostKeyPolicy::Pin).await;
    assert!(site.observe().await.unwrap().etcd_data);
    let pin = PinnedKey { serial: "s1".to_owned(), host_key: key("k"), pinned_at: None };
    assert_eq!(*site.world.pins.lock().unwrap(), [(pin, 0)]);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_key_cannot_be_stored_is_not_used() {
    let site = site(None, "", HostKeyPolicy::Pin).await;
    *site.world.refuses_pins.lock().unwrap() = true;
    let error = site.observe().await.unwrap_err().to_string();
    assert!(error.contains("host key could not be stored"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_pinned_key_is_demanded_until_the_machine_has_another_serial() {
    for (pinned, serial, demanded) in
        [("s1", "s1", Some("old")), ("s1", "s2", None), ("", "s2", Some("old")), ("s1", "", Some("old"))]
    {
        let site = site(Some(("old", pinned)), serial, HostKeyPolicy::Pin).await;
        site.observe().await.unwrap();
        assert_eq!(site.world.targets.lock().unwrap()[0].as_deref(), demanded, "{pinned:?} {serial:?}");
        let pins = site.world.pins.lock().unwrap().clone();
        // The new pin replaces the old one at its revision.
        assert_eq!(
            pins.iter().map(|(_, revision)| *revision).collect::<Vec<_>>(),
            match demanded {
                None => vec![5],
                Some(_) => vec![],
            }
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_pinned_during_the_connection_counts() {
    for (pinned, accepted) in [("k", true), ("another", false)] {
        let site = site(None, "", HostKeyPolicy::Pin).await;
        site.observe().await.unwrap();
        *site.world.pinned_meanwhile.lock().unwrap() = Some(pinned.to_owned());
        site.world.broken.notify_one();
        site.count(|world| &world.attempts, 2).await;
        let answer = site.observe().await;
        assert_eq!(answer.is_ok(), accepted, "{answer:?}");
        if let Err(error) = answer {
            assert!(matches!(error, NodeError::HostKey { .. }), "{error}");
        }
        assert_eq!(site.world.pins.lock().unwrap().len(), 1, "the pinned key is not replaced");
    }
}

#[tokio::test(start_paused = true)]
async fn without_pins_any_key_is_accepted() {
    let site = site(Some(("old", "s1")), "s1", HostKeyPolicy::Any).await;
    site.observe().await.unwrap();
    assert_eq!(*site.world.targets.lock().unwrap(), [None]);
    assert!(site.world.pins.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn requests_to_an_unreachable_node_fail_immediately_until_it_is_reachable() {
    let site = site(None, "", HostKeyPolicy::Any).await;
    site.observe().await.unwrap();
    *site.world.refuses.lock().unwrap() = Some(unreachable());
    site.world.broken.notify_one();
    site.count(|world| &world.attempts, 2).await;
    let begun = Moment::now();
    assert_eq!(site.act().await.unwrap(), Err(unreachable()));
    assert!(begun.elapsed() < Duration::from_millis(10));
    // 1 s after the break, then 2, 4, 8: the attempts do not come at a fixed rate.
    let since = Moment::now();
    site.count(|world| &world.attempts, 5).await;
    assert!(since.elapsed() > Duration::from_secs(8), "{:?}", since.elapsed());
    *site.world.refuses.lock().unwrap() = None;
    site.count(|world| &world.attempts, 6).await;
    site.observe().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reads_of_a_dead_node_do_not_wait_for_another_attempt_to_reach_it() {
    let site = site(None, "", HostKeyPolicy::Any).await;
    site.observe().await.unwrap();
    *site.world.refuses.lock().unwrap() = Some(unreachable());
    site.world.broken.notify_one();
    site.count(|world| &world.attempts, 2).await;
    site.world.hangs.store(true, Ordering::SeqCst);
    site.count(|world| &world.attempts, 3).await;
    let begun = Moment::now();
    assert_eq!(site.observe().await, Err(unreachable()));
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_closes_each_connection_after_the_login_is_tried_more_and_more_seldom() {
    let site = site(None, "", HostKeyPolicy::Any).await;
    site.observe().await.unwrap();
    site.world.breaks.store(true, Ordering::SeqCst);
    site.world.broken.notify_one();
    site.count(|world| &world.attempts, 2).await;
    let since = Moment::now();
    site.count(|world| &world.attempts, 5).await;
    // 2, 4 and 8 s, less up to a quarter.
    assert!(since.elapsed() > Duration::from_secs(10), "{:?}", since.elapsed());
    site.world.breaks.store(false, Ordering::SeqCst);
    site.count(|world| &world.attempts, 6).await;
    site.observe().await.unwrap();
    let since = Moment::now();
    site.world.broken.notify_one();
    site.count(|world| &world.attempts, 7).await;
    assert!(
        since.elapsed() < Duration::from_secs(2),
        "an answer begins the pauses anew: {:?}",
        since.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn actions_run_one_after_another_in_their_order() {
    let site = site(None, "", HostKeyPolicy::Any).await;
    let (first, second) = (site.act(), site.act());
    site.count(|world| &world.begun, 1).await;
    // A read does not wait for an action.
    site.observe().await.unwrap();
    assert_eq!(site.world.begun.load(Ordering::SeqCst), 1);
    site.world.release.notify_one();
    assert!(first.await.unwrap().is_ok());
    site.count(|world| &world.begun, 2).await;
    site.world.release.notify_one();
    assert!(second.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_cancels_its_action_and_the_next_one_begins() {
    let site = site(None, "", HostKeyPolicy::Any).await;
    let (first, second) = (site.act(), site.act());
    site.count(|world| &world.begun, 1).await;
    drop(first);
    site.count(|world| &world.begun, 2).await;
    assert_eq!(site.world.cancelled.load(Ordering::SeqCst), 1);
    site.world.release.notify_one();
    assert!(second.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_actor_cancels_its_action() {
    let site = site(None, "", HostKeyPolicy::Any).await;
    let action = site.act();
    site.count(|world| &world.begun, 1).await;
    site.node.stop(None);
    assert!(action.await.is_err());
    site.count(|world| &world.cancelled, 1).await;
    assert_eq!(site.world.ended.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_maximum_are_refused() {
    let site = site(None, "", HostKeyPolicy::Any).await;
    site.observe().await.unwrap();
    let mut answers: Vec<_> = (0..MAX_WAITING + 2).map(|_| site.act()).collect();
    let last = answers.pop().unwrap().await.unwrap().unwrap_err().to_string();
    assert!(last.contains("requests wait already"), "{last}");
}
