//! Injects the faults of a chaos run, each at its time.

use std::collections::BTreeMap;
use std::time::Duration;

use madako_faults::Schedule;
use madako_judges::player::{FaultAttempt, FaultChange, Player};
use tokio::time::{Instant, sleep_until};

use super::{GLANCE, RunCourse};
use crate::history::Event;
use crate::inject::Injector;
use crate::world::World;

/// Maximum wait for a target of a fault that strikes once or whose end is past: the time that a freshly started service
/// may take to elect a leader.
const PATIENCE: Duration = super::BEGINS_WITHIN;

impl RunCourse<'_> {
    /// Plays the schedule. Returns the injections that were not possible, each with the reason.
    pub(super) async fn inject(
        &self,
        world: &mut World,
        injector: &mut Injector,
        schedule: &Schedule,
    ) -> BTreeMap<usize, String> {
        let began = Instant::now();
        let mut player = Player::new(schedule, self.options.length, PATIENCE);
        let mut processes = Processes { course: self, world, injector };
        loop {
            let due = player.next_due().map(|due| began + due);
            let glance = player.is_late().then(|| Instant::now() + GLANCE);
            let Some(wakes) = [due, glance].into_iter().flatten().min() else { return player.skipped() };
            sleep_until(wakes).await;
            while let Some(attempt) = player.next_scheduled(began.elapsed()) {
                processes.make_attempt(&mut player, attempt).await;
            }
            if glance == Some(wakes) {
                for attempt in player.overdue_attempts(began.elapsed()) {
                    processes.make_attempt(&mut player, attempt).await;
                }
            }
        }
    }

    fn note_fault(&self, FaultAttempt { number, injection, .. }: &FaultAttempt<'_>, outcome: FaultChange) {
        let FaultChange { at, change, on, dropped, why } = outcome;
        let what = format!("{} {}", injection.act, injection.target);
        let on_whom = on.as_deref().filter(|on| *on != injection.target.to_string());
        (self.tell)(&format!(
            "{at}: {what}{} {change}{}{}",
            on_whom.map(|on| format!(" ({on})")).unwrap_or_default(),
            dropped.map(|packets| format!(", {packets} packets dropped")).unwrap_or_default(),
            why.as_deref().map(|why| format!(": {why}")).unwrap_or_default(),
        ));
        self.history.note(Event::Fault { injection: *number, what, change, on, dropped, why });
    }
}

struct Processes<'a> {
    course: &'a RunCourse<'a>,
    world: &'a mut World,
    injector: &'a mut Injector,
}

impl Processes<'_> {
    async fn make_attempt(&mut self, player: &mut Player<'_>, attempt: FaultAttempt<'_>) {
        let fault = (attempt.number, attempt.injection);
        let outcome = self.injector.inject(self.world, fault, attempt.begins).await;
        if let Some(outcome) = player.take_outcome(&attempt, outcome) {
            self.course.note_fault(&attempt, outcome);
        }
    }
}
