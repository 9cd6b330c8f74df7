//! The port to the scheduler's explanations, for programs that show why an application is on its cluster.

use async_trait::async_trait;

use madako_domain::placement::decision::{Decision, ExplainError, Explanation, WhatIf};
use madako_domain::placement::kind::ObjectKey;
use madako_domain::store::StoreError;

/// The reason why there is no explanation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NoExplanation {
    /// This instance decides nothing about placement now: it is not the leader, or another prefix owns placement.
    #[error("this instance does not control placement now; ask the leader{}", describe_leader(leader.as_deref()))]
    Elsewhere {
        /// Host of the deciding instance; `None` if no instance decides.
        leader: Option<String>,
        /// The last stored decision, if there is one.
        last: Option<Box<Decision>>,
    },
    /// The owner of placement and the last decision cannot be read.
    #[error(transparent)]
    Unread(#[from] StoreError),
    /// The scheduler did not answer in time.
    #[error("the scheduler did not answer the request for an explanation in time: repeat the request")]
    Unanswered,
    /// The request has no answer.
    #[error(transparent)]
    Refused(#[from] ExplainError),
}

fn describe_leader(leader: Option<&str>) -> String {
    leader.map_or_else(|| " (no instance leads now)".to_owned(), |host| format!(", on {host}"))
}

/// The port to explanations.
#[async_trait]
pub trait Explainer: Send + Sync + 'static {
    /// The decision that a reconcile pass would make now about an application, with all candidates; `what_if`
    /// replaces inputs.
    async fn explain(
        &self,
        application: ObjectKey,
        what_if: WhatIf,
    ) -> Result<Box<Explanation>, NoExplanation>;
}
