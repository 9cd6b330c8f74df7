//! A follower of placement's resources: a cursor into the ring of changes, and a wake-up.

use std::sync::Arc;

use async_trait::async_trait;
use madako_domain::placement::objects::Change;
use madako_protocol::latest::Subscriber;
use madako_protocol::placement::objects::{Follower, FollowerGap};
use madako_protocol::telemetry::CountedGauge;

use super::CacheState;
use crate::telemetry;

pub(super) struct Cursor {
    shared: Arc<CacheState>,
    news: Subscriber<()>,
    generation: u64,
    next: u64,
    /// Final gap of the follower; no change follows it.
    ended: Option<FollowerGap>,
    _open: CountedGauge,
}

impl Cursor {
    /// `news` must not have received any event later than the caller's read of the view.
    pub(super) fn new(shared: Arc<CacheState>, news: Subscriber<()>, generation: u64, next: u64) -> Self {
        let _open = CountedGauge::new(telemetry::madako_objects_followers());
        Self { shared, news, generation, next, ended: None, _open }
    }

    fn take(&mut self) -> Result<Vec<Arc<Change>>, FollowerGap> {
        if let Some(gap) = &self.ended {
            return Err(gap.clone());
        }
        let taken = self.shared.read().changes_since(self.generation, self.next);
        match &taken {
            Ok(changes) => self.next += changes.len() as u64,
            Err(gap) => {
                let reason = match gap {
                    FollowerGap::Lagged { .. } => "lagged",
                    FollowerGap::Relisted { .. } => "relisted",
                };
                telemetry::madako_objects_gaps_total(reason).increment(1);
                self.ended = Some(gap.clone());
            }
        }
        taken
    }
}

#[async_trait]
impl Follower for Cursor {
    async fn next(&mut self) -> Result<Vec<Arc<Change>>, FollowerGap> {
        loop {
            let taken = self.take()?;
            if !taken.is_empty() {
                return Ok(taken);
            }
            // Every change after the last received event wakes this, so none is missed between the read and the wait.
            self.news.next().await;
        }
    }
}
