//! Tests of every kind of metrics provider that is down, slow, or gives wrong answers.

use std::collections::BTreeSet;
use std::time::Duration;

use madako_domain::placement::core::MetricsProviderKind;
use madako_domain::placement::metadata::ReasonCode;
use madako_json::krake::tagged::Variants as _;
use madako_protocol::placement::providers::{FetchError, MetricsProviders};
use tokio::time::Instant;

use super::fake::{Fake, Reply};
use super::{DEADLINE, LIMIT, influx_at, ksql_at, names, prometheus_at, providers};

const NAMES: [&str; 3] = ["a", "b", "c"];

fn all(url: &str) -> [MetricsProviderKind; 3] {
    [prometheus_at(url), influx_at(url), ksql_at(url)]
}

#[test]
fn each_kind_with_a_server_is_tried() {
    let tried: BTreeSet<&str> = all("").iter().map(MetricsProviderKind::tag).chain(["static"]).collect();
    let known: BTreeSet<&str> = MetricsProviderKind::VARIANTS.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(tried, known);
}

/// Sends requests to each kind and expects the same error for each name.
async fn assert_each(url: &str, deadline: Duration, expected: impl Fn(&FetchError) -> bool) {
    for provider in all(url) {
        let samples = providers().fetch(&provider, &names(&NAMES), deadline).await;
        assert_eq!(samples.len(), NAMES.len());
        for sample in samples.values() {
            let error = sample.as_ref().unwrap_err();
            assert!(expected(error), "{provider:?}: {error}");
            assert_eq!(error.code(), ReasonCode::UnreachableMetricsProvider);
            assert!(error.is_providers() && !error.is_definition());
            assert!(error.to_string().len() < 500, "{error}");
            assert!(error.to_string().contains("http://127.0.0.1:"), "{error}");
        }
    }
}

#[tokio::test]
async fn closed_port_is_unreachable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    assert_each(&url, DEADLINE, |error| matches!(error, FetchError::Unreachable { .. })).await;
}

#[tokio::test]
async fn a_hanging_provider_costs_one_deadline() {
    let fake = Fake::start(|_| Reply::Hang).await;
    let deadline = Duration::from_millis(300);
    let begun = Instant::now();
    assert_each(
        &fake.url,
        deadline,
        |error| matches!(error, FetchError::Deadline { deadline: d, .. } if *d == deadline),
    )
    .await;
    // Three kinds with one deadline each, regardless of the number of names.
    assert!(begun.elapsed() >= deadline * 3);
    assert_eq!(fake.asked().len(), 3);
}

#[tokio::test]
async fn an_answer_of_a_gibibyte_is_not_read() {
    let fake = Fake::start(|_| Reply::Endless).await;
    assert_each(&fake.url, DEADLINE, |error| matches!(error, FetchError::TooLarge { limit: LIMIT, .. }))
        .await;
    // The kernel buffers for three connections are far below this.
    assert!(fake.written() < 64 << 20, "{} bytes were taken", fake.written());
    let fake = Fake::start(|_| Reply::Promise).await;
    assert_each(&fake.url, DEADLINE, |error| matches!(error, FetchError::TooLarge { limit: LIMIT, .. }))
        .await;
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_an_error() {
    let fake = Fake::start(|_| Reply::CutOff).await;
    assert_each(&fake.url, DEADLINE, |error| matches!(error, FetchError::CutOff { .. })).await;
}

#[tokio::test]
async fn a_refusal_is_an_error_with_its_text_on_one_line() {
    for status in [204, 302, 400, 404, 429, 500, 503] {
        let fake = Fake::start(move |_| Reply::Whole(status, "a lot\nof words \u{7} ".repeat(10_000))).await;
        assert_each(&fake.url, DEADLINE, |error| {
            matches!(error, FetchError::Status { status: s, message, .. } if *s == status && !message.contains('\n'))
        })
        .await;
    }
}

#[tokio::test]
async fn an_answer_that_is_not_utf_8_is_an_error() {
    let fake = Fake::start(|_| Reply::Whole(200, "#datatype\u{0}\u{1}".repeat(1000))).await;
    assert_each(&fake.url, DEADLINE, |error| matches!(error, FetchError::Malformed { .. })).await;
}
