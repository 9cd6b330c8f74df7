//! Tests that log lines equal those of cybozu-go/log, byte for byte.

use std::sync::{Arc, Mutex};

use time::macros::datetime;

use super::*;

struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> OffsetDateTime {
        datetime!(2026-11-21 13:00:00.000042 +1)
    }
}

fn logged(format: LogFormat, severity: Severity, act: impl FnOnce()) -> String {
    let buffer = Arc::new(Mutex::new(Vec::new()));
    let log = CkeLog {
        format,
        severity,
        topic: "madako".to_owned(),
        utsname: "host-1".to_owned(),
        clock: Arc::new(FixedClock),
        output: LogOutput::Memory(Arc::clone(&buffer)),
        traced: false,
    };
    tracing::subscriber::with_default(log.into_subscriber(None), act);
    let lines = buffer.lock().unwrap().clone();
    String::from_utf8(lines).unwrap()
}

fn example() {
    let nodes = 3_u64;
    tracing::info!(nodes, ok = true, load = 0.5, why = "a \"b\"\n", "committed {}", 7);
}

#[test]
fn each_format_has_ckes_shape() {
    assert_eq!(
        logged(LogFormat::Plain, Severity::Info, example),
        "2026-11-21T12:00:00.000042Z host-1 madako info: \"committed 7\" load=0.5 nodes=3 ok=true why=\"a \\\"b\\\"\\n\"\n"
    );
    assert_eq!(
        logged(LogFormat::Logfmt, Severity::Info, example),
        "topic=madako logged_at=2026-11-21T12:00:00.000042Z severity=info utsname=host-1 \
         message=\"committed 7\" load=0.5 nodes=3 ok=true why=\"a \\\"b\\\"\\n\"\n"
    );
    assert_eq!(
        logged(LogFormat::Json, Severity::Info, example),
        "{\"topic\":\"madako\",\"logged_at\":\"2026-11-21T12:00:00.000042Z\",\"severity\":\"info\",\
         \"utsname\":\"host-1\",\"message\":\"committed 7\",\"load\":0.5,\"nodes\":3,\"ok\":true,\
         \"why\":\"a \\\"b\\\"\\n\"}\n"
    );
}

#[test]
fn five_severities_are_distinguished_and_filtered() {
    let all = || {
        tracing::error!(critical = true, "c");
        tracing::error!("e");
        tracing::warn!("w");
        tracing::info!("i");
        tracing::debug!("d");
        tracing::trace!("t");
    };
    let names = ["critical: \"c\"", "error: \"e\"", "warning: \"w\"", "info: \"i\"", "debug: \"d\""];
    for (shown, severity) in
        [Severity::Critical, Severity::Error, Severity::Warning, Severity::Info, Severity::Debug]
            .into_iter()
            .enumerate()
    {
        let text = logged(LogFormat::Plain, severity, all);
        let lines: Vec<&str> = text.lines().map(|line| line.split_once("madako ").unwrap().1).collect();
        assert_eq!(lines, names[..=shown]);
    }
}

#[test]
fn library_messages_below_warning_are_dropped() {
    let text = logged(LogFormat::Plain, Severity::Debug, || {
        tracing::debug!(target: "h2::frame", "authorization: secret");
        tracing::warn!(target: "h2::frame", "odd");
        tracing::debug!(target: "madako_store::watch", "ours");
    });
    assert!(!text.contains("secret") && text.contains("odd") && text.contains("ours"), "{text}");
}

#[test]
fn event_has_the_fields_of_its_spans_and_the_nearest_value_counts() {
    let text = logged(LogFormat::Plain, Severity::Info, || {
        let outer = tracing::debug_span!("outer", epoch = 7, late = tracing::field::Empty);
        let outer = outer.entered();
        outer.record("late", "yes");
        let _inner = tracing::info_span!("inner", node = "10.0.0.1").entered();
        tracing::info!(node = "10.0.0.2", "x");
    });
    // A span below the log's level does not exist.
    assert!(text.ends_with("info: \"x\" node=\"10.0.0.2\"\n"), "{text}");
    let text = logged(LogFormat::Plain, Severity::Info, || {
        let outer = tracing::info_span!("outer", epoch = 7, late = tracing::field::Empty).entered();
        outer.record("late", "yes");
        tracing::info!("x");
    });
    assert!(text.ends_with("info: \"x\" epoch=7 late=\"yes\"\n"), "{text}");
}

#[test]
fn names_become_valid_and_errors_have_their_causes() {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot write the report")]
    struct Outer(#[source] std::fmt::Error);
    let text = logged(LogFormat::Json, Severity::Info, || {
        let error = Outer(std::fmt::Error);
        tracing::info!(
            otel.Name = 1,
            message_id = 2,
            topic = 3,
            error = &error as &dyn std::error::Error,
            "x"
        );
    });
    for part in [
        "\"otel_name\":1",
        "\"message_id\":2",
        "\"_topic\":3",
        "\"error\":\"cannot write the report: an error occurred",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["topic"], "madako");
}

#[test]
fn log_entry_stays_on_one_line_with_any_text() {
    let nasty = "a\u{0}\u{7}\u{8}\u{b}\u{c}\n\r\t\u{7f}\u{85}\u{2028}\\\"é漢";
    for format in [LogFormat::Plain, LogFormat::Logfmt, LogFormat::Json] {
        let text = logged(format, Severity::Info, || tracing::info!(field = nasty, "{nasty}"));
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.trim_end_matches('\n').chars().all(|c| !c.is_control()), "{text:?}");
        if format == LogFormat::Json {
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!((value["message"].as_str(), value["field"].as_str()), (Some(nasty), Some(nasty)));
        }
    }
    let quoted = logged(LogFormat::Plain, Severity::Info, || tracing::info!("{nasty}"));
    assert!(quoted.contains(r#""a\x00\a\b\v\f\n\r\t\x7f\u0085\u2028\\\"é漢""#), "{quoted}");
}

#[test]
fn a_line_has_a_greatest_length() {
    let text = logged(LogFormat::Plain, Severity::Info, || tracing::info!("{}", "é".repeat(MAX_LINE)));
    assert!(text.len() <= MAX_LINE && text.ends_with('\n'));
}

#[test]
fn log_file_is_appended_to_and_reopened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    std::fs::write(&path, "cut off").unwrap();
    let args = LogArgs { logfile: Some(path.clone()), ..LogArgs::default() };
    let log = CkeLog::new(&args, Severity::Info, Arc::new(FixedClock)).unwrap();
    let file = log.log_file().unwrap();
    tracing::subscriber::with_default(log.into_subscriber(None), || {
        tracing::info!("one");
        let moved = dir.path().join("log.1");
        std::fs::rename(&path, &moved).unwrap();
        tracing::info!("two");
        file.reopen_file().unwrap();
        tracing::info!("three");
        let old = std::fs::read_to_string(&moved).unwrap();
        let lines: Vec<&str> = old.lines().collect();
        assert!(lines[0] == "cut off" && lines[1].contains("one") && lines[2].contains("two"), "{old}");
        let new = std::fs::read_to_string(&path).unwrap();
        assert!(new.lines().count() == 1 && new.contains("three"), "{new}");
    });
    let nowhere = LogArgs { logfile: Some(dir.path().join("no/such")), ..LogArgs::default() };
    assert!(CkeLog::new(&nowhere, Severity::Info, Arc::new(FixedClock)).is_err());
}
