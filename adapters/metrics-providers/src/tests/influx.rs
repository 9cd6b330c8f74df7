//! Tests of fetches from a fake InfluxDB that parses the query and answers in annotated CSV.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use madako_domain::placement::metadata::ReasonCode;
use madako_protocol::placement::providers::{FetchError, Sample};
use serde_json::Value;

use super::fake::{Fake, RecordedRequest, Reply};
use super::{HOSTILE, TOKEN, fetch, flux, influx_at, value};

/// The last point of one series.
#[derive(Clone)]
struct Point {
    measurement: String,
    tags: Vec<(&'static str, &'static str)>,
    datatype: &'static str,
    value: &'static str,
}

fn point(
    measurement: &str,
    tags: &[(&'static str, &'static str)],
    datatype: &'static str,
    value: &'static str,
) -> Point {
    Point { measurement: measurement.to_owned(), tags: tags.to_vec(), datatype, value }
}

/// A cell of CSV, quoted if necessary.
fn cell(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// The points in InfluxDB's format: new annotations whenever the columns change.
fn annotated(points: &[Point]) -> String {
    let mut text = String::new();
    let mut columns = None;
    for (table, point) in points.iter().enumerate() {
        let tags: String = point.tags.iter().map(|(name, _)| format!(",{name}")).collect();
        let values: String = point.tags.iter().map(|(_, value)| format!(",{}", cell(value))).collect();
        if columns.as_ref() != Some(&(point.datatype, tags.clone())) {
            if columns.is_some() {
                text.push_str("\r\n");
            }
            let all = ",string".repeat(point.tags.len());
            let group = ",true".repeat(point.tags.len());
            let none = ",".repeat(point.tags.len());
            write!(
                text,
                "#datatype,string,long,dateTime:RFC3339,dateTime:RFC3339,dateTime:RFC3339,{},string,string{all}\r\n\
                 #group,false,false,true,true,false,false,true,true{group}\r\n\
                 #default,_result,,,,,,,{none}\r\n\
                 ,result,table,_start,_stop,_time,_value,_field,_measurement{tags}\r\n",
                point.datatype
            )
            .unwrap();
            columns = Some((point.datatype, tags));
        }
        write!(
            text,
            ",,{table},2026-01-01T00:00:00Z,2026-01-01T01:00:00Z,2026-01-01T00:30:00Z,{},value,{}{values}\r\n",
            cell(point.value),
            cell(&point.measurement)
        )
        .unwrap();
    }
    text.push_str("\r\n");
    text
}

/// Answers as InfluxDB 2.7 does.
fn answer(asked: &RecordedRequest, points: &[Point]) -> Reply {
    if asked.header("authorization") != Some(&format!("Token {TOKEN}")) {
        return Reply::Whole(401, r#"{"code":"unauthorized","message":"unauthorized access"}"#.to_owned());
    }
    assert_eq!((asked.method.as_str(), asked.target.split('?').next()), ("POST", Some("/api/v2/query")));
    assert_eq!(asked.header("content-type"), Some("application/json"));
    assert_eq!(asked.parameter("org").as_deref(), Some("an org"));
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    assert!(body.get("type").is_none_or(|of| of == "flux"), "its default is flux: {body}");
    assert_eq!(body["dialect"]["annotations"], serde_json::json!(["datatype", "group", "default"]));
    let (bucket, wanted) = flux::read(body["query"].as_str().unwrap()).expect("a query of the known form");
    assert_eq!(bucket, "a \"bucket\"");
    let found: Vec<Point> =
        points.iter().filter(|point| wanted.contains(&point.measurement)).cloned().collect();
    Reply::Whole(200, annotated(&found))
}

async fn ask(points: Vec<Point>, names: &[&str]) -> super::Samples {
    let fake = Fake::start(move |asked| answer(asked, &points)).await;
    let samples = fetch(&influx_at(&fake.url), names).await;
    assert_eq!(fake.asked().len(), 1);
    samples
}

#[tokio::test]
async fn all_measurements_take_one_request() {
    let points = vec![
        point("power", &[], "double", "1.25"),
        point("count", &[], "long", "-7"),
        point("big", &[], "unsignedLong", "18446744073709551615"),
        point("other", &[], "double", "1"),
    ];
    let samples = ask(points, &["power", "count", "big", "missing"]).await;
    assert_eq!(samples["power"], value(1.25));
    assert_eq!(samples["count"], value(-7.0));
    assert_eq!(samples["big"], value(18_446_744_073_709_551_615.0));
    let error = samples["missing"].as_ref().unwrap_err();
    assert!(matches!(error, FetchError::NotFound { .. }), "{error}");
    assert_eq!(error.code(), ReasonCode::InvalidMetric);
}

#[tokio::test]
async fn hostile_names_are_found_by_their_names() {
    let points = HOSTILE.iter().map(|name| point(name, &[], "double", "1")).collect();
    // Line ends and quotes must survive CSV as well.
    let samples = ask(points, &HOSTILE).await;
    for (name, sample) in samples {
        assert_eq!(sample, value(1.0), "{name:?}");
    }
}

#[tokio::test]
async fn first_of_several_series_in_label_order_counts_and_a_note_reports_it() {
    let points = vec![
        point("power", &[("host", "b,\"x\"")], "double", "2"),
        point("power", &[("host", "a\nb")], "double", "1"),
        point("power", &[("host", "c")], "string", "words"),
    ];
    let samples = ask(points, &["power"]).await;
    let note = r#"the first of 3 series in the order of their labels: {_field="value", host="a\nb"}"#;
    assert_eq!(samples["power"], Ok(Sample { value: 1.0, note: Some(note.to_owned()) }));
}

#[tokio::test]
async fn an_unusable_value_does_not_affect_the_others() {
    let points = vec![
        point("nan", &[], "double", "NaN"),
        point("inf", &[], "double", "+Inf"),
        point("minus_inf", &[], "double", "-Inf"),
        point("good", &[], "double", "5e-1"),
        point("null", &[], "double", ""),
        point("words", &[], "string", "a lot, really"),
        point("number", &[], "string", "2.5"),
        point("yes", &[], "boolean", "true"),
        point("when", &[], "dateTime:RFC3339", "2026-01-01T00:00:00Z"),
    ];
    let names: Vec<String> = points.iter().map(|point| point.measurement.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let samples = ask(points, &names).await;
    for name in ["nan", "inf", "minus_inf"] {
        assert!(matches!(samples[name], Err(FetchError::NotFinite { .. })), "{name}: {:?}", samples[name]);
    }
    for name in ["null", "words", "yes", "when"] {
        assert!(matches!(samples[name], Err(FetchError::NotANumber { .. })), "{name}: {:?}", samples[name]);
    }
    assert_eq!(samples["good"], value(0.5));
    assert_eq!(samples["number"], value(2.5));
}

#[tokio::test]
async fn a_token_that_is_refused_or_repeated_is_not_shown() {
    let of = serde_json::json!({ "url": "", "token": "an0ther", "org": "an org", "bucket": "b" });
    let repeat = |status: u16, body: &'static str| async move {
        let fake = Fake::start(move |_| Reply::Whole(status, body.to_owned())).await;
        let mut of = of.clone();
        of["url"] = fake.url.clone().into();
        let samples = fetch(&super::kind(&serde_json::json!({ "type": "influx", "of": of })), &["a"]).await;
        let error = samples["a"].as_ref().unwrap_err().clone();
        assert!(!format!("{error} {error:?}").contains("an0ther"), "{error}");
        error
    };
    let error = repeat.clone()(401, "who is Token an0ther?").await;
    assert!(
        matches!(&error, FetchError::Status { status: 401, message, .. } if message == "who is Token [secret]?")
    );
    let error = repeat.clone()(
        200,
        "#datatype,string,string\n#group,true,true\n#default,,\n,error,reference\n,no an0ther,1\n",
    )
    .await;
    assert!(matches!(&error, FetchError::Refused { message, .. } if message == "no [secret]"), "{error}");
    let table = "#datatype,string,string\n#group,true,true\n#default,,\n,_measurement,_value\n,a,an0ther\n";
    let error = repeat(200, table).await;
    assert!(matches!(&error, FetchError::NotANumber { .. }), "{error}");
}

#[tokio::test]
async fn a_token_in_a_label_is_not_shown() {
    let points = [point("a", &[("who", TOKEN)], "double", "1"), point("a", &[("who", "z")], "double", "2")];
    let text = annotated(&points);
    let fake = Fake::start(move |_| Reply::Whole(200, text.clone())).await;
    let samples = fetch(&influx_at(&fake.url), &["a"]).await;
    let note = samples["a"].as_ref().unwrap().note.as_deref().unwrap();
    assert!(note.contains("who=\"[secret]\"") && !note.contains(TOKEN), "{note}");
}

#[tokio::test]
async fn an_unusable_answer_is_a_fault_of_the_server() {
    let good = annotated(&[point("a", &[], "double", "1")]);
    let bad: BTreeMap<&str, String> = BTreeMap::from([
        ("page", "<html>hello</html>".to_owned()),
        ("no annotations", ",result,table,_value,_measurement\r\n,,0,1,a\r\n".to_owned()),
        ("no header", "#datatype,string\r\n#group,false\r\n#default,\r\n".to_owned()),
        ("short row", good.replace(",value,a\r\n", ",value\r\n")),
        ("long row", good.replace(",value,a\r\n", ",value,a,b\r\n")),
        ("no value", good.replace("_value", "value")),
        ("no measurement", good.replace("_measurement", "measurement")),
        ("fewer types than names", good.replace("#datatype,string", "#datatype")),
    ]);
    for (what, body) in bad {
        let fake = Fake::start(move |_| Reply::Whole(200, body.clone())).await;
        let samples = fetch(&influx_at(&fake.url), &["a"]).await;
        assert!(matches!(samples["a"], Err(FetchError::Malformed { .. })), "{what}: {samples:?}");
    }
    for nothing in ["", "\r\n"] {
        let fake = Fake::start(move |_| Reply::Whole(200, nothing.to_owned())).await;
        let samples = fetch(&influx_at(&fake.url), &["a"]).await;
        assert!(matches!(samples["a"], Err(FetchError::NotFound { .. })), "{samples:?}");
    }
}

#[tokio::test]
async fn a_cell_that_is_empty_has_the_default_of_its_column() {
    let text = annotated(&[point("a", &[], "double", "")]);
    let text = text.replace("#default,_result,,,,,,,", "#default,_result,,,,,4.5,,");
    let fake = Fake::start(move |_| Reply::Whole(200, text.clone())).await;
    assert_eq!(fetch(&influx_at(&fake.url), &["a"]).await["a"], value(4.5));
}
