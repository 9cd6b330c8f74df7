//! Reads the metrics and the health of the instances, unaffected by network faults: the leader, and counters.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::history::{Event, History};
use crate::web::{self, WebRequest};

/// Interval of requests to each instance.
const EVERY: Duration = Duration::from_millis(250);
/// An instance that does not answer within this time is stopped.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// Last knowledge of an instance.
#[derive(Debug, Clone, Default)]
struct KnownLeaders {
    /// Last values of counters by series.
    counted: BTreeMap<String, f64>,
    healthy: bool,
    leads: bool,
}

#[derive(Debug, Default)]
struct WatcherState {
    epochs: BTreeMap<i64, u32>,
    known: BTreeMap<u32, KnownLeaders>,
    /// Sum over all instances and restarts.
    refused: f64,
    /// Mutations that broke an invariant, by its name.
    violations: BTreeMap<String, f64>,
}

/// See the module. A clone shares the state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leaders(Arc<Mutex<WatcherState>>);

/// Metrics that are read, with the labels of the relevant series.
const REFUSED: &str = "madako_commits_total";
const REFUSALS: [&str; 2] = ["outcome=\"conflict\"", "outcome=\"not-leader\""];
const VIOLATIONS: &str = "madako_invariant_violations_total";
const EPOCH: &str = "madako_leader_epoch";

impl Leaders {
    /// Polls an instance until the future is dropped.
    pub(crate) async fn watch(self, instance: u32, at: SocketAddr, history: History) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.poll_instance(instance, at, &history).await;
        }
    }

    async fn poll_instance(&self, instance: u32, at: SocketAddr, history: &History) {
        let health = web::send_request(at, WebRequest::get("/health", ANSWERS_WITHIN)).await;
        let metrics = web::send_request(at, WebRequest::get("/metrics", ANSWERS_WITHIN)).await;
        let healthy = health.is_ok_and(|answer| answer.status.is_success());
        let text = metrics.map(|answer| String::from_utf8_lossy(&answer.body).into_owned());
        let (led, refused) = self.lock_state().take(instance, healthy, text.ok().as_deref());
        if let Some(epoch) = led {
            history.note(Event::Leads { instance, epoch });
        }
        if let Some(writes) = refused {
            history.note(Event::Refused { writes });
        }
    }

    #[must_use]
    pub(crate) fn leader_of_epoch(&self, epoch: i64) -> Option<u32> {
        self.lock_state().epochs.get(&epoch).copied()
    }

    #[must_use]
    pub(crate) fn leaders_by_epoch(&self) -> BTreeMap<i64, u32> {
        self.lock_state().epochs.clone()
    }

    /// True if this many instances are healthy, and one leads.
    #[must_use]
    pub(crate) fn are_all_healthy(&self, instances: usize) -> bool {
        let inner = self.lock_state();
        inner.known.len() == instances
            && inner.known.values().all(|known| known.healthy)
            && inner.known.values().filter(|known| known.leads).count() == 1
    }

    /// Writes that the store or the leader refused.
    #[must_use]
    pub(crate) fn refused_count(&self) -> u64 {
        to_count(self.lock_state().refused)
    }

    /// Mutations that instances refused because they break an invariant, by its name.
    #[must_use]
    pub(crate) fn violations_by_name(&self) -> BTreeMap<String, u64> {
        self.lock_state().violations.iter().map(|(name, count)| (name.clone(), to_count(*count))).collect()
    }

    // No panic happens under the lock.
    fn lock_state(&self) -> MutexGuard<'_, WatcherState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts of events of one run")]
fn to_count(count: f64) -> u64 {
    count.max(0.0) as u64
}

impl WatcherState {
    /// Takes in a page of metrics. Returns the epoch if it is new, and the sum of refused writes if it has grown.
    fn take(&mut self, instance: u32, healthy: bool, text: Option<&str>) -> (Option<i64>, Option<u64>) {
        let known = self.known.entry(instance).or_default();
        known.healthy = healthy;
        known.leads = false;
        let Some(text) = text else { return (None, None) };
        let before = to_count(self.refused);
        let mut led = None;
        for (series, value) in text.lines().filter_map(|line| line.rsplit_once(' ')) {
            let Ok(value) = value.parse::<f64>() else { continue };
            if series == EPOCH && value > 0.0 {
                known.leads = true;
                #[expect(clippy::cast_possible_truncation, reason = "a revision far below 2^52")]
                let epoch = value as i64;
                if self.epochs.insert(epoch, instance).is_none() {
                    led = Some(epoch);
                }
            }
            let refused = series.starts_with(REFUSED) && REFUSALS.iter().any(|label| series.contains(label));
            let violation = series.starts_with(VIOLATIONS);
            if !refused && !violation {
                continue;
            }
            let last = known.counted.insert(series.to_owned(), value).unwrap_or(0.0);
            // A restarted instance counts from 0.
            let more = if value >= last { value - last } else { value };
            if refused {
                self.refused += more;
            } else {
                let name = series.split('"').nth(1).unwrap_or("unknown").to_owned();
                *self.violations.entry(name).or_default() += more;
            }
        }
        let refused = to_count(self.refused);
        (led, (refused > before).then_some(refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_continue_across_restarts() {
        let mut inner = WatcherState::default();
        let text = |refused: u32, epoch: u32| {
            format!(
                "madako_commits_total{{subject=\"cluster\",outcome=\"conflict\"}} {refused}\n\
                 madako_commits_total{{subject=\"cluster\",outcome=\"committed\"}} 9\n\
                 madako_invariant_violations_total{{invariant=\"I6\"}} 1\nmadako_leader_epoch {epoch}\n"
            )
        };
        assert_eq!(inner.take(1, true, Some(&text(2, 7))), (Some(7), Some(2)));
        assert_eq!(inner.take(1, true, Some(&text(2, 7))), (None, None));
        assert_eq!(inner.take(1, true, Some(&text(1, 0))), (None, Some(3)), "it was started anew");
        assert_eq!(inner.violations, BTreeMap::from([("I6".to_owned(), 1.0)]));
        assert_eq!(inner.epochs, BTreeMap::from([(7, 1)]));
        assert!(!inner.known[&1].leads);
    }
}
