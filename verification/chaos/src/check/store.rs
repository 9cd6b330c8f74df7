//! Judges the clusters and the repair queue by the store's revisions and the registry's answers: I1, I3 to I8, I10,
//! I12.

use std::collections::BTreeSet;
use std::time::Duration;

use madako_domain::constraints::Constraints;
use madako_domain::invariants::repair::busy_api_servers;
use madako_domain::invariants::{Id, Violation};
use madako_domain::keys;
use madako_domain::placement::ownership;
use madako_domain::repair::queue::RepairQueue;
use madako_domain::repair::{RepairStatus, RepairStepStatus};
use madako_domain::store::Entry;
use madako_judges::Exemptions;
use madako_judges::history::{
    Change, Clusters, candidate_revisions, decode_queue, find_decider, new_violation, read_json,
};
use madako_judges::standing::{StandingViolations, check_added_records};

use super::Verdicts;
use crate::history::Micros;
use crate::observer::{PREFIX, Revision};

#[derive(Debug, Clone, Default)]
pub struct RegistryAnswers {
    /// Times and addresses of the answers, the earliest first. Repeated equal answers are included at intervals.
    pub lists: Vec<(Micros, BTreeSet<String>)>,
    /// Maximum age of an answer when the plan made from it appears in the store: polls, deadlines, and time in which
    /// processes were stopped.
    pub oldest: Micros,
}

/// Judges all revisions, and the final state if the run is calm.
pub fn judge_store(
    revisions: &[Revision],
    answered: &RegistryAnswers,
    calm: bool,
    verdicts: &mut Verdicts,
) -> Exemptions {
    let mut judge = Judge {
        answered,
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

struct Judge<'a> {
    answered: &'a RegistryAnswers,
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
        // The plan may be made from any of the last answers; without an answer I4 cannot be judged.
        let RegistryAnswers { lists, oldest } = self.answered;
        let recent = lists.iter().filter(|(at, _)| *at <= revision.at && at + oldest >= revision.at);
        let ruled = self.clusters.observe(number, &changes, |_, judged_by| {
            recent.map(|(_, observed)| judged_by(observed)).min_by_key(Vec::len)
        });
        ruled.judged.into_iter().for_each(|invariant| verdicts.count_judged(invariant, 1));
        ruled.violations.iter().for_each(|violation| verdicts.count_violated(violation));
        let of_queues =
            [keys::REPAIRS, keys::REPAIR_KEPT, keys::RECORDS, keys::REBOOTS, keys::UPGRADE_DRAINS];
        if of_queues.into_iter().any(touches) {
            self.judge_repairs(revision, verdicts);
        }
    }

    /// In the calm state the cluster is as the constraints demand, and no repair is under way; a repair may wait until it
    /// drains its node again.
    fn judge_calm_state(&self, verdicts: &mut Verdicts) {
        verdicts.count_judged(Id::I12, 1);
        let mut unmet = |what: String| verdicts.count_violated(&Violation { invariant: Id::I12, what });
        let constraints: Constraints =
            read_json(self.clusters.stored(), keys::CONSTRAINTS).unwrap_or_default();
        let Some(cluster) = self.clusters.current_cluster() else {
            return unmet("in the end: there is no cluster".to_owned());
        };
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
