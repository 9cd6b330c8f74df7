//! Tests of fetches from a fake KSQL server.

use std::collections::BTreeMap;

use madako_domain::placement::metadata::ReasonCode;
use madako_protocol::placement::providers::FetchError;
use serde_json::{Value, json};

use super::fake::{Fake, RecordedRequest, Reply};
use super::{HOSTILE, fetch, ksql_at, value};

/// Answers as ksqlDB does: a header, then the rows.
fn answer(asked: &RecordedRequest, rows: &BTreeMap<String, Value>) -> Reply {
    assert_eq!((asked.method.as_str(), asked.target.as_str()), ("POST", "/query"));
    assert_eq!(asked.header("content-type"), Some("application/json"));
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    assert_eq!(body["streamsProperties"], json!({}));
    assert_eq!(body.as_object().unwrap().len(), 2);
    let statement = body["ksql"].as_str().unwrap();
    let name = statement.strip_prefix("SELECT value FROM metrics WHERE name = '").unwrap();
    let name = name.strip_suffix("';").unwrap().replace("''", "'");
    let header = json!({ "header": { "queryId": "q", "schema": "`VALUE` DOUBLE" } });
    let row = rows.get(&name).map(|value| json!({ "row": { "columns": [value] } }));
    Reply::Whole(200, json!([Some(header), row].into_iter().flatten().collect::<Vec<_>>()).to_string())
}

#[tokio::test]
async fn each_metric_is_one_request_and_hostile_names_are_found() {
    let rows: BTreeMap<String, Value> = HOSTILE.iter().map(|name| ((*name).to_owned(), json!(1.5))).collect();
    let fake = Fake::start(move |asked| answer(asked, &rows)).await;
    let samples = fetch(&ksql_at(&fake.url), &HOSTILE).await;
    for (name, sample) in samples {
        assert_eq!(sample, value(1.5), "{name:?}");
    }
    assert_eq!(fake.asked().len(), HOSTILE.len());
}

#[tokio::test]
async fn an_unusable_value_does_not_affect_the_others() {
    let rows = BTreeMap::from([
        ("good".to_owned(), json!(2)),
        ("text".to_owned(), json!("3.5")),
        ("nan".to_owned(), json!("NaN")),
        ("null".to_owned(), json!(null)),
        ("yes".to_owned(), json!(true)),
        ("words".to_owned(), json!("many")),
    ]);
    let fake = Fake::start(move |asked| answer(asked, &rows)).await;
    let samples =
        fetch(&ksql_at(&fake.url), &["good", "text", "nan", "null", "yes", "words", "absent"]).await;
    assert_eq!(samples["good"], value(2.0));
    assert_eq!(samples["text"], value(3.5));
    assert!(matches!(samples["nan"], Err(FetchError::NotFinite { .. })));
    for name in ["null", "yes", "words"] {
        assert!(matches!(samples[name], Err(FetchError::NotANumber { .. })), "{name}");
    }
    let absent = samples["absent"].as_ref().unwrap_err();
    assert!(matches!(absent, FetchError::NotFound { .. }));
    assert_eq!(absent.code(), ReasonCode::InvalidMetric);
}

#[tokio::test]
async fn a_server_that_fails_is_asked_once() {
    let fake = Fake::start(|_| Reply::Whole(500, "out of order".to_owned())).await;
    let samples = fetch(&ksql_at(&fake.url), &["a", "b", "c", "d", "e", "f"]).await;
    for sample in samples.values() {
        assert!(matches!(sample, Err(FetchError::Status { status: 500, .. })), "{sample:?}");
    }
    assert_eq!(fake.asked().len(), 1);
}

#[tokio::test]
async fn an_unusable_answer_is_a_fault_of_the_server() {
    for (body, refused) in [
        ("", false),
        ("hello", false),
        ("{}", false),
        (r#"[{"header": {}}, {"errorMessage": {"message": "no such table"}}]"#, true),
    ] {
        let fake = Fake::start(move |_| Reply::Whole(200, body.to_owned())).await;
        let samples = fetch(&ksql_at(&fake.url), &["a", "b"]).await;
        for sample in samples.values() {
            let error = sample.as_ref().unwrap_err();
            assert_eq!(matches!(error, FetchError::Refused { .. }), refused, "{body}: {error}");
            assert_eq!(matches!(error, FetchError::Malformed { .. }), !refused, "{body}: {error}");
        }
    }
}

#[tokio::test]
async fn invalid_answer_about_one_metric_affects_only_that_metric() {
    let row = |row: &str| format!(r#"[{{"header": {{}}}}, {{"row": {row}}}]"#);
    let refusal = r#"[{"header": {}}, {"errorMessage": {"message": "division by zero"}}]"#;
    for (status, wrong, its_own) in [
        (200, row("{}"), true),
        (200, row(r#"{"columns": []}"#), true),
        (200, refusal.to_owned(), false),
        (200, "hello".to_owned(), false),
        (400, r#"{"message": "line 1:7: mismatched input"}"#.to_owned(), false),
    ] {
        let good = row(r#"{"columns": [4]}"#);
        let message = wrong.clone();
        // It is requested first in one iteration and last in the other.
        for bad in ["a", "z"] {
            let (message, good) = (message.clone(), good.clone());
            let fake = Fake::start(move |asked: &RecordedRequest| {
                let about_bad = asked.body.contains(&format!("'{bad}'"));
                if about_bad {
                    Reply::Whole(status, message.clone())
                } else {
                    Reply::Whole(200, good.clone())
                }
            })
            .await;
            let samples = fetch(&ksql_at(&fake.url), &[bad, "b", "c"]).await;
            assert_eq!([&samples["b"], &samples["c"]], [&value(4.0), &value(4.0)], "{wrong}");
            let error = samples[bad].as_ref().unwrap_err();
            assert_eq!(error.code() == ReasonCode::InvalidMetric, its_own, "{wrong}: {error}");
        }
    }
}
