//! Selects machines, and fills the cluster up to the constraints after an action: control plane first.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::cluster::{TAINT_MASTER, TAINT_STATE};
use madako_domain::plan::{
    Action, Choice, Part, PlanErrorKind, PlanReason, RunnerUp, Shortage, Source, Unpromotable,
};

use crate::inventory::{Inventory, MachineId};
use crate::picker::{Candidate, PickedMachine, Picker};
use crate::planner::{Planner, RuleError};
use crate::score::{self, lifetime_points};
use crate::templates::TemplateId;

/// Key prefix of the taints that Kubernetes adds for temporary node states (CKE's `sabakan-integration.md`).
const TAINT_PREFIX_KUBERNETES: &str = "node.kubernetes.io/";

/// For each worker template, the unused machines that can become its workers.
#[derive(Debug)]
pub(crate) struct WorkerPools(Vec<Picker>);

impl Planner<'_> {
    /// Adds nodes until the constraints hold.
    pub(crate) fn fill(&mut self, rule: Action) -> Result<(), RuleError> {
        self.fill_control_plane(rule)?;
        self.fill_workers(rule)
    }

    fn fill_control_plane(&mut self, rule: Action) -> Result<(), RuleError> {
        let planted = u64::from(is_planted(Canary::ControlPlaneOneShort));
        let count = u64::from(self.input.constraints.control_plane_count).saturating_sub(planted);
        let minimum = u64::from(self.input.constraints.minimum_workers);
        if self.draft.count(Part::ControlPlane) >= count {
            return Ok(());
        }
        let mut unused = self.control_plane_picker(rule, Source::Unused);
        while self.draft.count(Part::ControlPlane) < count {
            let Some(pick) = unused.pick() else { break };
            self.join_control_plane(rule, pick, Source::Unused);
        }
        if self.draft.count(Part::ControlPlane) >= count {
            return Ok(());
        }

        // No unused machine fits: promote workers beyond the minimum.
        let mut workers = self.control_plane_picker(rule, Source::Workers);
        let mut promoted = BTreeSet::new();
        while self.draft.count(Part::ControlPlane) < count
            && self.draft.count(Part::Worker) - promoted.len() as u64 > minimum
        {
            let Some(pick) = workers.pick() else { break };
            if promoted.is_empty() {
                let shortage = self.shortage_of_control_plane(count);
                self.note_rule(rule, PlanReason::NoneUnused(Box::new(shortage)));
            }
            self.join_control_plane(rule, pick, Source::Workers);
            promoted.insert(pick.id);
        }
        self.remove_workers(&promoted);
        if self.draft.count(Part::ControlPlane) >= count {
            return Ok(());
        }
        let mut shortage = self.shortage_of_control_plane(count);
        if self.draft.count(Part::Worker) <= minimum {
            shortage.workers_at_minimum = Some(minimum);
        } else {
            shortage.unpromotable = Some(self.count_unpromotable());
        }
        Err(self.rule_error(rule, PlanErrorKind::NotAvailable, PlanReason::Shortage(Box::new(shortage))))
    }

    fn fill_workers(&mut self, rule: Action) -> Result<(), RuleError> {
        let minimum = u64::from(self.input.constraints.minimum_workers);
        let maximum = u64::from(self.input.constraints.maximum_workers);
        while self.draft.count(Part::Worker) < minimum {
            if !self.has_room_for_worker() {
                let why = PlanReason::Contradiction { minimum, maximum };
                return Err(self.rule_error(rule, PlanErrorKind::NotAvailable, why));
            }
            if !self.add_worker(rule) {
                let role = self.templates.role(self.next_template()).cloned();
                let shortage = Box::new(self.describe_shortage(Part::Worker, role, minimum));
                return Err(self.rule_error(
                    rule,
                    PlanErrorKind::NotAvailable,
                    PlanReason::Shortage(shortage),
                ));
            }
        }
        Ok(())
    }

    /// True if `maximum-workers` allows another worker.
    pub(crate) fn has_room_for_worker(&self) -> bool {
        let maximum = u64::from(self.input.constraints.maximum_workers);
        let planted = u64::from(is_planted(Canary::OneWorkerTooMany));
        maximum == 0 || self.draft.count(Part::Worker) < maximum + planted
    }

    pub(crate) fn next_template(&self) -> TemplateId {
        self.templates.next(self.draft.template_workers())
    }

    /// Adds the best unused machine of the next template; `false`: there is none.
    pub(crate) fn add_worker(&mut self, rule: Action) -> bool {
        let template = self.next_template();
        let mut pools = self.pools.take().unwrap_or_else(|| self.worker_pools());
        let pick = pools.0[template].pick();
        self.pools = Some(pools);
        let Some(pick) = pick else { return false };
        let choice = Choice {
            part: Part::Worker,
            from: Source::Unused,
            role: self.templates.role(template).cloned(),
            workers: u32::try_from(self.draft.template_workers()[template]).unwrap_or(u32::MAX),
            weight: self.templates.weight(template),
            considered: u32::try_from(pick.considered).unwrap_or(u32::MAX),
            score: self.parts_of_score(&pick),
            runner_up: best_runner_up(self.inventory, &pick),
        };
        self.record_score(rule, PlanReason::Chosen(choice), pick.id, pick.score);
        self.draft.add_worker(pick.id, &self.templates);
        true
    }

    /// Adds a machine to the control plane. The caller removes a former worker from the workers.
    pub(crate) fn join_control_plane(&mut self, rule: Action, pick: PickedMachine, from: Source) {
        let choice = Choice {
            part: Part::ControlPlane,
            from,
            role: self.templates.control_plane_role().cloned(),
            workers: 0,
            weight: 0.0,
            considered: u32::try_from(pick.considered).unwrap_or(u32::MAX),
            score: self.parts_of_score(&pick),
            runner_up: best_runner_up(self.inventory, &pick),
        };
        self.record_score(rule, PlanReason::Chosen(choice), pick.id, pick.score);
        self.draft.add_control_plane(pick.id);
    }

    pub(crate) fn parts_of_score(&self, pick: &PickedMachine) -> madako_domain::plan::Score {
        score::score_parts(self.inventory.entry(pick.id), self.input.now, pick.score, pick.points)
    }

    /// Removes workers and invalidates the prepared candidates.
    pub(crate) fn remove_workers(&mut self, ids: &BTreeSet<MachineId>) {
        if !ids.is_empty() {
            self.draft.remove_workers(ids, &self.templates);
            self.pools = None;
        }
    }

    /// Candidates for the control plane: healthy, with the role, without a bad taint, not under repair.
    pub(crate) fn control_plane_picker(&mut self, rule: Action, source: Source) -> Picker {
        let racks = self.draft.count_by_rack(self.draft.control_plane().iter().copied());
        let fits = |id: &MachineId| self.fits_control_plane(*id) && self.bad_taint(*id).is_none();
        let mut fitting: Vec<MachineId> = match source {
            Source::Unused => self.unused_machines().filter(fits).collect(),
            Source::Workers => {
                let workers = self.draft.workers().iter().copied();
                workers.filter(|id| self.can_be_chosen(*id)).filter(fits).collect()
            }
        };
        let under_repair: Vec<MachineId> = fitting.extract_if(.., |id| self.is_under_repair(*id)).collect();
        for id in under_repair {
            self.passed_over.entry(id).or_insert(rule);
        }
        let candidates = fitting.into_iter().map(|id| self.make_candidate(id)).collect();
        Picker::to_join(candidates, |rack| racks.get(&rack).copied().unwrap_or(0))
    }

    fn worker_pools(&self) -> WorkerPools {
        let mut candidates = vec![Vec::new(); self.templates.count()];
        for id in self.unused_machines() {
            if let Some(template) = self.draft.find_template(id, &self.templates) {
                candidates[template].push(self.make_candidate(id));
            }
        }
        let mut workers = vec![Vec::new(); self.templates.count()];
        for id in self.draft.workers() {
            if let Some(template) = self.draft.find_template(*id, &self.templates) {
                workers[template].push(*id);
            }
        }
        let pools = candidates.into_iter().zip(workers).map(|(candidates, workers)| {
            let racks = self.draft.count_by_rack(workers);
            Picker::to_join(candidates, |rack| racks.get(&rack).copied().unwrap_or(0))
        });
        WorkerPools(pools.collect())
    }

    /// True if an unused machine can become a worker of a template.
    pub(crate) fn has_spare(&self, template: TemplateId) -> bool {
        self.unused_machines().any(|id| self.draft.find_template(id, &self.templates) == Some(template))
    }

    fn unused_machines(&self) -> impl Iterator<Item = MachineId> {
        let ids = 0..self.inventory.entries().len();
        ids.filter(|id| !self.draft.is_taken(*id) && self.can_be_chosen(*id))
    }

    fn can_be_chosen(&self, id: MachineId) -> bool {
        let entry = self.inventory.entry(id);
        entry.is_healthy() && entry.has_own_address() && self.inventory.has_good_labels(id)
    }

    /// True if a repair or reboot of it is known to be under way.
    fn is_under_repair(&self, id: MachineId) -> bool {
        let known = self.input.under_repair;
        !known.is_empty() && known.contains(self.inventory.entry(id).address)
    }

    fn fits_control_plane(&self, id: MachineId) -> bool {
        let role = self.templates.control_plane_role();
        role.is_none_or(|role| **role == *self.inventory.role(self.inventory.entry(id).role))
    }

    fn make_candidate(&self, id: MachineId) -> Candidate {
        let entry = self.inventory.entry(id);
        Candidate { rack: entry.rack, points: Reverse(lifetime_points(entry, self.input.now)), id }
    }

    /// Key of a taint that a control plane node must not have.
    pub(crate) fn bad_taint(&self, id: MachineId) -> Option<&str> {
        if self.input.node_taints.is_empty() {
            return None;
        }
        let taints = self.input.node_taints.get(self.inventory.entry(id).address)?;
        let tolerated = &self.input.template.cluster().control_plane_tolerations;
        taints.iter().map(|taint| taint.key.as_str()).find(|key| {
            !key.starts_with(TAINT_PREFIX_KUBERNETES)
                && *key != TAINT_STATE
                && *key != TAINT_MASTER
                && !tolerated.iter().any(|tolerated| tolerated == key)
        })
    }

    fn shortage_of_control_plane(&self, count: u64) -> Shortage {
        self.describe_shortage(Part::ControlPlane, self.templates.control_plane_role().cloned(), count)
    }

    /// Counts the reasons against promoting each worker.
    fn count_unpromotable(&self) -> Unpromotable {
        let mut counts = Unpromotable { workers: self.draft.count(Part::Worker), ..Unpromotable::default() };
        for id in self.draft.workers() {
            let entry = self.inventory.entry(*id);
            let count = if !self.fits_control_plane(*id) {
                &mut counts.other_role
            } else if !entry.is_healthy() {
                &mut counts.not_healthy
            } else if !entry.has_own_address() {
                &mut counts.bad_address
            } else if !self.inventory.has_good_labels(*id) {
                &mut counts.bad_labels
            } else if self.bad_taint(*id).is_some() {
                &mut counts.tainted
            } else {
                &mut counts.under_repair
            };
            *count += 1;
        }
        counts
    }

    /// Counts the reasons against each unused machine.
    pub(crate) fn describe_shortage(
        &self,
        part: Part,
        role: Option<std::sync::Arc<str>>,
        want: u64,
    ) -> Shortage {
        let mut shortage = Shortage {
            part,
            have: self.draft.count(part),
            want,
            workers_at_minimum: None,
            machines: self.inventory.entries().len() as u64,
            other_role: 0,
            in_cluster: 0,
            not_healthy: 0,
            bad_address: 0,
            bad_labels: 0,
            tainted: 0,
            under_repair: 0,
            unpromotable: None,
            role,
        };
        for (id, entry) in self.inventory.entries().iter().enumerate() {
            let count =
                if shortage.role.as_ref().is_some_and(|role| **role != *self.inventory.role(entry.role)) {
                    &mut shortage.other_role
                } else if self.draft.is_taken(id) {
                    &mut shortage.in_cluster
                } else if !entry.is_healthy() {
                    &mut shortage.not_healthy
                } else if !entry.has_own_address() {
                    &mut shortage.bad_address
                } else if !self.inventory.has_good_labels(id) {
                    &mut shortage.bad_labels
                } else if self.bad_taint(id).is_some() {
                    // Applies to the control plane only: taints and repairs of workers do not matter.
                    &mut shortage.tainted
                } else {
                    &mut shortage.under_repair
                };
            *count += 1;
        }
        shortage
    }
}

fn best_runner_up(inventory: &Inventory<'_>, pick: &PickedMachine) -> Option<RunnerUp> {
    let (id, score) = pick.runner_up?;
    Some(RunnerUp { address: inventory.entry(id).ipv4?, score })
}
