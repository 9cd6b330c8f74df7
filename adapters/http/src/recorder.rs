//! The recorder of a process's metrics, with the buckets of its histograms and the starts of faults.

mod faults;

use std::sync::Arc;

use madako_protocol::ports::Clock;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use self::faults::Faults;
pub use self::faults::{FAULT_GAUGES, Fault, FaultGauge};

/// Buckets of every histogram of seconds: a decision of a queue takes less than a millisecond, a plan milliseconds, a
/// poll up to its deadline of 30 s, and a command on the host up to its default deadline of 600 s.
const SECONDS: [f64; 17] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0,
    600.0,
];

/// Buckets of scores: weighted means of metrics, which lie between 0 and 1.
const SCORES: [f64; 11] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// CKE's metrics with series for each machine.
const OF_MACHINES: [&str; 2] = ["cke_machine_repair_status", "cke_node_reboot_status"];

/// The metrics that a page shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsScope {
    All,
    /// All but the metrics with series for each machine.
    WithoutMachines,
}

/// Keeps the metrics with series for each machine apart: in a fleet of 5,000 machines they are most of the page.
pub struct MetricsRecorder {
    service: PrometheusRecorder,
    machines: PrometheusRecorder,
    faults: Arc<Faults>,
}

#[derive(Clone)]
pub struct MetricsPage {
    service: PrometheusHandle,
    machines: PrometheusHandle,
}

/// A recorder that is not installed yet. The clock gives the starts of faults.
///
/// # Errors
/// The buckets are invalid, which would be a bug of this module.
pub fn build_recorder(clock: Arc<dyn Clock>) -> Result<MetricsRecorder, BuildError> {
    let service = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_score".to_owned()), &SCORES)?;
    let machines = PrometheusBuilder::new();
    Ok(MetricsRecorder {
        service: service.build_recorder(),
        machines: machines.build_recorder(),
        faults: Faults::new(clock),
    })
}

impl MetricsRecorder {
    #[must_use]
    pub fn page(&self) -> MetricsPage {
        MetricsPage { service: self.service.handle(), machines: self.machines.handle() }
    }

    fn recorder_of(&self, name: &str) -> &PrometheusRecorder {
        if OF_MACHINES.contains(&name) { &self.machines } else { &self.service }
    }
}

impl MetricsPage {
    /// The recorded metrics in the text format of Prometheus.
    #[must_use]
    pub fn render(&self, scope: MetricsScope) -> String {
        // Bounds the memory of histograms between two scrapes.
        self.service.run_upkeep();
        let mut text = self.service.render();
        if scope == MetricsScope::All {
            text.push_str(&self.machines.render());
        }
        text
    }
}

impl Recorder for MetricsRecorder {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.recorder_of(key.as_str()).describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.recorder_of(key.as_str()).describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.recorder_of(key.as_str()).describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.recorder_of(key.name()).register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        let gauge = self.recorder_of(key.name()).register_gauge(key, metadata);
        self.faults.watch(gauge, key)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.recorder_of(key.name()).register_histogram(key, metadata)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use madako_protocol::telemetry::CountedGauge;

    use super::*;
    use crate::tests::TestClock;

    #[test]
    fn a_page_without_machines_has_all_other_metrics() {
        let recorder = build_recorder(Arc::new(TestClock::default())).unwrap();
        metrics::with_local_recorder(&recorder, || {
            metrics::describe_gauge!("cke_node_reboot_status", "of nodes");
            metrics::gauge!("cke_node_reboot_status", "node" => "10.0.0.1", "status" => "queued").set(1.0);
            metrics::gauge!("cke_leader").set(1.0);
        });
        let page = recorder.page();
        let (all, without) = (page.render(MetricsScope::All), page.render(MetricsScope::WithoutMachines));
        let series = "cke_node_reboot_status{node=\"10.0.0.1\",status=\"queued\"} 1\n";
        assert!(all.contains(series) && all.contains("# HELP cke_node_reboot_status of nodes\n"), "{all}");
        assert!(all.contains("cke_leader 1\n") && without.contains("cke_leader 1\n"), "{without}");
        assert!(!without.contains("cke_node_reboot_status"), "{without}");
    }

    #[test]
    fn a_fault_has_the_start_of_its_first_series() {
        let clock = Arc::new(TestClock::default());
        let recorder = build_recorder(Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
        let at = |seconds: i64, kind: &'static str, count: f64| {
            clock.0.store(seconds, Ordering::SeqCst);
            metrics::gauge!("madako_metrics", "kind" => kind, "condition" => "failed").set(count);
            let page = recorder.page().render(MetricsScope::All);
            let series = "madako_fault_since_timestamp_seconds{metric=\"madako_metrics\",value=\"failed\"} ";
            page.lines().find_map(|line| line.strip_prefix(series).map(str::to_owned))
        };
        metrics::with_local_recorder(&recorder, || {
            assert_eq!(at(100, "static", 0.0), None, "no fault was ever shown");
            assert_eq!(at(200, "static", 2.0).as_deref(), Some("200"));
            assert_eq!(at(300, "influx", 1.0).as_deref(), Some("200"));
            assert_eq!(at(400, "static", 3.0).as_deref(), Some("200"), "more of the same fault");
            assert_eq!(at(500, "static", 0.0).as_deref(), Some("300"), "the other series still shows it");
            assert_eq!(at(600, "influx", 0.0).as_deref(), Some("0"));
        });
    }

    #[test]
    fn an_actor_is_down_since_its_gauge_fell_to_zero() {
        let clock = Arc::new(TestClock::default());
        let recorder = build_recorder(Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
        metrics::with_local_recorder(&recorder, || {
            let up = CountedGauge::new(metrics::gauge!("madako_actor_up", "actor" => "leader"));
            clock.0.store(60, Ordering::SeqCst);
            drop(up);
        });
        let page = recorder.page().render(MetricsScope::All);
        let series = "madako_fault_since_timestamp_seconds{metric=\"madako_actor_up\",value=\"leader\"} 60\n";
        assert!(page.contains(series), "{page}");
    }
}
