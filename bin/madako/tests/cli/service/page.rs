//! Test that the page `/metrics` of a running service has only declared metrics, with their kinds and labels. A house
//! test compares the declarations with docs/METRICS.md.

use std::collections::{BTreeMap, BTreeSet};

use madako_protocol::telemetry::Metric;

use super::stage::{Serve, page};

/// Kind and labels of a metric.
type Form = (String, BTreeSet<String>);

fn declared() -> BTreeMap<String, Form> {
    let form = |metric: &Metric| {
        (metric.kind.to_owned(), metric.labels.iter().map(|label| (*label).to_owned()).collect())
    };
    madako_supervisor::all_metrics().map(|metric| (metric.name.to_owned(), form(metric))).collect()
}

/// Label names of a series, such as `{kind="a",le="0.5"}`. No value contains quotation marks.
fn labels(series: &str) -> impl Iterator<Item = &str> {
    series.split('"').step_by(2).filter_map(|part| part.trim_start_matches([',', '{']).strip_suffix('='))
}

/// Kind and labels of each metric on a page, by its series.
fn shown(page: &str) -> BTreeMap<String, Form> {
    let mut metrics = BTreeMap::new();
    for line in page.lines().filter(|line| !line.is_empty()) {
        if let Some(line) = line.strip_prefix("# TYPE ") {
            let (name, kind) = line.split_once(' ').unwrap();
            metrics.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
        } else if !line.starts_with('#') {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (name, of_series) = series.split_at(series.find('{').unwrap_or(series.len()));
            // Suffixes of a histogram's series.
            let parts = ["", "_bucket", "_sum", "_count"];
            let base = parts.iter().filter_map(|part| name.strip_suffix(part));
            let base = base.into_iter().find(|base| metrics.contains_key(*base));
            let base = base.unwrap_or_else(|| panic!("a series without a kind: {line}")).to_owned();
            let (kind, known) = metrics.get_mut(&base).unwrap();
            let own = labels(of_series).filter(|label| !(kind == "histogram" && *label == "le"));
            known.extend(own.map(str::to_owned));
        }
    }
    metrics
}

/// Asserts that the present metrics of a service are declared; returns their names.
pub(super) async fn is_declared(service: &Serve) -> BTreeSet<String> {
    let (status, page) = page(service.address(), "/metrics").await.unwrap();
    assert_eq!(status, 200);
    let (shown, declared) = (shown(&page), declared());
    for (name, form) in &shown {
        assert_eq!(Some(form), declared.get(name), "{name}: as it is shown, and as its crate declares it");
    }
    shown.into_keys().collect()
}

#[test]
fn metric_series_of_the_service_are_parsed() {
    let read = shown(
        "# HELP a A.\n# TYPE a counter\na{x=\"1, {2}=\",y=\"\"} 3\n\n# TYPE b_seconds histogram\n\
         b_seconds_bucket{k=\"z\",le=\"0.5\"} 1\nb_seconds_sum{k=\"z\"} 1\nb_seconds_count{k=\"z\"} 1\n\n\
         # TYPE c_count gauge\nc_count 1\n",
    );
    let form =
        |kind: &str, labels: &[&str]| (kind.to_owned(), labels.iter().map(|it| (*it).to_owned()).collect());
    let expected = [
        ("a".to_owned(), form("counter", &["x", "y"])),
        ("b_seconds".to_owned(), form("histogram", &["k"])),
        ("c_count".to_owned(), form("gauge", &[])),
    ];
    assert_eq!(read, BTreeMap::from(expected));
}
