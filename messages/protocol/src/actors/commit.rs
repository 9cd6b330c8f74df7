//! The errors with which the leader refuses a change that an actor asks it to commit.

use std::time::Duration;

use madako_domain::invariants::Violation;
use madako_domain::keys;
use madako_domain::store::{EncodeError, StoreError};

/// The reason why a mutation was not committed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// This instance is not the leader in that epoch: the caller should stop.
    #[error(
        "the change was not written: epoch {epoch} has ended, and this instance is not the leader any more"
    )]
    NotLeader {
        /// The epoch in which the caller acts.
        epoch: i64,
    },
    /// The inputs changed: decide again on a newer state.
    #[error("the change was not written, because other clients changed its inputs {}: decide again on their present values", keys.join(", "))]
    Conflict {
        /// Keys of the changed inputs.
        keys: Vec<String>,
    },
    /// The mutation violates an invariant; nothing was written.
    #[error("the leader refused the change, because it violates {}", list_violations(violations))]
    Invariant {
        /// All violations that the leader found.
        violations: Vec<Violation>,
    },
    /// This leader has not listed the store yet; nothing was sent.
    #[error(
        "the {what} change was not sent: the leader has not listed the keys below its prefix yet, so it \
         cannot check the change; decide again when the leader publishes a state"
    )]
    StoreUnread {
        /// Name of the change.
        what: &'static str,
    },
    /// The mutation has a plan without a cluster; nothing was sent.
    #[error(
        "the key `{}` was not written: the plan has no cluster; plan again, and report a defect of the \
         planner if the error repeats",
        keys::CLUSTER
    )]
    NoCluster,
    /// This instance decides nothing about placement; nothing was sent.
    #[error(
        "the {what} change was not sent: this instance does not control placement (`placement.controllers` \
         is off, or the section `placement` is missing); switch it on here, or make an instance with \
         placement the leader"
    )]
    PlacementElsewhere {
        /// Name of the change.
        what: &'static str,
    },
    /// A placement change names a resource whose key etcd would read back as another resource or none; nothing was
    /// sent.
    #[error(
        "the key `{key}` was not written: no placement resource can have this key (a name is empty or has a \
         slash); correct the resource's name"
    )]
    ForeignKey {
        /// The absolute key in etcd.
        key: String,
    },
    /// The transaction exceeds etcd's limit of operations; nothing was sent.
    #[error(
        "the {what} change was not sent: its transaction has {count} {operations}; etcd takes {most} (`--max-txn-ops`): \
         split the change"
    )]
    TooLarge {
        /// Name of the change.
        what: &'static str,
        /// `comparisons` or `writes`.
        operations: &'static str,
        /// Number of these operations in the transaction.
        count: usize,
        /// etcd's limit for them.
        most: usize,
    },
    /// The change takes the next number of a counter without comparing the counter, so that two changes could take
    /// the same number; nothing was sent.
    #[error(
        "the {what} change was not sent: it takes the next number of the key `{counter}` and does not compare the \
         revision of that key; add the comparison to the change"
    )]
    CounterNotCompared {
        /// Name of the change.
        what: &'static str,
        /// Key of the counter.
        counter: &'static str,
    },
    /// A value cannot be encoded as JSON; nothing was sent.
    #[error(
        "the key `{key}` was not written: its value cannot be encoded: {why}; correct the value in the change"
    )]
    Encoding {
        /// The key, relative to the prefix.
        key: String,
        /// The error of the encoder.
        why: String,
    },
    /// The leader did not answer in time; the write may have happened.
    #[error(
        "the leader did not answer the commit within {deadline:?}: the write may have happened; read the state before the next change"
    )]
    Unanswered {
        /// The time that the leader had for its answer.
        deadline: Duration,
    },
    /// The store failed; the write may have happened. The watch shows the resulting state.
    #[error("{0}")]
    Store(StoreError),
}

/// The consequence of a failed commit for its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nothing was written, because the change is based on an older state or epoch: decide again on a newer one.
    Outdated,
    /// Nothing was written; the leader would refuse the same change again.
    Rejected,
    /// The change may have been written; the watch shows the resulting state.
    Unknown,
}

impl CommitError {
    /// The consequence for the caller.
    #[must_use]
    pub fn failure_class(&self) -> Failure {
        match self {
            Self::NotLeader { .. } | Self::Conflict { .. } => Failure::Outdated,
            Self::Invariant { .. }
            | Self::StoreUnread { .. }
            | Self::NoCluster
            | Self::PlacementElsewhere { .. }
            | Self::ForeignKey { .. }
            | Self::TooLarge { .. }
            | Self::CounterNotCompared { .. }
            | Self::Encoding { .. } => Failure::Rejected,
            Self::Unanswered { .. } | Self::Store(_) => Failure::Unknown,
        }
    }
}

impl From<EncodeError> for CommitError {
    fn from(EncodeError { key, why }: EncodeError) -> Self {
        Self::Encoding { key, why }
    }
}

fn list_violations(violations: &[Violation]) -> String {
    violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rejection_names_the_change_the_reason_and_a_remedy() {
        let table = [
            (
                CommitError::StoreUnread { what: "cluster" },
                "the cluster change was not sent: the leader has not listed the keys below its prefix yet, \
                 so it cannot check the change; decide again when the leader publishes a state",
            ),
            (
                CommitError::NoCluster,
                "the key `cluster` was not written: the plan has no cluster; plan again, and report a \
                 defect of the planner if the error repeats",
            ),
            (
                CommitError::PlacementElsewhere { what: "placement" },
                "the placement change was not sent: this instance does not control placement \
                 (`placement.controllers` is off, or the section `placement` is missing); switch it on here, \
                 or make an instance with placement the leader",
            ),
            (
                CommitError::ForeignKey { key: "/core/roles/a/b".to_owned() },
                "the key `/core/roles/a/b` was not written: no placement resource can have this key (a name \
                 is empty or has a slash); correct the resource's name",
            ),
            (
                CommitError::TooLarge { what: "placement", operations: "writes", count: 129, most: 128 },
                "the placement change was not sent: its transaction has 129 writes; etcd takes 128 (`--max-txn-ops`): \
                 split the change",
            ),
            (
                CommitError::CounterNotCompared { what: "repair-execute", counter: keys::RECORD_ID },
                "the repair-execute change was not sent: it takes the next number of the key `records` and does not \
                 compare the revision of that key; add the comparison to the change",
            ),
            (
                CommitError::Encoding { key: "status".to_owned(), why: "a key is not a string".to_owned() },
                "the key `status` was not written: its value cannot be encoded: a key is not a string; correct the value \
                 in the change",
            ),
        ];
        for (error, text) in table {
            assert_eq!(error.to_string(), text);
            assert_eq!(error.failure_class(), Failure::Rejected);
        }
    }
}
