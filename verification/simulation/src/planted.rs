//! Makes any actor panic in the middle of a message, and counts messages and requests. Both use the service's own
//! metrics, so that the service stays unchanged.
//!
//! Flow: an actor first counts a message, which identifies the kind of actor, and then asks its instance's clock for
//! the time. The clock identifies the instance, so that both together identify the actor; a planted panic happens
//! there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use madako_protocol::ports::Clock;
use metrics::{
    Counter, CounterFn, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit,
};
use time::OffsetDateTime;

use crate::pace::MessagePace;

pub const PLANTED: &str = "a planted panic";

/// From now on only the run reports planted panics; any other panic is reported as before.
pub fn keep_quiet() {
    let earlier_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(PLANTED) {
            earlier_hook(panic);
        }
    }));
}

const MESSAGES: &str = "madako_actor_messages_total";

/// Counters of the requests of instances, of their reasons, and of the requests of clients.
const REQUESTS: [&str; 5] = [
    "madako_polls_total",
    "madako_report_polls_total",
    "madako_registry_requests_total",
    "madako_metrics_provider_requests_total",
    "madako_http_requests_total",
];

/// Counter of the writes of instances, and its labels for refused writes. A run with real processes reads the same
/// counter, so that both counts agree.
const WRITES: &str = "madako_commits_total";
const REFUSED: [&str; 2] = ["conflict", "not-leader"];

#[derive(Default)]
struct PlantedState {
    /// The actor that has counted a message and not yet asked a clock.
    began: Option<Arc<str>>,
    handled: BTreeMap<Arc<str>, u64>,
    /// Requests by metric, with any outcome.
    requests: BTreeMap<&'static str, u64>,
    refused: u64,
    /// Actor and text of the planted panic, by instance.
    planted: BTreeMap<u32, (Arc<str>, &'static str)>,
}

/// Counts messages and requests. Clones share their state.
#[derive(Clone, Default)]
pub struct MessageCounter {
    inner: Arc<Mutex<PlantedState>>,
    pace: Option<MessagePace>,
}

impl MessageCounter {
    #[must_use]
    pub fn with_pace(pace: &MessagePace) -> Self {
        Self { inner: Arc::default(), pace: Some(pace.clone()) }
    }

    /// Plants a panic in the next message of this actor of this instance.
    pub fn plant_panic(&self, instance: u32, actor: &str) {
        self.plant_panic_with_text(instance, actor, PLANTED);
    }

    /// As [`Self::plant_panic`]. With a text other than [`PLANTED`], no judge takes the panic for a planted one.
    pub(crate) fn plant_panic_with_text(&self, instance: u32, actor: &str, text: &'static str) {
        self.inner.lock().unwrap().planted.insert(instance, (Arc::from(actor), text));
    }

    /// Removes the planted panic of an instance. True if there was one.
    #[must_use]
    pub fn clear(&self, instance: u32) -> bool {
        self.inner.lock().unwrap().planted.remove(&instance).is_some()
    }

    /// True if a planted panic of the instance has not happened yet.
    #[must_use]
    pub fn is_planted(&self, instance: u32) -> bool {
        self.inner.lock().unwrap().planted.contains_key(&instance)
    }

    /// Number of messages that actors began to handle, by the actor's name.
    #[must_use]
    pub fn handled_messages(&self) -> BTreeMap<String, u64> {
        let inner = self.inner.lock().unwrap();
        inner.handled.iter().map(|(actor, count)| (actor.to_string(), *count)).collect()
    }

    /// Number of requests of all instances, by metric.
    #[must_use]
    pub fn request_counts(&self) -> BTreeMap<&'static str, u64> {
        self.inner.lock().unwrap().requests.clone()
    }

    /// Number of writes of all instances that the store refused: the writer is deposed, or a compared key changed.
    #[must_use]
    pub fn refused_count(&self) -> u64 {
        self.inner.lock().unwrap().refused
    }

    fn note_request(&self, instance: u32) {
        let mut inner = self.inner.lock().unwrap();
        let Some(began) = inner.began.take() else { return };
        let planted = inner.planted.get(&instance).filter(|(actor, _)| *actor == began);
        if let Some(text) = planted.map(|(_, text)| *text) {
            inner.planted.remove(&instance);
            drop(inner);
            panic!("{text}");
        }
    }
}

struct Messages {
    actor: Arc<str>,
    handling: MessageCounter,
}

impl CounterFn for Messages {
    fn increment(&self, value: u64) {
        if let Some(pace) = &self.handling.pace {
            pace.count();
        }
        let mut inner = self.handling.inner.lock().unwrap();
        *inner.handled.entry(Arc::clone(&self.actor)).or_default() += value;
        inner.began = Some(Arc::clone(&self.actor));
    }

    fn absolute(&self, _: u64) {}
}

struct Requests {
    metric: &'static str,
    handling: MessageCounter,
}

impl CounterFn for Requests {
    fn increment(&self, value: u64) {
        *self.handling.inner.lock().unwrap().requests.entry(self.metric).or_default() += value;
    }

    fn absolute(&self, _: u64) {}
}

struct RefusedMessages(MessageCounter);

impl CounterFn for RefusedMessages {
    fn increment(&self, value: u64) {
        self.0.inner.lock().unwrap().refused += value;
    }

    fn absolute(&self, _: u64) {}
}

/// Ignores every other metric.
impl Recorder for MessageCounter {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if let Some(metric) = REQUESTS.into_iter().find(|metric| *metric == key.name()) {
            return Counter::from_arc(Arc::new(Requests { metric, handling: self.clone() }));
        }
        let refused = |label: &Label| label.key() == "outcome" && REFUSED.contains(&label.value());
        if key.name() == WRITES && key.labels().any(refused) {
            return Counter::from_arc(Arc::new(RefusedMessages(self.clone())));
        }
        let actor = key.labels().find(|label| label.key() == "actor").map(|label| Arc::from(label.value()));
        match actor.filter(|_| key.name() == MESSAGES) {
            Some(actor) => Counter::from_arc(Arc::new(Messages { actor, handling: self.clone() })),
            None => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// The clock of one instance: the world's time plus an offset.
#[derive(Clone)]
pub struct InstanceClock {
    instance: u32,
    world: Arc<dyn Clock>,
    ahead: Arc<Mutex<time::Duration>>,
    handling: MessageCounter,
}

impl InstanceClock {
    #[must_use]
    pub fn new(instance: u32, world: Arc<dyn Clock>, handling: MessageCounter) -> Self {
        Self { instance, world, ahead: Arc::default(), handling }
    }

    /// Sets the offset from the world's time.
    pub fn set_ahead(&self, ahead: time::Duration) {
        *self.ahead.lock().unwrap() = ahead;
    }
}

impl Clock for InstanceClock {
    fn now(&self) -> OffsetDateTime {
        self.handling.note_request(self.instance);
        self.world.now() + *self.ahead.lock().unwrap()
    }
}

#[cfg(test)]
mod tests {
    use metrics::counter;

    use super::*;

    #[test]
    fn only_refused_outcomes_count_as_refused_writes() {
        let handling = MessageCounter::default();
        metrics::with_local_recorder(&handling, || {
            for outcome in ["committed", "store", "invariant", "encoding"] {
                counter!(WRITES, "subject" => "cluster", "outcome" => outcome).increment(1);
            }
            assert_eq!(handling.refused_count(), 0);
            for outcome in REFUSED {
                counter!(WRITES, "subject" => "placement", "outcome" => outcome).increment(1);
            }
        });
        assert_eq!(handling.refused_count(), 2);
    }
}
