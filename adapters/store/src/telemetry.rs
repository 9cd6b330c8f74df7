//! Metrics of the store's client, and names of its operations.

use std::time::Duration;

use madako_domain::store::StoreErrorKind;
use madako_protocol::ports::Clock;
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Operation {
    List,
    Commit,
    Watch,
    #[strum(serialize = "lease_grant")]
    Grant,
    #[strum(serialize = "lease_keep_alive")]
    KeepAlive,
    #[strum(serialize = "lease_revoke")]
    Revoke,
    Enrol,
    Revision,
    Snapshot,
}

madako_json::named!(Operation);

impl Operation {
    /// Description for an error.
    pub(crate) fn of(self, object: &str) -> String {
        let object = if object.is_empty() { "every key" } else { object };
        match self {
            Self::List => format!("read of {object}"),
            Self::Commit => format!("transaction on {object}"),
            Self::Watch => format!("watch of {object}"),
            Self::Grant => "grant of a session lease".to_owned(),
            Self::KeepAlive => format!("renewal of lease {object}"),
            Self::Revoke => format!("revocation of lease {object}"),
            Self::Enrol => format!("candidacy with {object}"),
            Self::Revision => "question for the store's revision".to_owned(),
            Self::Snapshot => "snapshot of the store".to_owned(),
        }
    }
}

const REQUESTS: &str = "madako_store_requests_total";
const SECONDS: &str = "madako_store_request_seconds";
const ANSWERED: &str = "madako_store_answer_timestamp_seconds";
const INTERRUPTIONS: &str = "madako_store_watch_interruptions_total";
const RESUMPTIONS: &str = "madako_store_watch_resumptions_total";
const LISTS: &str = "madako_store_watch_lists_total";
const CONNECTIONS: &str = "madako_store_connections_replaced_total";
const TOKENS: &str = "madako_store_authentications_total";
const SKIPPED: &str = "madako_store_keys_skipped_total";

pub fn describe_metrics() {
    describe_counter!(
        REQUESTS,
        Unit::Count,
        "Requests to the store by operation and outcome: ok, unavailable, deadline, denied, invalid, full or \
         other."
    );
    describe_histogram!(SECONDS, Unit::Seconds, "Duration of requests to the store, by operation.");
    describe_gauge!(ANSWERED, Unit::Seconds, "Unix time of the store's last good answer.");
    describe_counter!(INTERRUPTIONS, Unit::Count, "Watches that lost their stream, by watched prefix.");
    describe_counter!(RESUMPTIONS, Unit::Count, "Watches that resumed at their revision, by watched prefix.");
    describe_counter!(
        LISTS,
        Unit::Count,
        "Lists that a watch made, by watched prefix and cause: start, compacted or other-store."
    );
    describe_counter!(
        CONNECTIONS,
        Unit::Count,
        "Abandoned connections: a request got no answer in time, or another endpoint may work."
    );
    describe_counter!(TOKENS, Unit::Count, "Authentications by password, by outcome.");
    // Create the series at zero.
    counter!(TOKENS, "outcome" => "ok").increment(0);
    describe_counter!(SKIPPED, Unit::Count, "Keys skipped because they are not UTF-8.");
    crate::objects::describe();
}

pub(crate) fn request(operation: Operation, result: Result<(), StoreErrorKind>, took: Duration) {
    let outcome = result.map_or_else(|kind| kind.name(), |()| "ok");
    counter!(REQUESTS, "operation" => operation.name(), "outcome" => outcome).increment(1);
    histogram!(SECONDS, "operation" => operation.name()).record(took.as_secs_f64());
}

/// Records the time of a successful answer.
#[allow(clippy::cast_precision_loss, reason = "seconds are far below 2^52")]
pub(crate) fn answered(clock: &dyn Clock) {
    gauge!(ANSWERED).set(clock.now().unix_timestamp() as f64);
}

pub(crate) fn interrupted(prefix: &str) {
    counter!(INTERRUPTIONS, "prefix" => prefix.to_owned()).increment(1);
}

pub(crate) fn resumed(prefix: &str) {
    counter!(RESUMPTIONS, "prefix" => prefix.to_owned()).increment(1);
}

pub(crate) fn listed(prefix: &str, cause: &'static str) {
    counter!(LISTS, "prefix" => prefix.to_owned(), "cause" => cause).increment(1);
}

pub(crate) fn connection_replaced() {
    counter!(CONNECTIONS).increment(1);
}

pub(crate) fn authenticated(result: Result<(), StoreErrorKind>) {
    counter!(TOKENS, "outcome" => result.map_or_else(|kind| kind.name(), |()| "ok")).increment(1);
}

pub(crate) fn key_skipped() {
    counter!(SKIPPED).increment(1);
}
