//! Judges the answers of the placement API to lists and watches by the store's revisions.
//!
//! `lists`: a list contains all applications of its namespace as of one revision. That revision is no older than the
//! last one observed before the request.
//!
//! `api-watches`: from a start revision to its end, a watch delivers every change once, in the order of revisions:
//! additions, modifications and deletions, as stored. The start revision is no older than the last one observed before
//! the request of the watch, and no newer than the list that was requested when the watch was open. A watch that lasts
//! until the end of the run delivers everything that the last list contains. When all is calm, every client can watch
//! to the end.
//!
//! Does not: judge the delay of a delivery, or the order of changes within one revision.

mod store;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use self::store::{StoreHistory, WatchEvent, key_of};
use super::Verdicts;
use crate::history::{Event, Micros};
use crate::observer::Revision;

pub(crate) const LISTS: &str = "lists";
pub(crate) const API_WATCHES: &str = "api-watches";

/// `calm`: whether the run was calm at the last event.
pub fn judge_api_answers(
    events: &[(Micros, Event)],
    revisions: &[Revision],
    calm: bool,
    verdicts: &mut Verdicts,
) {
    verdicts.verdict_of(LISTS);
    verdicts.verdict_of(API_WATCHES);
    let stored = StoreHistory::read(revisions);
    let mut judge = Judge { stored: &stored, open: BTreeMap::new(), complete: BTreeMap::new() };
    for (_, event) in events {
        judge.judge_event(event, verdicts);
    }
    for follower in judge.complete.iter().filter(|(_, complete)| calm && !**complete).map(|(it, _)| it) {
        let what = format!("follower {follower} could not watch to the end, though all was calm");
        verdicts.count_violation(API_WATCHES, what);
    }
}

struct Judge<'a> {
    stored: &'a StoreHistory,
    open: BTreeMap<u32, Watch>,
    /// Followers, with whether their last watch lasted until the end.
    complete: BTreeMap<u32, bool>,
}

struct Watch {
    instance: u32,
    /// Steps of the store that were observed before the request of the watch.
    least: usize,
    /// Most steps that the first list can contain, and fewest steps that the last list contains.
    listed: Option<[usize; 2]>,
    /// The step being delivered, with the keys of it that were delivered.
    at: Option<(usize, BTreeSet<String>)>,
    /// The watch delivered something wrong; consequences are not reported.
    broken: bool,
}

impl Judge<'_> {
    fn judge_event(&mut self, event: &Event, verdicts: &mut Verdicts) {
        match event {
            Event::Opened { follower, instance, requested_at } => {
                let least = self.stored.count_steps_until(*requested_at);
                let watch = Watch { instance: *instance, least, listed: None, at: None, broken: false };
                self.open.insert(*follower, watch);
                self.complete.insert(*follower, false);
            }
            Event::Listed { follower, requested_at, answer } => {
                self.judge_list(*follower, *requested_at, answer, verdicts)
            }
            Event::WatchLine { follower, line } => {
                verdicts.verdict_of(API_WATCHES).judged += 1;
                let checked = match self.open.get_mut(follower) {
                    None => Err("no watch is open".to_owned()),
                    Some(watch) if watch.broken => return,
                    Some(watch) => {
                        let checked = watch.check_event(line, self.stored);
                        watch.broken = checked.is_err();
                        checked.map_err(|why| format!("a watch of instance={} {why}", watch.instance))
                    }
                };
                if let Err(why) = checked {
                    verdicts.count_violation(API_WATCHES, format!("follower {follower}: {why}"));
                }
            }
            Event::Closed { follower, why } => {
                let watch = self.open.remove(follower);
                let complete = self.complete.entry(*follower).or_default();
                let Some(watch) = watch.filter(|_| why.is_none()) else { return };
                *complete = true;
                verdicts.verdict_of(API_WATCHES).judged += 1;
                if let Some(what) = watch.find_withheld_step(self.stored) {
                    let instance = watch.instance;
                    let what = format!("follower {follower}: a watch of instance={instance} {what}");
                    verdicts.count_violation(API_WATCHES, what);
                }
            }
            _ => {}
        }
    }

    fn judge_list(&mut self, follower: u32, requested_at: Micros, answer: &Value, verdicts: &mut Verdicts) {
        verdicts.verdict_of(LISTS).judged += 1;
        let Some([fewest, most]) =
            self.stored.listed_steps(self.stored.count_steps_until(requested_at), answer)
        else {
            let names: Vec<String> = answer["items"].as_array().into_iter().flatten().map(key_of).collect();
            let what = format!(
                "follower {follower}: at no revision since it was asked for there was what a list has: {names:?}"
            );
            verdicts.count_violation(LISTS, what);
            return;
        };
        if let Some(watch) = self.open.get_mut(&follower) {
            let first = watch.listed.map_or(most, |[first, _]| first);
            watch.listed = Some([first, fewest]);
        }
    }
}

impl Watch {
    /// Checks a delivered line.
    ///
    /// # Errors
    /// The reason why this line is wrong here.
    fn check_event(&mut self, line: &Value, stored: &StoreHistory) -> Result<(), String> {
        let shown = WatchEvent {
            event: line["type"].as_str().unwrap_or_default().to_owned(),
            object: line["object"].clone(),
        };
        let key = key_of(&shown.object);
        let of = |step: usize| stored.steps.get(step).and_then(|step| step.changes.get(&key));
        let (step, mut delivered) = match self.at.take() {
            None => {
                // The watch must deliver every step that the list lacks; without a valid list it may begin with any
                // step.
                let most = self.listed.map_or(stored.steps.len(), |[first, _]| first);
                let first = (self.least..=most).find(|step| of(*step) == Some(&shown));
                let steps = || stored.describe_steps(self.least, most);
                (
                    first.ok_or_else(|| format!("begins with {shown}, and not with one of {}", steps()))?,
                    BTreeSet::new(),
                )
            }
            Some((step, delivered)) if delivered.len() < stored.steps[step].changes.len() => {
                (step, delivered)
            }
            Some((step, _)) => (step + 1, BTreeSet::new()),
        };
        if of(step) != Some(&shown) || !delivered.insert(key) {
            return Err(format!("tells {shown}, where {} comes next", stored.describe_steps(step, step)));
        }
        self.at = Some((step, delivered));
        Ok(())
    }

    /// Steps that the watch should have delivered before its end.
    fn find_withheld_step(&self, stored: &StoreHistory) -> Option<String> {
        let [first, last] = self.listed.filter(|_| !self.broken)?;
        let delivered = match &self.at {
            // The watch may have begun as late as the first list.
            None => first,
            Some((step, delivered)) => {
                step + usize::from(delivered.len() == stored.steps[*step].changes.len())
            }
        };
        (delivered < last).then(|| format!("never delivered {}", stored.describe_steps(delivered, last - 1)))
    }
}

#[cfg(test)]
mod tests;
