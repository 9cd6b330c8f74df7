//! Test support: a recorder of metrics that keeps the last value of each gauge.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// By name and label, such as `name{reason}`.
#[derive(Default)]
pub(super) struct Gauges(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Gauges {
    /// Gauges with this prefix of name and labels.
    pub(super) fn all(&self, name: &str) -> Vec<(String, f64)> {
        let gauges = self.0.lock().unwrap();
        let of_name = gauges.iter().filter(|(key, _)| key.starts_with(name));
        of_name.map(|(key, value)| (key.clone(), f64::from_bits(value.load(Ordering::Relaxed)))).collect()
    }

    /// Those that are not 0.
    pub(super) fn shown(&self, name: &str) -> Vec<(String, f64)> {
        self.all(name).into_iter().filter(|(_, value)| *value > 0.0).collect()
    }
}

impl Recorder for Gauges {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let labels: Vec<&str> = key.labels().map(metrics::Label::value).collect();
        let key = format!("{}{{{}}}", key.name(), labels.join(","));
        Gauge::from_arc(Arc::clone(self.0.lock().unwrap().entry(key).or_default()))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
