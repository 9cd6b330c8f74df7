//! Metrics as data: each crate declares all its metrics in one table, with [`declare_metrics!`](crate::declare_metrics).
//!
//! The help texts of `/metrics`, the check of `docs/METRICS.md` and the tests use the tables. A use of a metric calls
//! the function of that name, which has one parameter for each label: a misspelt name or a missing label does not
//! compile.

use metrics::Unit;
pub use metrics::{Counter, Gauge, Histogram};
#[doc(hidden)]
pub use metrics::{SharedString, counter, gauge, histogram};

/// A declared metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Ends with the unit, as Prometheus recommends.
    pub name: &'static str,
    /// Names of the labels.
    pub labels: &'static [&'static str],
    /// Help text on `/metrics`.
    pub text: &'static str,
}

impl Metric {
    /// Describes the metric to the current recorder.
    pub fn describe(&self) {
        let unit = self.name.ends_with("_seconds").then_some(Unit::Seconds);
        metrics::with_recorder(|recorder| match self.kind {
            "counter" => recorder.describe_counter(self.name.into(), unit, self.text.into()),
            "gauge" => recorder.describe_gauge(self.name.into(), unit, self.text.into()),
            _ => recorder.describe_histogram(self.name.into(), unit, self.text.into()),
        });
    }
}

/// Increments a gauge for its own lifetime.
#[derive(Debug)]
pub struct CountedGauge(Gauge);

impl CountedGauge {
    /// Increments the gauge.
    #[must_use]
    pub fn new(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for CountedGauge {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Declares the metrics of a crate, each as `kind name(label, ...) "help text";`. Defines the table `METRICS` and, for
/// each metric, a function from label values to the metric's handle.
#[macro_export]
macro_rules! declare_metrics {
    ($($kind:ident $name:ident($($label:ident),*) $text:literal;)*) => {
        /// The metrics of this crate.
        pub const METRICS: &[$crate::telemetry::Metric] = &[$($crate::telemetry::Metric {
            kind: stringify!($kind),
            name: stringify!($name),
            labels: &[$(stringify!($label)),*],
            text: $text,
        }),*];
        $(
            #[doc = $text]
            pub(crate) fn $name(
                $($label: impl Into<$crate::telemetry::SharedString>),*
            ) -> $crate::declare_metrics!(@$kind) {
                $crate::telemetry::$kind!(stringify!($name) $(, stringify!($label) => $label)*)
            }
        )*
    };
    (@counter) => { $crate::telemetry::Counter };
    (@gauge) => { $crate::telemetry::Gauge };
    (@histogram) => { $crate::telemetry::Histogram };
}
