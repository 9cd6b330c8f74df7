//! The start of each fault that a gauge shows, for readers that see only one page of metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use madako_protocol::ports::Clock;
use metrics::{Gauge, GaugeFn, Key};

use crate::telemetry::madako_fault_since_timestamp_seconds;

/// The values of a gauge that are a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Positive,
    Zero,
}

#[derive(Debug, Clone, Copy)]
pub struct FaultGauge {
    pub metric: &'static str,
    /// The label that names the faulty thing.
    pub label: Option<&'static str>,
    pub fault: Fault,
}

const fn fault_if_positive(metric: &'static str, label: Option<&'static str>) -> FaultGauge {
    FaultGauge { metric, label, fault: Fault::Positive }
}

/// Gauges without a metric of their own for the start of their fault.
pub const FAULT_GAUGES: [FaultGauge; 11] = [
    FaultGauge { metric: "madako_actor_up", label: Some("actor"), fault: Fault::Zero },
    FaultGauge { metric: "madako_placement_owner", label: None, fault: Fault::Zero },
    fault_if_positive("madako_actor_parked", None),
    fault_if_positive("madako_duplicate_addresses", None),
    fault_if_positive("madako_metrics", Some("condition")),
    fault_if_positive("madako_metrics_providers_down", Some("kind")),
    fault_if_positive("madako_nodes_with_unreadable_certificates", None),
    fault_if_positive("madako_objects_faults", None),
    fault_if_positive("madako_placement_circular", None),
    fault_if_positive("madako_reports_refused", Some("reason")),
    fault_if_positive("madako_state_faults", None),
];

/// The faults that the gauges of a process show.
pub(super) struct Faults {
    clock: Arc<dyn Clock>,
    /// By metric and value of the label.
    known: Mutex<BTreeMap<(&'static str, String), Series>>,
}

/// Series with one value of the label.
#[derive(Default)]
struct Series {
    values: BTreeMap<Key, Value>,
    shown: f64,
}

#[derive(Default)]
struct Value {
    value: f64,
    /// Unix time in seconds.
    fault_since: Option<f64>,
}

/// Watches the values of a series.
struct WatchedGauge {
    gauge: Gauge,
    key: Key,
    kind: FaultGauge,
    /// The value of the label.
    of: String,
    faults: Arc<Faults>,
}

impl Faults {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, known: Mutex::default() })
    }

    /// A handle that also keeps the start of the fault, if the gauge shows one.
    pub(super) fn watch(self: &Arc<Self>, gauge: Gauge, key: &Key) -> Gauge {
        let Some(kind) = FAULT_GAUGES.into_iter().find(|kind| kind.metric == key.name()) else {
            return gauge;
        };
        let labels = key.labels().find(|label| Some(label.key()) == kind.label);
        let of = labels.map(|label| label.value().to_owned()).unwrap_or_default();
        Gauge::from_arc(Arc::new(WatchedGauge {
            gauge,
            key: key.clone(),
            kind,
            of,
            faults: Arc::clone(self),
        }))
    }
}

impl WatchedGauge {
    fn change_value(&self, change: impl Fn(f64) -> f64) {
        let mut known = self.faults.known.lock().unwrap_or_else(PoisonError::into_inner);
        let series = known.entry((self.kind.metric, self.of.clone())).or_default();
        let value = series.values.entry(self.key.clone()).or_default();
        value.value = change(value.value);
        let is_fault = match self.kind.fault {
            Fault::Positive => value.value > 0.0,
            Fault::Zero => value.value <= 0.0,
        };
        value.fault_since = is_fault
            .then(|| value.fault_since.unwrap_or_else(|| self.faults.clock.now().unix_timestamp() as f64));
        let first = series.values.values().filter_map(|value| value.fault_since).reduce(f64::min);
        let shown = first.unwrap_or_default();
        // Most values are set again and again without a change.
        if (shown - series.shown).abs() > 0.0 {
            series.shown = shown;
            madako_fault_since_timestamp_seconds(self.kind.metric, self.of.clone()).set(shown);
        }
    }
}

impl GaugeFn for WatchedGauge {
    fn increment(&self, value: f64) {
        self.gauge.increment(value);
        self.change_value(|old| old + value);
    }

    fn decrement(&self, value: f64) {
        self.gauge.decrement(value);
        self.change_value(|old| old - value);
    }

    fn set(&self, value: f64) {
        self.gauge.set(value);
        self.change_value(|_| value);
    }
}
