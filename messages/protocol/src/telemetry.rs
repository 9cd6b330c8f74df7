//! Metrics as data: each crate declares all its metrics in one table, with [`declare_metrics!`](crate::declare_metrics).
//!
//! The help texts of `/metrics`, the tables of `docs/METRICS.md` and the tests come from these declarations. A use of a
//! metric calls the function of that name, which has one parameter for each label: a misspelt name or a missing label
//! does not compile.

pub use metrics::{Counter, Gauge, Histogram, Unit};
#[doc(hidden)]
pub use metrics::{SharedString, counter, gauge, histogram};

/// The declaration of a metric: the registration and `docs/METRICS.md` come from it.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Ends with the unit, as Prometheus recommends.
    pub name: &'static str,
    /// None for a number of things, a state (0 or 1) and a revision.
    pub unit: Option<Unit>,
    /// Names of the labels.
    pub labels: &'static [&'static str],
    /// Section of `docs/METRICS.md`.
    pub section: &'static str,
    /// Meaning on `/metrics` and in `docs/METRICS.md`.
    pub text: &'static str,
}

impl Metric {
    /// Describes the metric to the current recorder.
    pub fn describe(&self) {
        metrics::with_recorder(|recorder| match self.kind {
            "counter" => recorder.describe_counter(self.name.into(), self.unit, self.text.into()),
            "gauge" => recorder.describe_gauge(self.name.into(), self.unit, self.text.into()),
            _ => recorder.describe_histogram(self.name.into(), self.unit, self.text.into()),
        });
    }
}

/// Increments a gauge for its own lifetime.
#[derive(Debug)]
pub struct CountedGauge(Gauge);

impl CountedGauge {
    /// Adds 1 to the gauge; dropping the value subtracts it again.
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

/// Declares the metrics of a crate, by section of `docs/METRICS.md`: each metric as
/// `kind name(label, ...) in Unit "meaning";`, where `in Unit` may be missing. Defines the table `METRICS` and, for each
/// metric, a function from label values to the metric's handle.
#[macro_export]
macro_rules! declare_metrics {
    ($($section:literal: $($kind:ident $name:ident($($label:ident),*) $(in $unit:ident)? $text:literal;)*)*) => {
        /// The metrics of this crate.
        pub const METRICS: &[$crate::telemetry::Metric] = &[$($($crate::telemetry::Metric {
            kind: stringify!($kind),
            name: stringify!($name),
            unit: $crate::declare_metrics!(@unit $($unit)?),
            labels: &[$(stringify!($label)),*],
            section: $section,
            text: $text,
        }),*),*];
        $($(
            #[doc = $text]
            pub(crate) fn $name(
                $($label: impl Into<$crate::telemetry::SharedString>),*
            ) -> $crate::declare_metrics!(@$kind) {
                $crate::telemetry::$kind!(stringify!($name) $(, stringify!($label) => $label)*)
            }
        )*)*
    };
    (@counter) => { $crate::telemetry::Counter };
    (@gauge) => { $crate::telemetry::Gauge };
    (@histogram) => { $crate::telemetry::Histogram };
    (@unit) => { None };
    (@unit $unit:ident) => { Some($crate::telemetry::Unit::$unit) };
}
