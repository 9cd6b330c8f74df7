//! The record of an operation (CKE's `records/<id in hex>`, its `docs/record.md`).
//!
//! The JSON is CKE's: the id is a decimal string, times are RFC 3339 with nanoseconds, Go's zero time means "not
//! yet". A record never contains a secret: callers keep secrets out of `error` and `info`.

use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

use madako_json::go::{Decimal, OptionalTime, Time, ZERO_TIME, go_object, open_enum};

open_enum! {
    /// Progress of an operation.
    pub enum RecordStatus {
        /// Registered; no command has run.
        New = "new",
        /// A command was started.
        Running = "running",
        /// The operation ended before its last command, or a new leader found the record unfinished.
        Cancelled = "cancelled",
        /// Every command succeeded.
        Completed = "completed",
    }
}

go_object! {
    /// One step of an operation.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Command {
        /// Name of the kind of command, as `madako history` shows it.
        pub name: String = "name";
        /// Object that the command changes.
        pub target: String = "target";
        ..rest
    }
}

go_object! {
    /// A record of an operation.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Record {
        /// Number of the operation; numbers grow by one.
        pub id: i64 = "id" as Decimal;
        /// Progress of the operation.
        pub status: RecordStatus = "status";
        /// Name of the operation.
        pub operation: String = "operation";
        /// The last started command.
        pub command: Command = "command";
        /// Addresses of the nodes that the operation changes.
        pub targets: Vec<String> = "targets";
        /// Findings of the operation, for operators.
        pub info: String = "info";
        /// Reason of the cancellation; empty without one.
        pub error: String = "error";
        /// Time at which the leader announced the operation, before its command began.
        pub start_at: OffsetDateTime = "start-at" as Time;
        /// Time of the end; `None` while the operation is unfinished.
        pub end_at: Option<OffsetDateTime> = "end-at" as OptionalTime;
        ..rest
    }
}

impl Record {
    /// A new record, registered at `now`.
    #[must_use]
    pub fn new(id: i64, operation: impl Into<String>, targets: Vec<String>, now: OffsetDateTime) -> Self {
        Self {
            id,
            status: RecordStatus::New,
            operation: operation.into(),
            targets,
            start_at: now,
            ..Self::default()
        }
    }

    /// A record of the command `command` on one node, started at `now`.
    #[must_use]
    pub fn of_command(id: i64, operation: &str, command: &str, target: &str, now: OffsetDateTime) -> Self {
        let mut record = Self::new(id, operation, vec![target.to_owned()], now);
        let target = target.to_owned();
        record.start(Command { name: command.to_owned(), target, ..Command::default() });
        record
    }

    /// True until the operation has ended (CKE: `new` and `running`).
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        matches!(self.status, RecordStatus::New | RecordStatus::Running)
    }

    /// Records the start of a command.
    pub fn start(&mut self, command: Command) {
        self.status = RecordStatus::Running;
        self.command = command;
    }

    /// Records the successful end of all commands.
    pub fn complete(&mut self, now: OffsetDateTime) {
        self.status = RecordStatus::Completed;
        self.end_at = Some(now);
    }

    /// Records the early end of the operation. `error` has the reason; it is empty when a new leader found the record
    /// unfinished.
    pub fn cancel(&mut self, now: OffsetDateTime, error: impl Into<String>) {
        self.status = RecordStatus::Cancelled;
        self.error = error.into();
        self.end_at = Some(now);
    }
}

/// A time as the entries of CKE's queues have it: in UTC, with whole seconds.
#[must_use]
pub fn whole_second(time: OffsetDateTime) -> OffsetDateTime {
    let time = time.to_offset(UtcOffset::UTC);
    time.replace_nanosecond(0).unwrap_or(time)
}

/// A time for sentences: in UTC, with whole seconds.
#[must_use]
pub fn format_time(time: OffsetDateTime) -> String {
    let time = whole_second(time);
    time.format(&Rfc3339).unwrap_or_else(|_| time.to_string())
}

impl Default for Record {
    fn default() -> Self {
        Self {
            id: 0,
            status: RecordStatus::default(),
            operation: String::new(),
            command: Command::default(),
            targets: Vec::new(),
            info: String::new(),
            error: String::new(),
            start_at: ZERO_TIME,
            end_at: None,
            rest: madako_json::go::UnknownFields::default(),
        }
    }
}
