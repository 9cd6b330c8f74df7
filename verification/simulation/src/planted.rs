//! Panics of any actor in the middle of a message, and counts of what actors handle and what instances ask and answer: by the metrics that the service measures
//! itself with, so that nothing of it is changed.
//!
//! Flow: whoever handles a message first counts it, which tells which kind of actor it is, and then asks its instance's clock
//! since when it does so. That clock belongs to the instance, so both together name the actor; and there it panics, if
//! that was asked for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use madako_protocol::ports::Clock;
use metrics::{
    Counter, CounterFn, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit,
};
use time::OffsetDateTime;

use crate::pace::Pace;

/// What a planted panic says.
pub const PLANTED: &str = "a planted panic";

/// From now on panics that are faults of a scenario are told by its run alone; any other is told as ever.
pub fn keep_quiet() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(PLANTED) {
            told(panic);
        }
    }));
}

/// The metric that each actor counts its messages with.
const MESSAGES: &str = "madako_actor_messages_total";

/// The metrics that instances count their requests with, what they make them for, and the requests of their clients.
const REQUESTS: [&str; 5] = [
    "madako_polls_total",
    "madako_report_polls_total",
    "madako_registry_requests_total",
    "madako_metrics_provider_requests_total",
    "madako_http_requests_total",
];

/// The metric that instances count their writes with, and what it says of those that were refused: as a run on real processes reads
/// it, so that both count the same.
const WRITES: &str = "madako_commits_total";
const REFUSED: [&str; 2] = ["conflict", "not-leader"];

#[derive(Default)]
struct Inside {
    /// The actor that just began to handle a message, until a clock was asked.
    began: Option<Arc<str>>,
    handled: BTreeMap<Arc<str>, u64>,
    /// Requests by their metrics, whatever came of them.
    requests: BTreeMap<&'static str, u64>,
    refused: u64,
    /// Actors that are to panic, by the instance.
    planted: BTreeMap<u32, Arc<str>>,
}

/// Who handles messages. Clones are the same.
#[derive(Clone, Default)]
pub struct Handling {
    inside: Arc<Mutex<Inside>>,
    pace: Option<Pace>,
}

impl Handling {
    /// Nobody handles anything yet; each message counts for a pace.
    #[must_use]
    pub fn paced(pace: &Pace) -> Self {
        Self { inside: Arc::default(), pace: Some(pace.clone()) }
    }

    /// The next message that this actor of this instance handles is its end.
    pub fn plant(&self, instance: u32, actor: &str) {
        self.inside.lock().unwrap().planted.insert(instance, Arc::from(actor));
    }

    /// Nothing is planted in the instance any more. Whether something was.
    #[must_use]
    pub fn clear(&self, instance: u32) -> bool {
        self.inside.lock().unwrap().planted.remove(&instance).is_some()
    }

    /// Whether something is planted in the instance and has not happened.
    #[must_use]
    pub fn is_planted(&self, instance: u32) -> bool {
        self.inside.lock().unwrap().planted.contains_key(&instance)
    }

    /// How many messages actors of each name began to handle.
    #[must_use]
    pub fn handled(&self) -> BTreeMap<String, u64> {
        let inside = self.inside.lock().unwrap();
        inside.handled.iter().map(|(actor, count)| (actor.to_string(), *count)).collect()
    }

    /// How many requests all instances counted, by the metric.
    #[must_use]
    pub fn requests(&self) -> BTreeMap<&'static str, u64> {
        self.inside.lock().unwrap().requests.clone()
    }

    /// How many writes all instances counted as refused, because who wrote does not lead any more or something had changed.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.inside.lock().unwrap().refused
    }

    fn asked(&self, instance: u32) {
        let mut inside = self.inside.lock().unwrap();
        let Some(began) = inside.began.take() else { return };
        if inside.planted.get(&instance) == Some(&began) {
            inside.planted.remove(&instance);
            drop(inside);
            panic!("{PLANTED}");
        }
    }
}

/// Counts the messages of actors of one name.
struct Messages {
    actor: Arc<str>,
    handling: Handling,
}

impl CounterFn for Messages {
    fn increment(&self, value: u64) {
        if let Some(pace) = &self.handling.pace {
            pace.count();
        }
        let mut inside = self.handling.inside.lock().unwrap();
        *inside.handled.entry(Arc::clone(&self.actor)).or_default() += value;
        inside.began = Some(Arc::clone(&self.actor));
    }

    fn absolute(&self, _: u64) {}
}

/// Counts requests of one metric.
struct Requests {
    metric: &'static str,
    handling: Handling,
}

impl CounterFn for Requests {
    fn increment(&self, value: u64) {
        *self.handling.inside.lock().unwrap().requests.entry(self.metric).or_default() += value;
    }

    fn absolute(&self, _: u64) {}
}

/// Counts writes that were refused.
struct Refused(Handling);

impl CounterFn for Refused {
    fn increment(&self, value: u64) {
        self.0.inside.lock().unwrap().refused += value;
    }

    fn absolute(&self, _: u64) {}
}

/// Every other metric goes nowhere.
impl Recorder for Handling {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if let Some(metric) = REQUESTS.into_iter().find(|metric| *metric == key.name()) {
            return Counter::from_arc(Arc::new(Requests { metric, handling: self.clone() }));
        }
        let refused = |label: &Label| label.key() == "outcome" && REFUSED.contains(&label.value());
        if key.name() == WRITES && key.labels().any(refused) {
            return Counter::from_arc(Arc::new(Refused(self.clone())));
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

/// The clock of one instance: that of the world, and what it is ahead of it.
#[derive(Clone)]
pub struct InstanceClock {
    instance: u32,
    world: Arc<dyn Clock>,
    ahead: Arc<Mutex<time::Duration>>,
    handling: Handling,
}

impl InstanceClock {
    /// Shows the time of the world.
    #[must_use]
    pub fn new(instance: u32, world: Arc<dyn Clock>, handling: Handling) -> Self {
        Self { instance, world, ahead: Arc::default(), handling }
    }

    /// From now on it is so far ahead.
    pub fn jump(&self, ahead: time::Duration) {
        *self.ahead.lock().unwrap() = ahead;
    }
}

impl Clock for InstanceClock {
    fn now(&self) -> OffsetDateTime {
        self.handling.asked(self.instance);
        self.world.now() + *self.ahead.lock().unwrap()
    }
}

#[cfg(test)]
mod tests {
    use metrics::counter;

    use super::*;

    #[test]
    fn a_write_counts_as_refused_where_it_was_and_not_where_nobody_answered() {
        let handling = Handling::default();
        metrics::with_local_recorder(&handling, || {
            for outcome in ["committed", "store", "invariant", "encoding"] {
                counter!(WRITES, "subject" => "cluster", "outcome" => outcome).increment(1);
            }
            assert_eq!(handling.refused(), 0);
            for outcome in REFUSED {
                counter!(WRITES, "subject" => "placement", "outcome" => outcome).increment(1);
            }
        });
        assert_eq!(handling.refused(), 2);
    }
}
