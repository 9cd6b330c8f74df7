//! The metrics fetcher's actor: it follows the resources in the store, starts the fetches that are due, and publishes
//! the values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::placement::metrics::MetricsObserved;
use madako_domain::placement::ownership::Ownership;
use madako_json::krake::tagged::Variants;
use madako_protocol::actors::FetcherMessage;
use madako_protocol::feed::{Task, send_later};
use madako_protocol::latest::Publisher;
use madako_protocol::mailbox::Envelope;
use madako_protocol::placement::follow::{FollowEvent, start_following};
use madako_protocol::placement::objects::Objects;
use madako_protocol::placement::providers::{MetricsProviders, PROVIDER_DEADLINE, Samples};
use madako_protocol::ports::Clock;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use strum::VariantNames as _;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Span, info_span};

use crate::limits::DEADLINE_PERCENT;
pub use crate::limits::ROUNDS_AT_ONCE;
use crate::schedule::{ClockReading, Condition, DueFetch, FetchSchedule, ProviderNotice, Settings};

#[derive(Clone)]
pub struct FetcherArguments {
    /// Interval of metrics rounds (`metrics_interval`).
    pub interval: Duration,
    /// Maximum age of a kept value (`metric_max_age`).
    pub max_age: Duration,
    pub objects: Arc<dyn Objects>,
    pub providers: Arc<dyn MetricsProviders>,
    pub clock: Arc<dyn Clock>,
    pub observed: Publisher<Arc<MetricsObserved>>,
    /// Owner of placement: only the owning instance fetches values.
    pub ownership: watch::Receiver<Ownership>,
}

pub struct Fetcher;

/// A cache except for the last hour of values.
pub struct FetcherState {
    given: FetcherArguments,
    began: Instant,
    schedule: FetchSchedule,
    rounds: u64,
    fetches: BTreeMap<u64, Task>,
    published: Option<Arc<MetricsObserved>>,
    timer: Option<Task>,
    /// Timer for the expiry of the oldest value.
    aging: Option<Task>,
    _owned: Task,
    _follower: Task,
}

madako_protocol::declare_metrics! {
    "Metrics of placement":
    counter madako_metrics_fetched_total(kind, outcome)
        "Fetches of single metrics. `outcome`: `ok`, `definition`, `unreachable`, `deadline`, `too-large`, \
         `cut-off`, `status`, `refused`, `malformed`, `name`, `unlisted`, `not-found`, `not-a-number`, \
         `not-finite`.";
    histogram madako_metrics_fetch_seconds(kind) in Seconds "Duration of fetching all metrics of one provider.";
    gauge madako_metrics(kind, condition)
        "Metrics that resources refer to. `condition`: `awaited` (not answered yet), `good`, `kept` (the last fetch \
         failed, placement uses an earlier value), `failed` (no usable value), `undefined` (the definition is \
         missing or wrong; `kind` is `none` if the provider is unknown).";
    gauge madako_metrics_oldest_seconds(kind) in Seconds
        "Age of the oldest value of a metric in use. Placement does not use values older than `metric_max_age`.";
    gauge madako_metrics_providers_down(kind)
        "Metrics providers that failed at least three times in a row; the log names them. Madako queries them less \
         often.";
}

impl Actor for Fetcher {
    type Msg = Envelope<FetcherMessage>;
    type State = FetcherState;
    type Arguments = FetcherArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Envelope<FetcherMessage>>,
        given: FetcherArguments,
    ) -> Result<FetcherState, ActorProcessingErr> {
        let settings = Settings {
            max_age: given.max_age,
            deadline: PROVIDER_DEADLINE.min(given.interval * DEADLINE_PERCENT / 100),
            at_once: ROUNDS_AT_ONCE,
        };
        let owned = Task::start(wake_when_owned(given.ownership.clone(), myself.clone()));
        let follower = start_following(Arc::clone(&given.objects), myself.clone(), FetcherMessage::Followed);
        let mut state = FetcherState {
            given,
            began: Instant::now(),
            schedule: FetchSchedule::new(settings),
            rounds: 0,
            fetches: BTreeMap::new(),
            published: None,
            timer: None,
            aging: None,
            _owned: owned,
            _follower: follower,
        };
        state.set_timer(&myself);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Envelope<FetcherMessage>>,
        envelope: Envelope<FetcherMessage>,
        state: &mut FetcherState,
    ) -> Result<(), ActorProcessingErr> {
        let now = state.read_clock();
        let mut round = None;
        match envelope.open() {
            FetcherMessage::Followed(FollowEvent::Listed { revision, objects, after }, _handled) => {
                if let Some(gap) = after {
                    tracing::info!(%gap, "the fetcher lists resources again");
                }
                state.schedule.list(revision, &objects, now);
            }
            FetcherMessage::Followed(FollowEvent::Changed(changes), _handled) => {
                state.schedule.change(&changes, now);
            }
            FetcherMessage::Tick => {
                state.set_timer(&myself);
                state.schedule.begin_round(now);
            }
            FetcherMessage::Fetched { fetch, samples } => {
                state.schedule.record_answer(fetch, samples, now);
                // Fetches that waited for a slot start now, in the same round.
                round = Some(Span::current());
            }
            FetcherMessage::Reconcile => {}
        }
        state.start_due_fetches(&myself, round, now);
        Ok(())
    }
}

impl FetcherState {
    fn read_clock(&self) -> ClockReading {
        ClockReading { at: self.given.clock.now(), elapsed: self.began.elapsed() }
    }

    fn set_timer(&mut self, myself: &ActorRef<Envelope<FetcherMessage>>) {
        self.timer = Some(send_later(myself.clone(), self.given.interval, FetcherMessage::Tick));
    }

    /// Starts due fetches, in `round` or a new one, ends unneeded ones, and publishes values.
    fn start_due_fetches(
        &mut self,
        myself: &ActorRef<Envelope<FetcherMessage>>,
        round: Option<Span>,
        now: ClockReading,
    ) {
        let ours = matches!(*self.given.ownership.borrow(), Ownership::Ours { .. });
        // Due fetches stay due until this instance owns placement.
        let due = if ours { self.schedule.start(now) } else { Vec::new() };
        if !due.is_empty() {
            // Consequences of the answers, up to placement's commits, are children of the round's span.
            let round = round.unwrap_or_else(|| self.begin_round());
            let _round = round.enter();
            for fetch in due {
                let id = fetch.id;
                let task = Task::start(run(Arc::clone(&self.given.providers), fetch, myself.clone()));
                self.fetches.insert(id, task);
            }
        }
        self.fetches.retain(|id, _| self.schedule.is_awaiting(*id));
        for notice in self.schedule.take_notices() {
            match notice {
                ProviderNotice::Down { provider, why } => {
                    tracing::warn!(%provider, %why, "a metrics provider is down");
                }
                ProviderNotice::Up { provider } => {
                    tracing::info!(%provider, "a metrics provider answers again")
                }
            }
        }
        self.publish(now);
        // Ages and providers change even while all values stay the same.
        self.set_gauges(now);
        let aging = self.schedule.next_too_old(now);
        self.aging = aging.map(|rest| send_later(myself.clone(), rest, FetcherMessage::Reconcile));
    }

    fn begin_round(&mut self) -> Span {
        self.rounds += 1;
        info_span!("metrics", round = self.rounds)
    }

    /// Publishes the values if they changed.
    fn publish(&mut self, now: ClockReading) {
        let observed = self.schedule.observe_metrics(now);
        let known = self.published.as_ref();
        if known.is_some_and(|old| old.revision == observed.revision && old.metrics == observed.metrics) {
            return;
        }
        let observed = Arc::new(observed);
        self.published = Some(Arc::clone(&observed));
        self.given.observed.publish(observed);
    }

    fn set_gauges(&self, now: ClockReading) {
        for (kind, summary) in self.schedule.summarize_by_kind(now) {
            for (condition, count) in Condition::VARIANTS.iter().zip(summary.conditions) {
                madako_metrics(kind, *condition).set(count as f64);
            }
            madako_metrics_oldest_seconds(kind).set(summary.oldest);
            madako_metrics_providers_down(kind).set(summary.down as f64);
        }
    }
}

/// Wakes the actor whenever this instance becomes the owner of placement.
async fn wake_when_owned(
    mut ownership: watch::Receiver<Ownership>,
    actor: ActorRef<Envelope<FetcherMessage>>,
) {
    while ownership.changed().await.is_ok() {
        let ours = matches!(*ownership.borrow_and_update(), Ownership::Ours { .. });
        if ours && actor.cast(FetcherMessage::Reconcile.into()).is_err() {
            return;
        }
    }
}

async fn run(
    providers: Arc<dyn MetricsProviders>,
    fetch: DueFetch,
    actor: ActorRef<Envelope<FetcherMessage>>,
) {
    let begun = Instant::now();
    let kind = fetch.kind.tag();
    let samples: Samples = providers.fetch(&fetch.kind, &fetch.names, fetch.deadline).await;
    madako_metrics_fetch_seconds(kind).record(begun.elapsed());
    for sample in samples.values() {
        let outcome = sample.as_ref().err().map_or("ok", |error| error.name());
        madako_metrics_fetched_total(kind, outcome).increment(1);
    }
    // The actor is gone: the answer is not needed.
    let _ = actor.cast(FetcherMessage::Fetched { fetch: fetch.id, samples }.into());
}

#[cfg(test)]
mod tests;
