//! Metrics of the store's client, and names of its operations.

use std::time::Duration;

use madako_domain::store::StoreErrorKind;

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
    #[strum(serialize = "lease_time_to_live")]
    TimeToLive,
    Enrol,
    Revision,
    Snapshot,
    Status,
}

madako_json::named!(Operation);

impl Operation {
    pub(crate) fn describe_on(self, object: &str) -> String {
        let object = if object.is_empty() { "every key" } else { object };
        match self {
            Self::List => format!("read of {object}"),
            Self::Commit => format!("transaction on {object}"),
            Self::Watch => format!("watch of {object}"),
            Self::Grant => "grant of a session lease".to_owned(),
            Self::KeepAlive => format!("renewal of lease {object}"),
            Self::Revoke => format!("revocation of lease {object}"),
            Self::TimeToLive => format!("question for the time to live of lease {object}"),
            Self::Enrol => format!("candidacy with {object}"),
            Self::Revision => "question for the store's revision".to_owned(),
            Self::Snapshot => "snapshot of the store".to_owned(),
            Self::Status => "question for the store's size".to_owned(),
        }
    }
}

pub(crate) fn outcome_label(result: Result<(), StoreErrorKind>) -> &'static str {
    result.map_or_else(|kind| kind.name(), |()| "ok")
}

madako_protocol::declare_metrics! {
    "The store":
    counter madako_store_requests_total(operation, outcome)
        "Requests to the store. `operation`: `list`, `commit`, `watch`, `lease_grant`, `lease_keep_alive`, \
         `lease_revoke`, `lease_time_to_live` (only by commands), `enrol`, `revision` (the request of a fresh \
         read), `snapshot` (only `madako store snapshot`), `status` (only `madako status`). `outcome`: `ok`, \
         `unavailable`, `deadline`, `denied`, `invalid`, `full`, `other`.";
    histogram madako_store_request_seconds(operation) in Seconds "Duration of requests to the store.";
    gauge madako_store_answer_timestamp_seconds() in Seconds
        "Unix time of the store's last good answer. Leaders and candidates send at least three requests within the \
         time to live of the session's lease.";
    counter madako_store_watch_interruptions_total(prefix) "Watches of the store that lost their stream.";
    counter madako_store_watch_resumptions_total(prefix) "Watches of the store that resumed at their revision.";
    counter madako_store_watch_lists_total(prefix, cause)
        "Lists that a watch of the store requested: at its `start`, because history was `compacted`, or because it \
         reached another store (`other-store`).";
    counter madako_store_connections_replaced_total()
        "Abandoned connections to the store: a request got no answer, or another endpoint may work.";
    counter madako_store_authentications_total(outcome) "Authentications to the store by password.";
    counter madako_store_keys_skipped_total() "Keys of the store that were skipped because they are not UTF-8.";

    "Placement's resources":
    gauge madako_objects(kind) "Resources in the view of placement, by kind, such as `Application`.";
    gauge madako_objects_revision() "Store revision of the view of placement's resources.";
    gauge madako_objects_faults() "Unreadable stored resources of placement; the log names them.";
    gauge madako_objects_changes_kept()
        "Changes of placement's resources kept for followers; a follower that falls further behind ends.";
    gauge madako_objects_followers()
        "Followers of changes of placement's resources: watches of clients, and Madako's own actors.";
    gauge madako_objects_other_keys() "Keys outside placement in the last list of the store.";
    counter madako_objects_gaps_total(reason)
        "Followers that ended because they missed changes of placement's resources. `reason`: `lagged` (too slow), \
         `relisted` (the store was replaced, or compacted beyond the last seen revision).";
    counter madako_objects_questions_total() "Requests for the store's revision; concurrent reads share a request.";
    counter madako_objects_fresh_reads_total(outcome) "Fresh reads of placement's resources: `ok` or `failed`.";
    histogram madako_objects_fresh_seconds() in Seconds
        "Time until the view of placement's resources reached the store's revision at the start of a read.";
}

/// Creates series that begin at zero.
pub fn register_counters() {
    madako_store_authentications_total("ok").increment(0);
    ["lagged", "relisted"].into_iter().for_each(|reason| madako_objects_gaps_total(reason).increment(0));
}

pub(crate) fn count_request(operation: Operation, result: Result<(), StoreErrorKind>, took: Duration) {
    madako_store_requests_total(operation.name(), outcome_label(result)).increment(1);
    madako_store_request_seconds(operation.name()).record(took);
}
