//! Tests of an actor that follows placement's resources, on paused time.

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use ractor::{Actor, ActorProcessingErr};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::*;
use crate::placement::objects::{Follower, Selection};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::objects::UnreadResource;
use madako_domain::state::Fault;
use madako_domain::store::{Outcome, StoreError, Transaction};

/// Far longer than any step on paused time.
const PATIENCE: Duration = Duration::from_secs(600);

type FollowResult = Result<Vec<Arc<Change>>, FollowerGap>;

/// A source whose followers get the messages of the test. Each list has its own revision.
#[derive(Default)]
struct FakeObjects(Mutex<(i64, Option<mpsc::UnboundedSender<FollowResult>>)>);

impl FakeObjects {
    fn tell(&self, told: FollowResult) {
        self.0.lock().unwrap().1.as_ref().unwrap().send(told).unwrap();
    }
}

struct FakeFollower(mpsc::UnboundedReceiver<FollowResult>);

#[async_trait]
impl Follower for FakeFollower {
    async fn next(&mut self) -> FollowResult {
        self.0.recv().await.unwrap()
    }
}

#[async_trait]
impl Objects for FakeObjects {
    async fn refresh(&self) -> Result<i64, StoreError> {
        unreachable!("only what changes is followed")
    }

    fn revision(&self) -> Option<i64> {
        unreachable!("only what changes is followed")
    }

    fn get(&self, _: &ObjectKey) -> Option<Arc<Stored>> {
        unreachable!("only what changes is followed")
    }

    fn list(&self, _: Selection<'_>) -> (i64, Vec<Arc<Stored>>) {
        unreachable!("only what changes is followed")
    }

    fn unread_resource(&self, _: &ObjectKey) -> Option<UnreadResource> {
        unreachable!("only what changes is followed")
    }

    fn faults(&self) -> Vec<Fault> {
        unreachable!("only what changes is followed")
    }

    fn follow_all(&self) -> (i64, Vec<Arc<Stored>>, Box<dyn Follower>) {
        let mut inner = self.0.lock().unwrap();
        let (sender, receiver) = mpsc::unbounded_channel();
        inner.0 += 100;
        inner.1 = Some(sender);
        (inner.0, Vec::new(), Box::new(FakeFollower(receiver)))
    }

    fn follow(&self, _: i64) -> Result<Box<dyn Follower>, FollowerGap> {
        unreachable!("everything is followed")
    }

    async fn commit(&self, _: Transaction) -> Result<Outcome, StoreError> {
        unreachable!("nothing is written")
    }
}

#[derive(Debug)]
struct Message(FollowEvent, HandledSignal);

impl Addressed for Message {
    const ACTOR: &'static str = "follower";
}

struct Passes(mpsc::UnboundedSender<Message>);

impl Actor for Passes {
    type Msg = Envelope<Message>;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Envelope<Message>>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: ActorRef<Envelope<Message>>,
        envelope: Envelope<Message>,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(self.0.send(envelope.open())?)
    }
}

struct Setup {
    objects: Arc<FakeObjects>,
    messages: mpsc::UnboundedReceiver<Message>,
    actor: ActorRef<Envelope<Message>>,
    task: Task,
}

impl Setup {
    async fn new() -> Self {
        let (sender, messages) = mpsc::unbounded_channel();
        let (actor, _) = Actor::spawn(None, Passes(sender), ()).await.unwrap();
        let objects = Arc::new(FakeObjects::default());
        let task = start_following(Arc::clone(&objects) as Arc<dyn Objects>, actor.clone(), Message);
        Self { objects, messages, actor, task }
    }

    async fn next(&mut self) -> Message {
        timeout(PATIENCE, self.messages.recv()).await.expect("no message came").unwrap()
    }
}

fn change(revision: i64) -> Vec<Arc<Change>> {
    let key = ObjectKey::new(Kind::GlobalMetric, None, "load");
    vec![Arc::new(Change { revision, key, before: None, after: None })]
}

fn revision_of(followed: &FollowEvent) -> i64 {
    match followed {
        FollowEvent::Listed { revision, .. } => *revision,
        FollowEvent::Changed(changes) => changes[0].revision,
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_comes_when_the_one_before_it_was_handled() {
    let mut setup = Setup::new().await;
    let Message(listed, handled) = setup.next().await;
    assert!(matches!(listed, FollowEvent::Listed { revision: 100, after: None, .. }), "{listed:?}");
    setup.objects.tell(Ok(change(101)));
    setup.objects.tell(Ok(change(102)));
    assert!(timeout(PATIENCE, setup.messages.recv()).await.is_err(), "the list is not handled yet");
    drop(handled);
    for revision in [101, 102] {
        let Message(changed, _handled) = setup.next().await;
        assert!(
            matches!(changed, FollowEvent::Changed(_)) && revision_of(&changed) == revision,
            "{changed:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn follower_lists_again_after_a_gap_with_the_reason_and_a_pause() {
    let mut setup = Setup::new().await;
    drop(setup.next().await);
    for (list, limit) in [(200, 7), (300, 8)] {
        let began = Instant::now();
        setup.objects.tell(Err(FollowerGap::Lagged { limit }));
        let Message(listed, _handled) = setup.next().await;
        let FollowEvent::Listed { revision, after, .. } = listed else { panic!("{listed:?}") };
        assert_eq!((revision, after), (list, Some(FollowerGap::Lagged { limit })));
        assert!(began.elapsed() >= RELIST_PAUSE);
    }
    setup.objects.tell(Ok(change(301)));
    assert_eq!(revision_of(&setup.next().await.0), 301);
}

#[tokio::test(start_paused = true)]
async fn following_ends_with_its_handle_and_with_the_actor() {
    let mut setup = Setup::new().await;
    drop(setup.next().await);
    drop(setup.task);
    // The feed is gone, and its messages are dropped with it.
    let gone = setup.objects.0.lock().unwrap().1.clone().unwrap();
    timeout(PATIENCE, gone.closed()).await.expect("the task has ended");

    let mut setup = Setup::new().await;
    drop(setup.next().await);
    setup.actor.stop_and_wait(None, None).await.unwrap();
    setup.objects.tell(Ok(change(101)));
    let gone = setup.objects.0.lock().unwrap().1.clone().unwrap();
    timeout(PATIENCE, gone.closed()).await.expect("the task has ended");
}
