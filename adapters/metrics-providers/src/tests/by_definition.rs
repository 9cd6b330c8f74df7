//! Tests of metrics that need no request: static tables, and unusable definitions and names.

use madako_domain::placement::metadata::ReasonCode;
use madako_protocol::placement::providers::FetchError;
use serde_json::json;

use super::fake::{Fake, Reply};
use super::{fetch, influx_at, kind, ksql_at, prometheus_at, value};

#[tokio::test]
async fn static_provider_has_exactly_its_listed_metrics() {
    let table = kind(&json!({ "type": "static", "of": { "metrics": { "a": 0.9, "b": -1, "": 3 } } }));
    let samples = fetch(&table, &["a", "b", "", "c"]).await;
    assert_eq!(samples["a"], value(0.9));
    assert_eq!(samples["b"], value(-1.0));
    assert_eq!(samples[""], value(3.0));
    let missing = samples["c"].as_ref().unwrap_err();
    assert_eq!(missing, &FetchError::Unlisted);
    assert_eq!((missing.code(), missing.is_definition()), (ReasonCode::InvalidMetric, true));
}

#[tokio::test]
async fn an_invalid_address_is_a_wrong_definition_and_is_not_repeated() {
    for url in ["", "nowhere", "ftp://user:pa55@host/", "http://", "http://user:pa55@ho st/", "/pa55"] {
        for provider in [prometheus_at(url), influx_at(url), ksql_at(url)] {
            let samples = fetch(&provider, &["a", "b"]).await;
            for sample in samples.values() {
                let error = sample.as_ref().unwrap_err();
                assert!(matches!(error, FetchError::Definition { .. }), "{url}: {error}");
                assert!(!format!("{error} {error:?}").contains("pa55"), "{error:?}");
                assert!(error.is_definition() && error.code() == ReasonCode::UnreachableMetricsProvider);
            }
        }
    }
}

#[tokio::test]
async fn a_token_that_no_header_can_hold_is_a_wrong_definition() {
    let of = json!({ "url": "http://127.0.0.1:1", "token": "pa55\nX: y", "org": "o", "bucket": "b" });
    let samples = fetch(&kind(&json!({ "type": "influx", "of": of })), &["a"]).await;
    let error = samples["a"].as_ref().unwrap_err();
    assert!(matches!(error, FetchError::Definition { .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains("pa55"), "{error:?}");
}

#[tokio::test]
async fn a_password_in_an_address_that_a_refusal_repeats_is_not_shown() {
    let table = "#datatype,string,string\n#group,true,true\n#default,,\n,error,reference\n,no pa55,1\n";
    let refusals = [
        r#"{"status": "error", "error": "no pa55"}"#,
        table,
        r#"[{"header": {}}, {"errorMessage": {"message": "no pa55"}}]"#,
    ];
    for (at, body) in refusals.into_iter().enumerate() {
        let fake = Fake::start(move |_| Reply::Whole(200, body.to_owned())).await;
        let url = fake.url.replace("http://", "http://user:pa55@");
        let provider = [prometheus_at(&url), influx_at(&url), ksql_at(&url)][at].clone();
        let samples = fetch(&provider, &["a"]).await;
        let error = samples["a"].as_ref().unwrap_err();
        assert!(matches!(error, FetchError::Refused { .. }), "{error}");
        assert!(!format!("{error} {error:?}").contains("pa55"), "{error:?}");
    }
}

#[tokio::test]
async fn names_that_no_metric_has_are_not_asked_for() {
    // The address has no listener: a request would fail with another error.
    let long = "a".repeat(1025);
    for provider in
        [prometheus_at("http://127.0.0.1:1"), influx_at("http://127.0.0.1:1"), ksql_at("http://127.0.0.1:1")]
    {
        let samples = fetch(&provider, &["", &long]).await;
        for sample in samples.values() {
            assert!(matches!(sample, Err(FetchError::Name { .. })), "{sample:?}");
        }
        assert_eq!(fetch(&provider, &[]).await.len(), 0);
    }
}

#[test]
fn the_definitions_do_not_show_their_token() {
    let provider = influx_at("http://127.0.0.1:1");
    assert!(!format!("{provider:?}").contains(super::TOKEN));
}
