//! Formats one log line in each of CKE's three formats.

use std::fmt::Write as _;

use clap::ValueEnum;
use time::OffsetDateTime;
use time::UtcOffset;

use super::Severity;

/// A format of cybozu-go/log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Time, host, program, severity, message and fields, for people.
    #[default]
    Plain,
    /// A line of `key=value` pairs for each event.
    Logfmt,
    /// A line with a JSON object for each event.
    Json,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Integer(i128),
    Float(f64),
    Bool(bool),
}

pub(super) struct Line<'a> {
    pub(super) at: OffsetDateTime,
    pub(super) severity: Severity,
    pub(super) topic: &'a str,
    pub(super) utsname: &'a str,
    pub(super) message: &'a str,
    pub(super) fields: &'a mut Vec<(String, Value)>,
}

/// Names that every line has, so that a field cannot have them.
const RESERVED: [&str; 5] = ["topic", "logged_at", "severity", "utsname", "message"];

/// A field's name in the form of cybozu-go/log: lower case letters, digits and `_`, no digit first.
pub(super) fn escape_key(name: &str) -> String {
    let mut key: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect();
    if key.starts_with(|c: char| c.is_ascii_digit()) || RESERVED.contains(&key.as_str()) {
        key.insert(0, '_');
    }
    key
}

impl Line<'_> {
    /// The line, with its line end.
    pub(super) fn format(self, format: LogFormat) -> String {
        self.fields.sort_by(|(one, _), (other, _)| one.cmp(other));
        let at = format_timestamp(self.at);
        let Self { topic, utsname, message, fields, .. } = self;
        let severity = self.severity.name();
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = match format {
            LogFormat::Plain => write!(text, "{at} {utsname} {topic} {severity}: {}", go_quoted(message)),
            LogFormat::Logfmt => write!(
                text,
                "topic={topic} logged_at={at} severity={severity} utsname={utsname} message={}",
                go_quoted(message)
            ),
            LogFormat::Json => write!(
                text,
                r#"{{"topic":{},"logged_at":"{at}","severity":"{severity}","utsname":{},"message":{}"#,
                json_quoted(topic),
                json_quoted(utsname),
                json_quoted(message)
            ),
        };
        for (name, value) in fields {
            let _ = match format {
                LogFormat::Plain | LogFormat::Logfmt => write!(text, " {name}={}", value.go_literal()),
                LogFormat::Json => write!(text, r#","{name}":{}"#, value.to_json()),
            };
        }
        text.push_str(if format == LogFormat::Json { "}\n" } else { "\n" });
        text
    }
}

/// RFC 3339 in UTC, always with six digits of a second.
fn format_timestamp(at: OffsetDateTime) -> String {
    let at = at.to_offset(UtcOffset::UTC);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second(),
        at.microsecond()
    )
}

impl Value {
    fn go_literal(&self) -> String {
        match self {
            Self::Text(text) => go_quoted(text),
            Self::Integer(value) => value.to_string(),
            Self::Float(value) => go_float(*value),
            Self::Bool(value) => value.to_string(),
        }
    }

    fn to_json(&self) -> String {
        match self {
            Self::Text(text) => json_quoted(text),
            Self::Float(value) if !value.is_finite() => json_quoted(&go_float(*value)),
            other => other.go_literal(),
        }
    }
}

fn go_float(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() }
    } else {
        value.to_string()
    }
}

/// A quoted text in the form of Go's `strconv.Quote`.
fn go_quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        let _ = match c {
            '"' => quoted.write_str("\\\""),
            '\\' => quoted.write_str("\\\\"),
            '\u{7}' => quoted.write_str("\\a"),
            '\u{8}' => quoted.write_str("\\b"),
            '\u{c}' => quoted.write_str("\\f"),
            '\n' => quoted.write_str("\\n"),
            '\r' => quoted.write_str("\\r"),
            '\t' => quoted.write_str("\\t"),
            '\u{b}' => quoted.write_str("\\v"),
            c if c.is_ascii_control() => write!(quoted, "\\x{:02x}", u32::from(c)),
            c if c.is_control() || is_line_break(c) => write!(quoted, "\\u{:04x}", u32::from(c)),
            c => quoted.write_char(c),
        };
    }
    quoted.push('"');
    quoted
}

/// A quoted text for JSON, with DEL and line breaks beyond ASCII escaped, too.
fn json_quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        let _ = match c {
            '"' => quoted.write_str("\\\""),
            '\\' => quoted.write_str("\\\\"),
            '\n' => quoted.write_str("\\n"),
            '\r' => quoted.write_str("\\r"),
            '\t' => quoted.write_str("\\t"),
            c if c.is_control() || is_line_break(c) => write!(quoted, "\\u{:04x}", u32::from(c)),
            c => quoted.write_char(c),
        };
    }
    quoted.push('"');
    quoted
}

/// Line and paragraph separators: some readers of lines break at them.
fn is_line_break(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}')
}
