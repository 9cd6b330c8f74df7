//! Measures actors: number and duration of handled messages, and the start of the present one.
//!
//! Guarantees: the actor's behaviour is unchanged; a handler that fails, panics or is cancelled is measured as well.
//! Does not know why a handler is slow: see spans and the mailbox's depth.

use std::sync::Arc;

use madako_protocol::ports::Clock;
use madako_protocol::telemetry::{Counter, Gauge, Histogram};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::time::Instant;

use crate::telemetry::{
    madako_actor_failure_timestamp_seconds, madako_actor_handling_seconds,
    madako_actor_handling_since_timestamp_seconds, madako_actor_messages_total,
};

/// Gauge of an actor's last failure; the first call registers it with 0.
fn failure_gauge(actor: &str) -> Gauge {
    let gauge = madako_actor_failure_timestamp_seconds(actor.to_owned());
    gauge.increment(0.0);
    gauge
}

/// Records a failure at the present time.
pub(crate) fn record_failure(actor: &str, clock: &dyn Clock) {
    failure_gauge(actor).set(unix_seconds(clock));
}

fn unix_seconds(clock: &dyn Clock) -> f64 {
    clock.now().unix_timestamp() as f64
}

pub struct Measured<A> {
    actor: A,
    clock: Arc<dyn Clock>,
    messages: Counter,
    seconds: Histogram,
    since: Gauge,
}

impl<A: Actor> Measured<A> {
    /// `name` is the actor's name in the tree.
    pub fn new(actor: A, name: &'static str, clock: &Arc<dyn Clock>) -> Self {
        let _known = failure_gauge(name);
        let since = madako_actor_handling_since_timestamp_seconds(name);
        // A predecessor that was killed in mid-message no longer handles it.
        since.set(0.0);
        Self {
            actor,
            clock: Arc::clone(clock),
            messages: madako_actor_messages_total(name),
            seconds: madako_actor_handling_seconds(name),
            since,
        }
    }

    fn begin(&self) -> MessageInHandling<'_> {
        self.messages.increment(1);
        self.since.set(unix_seconds(&*self.clock));
        MessageInHandling { seconds: &self.seconds, since: &self.since, began: Instant::now() }
    }
}

/// A message in handling, until this guard is dropped.
struct MessageInHandling<'a> {
    seconds: &'a Histogram,
    since: &'a Gauge,
    began: Instant,
}

impl Drop for MessageInHandling<'_> {
    fn drop(&mut self) {
        self.seconds.record(self.began.elapsed());
        self.since.set(0.0);
    }
}

impl<A: Actor> Actor for Measured<A> {
    type Msg = A::Msg;
    type State = A::State;
    type Arguments = A::Arguments;

    async fn pre_start(
        &self,
        myself: ActorRef<A::Msg>,
        arguments: A::Arguments,
    ) -> Result<A::State, ActorProcessingErr> {
        self.actor.pre_start(myself, arguments).await
    }

    async fn post_start(
        &self,
        myself: ActorRef<A::Msg>,
        state: &mut A::State,
    ) -> Result<(), ActorProcessingErr> {
        self.actor.post_start(myself, state).await
    }

    async fn post_stop(
        &self,
        myself: ActorRef<A::Msg>,
        state: &mut A::State,
    ) -> Result<(), ActorProcessingErr> {
        self.actor.post_stop(myself, state).await
    }

    async fn handle(
        &self,
        myself: ActorRef<A::Msg>,
        message: A::Msg,
        state: &mut A::State,
    ) -> Result<(), ActorProcessingErr> {
        let _handling = self.begin();
        self.actor.handle(myself, message, state).await
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<A::Msg>,
        event: SupervisionEvent,
        state: &mut A::State,
    ) -> Result<(), ActorProcessingErr> {
        self.actor.handle_supervisor_evt(myself, event, state).await
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;
    use time::OffsetDateTime;
    use tokio::sync::mpsc;
    use tokio::time::{Duration, sleep};

    use super::*;

    struct Fixed;

    impl Clock for Fixed {
        fn now(&self) -> OffsetDateTime {
            OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap()
        }
    }

    /// Handles a message in 2 s, and fails at the second one.
    struct Slow;

    impl Actor for Slow {
        type Msg = u8;
        type State = (u8, mpsc::UnboundedSender<u8>);
        type Arguments = mpsc::UnboundedSender<u8>;

        async fn pre_start(
            &self,
            _: ActorRef<u8>,
            told: Self::Arguments,
        ) -> Result<Self::State, ActorProcessingErr> {
            Ok((0, told))
        }

        async fn handle(
            &self,
            _: ActorRef<u8>,
            _: u8,
            state: &mut Self::State,
        ) -> Result<(), ActorProcessingErr> {
            state.0 += 1;
            state.1.send(state.0)?;
            sleep(Duration::from_secs(2)).await;
            if state.0 == 2 { Err("enough".into()) } else { Ok(()) }
        }
    }

    #[test]
    fn messages_their_time_and_the_one_under_way_are_shown() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let shown = recorder.handle();
        let has = |name: &str, value: &str| {
            let text = shown.render();
            let line = format!("madako_actor_{name}{{actor=\"slow\"}} {value}");
            assert!(text.lines().any(|shown| shown == line), "no {line} in:\n{text}");
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        metrics::with_local_recorder(&recorder, || {
            runtime.block_on(async {
                let clock: Arc<dyn Clock> = Arc::new(Fixed);
                let (told, mut tells) = mpsc::unbounded_channel();
                let measured = Measured::new(Slow, "slow", &clock);
                let (actor, ended) = Actor::spawn(None, measured, told).await.unwrap();
                has("messages_total", "0");
                has("handling_since_timestamp_seconds", "0");
                has("failure_timestamp_seconds", "0");
                actor.cast(0).unwrap();
                assert_eq!(tells.recv().await, Some(1));
                has("messages_total", "1");
                has("handling_since_timestamp_seconds", "1800000000");
                actor.cast(0).unwrap();
                assert_eq!(tells.recv().await, Some(2));
                has("handling_seconds_count", "1");
                has("handling_seconds_sum", "2");
                ended.await.unwrap();
                has("handling_seconds_count", "2");
                has("handling_since_timestamp_seconds", "0");
                record_failure("slow", &*clock);
                has("failure_timestamp_seconds", "1800000000");
                // A successor keeps the time of the failure.
                drop(Measured::new(Slow, "slow", &clock));
                has("failure_timestamp_seconds", "1800000000");
            });
        });
    }
}
