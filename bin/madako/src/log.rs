//! Logs in CKE's form: the lines of github.com/cybozu-go/log in its three formats and five severities, so that readers
//! of CKE's logs can read these.
//!
//! Guarantees: one line an event, at most [`MAX_LINE`] bytes, with the fields of the event and of the spans around it.
//! A failed write is not counted and stops nothing: logging must not end a service.
//!
//! `tracing` has no level above error: an error event with the field `critical = true` is critical.
//!
//! Events of libraries are logged from warning on only, at any level: their debug lines contain headers, and so
//! passwords.

mod file;
mod line;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
#[cfg(test)]
use std::sync::{Mutex, PoisonError};

use clap::ValueEnum;
use madako_protocol::causes::error_with_causes;
use madako_protocol::ports::Clock;
use time::OffsetDateTime;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

pub(crate) use file::LogFile;
pub(crate) use line::LogFormat;
use line::{Line, Value};

use crate::limits::MAX_LINE;
use crate::traces::Traces;

/// Prefix of the targets of this project's crates.
pub(crate) const OUR_TARGETS: &str = "madako";
/// The program's name in every line.
const TOPIC: &str = "madako";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Severity {
    /// A fault on which an operator must act now.
    #[value(alias = "crit")]
    Critical,
    /// A failure of an action.
    Error,
    /// A condition that may lead to a failure, or a failure that the program mended.
    #[value(alias = "warn")]
    Warning,
    /// A normal event, such as a committed change.
    #[value(alias = "information")]
    Info,
    /// A detail that helps to find the cause of a fault.
    Debug,
}

madako_json::named!(Severity);

impl Severity {
    fn from_level(level: Level) -> Self {
        match level {
            Level::ERROR => Self::Error,
            Level::WARN => Self::Warning,
            Level::INFO => Self::Info,
            Level::DEBUG | Level::TRACE => Self::Debug,
        }
    }

    fn filter(self) -> LevelFilter {
        match self {
            Self::Critical | Self::Error => LevelFilter::ERROR,
            Self::Warning => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
        }
    }
}

/// Flags of the log, the same as those of CKE's programs.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct LogArgs {
    /// Minimum severity of the log [default: info for serve, error for demo, warning for other commands]
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        value_enum,
        hide_possible_values = true,
        help_heading = "Logging",
        long_help = "Minimum severity of the log: critical, error, warning, info or debug [default: info for \
                     serve, error for demo, warning for other commands]"
    )]
    pub(crate) loglevel: Option<Severity>,
    /// Format of the log: plain, logfmt or json
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Plain,
          hide_possible_values = true, help_heading = "Logging")]
    pub(crate) logformat: LogFormat,
    /// File to append the log to, instead of standard error; SIGUSR1 reopens it
    #[arg(long, global = true, value_name = "FILE", help_heading = "Logging")]
    pub(crate) logfile: Option<PathBuf>,
}

/// Destination of the lines.
#[derive(Clone)]
pub(crate) enum LogOutput {
    Stderr,
    File(Arc<LogFile>),
    /// A buffer, in tests.
    #[cfg(test)]
    Memory(Arc<Mutex<Vec<u8>>>),
}

impl LogOutput {
    fn write(&self, line: &[u8]) {
        // A failure cannot be reported anywhere.
        let _ = match self {
            Self::Stderr => std::io::stderr().lock().write_all(line),
            Self::File(file) => file.write(line),
            #[cfg(test)]
            Self::Memory(buffer) => {
                buffer.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(line);
                Ok(())
            }
        };
    }
}

/// The subscriber of one process.
pub(crate) struct CkeLog {
    format: LogFormat,
    severity: Severity,
    topic: String,
    /// Name of the host.
    utsname: String,
    clock: Arc<dyn Clock>,
    output: LogOutput,
    /// True if all spans are needed for traces; the log alone does not need all of them.
    traced: bool,
}

impl CkeLog {
    /// Logs from the severity in `args` on, or from `default` on.
    ///
    /// # Errors
    /// The log file cannot be opened.
    pub(crate) fn new(args: &LogArgs, default: Severity, clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let output = match &args.logfile {
            None => LogOutput::Stderr,
            Some(path) => LogOutput::File(Arc::new(LogFile::open(path)?)),
        };
        Ok(Self {
            format: args.logformat,
            severity: args.loglevel.unwrap_or(default),
            topic: TOPIC.to_owned(),
            utsname: crate::host::host_name(),
            clock,
            output,
            traced: false,
        })
    }

    /// The log file, which its user should reopen at SIGUSR1.
    pub(crate) fn log_file(&self) -> Option<Arc<LogFile>> {
        match &self.output {
            LogOutput::File(file) => Some(Arc::clone(file)),
            _ => None,
        }
    }

    /// The subscriber that writes the lines and, with `traces`, exports spans.
    pub(crate) fn into_subscriber(
        mut self,
        traces: Option<&Traces>,
    ) -> impl Subscriber + Send + Sync + use<> {
        self.traced = traces.is_some();
        Registry::default().with(self).with(traces.map(Traces::tracing_layer))
    }

    fn is_enabled_for(&self, metadata: &Metadata<'_>) -> bool {
        let limit = if metadata.target().starts_with(OUR_TARGETS) {
            self.severity.filter()
        } else {
            self.severity.filter().min(LevelFilter::WARN)
        };
        *metadata.level() <= limit
    }
}

impl<S> Layer<S> for CkeLog
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        // Spans only carry fields; `hears` filters events.
        metadata.is_span() || self.is_enabled_for(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let least = if self.traced { LevelFilter::INFO } else { LevelFilter::OFF };
        Some(self.severity.filter().max(least))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let severity = match fields.critical {
            true => Severity::Critical,
            false => Severity::from_level(*event.metadata().level()),
        };
        if severity > self.severity {
            return;
        }
        let message = std::mem::take(&mut fields.message);
        // The field of the nearest span counts.
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                for (name, value) in &of_span.named {
                    fields.add(name, value.clone());
                }
            }
        }
        let at: OffsetDateTime = self.clock.now();
        let line = Line {
            at,
            severity,
            topic: &self.topic,
            utsname: &self.utsname,
            message: &message,
            fields: &mut fields.named,
        };
        let mut text = line.format(self.format);
        if text.len() > MAX_LINE {
            let end = text.floor_char_boundary(MAX_LINE - 1);
            text.truncate(end);
            text.push('\n');
        }
        self.output.write(text.as_bytes());
    }
}

/// Fields of an event or a span.
#[derive(Default)]
struct Fields {
    message: String,
    critical: bool,
    /// In the order of their first record; names are unique.
    named: Vec<(String, Value)>,
}

impl Fields {
    /// Adds a field unless its name is taken.
    fn add(&mut self, name: &str, value: Value) {
        if !self.named.iter().any(|(known, _)| known == name) {
            self.named.push((name.to_owned(), value));
        }
    }

    fn set(&mut self, field: &Field, value: Value) {
        let name = line::escape_key(field.name());
        self.named.retain(|(known, _)| *known != name);
        self.named.push((name, value));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.set(field, Value::Text(format!("{value:?}")));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.set(field, Value::Text(value.to_owned()));
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        if field.name() == "critical" {
            self.critical = value;
        } else {
            self.set(field, Value::Bool(value));
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, Value::Integer(value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, Value::Integer(value.into()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, Value::Float(value));
    }

    /// An error is logged with its causes: only here is the whole chain written.
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.set(field, Value::Text(error_with_causes(value)));
    }
}

#[cfg(test)]
mod tests;
