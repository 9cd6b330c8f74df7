//! The port to the scheduler's explanations: for whoever shows people why an application is where it is.

use async_trait::async_trait;

use madako_domain::placement::decision::{Decision, ExplainError, Explanation, WhatIf};
use madako_domain::placement::kind::ObjectKey;
use madako_domain::store::StoreError;

/// Why there is no explanation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NoExplanation {
    /// This instance decides nothing about placement now: it does not lead, or another prefix does.
    #[error("this instance does not decide about placement now; ask the one that leads{}", on(leader.as_deref()))]
    Elsewhere {
        /// The host of the one that decides; `None`: nobody does.
        leader: Option<String>,
        /// What it decided last, as far as it was kept.
        last: Option<Box<Decision>>,
    },
    /// Who decides, and what was decided, cannot be read.
    #[error(transparent)]
    Unread(#[from] StoreError),
    /// The scheduler did not answer in time.
    #[error("the scheduler did not answer in time")]
    Unanswered,
    /// The question has no answer.
    #[error(transparent)]
    Refused(#[from] ExplainError),
}

fn on(leader: Option<&str>) -> String {
    leader.map_or_else(|| " (nobody does now)".to_owned(), |host| format!(", on {host}"))
}

/// Explains decisions.
#[async_trait]
pub trait Explainer: Send + Sync + 'static {
    /// What would be decided about an application now, with every candidate, or with something else taken for true.
    ///
    /// # Errors
    /// See [`NoExplanation`].
    async fn explain(
        &self,
        application: ObjectKey,
        what_if: WhatIf,
    ) -> Result<Box<Explanation>, NoExplanation>;
}
