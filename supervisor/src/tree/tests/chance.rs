//! Property tests: in random histories of a supervision tree, no name is taken twice, and no actor is left over.

use std::sync::atomic::{AtomicUsize, Ordering};

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::*;

const IDS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const STEPS: usize = 60;

/// Counts itself while it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An actor that counts as living from the beginning of its start to the drop of its state.
struct Busy(Arc<AtomicUsize>);

impl Actor for Busy {
    type Msg = Say;
    type State = Counted;
    type Arguments = Start;

    async fn pre_start(&self, _: ActorRef<Say>, start: Start) -> Result<Counted, ActorProcessingErr> {
        let counted = Counted::new(&self.0);
        match start {
            Start::Fails => Err(unreachable()),
            Start::Takes(time) => {
                tokio::time::sleep(time).await;
                Ok(counted)
            }
            _ => Ok(counted),
        }
    }

    async fn handle(
        &self,
        myself: ActorRef<Say>,
        say: Say,
        _: &mut Counted,
    ) -> Result<(), ActorProcessingErr> {
        match say {
            Say::Panic => panic!("boom"),
            Say::Fail => return Err(unreachable()),
            Say::End => myself.stop(None),
            Say::Freeze | Say::Block(_) => std::future::pending().await,
        }
        Ok(())
    }
}

/// Checks during and after a history.
#[derive(Default)]
struct Watch {
    /// Living actors of each id: never more than one.
    living: [Arc<AtomicUsize>; IDS.len()],
    events: Arc<Mutex<Vec<TreeEvent>>>,
}

impl Watch {
    fn child(&self, instance: &'static str, n: usize, seed: u64) -> ChildSpec {
        let living = Arc::clone(&self.living[n]);
        let chance = Mutex::new(ChaCha8Rng::seed_from_u64(seed));
        ChildSpec::for_actor(instance, IDS[n], move || {
            let start = match chance.lock().unwrap().random_range(0..6) {
                0 => Start::Fails,
                1 => Start::Takes(Duration::from_millis(3)),
                _ => Start::Good,
            };
            (Busy(Arc::clone(&living)), start)
        })
        .stop_deadline(Duration::from_millis(2))
    }

    fn sink(&self) -> EventSink {
        let (events, living) = (Arc::clone(&self.events), self.living.clone());
        Arc::new(move |event| {
            events.lock().unwrap().push(event.clone());
            for (id, count) in IDS.iter().zip(&living) {
                let count = count.load(Ordering::SeqCst);
                assert!(count <= 1, "{count} actors {id} live at once, at {event:?}");
            }
        })
    }

    fn check(&self, instance: &str) {
        for (id, count) in IDS.iter().zip(&self.living) {
            assert_eq!(count.load(Ordering::SeqCst), 0, "{id} is left over");
            assert_eq!(ractor::registry::where_is(actor_name(instance, id)), None);
        }
        for event in &*self.events.lock().unwrap() {
            // A failed assertion in the sink is a panic of the supervisor, which its supervisor reports.
            if let TreeEvent::ChildFailed {
                reason: ChildExit::Failed(why) | ChildExit::StartFailed(why),
                ..
            } = event
            {
                assert!(!why.contains("is taken") && !why.contains("at once"), "{event:?}");
            }
        }
    }
}

/// A root with a reign of random children; random failures, additions, removals and kills, including the reign's.
async fn history(instance: &'static str, seed: u64) -> usize {
    let watch = Watch::default();
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    let quick =
        Backoff { first: Duration::from_millis(1), max: Duration::from_millis(4), ..Backoff::DEFAULT };
    let enough = Budget { restarts: 1000, ..Budget::DEFAULT };
    let supervisor = |id: &str, budget| {
        SupervisorSpec::new(instance, id, seed, watch.sink()).with_backoff(quick).with_budget(budget)
    };
    let few = Budget { restarts: 10, window: Duration::from_millis(20) };
    let mut reign = supervisor("reign", few);
    for n in 0..3 {
        reign = reign.with_child(watch.child(instance, n, seed));
    }
    let reign = || ChildSpec::for_supervisor(reign.clone());
    let tree = Tree::start(supervisor("root", enough).with_child(reign())).await.unwrap();
    for _ in 0..STEPS {
        let n = chance.random_range(0..IDS.len());
        let mode = if chance.random() { Mode::Now } else { Mode::Graceful };
        let cell = ractor::registry::where_is(actor_name(instance, IDS[n]));
        let inner = SupervisorRef::find(instance, "reign");
        match (chance.random_range(0..12), cell, inner) {
            (0, Some(cell), _) => cell.kill(),
            (1, Some(cell), _) => cell.stop(None),
            (2..6, Some(cell), _) => {
                let say = [Say::Panic, Say::Fail, Say::End, Say::Freeze];
                let say = say.into_iter().nth(chance.random_range(0..4)).unwrap();
                // The actor may have ended in the meantime, here and below.
                let _ = cell.send_message(say);
            }
            (6, _, Some(inner)) => drop(inner.request_stop(IDS[n], mode)),
            (7, _, Some(inner)) => drop(inner.stop_child(IDS[n], mode).await),
            (8, _, Some(inner)) => drop(inner.add_child(watch.child(instance, n, seed)).await),
            (9, _, Some(inner)) if n == 0 => inner.cell().kill(),
            (10, _, _) if n < 2 => {
                let _ = tree.root().stop_child("reign", mode).await;
                for count in &watch.living {
                    assert_eq!(count.load(Ordering::SeqCst), 0, "left over from the reign, seed {seed}");
                }
            }
            (11, _, None) => drop(tree.root().add_child(reign()).await),
            _ => tokio::time::sleep(Duration::from_millis(chance.random_range(0..5))).await,
        }
    }
    let outcome = if chance.random() { tree.stop(PATIENCE).await } else { tree.kill().await };
    assert_ne!(outcome, StopOutcome::Stuck);
    watch.check(instance);
    watch.events.lock().unwrap().len()
}

#[test]
fn random_histories_leave_nothing_behind() {
    const SEEDS: u64 = 300;
    let mut events = 0;
    for seed in 0..SEEDS {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        events += runtime.block_on(history("chance-paused", seed));
    }
    assert!(events > 10_000, "only {events} events: the histories are too quiet");
}

/// On threads, in real time: for races that one thread cannot show.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_histories_on_threads_leave_nothing_behind() {
    for seed in 1000..1020 {
        let done = tokio::time::timeout(REAL_PATIENCE, history("chance-threads", seed)).await;
        assert!(done.is_ok(), "seed {seed} hangs");
    }
}
