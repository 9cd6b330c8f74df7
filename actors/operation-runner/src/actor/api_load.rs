//! Measures how long API servers take for a list of namespaces, and keeps the answers of the last hour.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use madako_protocol::actors::RunnerMessage;
use madako_protocol::components::Components;
use madako_protocol::feed::Task;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::mailbox::Envelope;
use ractor::ActorRef;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::kubernetes::load::{ListAnswer, Load, evaluate_load};
use crate::limits::{LOAD_HISTORY, LOAD_INTERVAL, LOAD_PRESENT};

/// The answers by address. A new actor has no history.
#[derive(Debug, Default)]
pub(super) struct ApiLoad(BTreeMap<String, VecDeque<(Instant, ListAnswer)>>);

impl ApiLoad {
    /// Notes answers. A server that gives none is not slow but down, which other checks notice.
    pub(super) fn note(&mut self, times: BTreeMap<String, Result<Duration, KubernetesError>>, now: Instant) {
        for (address, time) in times {
            let answer = match time {
                Ok(took) => ListAnswer::Took(took),
                Err(KubernetesError::Refused { status: 429, .. }) => ListAnswer::TooMany,
                Err(_) => continue,
            };
            self.0.entry(address).or_default().push_back((now, answer));
        }
        for answers in self.0.values_mut() {
            while answers.front().is_some_and(|(at, _)| now - *at > LOAD_HISTORY + LOAD_PRESENT) {
                answers.pop_front();
            }
        }
        self.0.retain(|_, answers| !answers.is_empty());
    }

    /// The reason for which the next wave of restarts is smaller. `wave` is the age of the present one.
    pub(super) fn reason(&self, wave: Duration, now: Instant) -> Option<String> {
        self.0.iter().find_map(|(address, answers)| {
            let ages: Vec<_> = answers.iter().map(|(at, answer)| (now - *at, *answer)).collect();
            let what = match evaluate_load(&ages, wave)? {
                Load::TooMany => "answers with status 429 (too many requests)".to_owned(),
                Load::Slow { present, usual } => format!(
                    "takes {} ms for a list of namespaces, and took {} ms before",
                    present.as_millis(),
                    usual.as_millis()
                ),
            };
            Some(format!("the API server on {address} {what}"))
        })
    }
}

/// Starts a measurement of API servers after the interval.
pub(super) fn measure_later(
    actor: ActorRef<Envelope<RunnerMessage>>,
    components: Arc<dyn Components>,
    servers: Vec<String>,
) -> Task {
    Task::start_anew(async move {
        sleep(LOAD_INTERVAL).await;
        let mut running = JoinSet::new();
        for address in servers {
            let components = Arc::clone(&components);
            running.spawn(async move {
                let time = components.time_list(&address).await;
                (address, time)
            });
        }
        let mut times = BTreeMap::new();
        while let Some(joined) = running.join_next().await {
            // A measurement that ended early is none.
            times.extend(joined);
        }
        // The actor is gone: its successor measures again.
        let _ = actor.cast(RunnerMessage::Measured(times).into());
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_reason_names_the_server_and_goes_with_its_load() {
        let mut load = ApiLoad::default();
        let mut note = async |milliseconds: u64, count: u32| {
            for _ in 0..count {
                tokio::time::advance(LOAD_INTERVAL).await;
                let time = |address: &str, took: u64| (address.to_owned(), Ok(Duration::from_millis(took)));
                load.note([time("a", 20), time("b", milliseconds)].into(), Instant::now());
            }
            load.reason(Duration::ZERO, Instant::now())
        };
        assert_eq!(note(20, 12).await, None);
        let why = note(300, 6).await.unwrap();
        assert_eq!(why, "the API server on b takes 300 ms for a list of namespaces, and took 20 ms before");
        assert_eq!(note(20, 6).await, None);
        let refused =
            || KubernetesError::Refused { what: "x".to_owned(), status: 429, why: "slow down".to_owned() };
        load.note([("a".to_owned(), Err(refused()))].into(), Instant::now());
        assert!(
            load.reason(Duration::ZERO, Instant::now())
                .unwrap()
                .starts_with("the API server on a answers with status 429")
        );
        tokio::time::advance(LOAD_PRESENT + LOAD_INTERVAL).await;
        assert_eq!(load.reason(Duration::ZERO, Instant::now()), None);
        tokio::time::advance(LOAD_HISTORY).await;
        load.note(BTreeMap::new(), Instant::now());
        assert!(load.0.is_empty(), "{load:?}");
    }
}
