//! Tests of fetches from a fake Prometheus; a real one has its own test.

use std::collections::BTreeMap;

use madako_domain::placement::metadata::ReasonCode;
use madako_protocol::placement::providers::{FetchError, Sample};
use serde_json::{Value, json};

use super::fake::{Fake, RecordedRequest, Reply};
use super::{fetch, prometheus_at, value};

/// A series: its name, its labels, and the value of its last sample.
type Series<'a> = (&'a str, &'a [(&'a str, &'a str)], Value);

fn vector(series: &[Series<'_>]) -> Reply {
    let result: Vec<Value> = series
        .iter()
        .map(|(name, labels, value)| {
            let mut metric: BTreeMap<&str, &str> = labels.iter().copied().collect();
            metric.insert("__name__", name);
            json!({ "metric": metric, "value": [1_700_000_000.123, value] })
        })
        .collect();
    let data = json!({ "resultType": "vector", "result": result });
    Reply::Whole(200, json!({ "status": "success", "data": data }).to_string())
}

async fn ask(
    reply: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static,
    names: &[&str],
) -> super::Samples {
    let fake = Fake::start(reply).await;
    fetch(&prometheus_at(&fake.url), names).await
}

#[tokio::test]
async fn fifty_metrics_take_one_request_and_long_ones_too() {
    for (length, method) in [(20, "GET"), (250, "POST")] {
        let names: Vec<String> = (0..50).map(|number| format!("{number:0>length$}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let all: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let fake = Fake::start(move |_| {
            let series: Vec<Series<'_>> =
                all.iter().map(|name| (name.as_str(), &[][..], json!("1"))).collect();
            vector(&series)
        })
        .await;
        let samples = fetch(&prometheus_at(&fake.url), &names).await;
        assert!(samples.values().all(|sample| *sample == value(1.0)), "{samples:?}");
        let asked = fake.asked();
        assert_eq!(asked.len(), 1);
        assert_eq!(
            (asked[0].method.as_str(), asked[0].target.split('?').next()),
            (method, Some("/api/v1/query"))
        );
        let query = asked[0].parameter("query").unwrap();
        assert_eq!(query, crate::prometheus::promql_query(&names));
    }
}

#[tokio::test]
async fn more_names_than_fit_take_more_requests() {
    let names: Vec<String> = (0..501).map(|number| format!("m{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let fake = Fake::start(|_| vector(&[])).await;
    fetch(&prometheus_at(&fake.url), &names).await;
    assert_eq!(fake.asked().len(), 2);
}

#[tokio::test]
async fn one_metric_of_very_many_series_spoils_no_other() {
    let fake = Fake::start(|asked| {
        let query = asked.parameter("query").unwrap();
        if query.contains("many") {
            Reply::Promise
        } else {
            let name = if query.contains("one") { "one" } else { "two" };
            vector(&[(name, &[], json!("1"))])
        }
    })
    .await;
    let samples = fetch(&prometheus_at(&fake.url), &["many", "one", "two"]).await;
    assert!(matches!(samples["many"], Err(FetchError::TooLarge { .. })), "{samples:?}");
    assert_eq!((&samples["one"], &samples["two"]), (&value(1.0), &value(1.0)));
    assert_eq!(fake.asked().len(), 4, "all together, and then each alone");
    fetch(&prometheus_at(&fake.url), &["many"]).await;
    assert_eq!(fake.asked().len(), 5, "there is nothing to ask for otherwise");
}

#[tokio::test]
async fn a_server_below_a_path_is_asked_there() {
    let fake = Fake::start(|_| vector(&[("a", &[], json!("1"))])).await;
    for path in ["/prom", "/prom/", "/prom/?tenant=1#x"] {
        assert_eq!(fetch(&prometheus_at(&format!("{}{path}", fake.url)), &["a"]).await["a"], value(1.0));
    }
    assert!(fake.asked().iter().all(|asked| asked.target.starts_with("/prom/api/v1/query?query=")));
}

#[tokio::test]
async fn user_and_password_of_the_address_are_sent_and_never_shown() {
    let fake = Fake::start(|asked| Reply::Whole(401, format!("no, {asked:?} pa55word"))).await;
    let url = fake.url.replace("http://", "http://somebody:pa55word@");
    let samples = fetch(&prometheus_at(&url), &["a"]).await;
    assert_eq!(fake.asked()[0].header("authorization"), Some("Basic c29tZWJvZHk6cGE1NXdvcmQ="));
    let error = samples["a"].as_ref().unwrap_err();
    assert!(matches!(error, FetchError::Status { status: 401, .. }), "{error}");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("pa55word") && !shown.contains("c29tZWJvZHk"), "{error}");
}

#[tokio::test]
async fn first_of_several_series_in_label_order_counts_and_a_note_reports_it() {
    let samples = ask(
        |_| {
            vector(&[
                ("load", &[("job", "node"), ("instance", "b")], json!("2")),
                ("load", &[("job", "node"), ("instance", "a")], json!("1.5")),
                ("load", &[("zone", "a")], json!("3")),
                ("alone", &[("zone", "z")], json!("4")),
            ])
        },
        &["load", "alone"],
    )
    .await;
    let note = r#"the first of 3 series in the order of their labels: {instance="a", job="node"}"#;
    assert_eq!(samples["load"], Ok(Sample { value: 1.5, note: Some(note.to_owned()) }));
    assert_eq!(samples["alone"], value(4.0));
}

#[tokio::test]
async fn only_a_metric_of_exactly_this_name_counts() {
    let samples = ask(
        |_| {
            let other = json!({ "metric": {}, "value": [0, "9"] });
            let Reply::Whole(status, body) = vector(&[("load2", &[], json!("1")), ("Load", &[], json!("1"))])
            else {
                unreachable!()
            };
            let mut body: Value = serde_json::from_str(&body).unwrap();
            body["data"]["result"].as_array_mut().unwrap().push(other);
            Reply::Whole(status, body.to_string())
        },
        &["load"],
    )
    .await;
    let error = samples["load"].as_ref().unwrap_err();
    assert!(matches!(error, FetchError::NotFound { .. }), "{error}");
    assert_eq!(error.code(), ReasonCode::InvalidMetric);
}

#[tokio::test]
async fn an_unusable_value_does_not_affect_the_others() {
    let samples = ask(
        |_| {
            let series: Vec<Series<'_>> = vec![
                ("nan", &[], json!("NaN")),
                ("inf", &[], json!("+Inf")),
                ("minus_inf", &[], json!("-Inf")),
                ("huge", &[], json!("1e999")),
                ("words", &[], json!("lots of it")),
                ("none", &[], json!(null)),
                ("yes", &[], json!(true)),
                ("list", &[], json!([1])),
                ("plain", &[], json!(7)),
                ("exponent", &[], json!("1.5e-3")),
            ];
            vector(&series)
        },
        &["nan", "inf", "minus_inf", "huge", "words", "none", "yes", "list", "plain", "exponent"],
    )
    .await;
    for name in ["nan", "inf", "minus_inf", "huge"] {
        assert!(matches!(samples[name], Err(FetchError::NotFinite { .. })), "{name}: {:?}", samples[name]);
    }
    for name in ["words", "none", "yes", "list"] {
        assert!(matches!(samples[name], Err(FetchError::NotANumber { .. })), "{name}: {:?}", samples[name]);
    }
    assert_eq!(samples["plain"], value(7.0));
    assert_eq!(samples["exponent"], value(0.0015));
    assert!(samples.values().filter_map(|sample| sample.as_ref().err()).all(|error| !error.is_providers()));
}

#[tokio::test]
async fn a_histogram_is_not_a_value() {
    let series = json!({ "metric": { "__name__": "h" }, "histogram": [0, { "count": "1" }] });
    let body =
        json!({ "status": "success", "data": { "resultType": "vector", "result": [series] } }).to_string();
    let samples = ask(move |_| Reply::Whole(200, body.clone()), &["h"]).await;
    assert!(matches!(samples["h"], Err(FetchError::NotANumber { .. })), "{samples:?}");
}

#[tokio::test]
async fn an_unusable_answer_is_a_fault_of_the_server() {
    for body in [
        "",
        "hello",
        "{}",
        "[]",
        r#"{"status": "success"}"#,
        r#"{"status": "success", "data": {"resultType": "scalar", "result": 1}}"#,
        r#"{"status": "success", "data": {"resultType": "vector", "result": [1]}}"#,
        r#"{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"a": 1}}]}}"#,
        r#"{"status": "success", "data": {"resultType": "vector", "result": ["#,
    ] {
        let samples = ask(move |_| Reply::Whole(200, body.to_owned()), &["a", "b"]).await;
        for sample in samples.values() {
            let error = sample.as_ref().unwrap_err();
            assert!(matches!(error, FetchError::Malformed { .. }), "{body}: {error}");
            assert_eq!(error.code(), ReasonCode::UnreachableMetricsProvider);
        }
    }
    let refused = r#"{"status": "error", "errorType": "execution", "error": "query\n timed out"}"#;
    let samples = ask(move |_| Reply::Whole(200, refused.to_owned()), &["a"]).await;
    let error = samples["a"].as_ref().unwrap_err().to_string();
    assert!(error.ends_with("answered with an error: query timed out"), "{error}");
}
