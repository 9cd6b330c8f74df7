//! Metrics of the process, with the names of Prometheus' client libraries.
//!
//! Read from `/proc` at every scrape; metrics whose source is missing or malformed are left out.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::recorder::{MetricsPage, MetricsScope};
use madako_protocol::telemetry::{Metric, Unit};

const SECONDS: Option<Unit> = Some(Unit::Seconds);
const BYTES: Option<Unit> = Some(Unit::Bytes);

/// The metrics of the process, in the order of the page.
pub const PROCESS_METRICS: &[Metric] = &[
    process_metric("counter", "process_cpu_seconds_total", SECONDS, "CPU time, of user and system."),
    process_metric("gauge", "process_virtual_memory_bytes", BYTES, "Virtual memory."),
    process_metric("gauge", "process_resident_memory_bytes", BYTES, "Resident memory."),
    process_metric("gauge", "process_start_time_seconds", SECONDS, "Unix time of the start of the process."),
    process_metric("gauge", "process_open_fds", None, "Open files and connections."),
    process_metric("gauge", "process_max_fds", None, "Limit of open files and connections."),
    process_metric("gauge", "process_virtual_memory_max_bytes", BYTES, "Limit of virtual memory."),
];

const fn process_metric(
    kind: &'static str,
    name: &'static str,
    unit: Option<Unit>,
    text: &'static str,
) -> Metric {
    Metric { kind, name, unit, labels: &[], section: "The process", text }
}

/// The recorded metrics and those of the process, in the text format of Prometheus.
#[must_use]
pub fn metrics_text(page: &MetricsPage, scope: MetricsScope) -> String {
    let mut text = page.render(scope);
    let units = Units {
        ticks_per_second: rustix::param::clock_ticks_per_second(),
        page_bytes: rustix::param::page_size() as u64,
    };
    write_process(&mut text, Path::new("/proc"), units);
    text
}

#[derive(Clone, Copy)]
struct Units {
    ticks_per_second: u64,
    page_bytes: u64,
}

fn write_process(text: &mut String, proc: &Path, units: Units) {
    for (Metric { kind, name, text: help, .. }, value) in PROCESS_METRICS.iter().zip(read_values(proc, units))
    {
        if let Some(value) = value {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n\n");
        }
    }
}

/// In the order of the table.
fn read_values(proc: &Path, units: Units) -> [Option<String>; PROCESS_METRICS.len()] {
    let own = proc.join("self");
    let stat = fs::read_to_string(own.join("stat")).ok().and_then(|text| Stat::parse(&text));
    let stat = stat.as_ref();
    let boot = fs::read_to_string(proc.join("stat")).ok().and_then(|text| boot_time(&text));
    // Both are far below 2^52.
    let seconds = |ticks: u64| ticks as f64 / units.ticks_per_second as f64;
    let limits = fs::read_to_string(own.join("limits")).unwrap_or_default();
    let limit = |name| soft_limit(&limits, name).map(|limit| limit.to_string());
    [
        stat.map(|stat| seconds(stat.cpu_ticks).to_string()),
        stat.map(|stat| stat.virtual_bytes.to_string()),
        stat.map(|stat| (stat.resident_pages * units.page_bytes).to_string()),
        stat.zip(boot).map(|(stat, boot)| (boot as f64 + seconds(stat.start_ticks)).to_string()),
        fs::read_dir(own.join("fd")).ok().map(|entries| entries.count().to_string()),
        limit("Max open files"),
        limit("Max address space"),
    ]
}

/// The used fields of `/proc/<pid>/stat` (proc_pid_stat(5)).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The second field is a name in parentheses, which may contain any character, including parentheses.
        let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
        // The first of these is number 3 of the manual.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Seconds from the epoch to the start of the system, from `/proc/stat`.
fn boot_time(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// A limit from `/proc/<pid>/limits`. Unlimited is the largest number, as other programs show it.
fn soft_limit(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    match rest.split_ascii_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_parentheses_is_parsed() {
        let text = "4711 (a) b (c) S 1 4711 4711 0 -1 4194560 10 0 0 0 \
                    150 50 0 0 20 0 5 0 123456 1073741824 2560 18446744073709551615 1 1 0";
        assert_eq!(
            Stat::parse(text),
            Some(Stat { cpu_ticks: 200, start_ticks: 123_456, virtual_bytes: 1 << 30, resident_pages: 2560 })
        );
        assert_eq!(Stat::parse("4711 (a"), None);
        assert_eq!(Stat::parse("4711 (a) S 1"), None);
    }

    #[test]
    fn limits_and_boot_time_are_found() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max open files            1024                 524288               files     \n\
                      Max address space         unlimited            unlimited            bytes     \n";
        assert_eq!(soft_limit(limits, "Max open files"), Some(1024));
        assert_eq!(soft_limit(limits, "Max address space"), Some(u64::MAX));
        assert_eq!(soft_limit(limits, "Max nothing"), None);
        assert_eq!(boot_time("cpu  1 2 3\nbtime 1700000000\nprocesses 5\n"), Some(1_700_000_000));
    }

    #[test]
    fn all_metrics_of_the_own_process_are_shown_once() {
        let recorder =
            crate::build_recorder(std::sync::Arc::new(crate::tests::TestClock::default())).unwrap();
        let text = metrics_text(&recorder.page(), MetricsScope::All);
        let value = |name: &str| -> f64 {
            let lines: Vec<&str> =
                text.lines().filter_map(|l| l.strip_prefix(name)?.strip_prefix(' ')).collect();
            assert_eq!(lines.len(), 1, "{name} in:\n{text}");
            lines[0].parse().unwrap()
        };
        // 2020 to 2100.
        assert!((1.5e9..4.2e9).contains(&value("process_start_time_seconds")));
        assert!((1e5..1e11).contains(&value("process_resident_memory_bytes")));
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!((3.0..=value("process_max_fds")).contains(&value("process_open_fds")));
        assert!(value("process_virtual_memory_max_bytes") > 0.0);
    }

    #[test]
    fn metrics_are_left_out_without_proc() {
        let mut text = String::new();
        write_process(
            &mut text,
            Path::new("/nonexistent"),
            Units { ticks_per_second: 100, page_bytes: 4096 },
        );
        assert_eq!(text, "");
    }
}
