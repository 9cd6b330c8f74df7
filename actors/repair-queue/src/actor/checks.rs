//! Health checks: their order, the running ones, and how long answers are valid.
//!
//! # Order
//! Each unfinished entry is checked once an interval, and at once when it changed. At most [`CHECKS_AT_ONCE`] checks
//! run. The entry with the oldest check is next; entries that were never checked come before all. Half of the places
//! prefer entries whose repair waits only for the answer. However slow checks are, each entry is therefore checked in
//! turn, and an entry that is about to be repaired does not wait behind a thousand others.
//!
//! An entry whose command runs is not checked here: the command's own task checks it between failed attempts.
//!
//! # Validity
//! An answer's age counts from its arrival, however long the check took. The answer is valid for the revision of the
//! entry that the check began with: a check from before a command says nothing about the time after it. It expires
//! after [`FRESH_INTERVALS`] intervals, however slow checks are and however many wait: an old answer must not power off
//! a machine that has become healthy. Until the next answer arrives, the machine's health is unknown and its entry is
//! not decided on.
//!
//! Several entries may name one machine. When one of them learns that the machine is healthy, earlier answers of the
//! others expire: they are checked again before anything begins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::repair::command::HealthAnswer;
use madako_domain::repair::queue::RepairQueue;
use madako_domain::state::ClusterState;
use madako_effects::run_check;
use madako_protocol::actors::RepairMessage;
use madako_protocol::feed::Task;
use tokio::time::Instant;

use super::{RepairState, telemetry};
use crate::limits::{CHECKS_AT_ONCE, CHECKS_FIRST, FRESH_INTERVALS};
use crate::next_action::{BlockedBy, NextAction};
use crate::pass::Health;

#[derive(Default)]
pub(super) struct Checks {
    known: BTreeMap<i64, KnownHealth>,
    running: BTreeMap<i64, Check>,
    last: BTreeMap<i64, LastCheck>,
    /// Sequence number: two checks may begin at the same instant.
    count: u64,
}

struct KnownHealth {
    address: String,
    revision: i64,
    since: Instant,
    health: Health,
}

struct Check {
    address: String,
    number: u64,
    revision: i64,
    /// The check has one of the places for entries that are about to be repaired.
    first: bool,
    _task: Task,
}

/// Time and entry revision of the last check.
#[derive(Clone, Copy)]
struct LastCheck {
    revision: i64,
    since: Instant,
    count: u64,
}

impl LastCheck {
    fn next(&self, interval: Duration) -> Instant {
        self.since + interval
    }
}

impl Checks {
    /// Forgets ended entries and expired answers, and ends checks of entries that changed.
    pub(super) fn clear(&mut self, queue: &RepairQueue, interval: Duration) {
        let now = Instant::now();
        let same = |index: &i64, revision: i64| {
            queue
                .entries
                .get(index)
                .is_some_and(|item| item.revision == revision && !item.value.is_finished())
        };
        self.last.retain(|index, _| queue.entries.get(index).is_some_and(|item| !item.value.is_finished()));
        self.running.retain(|index, check| same(index, check.revision));
        self.known.retain(|index, known| {
            let age = now.saturating_duration_since(known.since);
            age <= interval * FRESH_INTERVALS && same(index, known.revision)
        });
    }

    /// Answers that were valid at the last [`Self::clear`].
    pub(super) fn valid_health(&self) -> BTreeMap<i64, Health> {
        self.known.iter().map(|(index, known)| (*index, known.health)).collect()
    }

    /// Entries (index, revision) that are due now, oldest check first.
    fn due_checks(&self, could: &[(i64, i64)], interval: Duration) -> Vec<i64> {
        let now = Instant::now();
        let last_check = |index: &i64| self.last.get(index);
        let mut due: Vec<i64> = could
            .iter()
            .filter(|(index, _)| !self.running.contains_key(index))
            .filter(|(index, revision)| {
                last_check(index).is_none_or(|last_check| {
                    last_check.revision != *revision || last_check.next(interval) <= now
                })
            })
            .map(|(index, _)| *index)
            .collect();
        due.sort_by_key(|index| (last_check(index).map(|last_check| last_check.count), *index));
        due
    }

    /// The due checks to start, preferred entries first as far as they have places; the flag says whether a check
    /// takes a preferred place.
    fn order_checks(&self, due: Vec<i64>, wanted: &BTreeSet<i64>) -> Vec<(i64, bool)> {
        let taken = self.running.values().filter(|check| check.first).count();
        let first = due.iter().filter(|index| wanted.contains(index));
        let first: BTreeSet<i64> = first.take(CHECKS_FIRST.saturating_sub(taken)).copied().collect();
        let mut turns: Vec<(i64, bool)> =
            due.into_iter().map(|index| (index, first.contains(&index))).collect();
        turns.sort_by_key(|(_, first)| !first);
        turns
    }

    /// Time until the next check that only the timer starts; `None`: there is none.
    pub(super) fn next(&self, interval: Duration) -> Option<Duration> {
        let now = Instant::now();
        let waiting = self.last.iter().filter(|(index, _)| !self.running.contains_key(index));
        let next = waiting.map(|(_, last)| last.next(interval)).filter(|next| *next > now).min()?;
        Some(next - now)
    }

    fn begin(&mut self, index: i64, check: Check) {
        self.count += 1;
        let check_begun = LastCheck { revision: check.revision, since: Instant::now(), count: self.count };
        self.last.insert(index, check_begun);
        self.running.insert(index, check);
    }

    fn note_answer(&mut self, index: i64, number: u64, answer: Option<&HealthAnswer>) {
        if self.running.get(&index).is_none_or(|check| check.number != number) {
            return;
        }
        let Some(check) = self.running.remove(&index) else { return };
        telemetry::count_health_check(answer);
        let Some(answer) = answer else { return };
        let health = if *answer == HealthAnswer::Healthy { Health::Healthy } else { Health::Unhealthy };
        if let HealthAnswer::Failed(why) = answer {
            tracing::debug!(entry = index, why, "a health check failed");
        }
        let Check { address, revision, .. } = check;
        if health == Health::Healthy {
            self.known.retain(|_, known| known.address != address);
        }
        self.known.insert(index, KnownHealth { address, revision, since: Instant::now(), health });
    }
}

impl RepairState {
    pub(super) fn start_checks(&mut self, state: &ClusterState, actions: &[NextAction]) {
        let Some(host) = self.given.host.clone() else { return };
        let commanded = self.effects.announced_effect().map(|announced| announced.command.index);
        let could: Vec<(i64, i64)> = state
            .repair
            .entries
            .iter()
            .filter(|(index, item)| {
                commanded != Some(**index) && !item.value.is_finished() && !item.value.deleted
            })
            .map(|(index, item)| (*index, item.revision))
            .collect();
        let unknown = actions.iter().filter(|action| action.blocked_by == Some(BlockedBy::HealthUnknown));
        let wanted: BTreeSet<i64> = unknown.map(|action| action.index).collect();
        let due = self.checks.due_checks(&could, self.given.interval);
        for (index, first) in self.checks.order_checks(due, &wanted) {
            if self.checks.running.len() >= CHECKS_AT_ONCE {
                break;
            }
            let Some(revision) = state.repair.entries.get(&index).map(|item| item.revision) else { continue };
            let Some((operation, address)) = self.configured_operation(state, index) else { continue };
            let Some(command) = &operation.health_check else { continue };
            let (words, deadline) = (command.for_machine(address), command.timeout);
            let address = address.to_owned();
            let number = self.take_number();
            let actor = self.myself.clone();
            let check = run_check(Arc::clone(&host), self.runner.permits().clone(), words, deadline);
            // A periodic check has no parent span.
            let task = Task::start_anew(async move {
                let health = check.await;
                // The actor is gone: the answer is not needed.
                let _ = actor.cast(RepairMessage::Checked { index, check: number, health }.into());
            });
            self.checks.begin(index, Check { address, number, revision, first, _task: task });
        }
    }

    pub(super) fn note_health_check(&mut self, index: i64, number: u64, answer: Option<&HealthAnswer>) {
        self.checks.note_answer(index, number, answer);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Store, queued};

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    /// Checks of entries `0..count`, each in a revision of its own; no check has begun.
    fn scene(count: i64) -> (Store, Checks, Vec<(i64, i64)>) {
        let mut store = Store::new(&["a"], &["w"]);
        for index in 0..count {
            store.entry(&queued(index, "w", "plain"));
        }
        let state = store.state();
        let could = state.repair.entries.iter().map(|(index, item)| (*index, item.revision)).collect();
        (store, Checks::default(), could)
    }

    fn begin(checks: &mut Checks, could: &[(i64, i64)], index: i64) {
        let revision = could.iter().find(|(known, _)| *known == index).unwrap().1;
        let number = checks.count;
        let _task = Task::start(std::future::pending());
        let address = "w".to_owned();
        checks.begin(index, Check { address, number, revision, first: false, _task });
    }

    fn answers(checks: &mut Checks, index: i64, answer: &HealthAnswer) {
        let number = checks.running[&index].number;
        checks.note_answer(index, number, Some(answer));
    }

    fn answer(checks: &mut Checks, index: i64) {
        answers(checks, index, &HealthAnswer::Unhealthy);
    }

    #[tokio::test(start_paused = true)]
    async fn oldest_health_check_is_next_and_no_machine_is_asked_twice_in_an_interval() {
        let (_, mut checks, could) = scene(4);
        assert_eq!(checks.due_checks(&could, INTERVAL), [0, 1, 2, 3]);
        for index in [2, 0] {
            begin(&mut checks, &could, index);
            answer(&mut checks, index);
        }
        assert_eq!(checks.due_checks(&could, INTERVAL), [1, 3], "these were never asked");
        tokio::time::advance(INTERVAL / 2).await;
        begin(&mut checks, &could, 3);
        assert_eq!(checks.next(INTERVAL), Some(INTERVAL / 2));
        tokio::time::advance(INTERVAL / 2).await;
        assert_eq!(checks.due_checks(&could, INTERVAL), [1, 2, 0], "one runs, and two are due again");
        // A changed entry is due at once, but behind entries that have waited longer.
        answer(&mut checks, 3);
        let changed: Vec<_> = could.iter().map(|(index, revision)| (*index, revision + 100)).collect();
        assert_eq!(checks.due_checks(&changed, INTERVAL), [1, 2, 0, 3]);
    }

    /// Indexes with a valid answer now.
    fn believed(store: &Store, checks: &mut Checks) -> Vec<i64> {
        checks.clear(&store.state().repair, INTERVAL);
        checks.valid_health().into_keys().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_counts_from_when_it_came_and_for_the_state_that_was_asked_about() {
        let (mut store, mut checks, could) = scene(1);
        begin(&mut checks, &could, 0);
        tokio::time::advance(INTERVAL * 5).await;
        answer(&mut checks, 0);
        assert_eq!(believed(&store, &mut checks), [0]);
        assert_eq!(checks.valid_health()[&0], Health::Unhealthy);
        store.entry(&queued(0, "w", "plain"));
        assert_eq!(believed(&store, &mut checks), [0_i64; 0], "it changed");
        begin(&mut checks, &could, 0);
        assert_eq!(believed(&store, &mut checks), [0_i64; 0]);
        assert!(checks.running.is_empty(), "what is asked about a former state is of no use");
    }

    #[tokio::test(start_paused = true)]
    async fn a_health_answer_is_valid_for_two_intervals() {
        let (store, mut checks, could) = scene(2);
        for index in 0..2 {
            begin(&mut checks, &could, index);
            answer(&mut checks, index);
        }
        tokio::time::advance(INTERVAL).await;
        begin(&mut checks, &could, 0);
        tokio::time::advance(INTERVAL).await;
        assert_eq!(believed(&store, &mut checks), [0, 1]);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(believed(&store, &mut checks), [0_i64; 0]);
        begin(&mut checks, &could, 1);
        assert_eq!(believed(&store, &mut checks), [0_i64; 0], "what was forgotten does not come back");
        answer(&mut checks, 0);
        assert_eq!(believed(&store, &mut checks), [0]);
    }

    #[tokio::test(start_paused = true)]
    async fn healthy_answer_overrides_earlier_answers_for_the_same_machine() {
        let (store, mut checks, could) = scene(3);
        for index in 0..3 {
            begin(&mut checks, &could, index);
        }
        answer(&mut checks, 0);
        answers(&mut checks, 1, &HealthAnswer::Healthy);
        assert_eq!(believed(&store, &mut checks), [1]);
        // A later answer is valid.
        answer(&mut checks, 2);
        assert_eq!(believed(&store, &mut checks), [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn entries_next_in_turn_get_half_of_the_health_checks() {
        let (_, checks, could) = scene(20);
        let due = checks.due_checks(&could, INTERVAL);
        let firsts = |checks: &Checks, wanted: &[i64]| -> Vec<i64> {
            let turns = checks.order_checks(due.clone(), &wanted.iter().copied().collect());
            assert_eq!(turns.len(), 20, "everybody has a turn");
            turns.into_iter().take_while(|(_, first)| *first).map(|(index, _)| index).collect()
        };
        assert_eq!(firsts(&checks, &[17, 3]), [3, 17]);
        let all: Vec<i64> = (0..20).collect();
        assert_eq!(firsts(&checks, &all), (0..8).collect::<Vec<_>>());
        let mut checks = checks;
        for index in 0..7 {
            let (address, _task) = ("w".to_owned(), Task::start(std::future::pending()));
            let check = Check { address, number: 0, revision: 0, first: true, _task };
            checks.begin(100 + index, check);
        }
        assert_eq!(firsts(&checks, &[17, 3]), [3]);
    }
}
