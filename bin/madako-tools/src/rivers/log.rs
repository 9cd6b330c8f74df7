//! The log of rivers: one line for each event, in one of the formats of CKE's programs.
//!
//! Events of single connections have the level debug, so that clients cannot fill the log.

use std::fmt::{Display, Write as _};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Name of the program in each line.
const TOPIC: &str = "rivers";

/// Weight of an event, the heaviest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[derive(strum::IntoStaticStr, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Level {
    Critical,
    Error,
    Warning,
    Info,
    Debug,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Format {
    Plain,
    Logfmt,
    Json,
}

#[derive(Debug)]
pub(crate) struct LogSettings {
    pub(crate) level: Level,
    pub(crate) format: Format,
    /// `None`: standard error.
    pub(crate) file: Option<PathBuf>,
}

type Fields<'a> = &'a [(&'a str, &'a dyn Display)];

pub(crate) struct Log {
    level: Level,
    format: Format,
    output: Mutex<Box<dyn Write + Send>>,
}

impl Log {
    /// Opens the log; a file is appended to.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn open(settings: &LogSettings) -> Result<Self> {
        let output: Box<dyn Write + Send> = match &settings.file {
            None => Box::new(std::io::stderr()),
            Some(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                Box::new(file.with_context(|| format!("cannot open the log file {}", path.display()))?)
            }
        };
        Ok(Self { level: settings.level, format: settings.format, output: Mutex::new(output) })
    }

    pub(crate) fn log_error(&self, message: &str, fields: Fields<'_>) {
        self.write(Level::Error, message, fields);
    }

    pub(crate) fn log_warning(&self, message: &str, fields: Fields<'_>) {
        self.write(Level::Warning, message, fields);
    }

    pub(crate) fn log_info(&self, message: &str, fields: Fields<'_>) {
        self.write(Level::Info, message, fields);
    }

    pub(crate) fn log_debug(&self, message: &str, fields: Fields<'_>) {
        self.write(Level::Debug, message, fields);
    }

    #[allow(clippy::disallowed_methods, reason = "the time of a log line decides nothing")]
    fn write(&self, level: Level, message: &str, fields: Fields<'_>) {
        if level > self.level {
            return;
        }
        let now = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
        let line = format_line(self.format, (&now, level), message, fields);
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        // A failure cannot be reported anywhere.
        let _ = output.write_all(line.as_bytes());
    }
}

fn format_line(format: Format, (now, level): (&str, Level), message: &str, fields: Fields<'_>) -> String {
    let level: &str = level.into();
    let quoted = |text: &dyn Display| serde_json::Value::String(text.to_string()).to_string();
    let message = quoted(&message);
    let (mut line, between, equals, name) = match format {
        Format::Plain => (format!("{now} {TOPIC} {level}: {message}"), " ", "=", ""),
        Format::Logfmt => {
            (format!("topic={TOPIC} logged_at={now} severity={level} message={message}"), " ", "=", "")
        }
        Format::Json => (
            format!(r#"{{"topic":"{TOPIC}","logged_at":"{now}","severity":"{level}","message":{message}"#),
            ",",
            ":",
            "\"",
        ),
    };
    for (field, value) in fields {
        let value = quoted(value);
        // Writing to a string cannot fail.
        let _ = write!(line, "{between}{name}{field}{name}{equals}{value}");
    }
    line.push_str(if format == Format::Json { "}\n" } else { "\n" });
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_a_line_of_the_format() {
        let written = |format| {
            let fields: Fields<'_> = &[("address", &"10.0.0.1:1"), ("error", &"a \"b\"\nc")];
            format_line(format, ("NOW", Level::Warning), "no upstream", fields)
        };
        assert_eq!(
            written(Format::Plain),
            "NOW rivers warning: \"no upstream\" address=\"10.0.0.1:1\" error=\"a \\\"b\\\"\\nc\"\n"
        );
        assert_eq!(
            written(Format::Logfmt),
            "topic=rivers logged_at=NOW severity=warning message=\"no upstream\" address=\"10.0.0.1:1\" \
             error=\"a \\\"b\\\"\\nc\"\n"
        );
        let json: serde_json::Value = serde_json::from_str(&written(Format::Json)).expect("a JSON document");
        assert_eq!(json["severity"], "warning");
        assert_eq!(json["error"], "a \"b\"\nc");
    }
}
