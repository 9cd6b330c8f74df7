//! The faults of a run, each at its time.

use std::collections::BTreeMap;
use std::time::Duration;

use madako_faults::{Change, Schedule};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Course, GLANCE};
use crate::history::Event;
use crate::inject::{Impossible, Injector, Undone};
use crate::world::World;

/// How long a fault of the leader that strikes once waits for one: two terms of a lease, and an election of the store.
const LED_WITHIN: Duration = Duration::from_secs(15);
/// What is told of one that waited in vain.
const NOBODY_LED: &str = "nobody led while it was to happen";

impl Course<'_> {
    /// Does what the schedule says, and gives the injections that were not possible, each with the reason.
    pub(super) async fn inject(
        &self,
        world: &mut World,
        injector: &mut Injector,
        schedule: &Schedule,
    ) -> BTreeMap<usize, String> {
        let began = Instant::now();
        let mut skipped = BTreeMap::new();
        // Faults of the leader that wait until there is one.
        let mut waiting: BTreeMap<usize, Instant> = BTreeMap::new();
        let mut events = schedule.events.iter().peekable();
        loop {
            let end = events.peek().map_or(self.options.length, |event| event.at);
            let next = began + end.duration();
            if !waiting.is_empty() && Instant::now() + GLANCE < next {
                sleep(GLANCE).await;
                for (number, since) in waiting.clone() {
                    let change = match schedule.injections[number].ends {
                        None if since.elapsed() > LED_WITHIN => Change::Ends,
                        None => Change::Strikes,
                        Some(_) => Change::Begins,
                    };
                    self.change(world, injector, schedule, (number, change), &mut waiting, &mut skipped)
                        .await;
                }
                continue;
            }
            sleep_until(next).await;
            let Some(event) = events.next() else { break };
            let change = (event.injection, event.change);
            self.change(world, injector, schedule, change, &mut waiting, &mut skipped).await;
        }
        for number in waiting.into_keys() {
            skipped.insert(number, NOBODY_LED.to_owned());
        }
        skipped
    }

    /// One step of an injection.
    async fn change(
        &self,
        world: &mut World,
        injector: &mut Injector,
        schedule: &Schedule,
        (number, change): (usize, Change),
        waiting: &mut BTreeMap<usize, Instant>,
        skipped: &mut BTreeMap<usize, String>,
    ) {
        let injection = &schedule.injections[number];
        if change == Change::Ends && skipped.contains_key(&number) {
            return;
        }
        let done = match change {
            Change::Ends if waiting.remove(&number).is_some() => {
                Err(Undone::Impossible(Impossible(NOBODY_LED.to_owned())))
            }
            Change::Ends => injector.end(world, number, injection).await,
            Change::Begins | Change::Strikes => injector.begin(world, number, injection).await,
        };
        let (word, on, why) = match done {
            Err(Undone::NobodyLeads) => {
                waiting.entry(number).or_insert_with(Instant::now);
                return;
            }
            Ok(on) => {
                let word = match change {
                    Change::Begins => "begins",
                    Change::Ends => "ends",
                    Change::Strikes => "strikes",
                };
                (word, Some(on), None)
            }
            Err(Undone::Impossible(Impossible(why))) => {
                skipped.insert(number, why.clone());
                ("skipped", None, Some(why))
            }
        };
        waiting.remove(&number);
        let what = format!("{} {}", injection.act, injection.target);
        let on_whom = on.as_deref().filter(|on| *on != injection.target.to_string());
        (self.tell)(&format!(
            "{}: {what}{} {word}{}",
            if change == Change::Ends {
                injection.ends.unwrap_or(injection.begins)
            } else {
                injection.begins
            },
            on_whom.map(|on| format!(" ({on})")).unwrap_or_default(),
            why.as_deref().map(|why| format!(": {why}")).unwrap_or_default(),
        ));
        self.history.note(Event::Fault { injection: number, what, change: word, on, why });
    }
}
