//! Permits for tasks that act for a while.

use std::time::Duration;

use madako_messages::gate::permit;
use madako_messages::permit::Permit;

/// Pause before a permit is asked for again. Who gets none for good is ended with the reign.
const PAUSE: Duration = Duration::from_secs(1);

/// Where permits come from.
#[derive(Clone)]
pub(super) struct Permits {
    pub(super) leader: String,
    pub(super) epoch: i64,
}

impl Permits {
    /// Waits for a permit. In an epoch that is over that takes until this task is ended.
    pub(super) async fn get(&self) -> Permit {
        loop {
            match permit(&self.leader, self.epoch).await {
                Ok(permit) => return permit,
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}
