//! Tests of the supervision tree, under paused time on one thread unless they say otherwise.

mod budgets;
mod chance;
mod changes;
mod ends;
mod measured;
mod nested;
mod stops;
mod timing;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef};
use tokio::sync::watch;
use tokio::time::Instant;

use super::*;

/// Far longer than any wait of a test; on paused time it costs nothing.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The same for tests in real time, which must fail eventually.
const REAL_PATIENCE: Duration = Duration::from_secs(30);

/// Waits without randomness, so that traces are fixed.
const EXACT: Backoff =
    Backoff { first: Duration::from_millis(100), max: Duration::from_secs(10), jitter: 0.0, quiet: QUIET };
const QUIET: Duration = Duration::from_secs(60);

#[derive(Debug)]
enum Say {
    Panic,
    Fail,
    End,
    /// Never returns from the handler.
    Freeze,
    /// Blocks its thread until the other side is dropped.
    Block(std::sync::mpsc::Receiver<()>),
}

/// Outcome of a worker's `pre_start`.
#[derive(Debug, Clone, Copy)]
enum Start {
    Good,
    Fails,
    Panics,
    Freezes,
    Takes(Duration),
    /// Succeeds, but `post_start` fails.
    FailsAfter,
    /// Succeeds, and its `post_stop` takes this long.
    StopTakes(Duration),
    /// Succeeds, but its `post_stop` fails.
    StopFails,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot reach the store")]
struct Unreachable(#[source] std::io::Error);

fn unreachable() -> ActorProcessingErr {
    Box::new(Unreachable(std::io::Error::other("refused")))
}

/// Writes its events to the stage's log.
struct Worker {
    stage: TestTree,
    id: &'static str,
}

struct Alive {
    stage: TestTree,
    id: &'static str,
    start: Start,
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.stage.write(format!("{} gone", self.id));
    }
}

/// Writes its line when it is dropped.
struct OnDrop(TestTree, &'static str);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.write(self.1.to_owned());
    }
}

impl Actor for Worker {
    type Msg = Say;
    type State = Alive;
    type Arguments = Start;

    async fn pre_start(&self, _: ActorRef<Say>, start: Start) -> Result<Alive, ActorProcessingErr> {
        match start {
            Start::Fails => return Err(unreachable()),
            Start::Panics => panic!("no start"),
            Start::Freezes => std::future::pending().await,
            Start::Takes(time) => tokio::time::sleep(time).await,
            Start::Good | Start::FailsAfter | Start::StopTakes(_) | Start::StopFails => {}
        }
        Ok(Alive { stage: self.stage.clone(), id: self.id, start })
    }

    async fn post_start(&self, _: ActorRef<Say>, state: &mut Alive) -> Result<(), ActorProcessingErr> {
        match state.start {
            Start::FailsAfter => Err("no post_start".into()),
            _ => Ok(()),
        }
    }

    async fn handle(
        &self,
        myself: ActorRef<Say>,
        say: Say,
        _state: &mut Alive,
    ) -> Result<(), ActorProcessingErr> {
        match say {
            Say::Panic => panic!("boom"),
            Say::Fail => return Err(unreachable()),
            Say::End => myself.stop(Some("done".into())),
            Say::Freeze => std::future::pending().await,
            Say::Block(until) => {
                // Blocks in a separate poll: a task that was woken in the same poll would be stuck behind it, as the
                // runtime lets no other thread take a worker's latest task.
                tokio::time::sleep(Duration::from_millis(1)).await;
                self.stage.write(format!("{} blocks", self.id));
                // Until the sender is dropped.
                let _ = until.recv();
            }
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Say>, state: &mut Alive) -> Result<(), ActorProcessingErr> {
        self.stage.write(format!("{} post_stop", self.id));
        match state.start {
            Start::StopTakes(time) => tokio::time::sleep(time).await,
            Start::StopFails => return Err("no post_stop".into()),
            _ => {}
        }
        Ok(())
    }
}

/// The world of one test: an instance name, and a log with times.
#[derive(Clone)]
struct TestTree {
    instance: &'static str,
    real_time: bool,
    began: Instant,
    log: Arc<Mutex<Vec<String>>>,
    events: watch::Sender<Vec<TreeEvent>>,
}

impl TestTree {
    fn new(instance: &'static str) -> Self {
        Self {
            instance,
            real_time: false,
            began: Instant::now(),
            log: Arc::default(),
            events: watch::Sender::new(Vec::new()),
        }
    }

    fn in_real_time(self) -> Self {
        Self { real_time: true, ..self }
    }

    fn write(&self, line: String) {
        let at = self.began.elapsed().as_millis();
        self.log.lock().unwrap().push(format!("{at} {line}"));
    }

    fn sink(&self) -> EventSink {
        let stage = self.clone();
        Arc::new(move |event| {
            stage.write(tell(event));
            stage.events.send_modify(|events| events.push(event.clone()));
        })
    }

    fn supervisor(&self, id: &str) -> SupervisorSpec {
        SupervisorSpec::new(self.instance, id, 7, self.sink()).with_backoff(EXACT)
    }

    /// A worker whose starts always succeed.
    fn worker(&self, id: &'static str) -> ChildSpec {
        self.starting(id, |_| Start::Good)
    }

    /// A worker whose `n`th start, from 0, has the outcome `how(n)`.
    fn starting(&self, id: &'static str, how: impl Fn(u32) -> Start + Send + Sync + 'static) -> ChildSpec {
        let stage = self.clone();
        let starts = Mutex::new(0);
        ChildSpec::for_actor(self.instance, id, move || {
            let mut starts = starts.lock().unwrap();
            *starts += 1;
            (Worker { stage: stage.clone(), id }, how(*starts - 1))
        })
    }

    fn cell(&self, id: &str) -> ActorCell {
        ractor::registry::where_is(actor_name(self.instance, id)).expect("registered")
    }

    fn say(&self, id: &str, say: Say) {
        self.cell(id).send_message(say).unwrap();
    }

    /// Waits until the events so far satisfy `is`.
    async fn until(&self, is: impl Fn(&[TreeEvent]) -> bool) {
        let mut events = self.events.subscribe();
        let patience = if self.real_time { REAL_PATIENCE } else { PATIENCE };
        let waited = tokio::time::timeout(patience, events.wait_for(|events| is(events))).await;
        assert!(waited.is_ok(), "did not happen; log: {:#?}", self.lines());
    }

    /// Waits until the log has this event.
    async fn until_told(&self, line: &str) {
        self.until(|events| events.iter().any(|e| tell(e) == line)).await;
    }

    /// Waits until the worker blocks its thread; polls, as there is no event for it.
    async fn until_blocked(&self, id: &str) {
        let line = format!("{id} blocks");
        let blocked = async {
            while !self.lines().iter().any(|l| l.ends_with(&line)) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(REAL_PATIENCE, blocked).await.expect("it blocks");
    }

    fn lines(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Returns and clears the log.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

fn tell(event: &TreeEvent) -> String {
    match event {
        TreeEvent::ChildStarted { child, .. } => format!("started {child}"),
        TreeEvent::ChildFailed { child, reason, restart_in: Some(wait), .. } => {
            format!("{child} {reason}; again in {}", wait.as_millis())
        }
        TreeEvent::ChildFailed { child, reason, restart_in: None, .. } => {
            format!("{child} {reason}; never again")
        }
        TreeEvent::ChildRestarted { child, restarts, .. } => format!("restarted {child} #{restarts}"),
        TreeEvent::ChildEnded { child, reason, .. } => format!("ended {child} {reason:?}"),
        TreeEvent::ChildStopped { child, outcome, .. } => format!("removed {child} {outcome:?}"),
        TreeEvent::ChildGivenUp { exceeded, .. } => format!("given up {}", exceeded.child),
        TreeEvent::Meltdown(meltdown) => format!("meltdown {}", meltdown.supervisor),
        TreeEvent::Stopped { supervisor } => format!("stopped {supervisor}"),
    }
}

async fn start(spec: SupervisorSpec) -> Tree {
    let tree = Tree::start(spec).await.unwrap();
    tree.root().wait_until_ready().await.unwrap();
    tree
}
