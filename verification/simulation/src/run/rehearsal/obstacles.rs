//! Collects the obstacles that the instances of a rehearsal report, with the blocked objects.

use std::collections::BTreeMap;

use madako_domain::repair::queue::RepairQueue;
use madako_domain::repair::refusal::{Reason, Refusal};
use madako_faults::Span;
use madako_protocol::event::{Event, PlanBlockedBy};

use super::observations::{RemainingObstacle, StepObservation, WaitObservation};
use super::observer::RehearsalObservations;

/// Maximum number of kept waits: a hundred times the number that a person reads.
const MOST_WAITS: usize = 10_000;

#[derive(Default)]
pub(super) struct LastReports {
    /// Short name and full text of the obstacle to plans: a report with only a higher age is not new.
    blocked: Option<(&'static str, String)>,
    no_plan: Option<String>,
    repairs: BTreeMap<i64, (String, String)>,
    refused: BTreeMap<String, Refusal>,
    trouble: Option<String>,
    placement: Option<String>,
}

impl LastReports {
    pub(super) fn note_event(&mut self, event: Event, now: Span, observations: &mut RehearsalObservations) {
        match event {
            // A new leader reports everything again.
            Event::Elected { .. } => *self = Self::default(),
            Event::Held(_) | Event::Blocked(PlanBlockedBy::NoState | PlanBlockedBy::NoObservation) => {}
            Event::Blocked(why) => {
                if self.blocked.as_ref().is_none_or(|(name, _)| *name != why.name()) {
                    observations.wait(now, "plans", why.to_string());
                }
                self.blocked = Some((why.name(), why.to_string()));
            }
            Event::PlanFailed(error) => {
                let why = error.to_string();
                if self.no_plan.as_ref() != Some(&why) {
                    observations.wait(now, "plans", why.clone());
                }
                self.blocked = None;
                self.no_plan = Some(why);
            }
            Event::Calm { .. } | Event::Planned { .. } => {
                self.blocked = None;
                self.no_plan = None;
            }
            Event::RepairWaits { index, address, reason, why } => {
                if reason.is_empty() {
                    self.repairs.remove(&index);
                } else {
                    observations.wait(now, format!("repair {index} of {address}"), why.clone());
                    self.repairs.insert(index, (address, why));
                }
            }
            Event::RepairTrouble { why } => self.trouble = Some(why).filter(|why| !why.is_empty()),
            Event::Reports(news) => {
                for serial in news.cleared {
                    self.refused.remove(&serial);
                }
                for (rack, machines) in news.held {
                    let why = format!("{} of its machines failed at about the same time", machines.len());
                    observations.wait(now, format!("repairs of rack {rack}"), why);
                }
                for rack in news.released {
                    observations.wait(now, format!("repairs of rack {rack}"), "held no longer");
                }
                for refusal in news.refused {
                    // The report of the rack covers its held machines, and that of the entry its machine.
                    if !matches!(refusal.reason, Reason::RackHeld { .. } | Reason::HasEntry { .. }) {
                        let what = format!("repair of {}", refusal.address);
                        observations.wait(now, what, refusal.reason.to_string());
                    }
                    self.refused.insert(refusal.serial.clone(), refusal);
                }
            }
            Event::Repaired { index, operation, what, .. } => {
                self.repairs.remove(&index);
                let newest =
                    observations.repairs.range_mut((index, i64::MIN)..=(index, i64::MAX)).next_back();
                if let Some((_, repair)) = newest {
                    repair.steps.push(StepObservation { at: now, what: format!("{operation}: {what}") });
                }
            }
            Event::PlacementHeld { owner } => {
                self.placement = Some(format!("the prefix {owner} decides about it"));
            }
            Event::PlacementOwned => self.placement = None,
            _ => {}
        }
    }

    pub(super) fn remaining_obstacles(&self, queue: &RepairQueue) -> Vec<RemainingObstacle> {
        let mut held = Vec::new();
        let mut add = |what: String, why: String| held.push(RemainingObstacle { what, why });
        for why in self.blocked.iter().map(|(_, why)| why).chain(&self.no_plan) {
            add("plans".to_owned(), why.clone());
        }
        if let Some(why) = &self.trouble {
            add("repairs".to_owned(), why.clone());
        }
        for (index, (address, why)) in &self.repairs {
            let unfinished = queue.entries.get(index).is_some_and(|item| !item.value.is_finished());
            if unfinished {
                add(format!("repair {index} of {address}"), why.clone());
            }
        }
        for refusal in self.refused.values() {
            // The report of the entry covers its machine.
            if !matches!(refusal.reason, Reason::HasEntry { .. }) {
                add(format!("repair of {}", refusal.address), refusal.reason.to_string());
            }
        }
        if let Some(why) = &self.placement {
            add("placement".to_owned(), why.clone());
        }
        held
    }
}

impl RehearsalObservations {
    fn wait(&mut self, at: Span, what: impl Into<String>, why: impl Into<String>) {
        if self.waits.len() < MOST_WAITS {
            self.waits.push(WaitObservation { at, what: what.into(), why: why.into() });
        } else {
            self.more_waits += 1;
        }
    }
}
