//! After the last fault of a rehearsal: waits for a quiet period, for as long as the settings allow.

use std::time::Duration;

use madako_domain::invariants::Id;
use madako_domain::repair::config::{RepairConfig, RepairOperation};
use madako_domain::state::ClusterState;
use madako_faults::Span;

use super::super::inject::Injector;
use super::observer::Observer;
use super::{QuietPeriod, START_TAKES, UPDATE_TAKES};
use crate::world::ServiceSettings;

/// Minimum length of the quiet period, without writes: longer than any pause of the service except back-offs of drains.
const QUIET: Duration = Duration::from_secs(5 * 60);
/// Maximum length of the quiet period: the wait ignores longer pauses.
const LONGEST_QUIET: Duration = Duration::from_secs(24 * 3600);
/// Interval of the checks for it.
const LOOK: Duration = Duration::from_secs(30);
/// Longest back-off of drains: the pause after a drain is given up.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(2 * 300);
/// Maximum allowed time in total: a procedure may name times that are too long for any wait.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum number of written keys that a finding names.
const NAMED: usize = 10;

pub(super) struct Waiting<'a> {
    pub(super) working: &'a ServiceSettings,
    /// Time that the scenario allows, if it names one.
    pub(super) allowed: Option<Duration>,
    pub(super) drains: bool,
    pub(super) state: &'a ClusterState,
    pub(super) applications: usize,
}

fn to_span(duration: Duration) -> Span {
    Span::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Maximum time of one repair: each step with its drain, its attempts and its watch.
fn longest_repair(config: &RepairConfig) -> Duration {
    let drain =
        config.eviction_timeout.saturating_add(config.evict_interval.saturating_mul(config.evict_attempts));
    let of = |operation: &RepairOperation| {
        operation.steps.iter().fold(Duration::ZERO, |sum, step| {
            let run = step.command.as_ref().map_or(Duration::ZERO, |command| command.timeout);
            let runs = run.saturating_add(step.interval).saturating_mul(step.attempts);
            let drain = if step.need_drain { drain } else { Duration::ZERO };
            sum.saturating_add(runs).saturating_add(drain).saturating_add(step.watch)
        })
    };
    let operations = config.procedures.iter().flat_map(|procedure| &procedure.operations);
    operations.map(of).max().unwrap_or_default()
}

impl Waiting<'_> {
    /// Time until the quiet period that the settings of the copied system allow, with this number of unfinished
    /// repairs.
    fn longest_wait_of_settings(&self, unfinished: usize) -> Duration {
        let working = self.working;
        let max_moves = working.scheduler.max_moves;
        let applications = self.applications as u64;
        let moves = max_moves.at_least.max(applications * max_moves.percent / 100).max(1);
        let rounds = u32::try_from(applications.div_ceil(moves)).unwrap_or(u32::MAX);
        let after = working.scheduler.reschedule_after;
        let repairing = self.state.repair_config.as_ref().map_or(Duration::ZERO, |config| {
            let at_a_time = (config.max_concurrent as usize).max(1);
            let turns = u32::try_from(unfinished.div_ceil(at_a_time)).unwrap_or(u32::MAX);
            longest_repair(config).saturating_mul(turns)
        });
        let own =
            working.session_ttl + working.interval * 3 + LONGEST_BACK_OFF + START_TAKES * 2 + UPDATE_TAKES;
        own.saturating_add(after.saturating_mul(rounds.saturating_add(1)))
            .saturating_add(repairing)
            .min(LONGEST)
    }

    /// Length of the quiet period: longer than any pause of the service or of a repair.
    fn quiet_period(&self) -> Duration {
        let pause = self.state.repair_config.as_ref().map_or(Duration::ZERO, |config| longest_repair(config));
        let after = self.working.scheduler.reschedule_after;
        let quiet = if self.drains { QUIET + LONGEST_BACK_OFF } else { QUIET };
        quiet.max(pause).max(after.saturating_mul(2)).max(self.working.interval * 4).min(LONGEST_QUIET)
    }

    /// The result without a wait; `found` has the reason.
    pub(super) fn report_without_wait(&self, observer: &Observer, found: Vec<String>) -> QuietPeriod {
        QuietPeriod { after: None, within: to_span(self.allowed_wait(observer)), found }
    }

    fn allowed_wait(&self, observer: &Observer) -> Duration {
        self.allowed.unwrap_or_else(|| self.longest_wait_of_settings(observer.count_unfinished()))
    }

    pub(super) async fn wait_until_calm(&self, injector: &mut Injector, observer: &Observer) -> QuietPeriod {
        let history = injector.world.history.clone();
        let began = history.now();
        let within = self.allowed_wait(observer);
        let quiet = self.quiet_period();
        let last = loop {
            tokio::time::sleep(LOOK).await;
            injector.restart_ended_instances().await;
            let last = observer.time_of_last_write(began).unwrap_or(began);
            if history.now().saturating_sub(last) >= quiet {
                break Some(last);
            }
            if history.now() > began + within + quiet * 2 {
                break None;
            }
        };
        history.count_judgement(Id::I12);
        let after = last.map(|last| last.saturating_sub(began));
        let mut found = Vec::new();
        match after {
            None => {
                let keys = observer.keys_written_since(history.now().saturating_sub(quiet));
                let keys: Vec<String> = keys.into_iter().take(NAMED).collect();
                found.push(format!("still written: {}", keys.join(", ")));
            }
            Some(after) if after > within => {
                found.push(format!(
                    "calm only after {}, and {} were allowed",
                    to_span(after),
                    to_span(within)
                ));
            }
            Some(_) => {}
        }
        let leads =
            |running: &&crate::world::RunningInstance| running.instance.view().reign.borrow().is_some();
        let leaders = injector.running.values().filter(leads).count();
        if leaders != 1 {
            found.push(format!("one instance should lead, and {leaders} do"));
        }
        for (name, running) in &injector.running {
            if *running.instance.view().melted.borrow() {
                found.push(format!("{name} has given up"));
            }
        }
        QuietPeriod { after: after.map(to_span), within: to_span(within), found }
    }
}
