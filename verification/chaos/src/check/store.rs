//! Judges the clusters and the repair queue by the store's revisions and the registry's answers: I1, I3 to I8, I10,
//! I12.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::constraints::Constraints;
use madako_domain::invariants::repair::busy_api_servers;
use madako_domain::invariants::{Id, Violation};
use madako_domain::keys;
use madako_domain::machine::MachineState;
use madako_domain::placement::ownership;
use madako_domain::repair::queue::RepairQueue;
use madako_domain::repair::{RepairStatus, RepairStepStatus};
use madako_domain::store::Entry;
use madako_judges::final_cluster::misplaced_nodes;
use madako_judges::history::{
    ByObservation, Change, Clusters, candidate_revisions, decode_queue, find_decider, new_violation,
    read_json,
};
use madako_judges::standing::{StandingViolations, check_added_records};
use madako_judges::{Exemption, Exemptions, Fact, MachineReport, Oracle, RegistryQuestion};

use super::Verdicts;
use super::effects::has_led_within;
use crate::history::{Micros, to_microseconds};
use crate::observer::{PREFIX, Revision};
use crate::world::terms_of_settings;

/// Maximum time until a commit while its leader or the store is cut off: [`Exemption::LateCommit`].
const LATEST: Duration = Exemption::LateCommit.longest_use().expect("a commit is late for a time");

#[derive(Debug, Clone, Default)]
pub struct RegistryAnswers {
    /// Times and addresses of the answers, the earliest first. Repeated equal answers are included at intervals.
    pub lists: Vec<(Micros, BTreeSet<String>)>,
    /// Maximum age of an answer when the plan made from it appears in the store, while no fault delays the plan: polls,
    /// and the delay of observations.
    pub oldest: Micros,
    /// Time and machines of the last answer.
    pub last: (Micros, Arc<Vec<MachineReport>>),
}

impl RegistryAnswers {
    pub(crate) fn of_facts(facts: &[(Micros, Fact)]) -> Self {
        let terms = terms_of_settings();
        let oldest = to_microseconds(terms.stale_after() + terms.tolerance);
        let mut answers = Self { oldest, ..Self::default() };
        for (at, fact) in facts {
            if let Fact::Answered { question: RegistryQuestion::Machines, machines, .. } = fact {
                answers.lists.push((*at, machines.iter().map(|machine| machine.address.clone()).collect()));
                answers.last = (*at, Arc::clone(machines));
            }
        }
        answers
    }

    /// States of the machines at the end. A retired worker stays in the cluster for a time: until then its machine counts
    /// as retiring.
    fn final_states(&self) -> BTreeMap<&str, MachineState> {
        let (terms, (at, machines)) = (terms_of_settings(), &self.last);
        let stays = terms.retire_wait + terms.reaction_time();
        let state_of = |machine: &MachineReport| match machine.state {
            MachineState::Retired if machine.since + stays > Duration::from_micros(*at) => {
                MachineState::Retiring
            }
            state => state,
        };
        machines.iter().map(|machine| (&*machine.address, state_of(machine))).collect()
    }
}

/// The observations of a run that its store is judged by.
#[derive(Clone, Copy)]
pub struct StoreObservations<'a> {
    pub revisions: &'a [Revision],
    pub answered: &'a RegistryAnswers,
    /// The epochs that led, each from its time on.
    pub leading: &'a [(Micros, Option<i64>)],
    /// Instances by epoch.
    pub epochs: &'a BTreeMap<i64, u32>,
    /// All facts, in the order of time: these have the faults.
    pub facts: &'a [(Micros, Fact)],
}

/// Judges all revisions, and the final state if the run is calm.
pub fn judge_store(observed: StoreObservations<'_>, calm: bool, verdicts: &mut Verdicts) -> Exemptions {
    let revisions = observed.revisions;
    let mut judge = Judge {
        observed,
        clusters: Clusters::default(),
        owner: None,
        queue: RepairQueue::default(),
        standing: StandingViolations::default(),
        exemptions: Exemptions::default(),
    };
    for revision in revisions {
        judge.judge_revision(revision, verdicts);
    }
    if calm {
        judge.judge_calm_state(verdicts);
    }
    let last = revisions.last().map_or(0, |revision| revision.at);
    judge.standing.count_standing(Duration::from_micros(last), &mut judge.exemptions);
    judge.exemptions
}

impl StoreObservations<'_> {
    /// Evaluates a cluster of a revision by each recent answer to its writer, and returns the fewest violations; `None`
    /// without a recent answer. An older answer counts if a fault since then explains the late commit.
    fn evaluate_cluster(
        &self,
        (now, writer): (Micros, Option<u32>),
        judged_by: ByObservation<'_>,
        exemptions: &mut Exemptions,
    ) -> Option<Vec<Violation>> {
        let RegistryAnswers { lists, oldest, .. } = self.answered;
        // An answer does not name its receiver: it counts for each instance that may have led then.
        let is_own = |at: Micros| {
            writer.is_none_or(|writer| has_led_within(writer, [at, at], self.leading, self.epochs))
        };
        let since = |age: Micros| {
            lists.iter().filter(move |(at, _)| *at <= now && at + age >= now).filter(|(at, _)| is_own(*at))
        };
        let best = since(*oldest).map(|(_, observed)| judged_by(observed)).min_by_key(Vec::len);
        if best.as_ref().is_none_or(|wrong| !wrong.is_empty())
            && let Some((at, _)) =
                since(oldest + to_microseconds(LATEST)).rfind(|(_, observed)| judged_by(observed).is_empty())
            && self.is_leading_troubled(*at, now)
        {
            let late = Duration::from_micros(now.saturating_sub(at + oldest));
            exemptions.record_use(Exemption::LateCommit, late);
            return Some(Vec::new());
        }
        best
    }

    /// True if the leader or the store has a fault at `now`, or had one since the given time, or the leader changed since.
    fn is_leading_troubled(&self, since: Micros, now: Micros) -> bool {
        let mut oracle = Oracle::new(terms_of_settings());
        for (at, fact) in self.facts.iter().take_while(|(at, _)| *at <= now) {
            oracle.observe(Duration::from_micros(*at), fact);
        }
        oracle.is_leading_troubled(Duration::from_micros(since))
    }
}

/// The epoch that the plan of a revision names.
fn epoch_of_plan(changes: &[Change]) -> Option<i64> {
    let (_, plan) = changes.iter().find(|(key, _)| key == keys::LAST_PLAN)?;
    serde_json::from_slice::<serde_json::Value>(&plan.as_ref()?.value).ok()?["epoch"].as_i64()
}

struct Judge<'a> {
    observed: StoreObservations<'a>,
    clusters: Clusters,
    owner: Option<Entry>,
    queue: RepairQueue,
    standing: StandingViolations,
    exemptions: Exemptions,
}

impl Judge<'_> {
    fn judge_revision(&mut self, revision: &Revision, verdicts: &mut Verdicts) {
        let number = revision.revision;
        let ours = |change: &crate::observer::Change| {
            Some((change.key.strip_prefix(PREFIX)?.to_owned(), change.to_entry()))
        };
        let changes: Vec<Change> = revision.changes.iter().filter_map(ours).collect();
        let touches = |prefix: &str| changes.iter().any(|(key, _)| key.starts_with(prefix));
        if touches(keys::PLACEMENT) {
            verdicts.count_judged(Id::I1, 1);
            let owner = self.owner.as_ref().map(|owner| (&*owner.value, owner.lease));
            let found = find_decider(number, PREFIX, candidate_revisions(self.clusters.stored(), ""), owner);
            found.iter().for_each(|found| verdicts.count_violated(found));
        }
        if let Some(change) = revision.changes.iter().find(|change| change.key == ownership::KEY) {
            self.owner = change.to_entry();
        }
        // All instances of a run have one host name, so that the epoch of the plan tells its writer.
        let writer = epoch_of_plan(&changes).and_then(|epoch| self.observed.epochs.get(&epoch)).copied();
        let (observed, exemptions) = (self.observed, &mut self.exemptions);
        let ruled = self.clusters.observe(number, &changes, |_, judged_by| {
            observed.evaluate_cluster((revision.at, writer), judged_by, exemptions)
        });
        ruled.judged.into_iter().for_each(|invariant| verdicts.count_judged(invariant, 1));
        ruled.violations.iter().for_each(|violation| verdicts.count_violated(violation));
        let of_queues =
            [keys::REPAIRS, keys::REPAIR_KEPT, keys::RECORDS, keys::REBOOTS, keys::UPGRADE_DRAINS];
        if of_queues.into_iter().any(touches) {
            self.judge_repairs(revision, verdicts);
        }
    }

    /// In the calm state the cluster is as the constraints and the template demand and of fitting machines, and no repair is
    /// under way; a repair may wait until it drains its node again.
    fn judge_calm_state(&self, verdicts: &mut Verdicts) {
        verdicts.count_judged(Id::I12, 1);
        let mut unmet = |what: String| verdicts.count_violated(&Violation { invariant: Id::I12, what });
        let constraints: Constraints =
            read_json(self.clusters.stored(), keys::CONSTRAINTS).unwrap_or_default();
        let Some(cluster) = self.clusters.current_cluster() else {
            return unmet("in the end: there is no cluster".to_owned());
        };
        for what in misplaced_nodes(&cluster, &self.observed.answered.final_states()) {
            unmet(format!("in the end: {what}"));
        }
        if !self.clusters.is_template_applied() {
            unmet("in the end: the cluster was not made from the last template".to_owned());
        }
        let (control_plane, workers) = (cluster.control_plane().count(), cluster.workers().count());
        let Constraints { control_plane_count, minimum_workers, .. } = constraints;
        if control_plane != control_plane_count as usize || workers < minimum_workers as usize {
            unmet(format!(
                "in the end: {control_plane} control plane nodes and {workers} workers, where {control_plane_count} and at \
                 least {minimum_workers} are wanted"
            ));
        }
        for (index, item) in &decode_queue(self.clusters.stored(), None).entries {
            // The run waits for calm as long as the back-off of a drain has ended without a new attempt.
            let waits =
                item.value.step_status == RepairStepStatus::Waiting && item.value.drain_backoff_count > 0;
            if item.value.status == RepairStatus::Processing && !waits {
                unmet(format!("in the end: repair {index} of {} is left in the middle", item.value.address));
            }
        }
    }

    /// I7, I8 and I10 of the current queue; a violation that merely stays is an exemption.
    fn judge_repairs(&mut self, Revision { revision, at, .. }: &Revision, verdicts: &mut Verdicts) {
        for invariant in [Id::I7, Id::I10] {
            verdicts.count_judged(invariant, 1);
        }
        let cluster = self.clusters.current_cluster();
        let after = decode_queue(self.clusters.stored(), Some(&self.queue));
        if !busy_api_servers(&after, cluster.as_ref()).is_empty() {
            verdicts.count_judged(Id::I8, 1);
        }
        let (at, exemptions) = (Duration::from_micros(*at), &mut self.exemptions);
        let mut found = check_added_records(&self.queue, &after);
        found.extend(self.standing.added_violations(&after, cluster.as_ref(), at, exemptions));
        for found in found {
            verdicts.count_violated(&new_violation(found.invariant, *revision, &found.what));
        }
        self.queue = after;
    }
}

#[cfg(test)]
mod tests;
