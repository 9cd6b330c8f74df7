//! The rules (CKE's `sabakan-integration.md`, "Initialization" and "Maintenance"), in the order in which they are tried.
//!
//! A rule evaluates the draft, notes why it fires or not, and changes the draft. Filling up to the constraints
//! happens afterwards.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::machine::MachineState;
use madako_domain::plan::{Action, Deselection, LeavingReason, Part, PlanErrorKind, PlanReason, Source};

use crate::inventory::MachineId;
use crate::node::{has_state_taint, state_taint_value};
use crate::picker::{Candidate, Picker};
use crate::planner::{Planner, RuleAttempt, RuleError, join_addresses};
use crate::score::staying_points;

/// The smallest control plane of which one node is less than half (invariant I5).
const SMALLEST_TO_REPLACE_ONE: usize = 3;

impl Planner<'_> {
    pub(crate) fn initialize_cluster(&mut self) -> Result<RuleAttempt, RuleError> {
        let rule = Action::Initialize;
        self.note_rule(rule, PlanReason::NoCluster);
        self.refuse_empty_control_plane(rule)?;
        Ok(RuleAttempt::Fired)
    }

    fn refuse_empty_control_plane(&mut self, rule: Action) -> Result<(), RuleError> {
        if self.input.constraints.control_plane_count > 0 {
            return Ok(());
        }
        Err(self.rule_error(rule, PlanErrorKind::NotAvailable, PlanReason::EmptyControlPlane))
    }

    /// Removes nodes without a machine. Half or more of the control plane is never removed: etcd would lose its
    /// quorum.
    pub(crate) fn remove_non_existent_nodes(&mut self) -> Result<RuleAttempt, RuleError> {
        let rule = Action::RemoveNonExistentNodes;
        let missing = self.draft.missing_nodes().to_vec();
        if missing.is_empty() || is_planted(Canary::VanishedNodesKept) {
            let nodes = self.draft.count(Part::ControlPlane) + self.draft.count(Part::Worker);
            self.record_rule_not_fired(rule, PlanReason::AllExist { nodes });
            return Ok(RuleAttempt::StepsAside);
        }
        for node in &missing {
            let part = if node.control_plane { Part::ControlPlane } else { Part::Worker };
            self.record_fired_rule(rule, PlanReason::NonExistent { part }, &node.address);
        }
        let lost = missing.iter().filter(|node| node.control_plane).count() as u64;
        let total = lost + self.draft.count(Part::ControlPlane);
        if lost > 0 && lost * 2 >= total && !is_planted(Canary::AllBadNodesAtOnce) {
            let why = PlanReason::TooManyNonExistent { lost, total };
            return Err(self.rule_error(rule, PlanErrorKind::TooManyNonExistent, why));
        }
        Ok(RuleAttempt::Fired)
    }

    pub(crate) fn increase_control_plane(&mut self) -> RuleAttempt {
        let rule = Action::IncreaseControlPlane;
        let (nodes, count) = self.control_plane_size();
        let why = PlanReason::ControlPlaneSize { nodes, count };
        if nodes >= count {
            self.record_rule_not_fired(rule, why);
            return RuleAttempt::StepsAside;
        }
        self.note_rule(rule, why);
        RuleAttempt::Fired
    }

    fn control_plane_size(&self) -> (u64, u64) {
        (self.draft.count(Part::ControlPlane), u64::from(self.input.constraints.control_plane_count))
    }

    /// The nodes with the lowest scores become workers, or leave if they cannot.
    pub(crate) fn decrease_control_plane(&mut self) -> Result<RuleAttempt, RuleError> {
        let rule = Action::DecreaseControlPlane;
        let (nodes, count) = self.control_plane_size();
        let why = PlanReason::ControlPlaneSize { nodes, count };
        if nodes <= count {
            self.record_rule_not_fired(rule, why);
            return Ok(RuleAttempt::StepsAside);
        }
        self.refuse_empty_control_plane(rule)?;

        let candidates = self.draft.control_plane().iter().map(|id| {
            let entry = self.inventory.entry(*id);
            Candidate { rack: entry.rack, points: Reverse(staying_points(entry, self.input.now)), id: *id }
        });
        let racks = self.draft.count_by_rack(self.draft.control_plane().iter().copied());
        let mut picker =
            Picker::to_leave(candidates.collect(), |rack| racks.get(&rack).copied().unwrap_or(0));
        let mut deselected = BTreeSet::new();
        let mut kept = Vec::new();
        while nodes - (deselected.len() as u64) > count {
            let Some(id) = picker.peek() else { break };
            // Room for workers never grows here, so a node that is passed over once stays.
            if let Some(leaving) = self.reason_against_worker(id).filter(|_| self.inventory.entry(id).shared)
            {
                kept.push((id, PlanReason::SharedAddressStays(leaving)));
                picker.pass_over();
                continue;
            }
            let Some(pick) = picker.pick() else { break };
            if deselected.is_empty() {
                self.note_rule(rule, why.clone());
            }
            let runner_up =
                pick.runner_up.map(|(id, score)| (self.inventory.entry(id).address.to_owned(), score));
            let score = self.parts_of_score(&pick);
            let deselection = Deselection { considered: pick.considered as u64, score, runner_up };
            self.record_score(rule, PlanReason::Deselected(Box::new(deselection)), pick.id, pick.score);
            self.demote_or_remove(rule, pick.id);
            deselected.insert(pick.id);
        }
        if deselected.is_empty() {
            self.record_rule_not_fired(rule, why);
            for (id, why) in kept {
                self.record_rule_not_fired_for(rule, why, id);
            }
            return Ok(RuleAttempt::StepsAside);
        }
        for (id, why) in kept {
            self.record_fired_rule_about(rule, why, id);
        }
        self.draft.remove_control_plane(&deselected);
        Ok(RuleAttempt::Fired)
    }

    /// Makes a former control plane node a worker if its role and `maximum-workers` allow it; else it leaves.
    fn demote_or_remove(&mut self, rule: Action, id: MachineId) {
        match self.reason_against_worker(id) {
            Some(leaving) => self.record_fired_rule_about(rule, PlanReason::Leaves(leaving), id),
            None => self.demote_node(rule, id),
        }
    }

    fn demote_node(&mut self, rule: Action, id: MachineId) {
        self.draft.add_worker(id, &self.templates);
        self.record_fired_rule_about(rule, PlanReason::BecomesWorker, id);
    }

    fn reason_against_worker(&self, id: MachineId) -> Option<LeavingReason> {
        if self.draft.find_template(id, &self.templates).is_none() {
            let role = self.inventory.role(self.inventory.entry(id).role).into();
            return Some(LeavingReason::RoleWithoutTemplate { role });
        }
        let maximum = u64::from(self.input.constraints.maximum_workers);
        (!self.has_room_for_worker()).then_some(LeavingReason::NoRoom { maximum })
    }

    /// Demotes the first bad node of the control plane; another node takes its place.
    ///
    /// A node whose address several machines claim must stay in the cluster: if it could only leave, the next bad
    /// node is considered.
    pub(crate) fn replace_control_plane(&mut self) -> RuleAttempt {
        let rule = Action::ReplaceControlPlane;
        let nodes = self.draft.control_plane().len();
        let bad: Vec<(MachineId, PlanReason)> = self
            .draft
            .control_plane()
            .iter()
            .filter_map(|id| Some((*id, self.reason_against_machine(*id)?)))
            .collect();
        if bad.is_empty() {
            self.record_rule_not_fired(rule, PlanReason::ControlPlaneGood { nodes: nodes as u64 });
            return RuleAttempt::StepsAside;
        }
        if nodes < SMALLEST_TO_REPLACE_ONE {
            for (bad, why) in bad.into_iter().take(1) {
                self.record_rule_not_fired_for(rule, why, bad);
                self.record_rule_not_fired_for(
                    rule,
                    PlanReason::TooFewToReplace { nodes: nodes as u64 },
                    bad,
                );
            }
            return RuleAttempt::StepsAside;
        }
        let mut kept = Vec::new();
        // The set of promotable workers does not depend on the node to replace.
        let mut can_exchange = None;
        for (bad, why) in bad {
            let leaving = self.reason_against_worker(bad);
            let must_leave = match leaving {
                None => false,
                Some(LeavingReason::RoleWithoutTemplate { .. }) => true,
                Some(LeavingReason::NoRoom { .. }) => !*can_exchange
                    .get_or_insert_with(|| self.control_plane_picker(rule, Source::Workers).peek().is_some()),
            };
            match leaving {
                Some(leaving) if must_leave && self.inventory.entry(bad).shared => {
                    kept.push((bad, why));
                    kept.push((bad, PlanReason::SharedAddressStays(leaving)));
                }
                leaving => {
                    for (id, why) in kept {
                        self.record_fired_rule_about(rule, why, id);
                    }
                    self.record_fired_rule_about(rule, why, bad);
                    self.replace(rule, bad, leaving);
                    return RuleAttempt::Fired;
                }
            }
        }
        for (id, why) in kept {
            self.record_rule_not_fired_for(rule, why, id);
        }
        RuleAttempt::StepsAside
    }

    /// Removes a bad node from the control plane.
    fn replace(&mut self, rule: Action, bad: MachineId, leaving: Option<LeavingReason>) {
        self.draft.remove_control_plane(&BTreeSet::from([bad]));
        let maximum = match leaving {
            None => return self.demote_node(rule, bad),
            Some(LeavingReason::NoRoom { maximum }) => maximum,
            Some(leaving) => return self.record_fired_rule_about(rule, PlanReason::Leaves(leaving), bad),
        };
        let Some(pick) = self.control_plane_picker(rule, Source::Workers).pick() else {
            return self.record_fired_rule_about(
                rule,
                PlanReason::Leaves(LeavingReason::NoRoom { maximum }),
                bad,
            );
        };
        self.record_fired_rule_about(rule, PlanReason::Exchange { maximum }, bad);
        self.join_control_plane(rule, pick, Source::Workers);
        self.remove_workers(&BTreeSet::from([pick.id]));
        // The number of workers stays, even if it already exceeds the maximum.
        self.demote_node(rule, bad);
    }

    fn reason_against_machine(&self, id: MachineId) -> Option<PlanReason> {
        match self.inventory.entry(id).state {
            MachineState::Healthy | MachineState::Updating | MachineState::Uninitialized => {
                self.bad_taint(id).map(|key| PlanReason::BadTaint { key: key.into() })
            }
            state => Some(PlanReason::BadState(state)),
        }
    }

    /// Adds workers until enough are healthy, the maximum is reached, or no machine is left.
    pub(crate) fn increase_workers(&mut self) -> RuleAttempt {
        let rule = Action::IncreaseWorkers;
        let constraints = self.input.constraints;
        let healthy = self.draft.healthy_workers();
        let minimum = u64::from(constraints.minimum_workers);
        let why = PlanReason::Workers {
            healthy,
            total: self.draft.count(Part::Worker),
            minimum,
            maximum: u64::from(constraints.maximum_workers),
        };
        if healthy >= minimum || !self.has_room_for_worker() {
            self.record_rule_not_fired(rule, why);
            return RuleAttempt::StepsAside;
        }
        let next = self.next_template();
        if !self.has_spare(next) {
            let mut shortage =
                self.describe_shortage(Part::Worker, self.templates.role(next).cloned(), minimum);
            shortage.have = healthy;
            self.record_rule_not_fired(rule, why);
            self.record_rule_not_fired(rule, PlanReason::Shortage(Box::new(shortage)));
            return RuleAttempt::StepsAside;
        }
        self.note_rule(rule, why);
        for _ in healthy..minimum {
            if !self.has_room_for_worker() || !self.add_worker(rule) {
                break;
            }
        }
        RuleAttempt::Fired
    }

    /// Removes the first worker whose machine has been retired for long enough.
    pub(crate) fn decrease_workers(&mut self) -> RuleAttempt {
        let rule = Action::DecreaseWorkers;
        let wait_seconds = self.input.retire_wait.as_secs_f64();
        let is_retired = |id: &MachineId| self.inventory.entry(*id).state == MachineState::Retired;
        let retired: Vec<MachineId> = self.draft.workers().iter().copied().filter(is_retired).collect();
        let seconds = |id: MachineId| self.inventory.machine(id).status.duration;
        // One of several machines that claim the address may be healthy: the node stays.
        let for_long = |id: &MachineId| seconds(*id) > wait_seconds && !self.inventory.entry(*id).shared;
        let Some(leaving) = retired.iter().copied().find(for_long) else {
            self.record_rule_not_fired(
                rule,
                PlanReason::NoneRetired { retired: retired.len() as u64, wait_seconds },
            );
            return RuleAttempt::StepsAside;
        };
        let why = PlanReason::Retired { seconds: seconds(leaving), wait_seconds };
        let minimum = u64::from(self.input.constraints.minimum_workers);
        // The next template while the retired node still counts, as in CKE.
        let next = self.next_template();
        if self.draft.count(Part::Worker) <= minimum && !self.has_spare(next) {
            let mut shortage =
                self.describe_shortage(Part::Worker, self.templates.role(next).cloned(), minimum);
            shortage.have -= 1;
            self.record_rule_not_fired_for(rule, why, leaving);
            self.record_rule_not_fired_for(rule, PlanReason::NoSpare(Box::new(shortage)), leaving);
            return RuleAttempt::StepsAside;
        }
        self.record_fired_rule_about(rule, why, leaving);
        self.remove_workers(&BTreeSet::from([leaving]));
        RuleAttempt::Fired
    }

    /// Writes nodes anew whose state taint differs from their machine's state.
    pub(crate) fn taint_nodes(&mut self) -> RuleAttempt {
        let rule = Action::TaintNodes;
        let ids = || self.draft.control_plane().iter().chain(self.draft.workers()).copied();
        let state = |id: MachineId| self.inventory.entry(id).state;
        let is_wrong = |id: &MachineId| {
            self.draft.node_before(*id).is_some_and(|node| !has_state_taint(node, state(*id)))
        };
        let wrong: Vec<MachineId> = ids().filter(is_wrong).collect();
        if wrong.is_empty() {
            let nodes = ids().count() as u64;
            self.record_rule_not_fired(rule, PlanReason::TaintsRight { nodes });
            return RuleAttempt::StepsAside;
        }
        for id in wrong {
            let state = state(id);
            self.record_fired_rule_about(
                rule,
                PlanReason::TaintWrong { state, expected: state_taint_value(state) },
                id,
            );
        }
        RuleAttempt::Fired
    }

    /// Applies the changed template to the same nodes.
    pub(crate) fn regenerate_nodes(&mut self) -> Result<RuleAttempt, RuleError> {
        let rule = Action::Regenerate;
        if !self.input.template_changed {
            self.record_rule_not_fired(rule, PlanReason::TemplateUnchanged);
            return Ok(RuleAttempt::StepsAside);
        }
        self.note_rule(rule, PlanReason::TemplateChanged);
        let missing = self.draft.missing_nodes().to_vec();
        if missing.is_empty() {
            return Ok(RuleAttempt::Fired);
        }
        for node in &missing {
            self.record_fired_rule(rule, PlanReason::MissingMachine, &node.address);
        }
        let addresses: Vec<&str> = missing.iter().map(|node| node.address.as_str()).collect();
        let message = format!(
            "the changed template cannot be applied: no machine in the list has the address of {}",
            join_addresses(&addresses)
        );
        Err(RuleError { kind: PlanErrorKind::MissingMachine, message })
    }
}
