//! Tries the rules of a plan in the order of CKE's `sabakan-integration.md`, collects their reasons, and builds the
//! next cluster configuration.

use std::collections::BTreeMap;

use madako_domain::cluster::{Cluster, Node};
use madako_domain::plan::{Action, Outcome, Part, Plan, PlanError, PlanErrorKind, PlanReason, Reason};

use crate::changes::list_changes;
use crate::draft::ClusterDraft;
use crate::fill::WorkerPools;
use crate::input::{LeaderStage, PlanInput};
use crate::inventory::{Inventory, MachineId};
use crate::limits::ADDRESSES_NAMED;
use crate::node::NodeMaker;
use crate::templates::Templates;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleAttempt {
    /// The rule changed the draft, or requires that it is written anew.
    Fired,
    /// The next rule is tried.
    StepsAside,
}

/// Error of a rule that began. Its reasons are noted already.
#[derive(Debug)]
pub(crate) struct RuleError {
    pub(crate) kind: PlanErrorKind,
    pub(crate) message: String,
}

#[derive(Debug)]
pub(crate) struct Planner<'a> {
    pub(crate) input: &'a PlanInput<'a>,
    pub(crate) inventory: &'a Inventory<'a>,
    pub(crate) templates: Templates<'a>,
    pub(crate) draft: ClusterDraft<'a>,
    /// Candidates for workers; built at the first pick and valid until a worker leaves.
    pub(crate) pools: Option<WorkerPools>,
    /// Machines that a rule would have added to the control plane but for their repair.
    pub(crate) passed_over: BTreeMap<MachineId, Action>,
    reasons: Vec<Reason>,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(input: &'a PlanInput<'a>, inventory: &'a Inventory<'a>) -> Self {
        let templates = Templates::new(input.template, inventory);
        let draft = ClusterDraft::new(inventory, &templates, input.current);
        Self {
            input,
            inventory,
            templates,
            draft,
            pools: None,
            passed_over: BTreeMap::new(),
            reasons: Vec::new(),
        }
    }

    pub(crate) fn run(mut self) -> Result<Plan, PlanError> {
        for (index, rule) in Action::ALL.iter().copied().enumerate() {
            let later = &Action::ALL[index + 1..];
            let carried_through = match self.try_rule(rule) {
                Ok(RuleAttempt::StepsAside) => continue,
                Ok(RuleAttempt::Fired) => self.complete_rule(rule),
                Err(error) => Err(error),
            };
            return match carried_through {
                Ok(nodes) => {
                    self.skip_after(rule, later);
                    Ok(self.finish(Some(rule), Some(nodes)))
                }
                Err(error) => Err(self.fail(rule, later, error)),
            };
        }
        Ok(self.finish(None, None))
    }

    fn try_rule(&mut self, rule: Action) -> Result<RuleAttempt, RuleError> {
        if let Some(why) = self.reason_not_applicable(rule) {
            self.record_rule_not_fired(rule, why);
            return Ok(RuleAttempt::StepsAside);
        }
        match rule {
            Action::Initialize => self.initialize_cluster(),
            Action::RemoveNonExistentNodes => self.remove_non_existent_nodes(),
            Action::IncreaseControlPlane => Ok(self.increase_control_plane()),
            Action::DecreaseControlPlane => self.decrease_control_plane(),
            Action::ReplaceControlPlane => Ok(self.replace_control_plane()),
            Action::IncreaseWorkers => Ok(self.increase_workers()),
            Action::DecreaseWorkers => Ok(self.decrease_workers()),
            Action::TaintNodes => Ok(self.taint_nodes()),
            Action::Regenerate => self.regenerate_nodes(),
        }
    }

    /// Reason that a rule does not apply at this stage.
    fn reason_not_applicable(&self, rule: Action) -> Option<PlanReason> {
        let starting = self.input.moment == LeaderStage::LeaderStart;
        match (rule, self.input.current) {
            (Action::Initialize, Some(_)) => Some(PlanReason::ClusterExists),
            (Action::Initialize | Action::Regenerate, None) if starting => Some(PlanReason::LeaderStarts),
            (Action::Initialize, None) | (Action::Regenerate, Some(_)) => None,
            (_, None) => Some(PlanReason::NoCluster),
            (_, Some(_)) => starting.then_some(PlanReason::LeaderStarts),
        }
    }

    /// Fills up to the constraints after a rule fired, and builds the nodes.
    fn complete_rule(&mut self, rule: Action) -> Result<Vec<Node>, RuleError> {
        let filled = self.fill(rule);
        // A role without a template always needs an operator: report it first.
        self.check_roles(rule)?;
        filled?;
        let control_plane = NodeMaker::new(self.input.template.control_plane());
        let workers: Vec<NodeMaker<'_>> = self.templates.template_nodes().map(NodeMaker::new).collect();
        // Every worker has a template: the roles were checked.
        let workers = self
            .draft
            .workers()
            .iter()
            .filter_map(|id| Some((*id, self.node_maker_for_worker(*id, &workers)?)));
        let makers = self.draft.control_plane().iter().map(|id| (*id, &control_plane)).chain(workers);
        // In memory order, building a hundred thousand nodes takes two thirds of the time.
        let mut makers: Vec<_> = makers.enumerate().collect();
        makers.sort_unstable_by_key(|(_, (id, _))| std::ptr::from_ref(self.inventory.machine(*id)));
        let mut nodes = Vec::new();
        nodes.resize_with(makers.len(), Node::default);
        let mut left_out = Vec::new();
        for (place, (id, maker)) in makers {
            let entry = self.inventory.entry(id);
            let good_labels = self.inventory.has_good_labels(id);
            if !good_labels {
                left_out.push((place, id));
            }
            nodes[place] = maker.make_node(entry.machine, entry.address, good_labels);
        }
        left_out.sort_unstable();
        for (_, id) in left_out {
            let bad = self.inventory.machine(id).bad_labels().into_boxed_slice();
            self.record_fired_rule_about(rule, PlanReason::LabelsLeftOut(bad), id);
        }
        Ok(nodes)
    }

    fn node_maker_for_worker<'m>(
        &self,
        id: MachineId,
        makers: &'m [NodeMaker<'m>],
    ) -> Option<&'m NodeMaker<'m>> {
        makers.get(self.draft.find_template(id, &self.templates)?)
    }

    fn check_roles(&mut self, rule: Action) -> Result<(), RuleError> {
        let without: Vec<MachineId> = self
            .draft
            .workers()
            .iter()
            .copied()
            .filter(|id| self.draft.find_template(*id, &self.templates).is_none())
            .collect();
        if without.is_empty() {
            return Ok(());
        }
        let mut by_role: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for id in without {
            let entry = self.inventory.entry(id);
            by_role.entry(self.inventory.role(entry.role)).or_default().push(entry.address);
        }
        let mut parts = Vec::new();
        for (role, addresses) in by_role {
            parts.push(format!("no worker template has role {role:?} of {}", join_addresses(&addresses)));
            for address in addresses {
                let why = PlanReason::RoleWithoutTemplate { role: role.into() };
                self.reasons.push(Reason::new(rule, Outcome::Failed, why).with_address(address));
            }
        }
        Err(RuleError { kind: PlanErrorKind::RoleWithoutTemplate, message: parts.join("; ") })
    }

    fn finish(mut self, action: Option<Action>, nodes: Option<Vec<Node>>) -> Plan {
        let decided = action.map(|rule| (rule, Outcome::Fired));
        self.report_under_repair(decided);
        self.report_bad_labels(decided);
        self.report_duplicates();
        let mut part_after = vec![None; self.inventory.entries().len()];
        for id in self.draft.control_plane() {
            part_after[*id] = Some(Part::ControlPlane);
        }
        for id in self.draft.workers() {
            part_after[*id] = Some(Part::Worker);
        }
        let unused = self.inventory.entries().iter().zip(&part_after);
        let unused_machines = unused.filter(|(entry, part)| entry.is_healthy() && part.is_none()).count();
        let changes = match &nodes {
            Some(nodes) => list_changes(self.inventory, &self.draft, &part_after, nodes),
            None => Vec::new(),
        };
        let cluster = nodes.map(|nodes| {
            let template = self.input.template.cluster();
            // The template's own nodes are not part of the cluster.
            Cluster { nodes, ..template.clone() }
        });
        Plan {
            action,
            changes,
            cluster,
            workers_by_role: self.workers_by_role(),
            reasons: self.reasons,
            unused_machines: unused_machines as u64,
            duplicates: self.inventory.duplicates().to_vec(),
        }
    }

    fn workers_by_role(&self) -> BTreeMap<String, u64> {
        let mut of_role = vec![0; self.inventory.roles().len()];
        for id in self.draft.workers() {
            of_role[self.inventory.entry(*id).role] += 1;
        }
        let of_templates = self.templates.roles().map(|role| (role.to_string(), 0));
        let counted = self.inventory.roles().iter().zip(of_role).filter(|(_, count)| *count > 0);
        of_templates.chain(counted.map(|(role, count)| ((*role).to_owned(), count))).collect()
    }

    fn fail(mut self, rule: Action, later: &[Action], error: RuleError) -> PlanError {
        for reason in self.reasons.iter_mut().filter(|reason| reason.rule == rule) {
            reason.outcome = Outcome::Failed;
        }
        for later in later {
            self.record_rule_not_fired(*later, PlanReason::AfterFailureOf(rule));
        }
        let decided = Some((rule, Outcome::Failed));
        self.report_under_repair(decided);
        self.report_bad_labels(decided);
        self.report_duplicates();
        PlanError { kind: error.kind, message: error.message, reasons: self.reasons }
    }

    fn skip_after(&mut self, rule: Action, later: &[Action]) {
        for later in later {
            let why = match (later, self.input.template_changed) {
                (Action::Regenerate, true) => PlanReason::TemplateUsedBy(rule),
                (Action::Regenerate, false) => PlanReason::TemplateUnchanged,
                _ => PlanReason::After(rule),
            };
            self.record_rule_not_fired(*later, why);
        }
    }

    /// Notes shared addresses with the rule that does not fire for them: nodes in use are not removed, other machines
    /// are not chosen. Also notes machines that the list holds several times.
    fn report_duplicates(&mut self) {
        for repeat in self.inventory.repeats() {
            let rule =
                if self.input.current.is_some() { Action::IncreaseWorkers } else { Action::Initialize };
            let serial = repeat.machine.spec.serial.as_str().into();
            let why =
                PlanReason::ListedAgain { times: repeat.times, serial, state: repeat.machine.status.state };
            self.record_rule_not_fired_for(rule, why, repeat.id);
        }
        for duplicate in self.inventory.duplicates() {
            let rule = match (duplicate.in_use, self.input.current) {
                (true, _) => Action::RemoveNonExistentNodes,
                (false, Some(_)) => Action::IncreaseWorkers,
                (false, None) => Action::Initialize,
            };
            let serials = duplicate.serials.clone().into_boxed_slice();
            let why = PlanReason::DuplicateAddress { serials, in_use: duplicate.in_use };
            self.reasons.push(Reason::new(rule, Outcome::NotFired, why).with_address(&duplicate.address));
        }
    }

    /// Notes machines that were not chosen because of a repair, with the rule that would have chosen them.
    fn report_under_repair(&mut self, decided: Option<(Action, Outcome)>) {
        for (id, rule) in std::mem::take(&mut self.passed_over) {
            let outcome = decided.filter(|(decided, _)| *decided == rule).map(|(_, outcome)| outcome);
            let reason = Reason::new(rule, outcome.unwrap_or(Outcome::NotFired), PlanReason::UnderRepair);
            self.reasons.push(reason.with_address(self.inventory.entry(id).address));
        }
    }

    /// Notes machines that were not chosen because of invalid labels, with the rule that would have chosen them.
    fn report_bad_labels(&mut self, decided: Option<(Action, Outcome)>) {
        let (rule, outcome) = decided.unwrap_or((Action::IncreaseWorkers, Outcome::NotFired));
        for id in self.inventory.known_bad_labels().filter(|id| !self.draft.is_taken(*id)) {
            let bad = self.inventory.machine(id).bad_labels().into_boxed_slice();
            let reason = Reason::new(rule, outcome, PlanReason::NoSuchLabels(bad));
            self.reasons.push(reason.with_address(self.inventory.entry(id).address));
        }
    }

    pub(crate) fn record_rule_not_fired(&mut self, rule: Action, why: PlanReason) {
        self.reasons.push(Reason::new(rule, Outcome::NotFired, why));
    }

    pub(crate) fn record_rule_not_fired_for(&mut self, rule: Action, why: PlanReason, id: MachineId) {
        let reason = Reason::new(rule, Outcome::NotFired, why);
        self.reasons.push(reason.with_address(self.inventory.entry(id).address));
    }

    pub(crate) fn note_rule(&mut self, rule: Action, why: PlanReason) {
        self.reasons.push(Reason::new(rule, Outcome::Fired, why));
    }

    pub(crate) fn record_fired_rule_about(&mut self, rule: Action, why: PlanReason, id: MachineId) {
        self.record_fired_rule(rule, why, self.inventory.entry(id).address);
    }

    pub(crate) fn record_fired_rule(&mut self, rule: Action, why: PlanReason, address: &str) {
        self.reasons.push(Reason::new(rule, Outcome::Fired, why).with_address(address));
    }

    pub(crate) fn record_score(&mut self, rule: Action, why: PlanReason, id: MachineId, score: i64) {
        let reason = Reason::new(rule, Outcome::Fired, why);
        self.reasons.push(reason.with_address(self.inventory.entry(id).address).with_score(score));
    }

    /// Notes the reason that a rule failed, and uses it as the plan's message.
    pub(crate) fn rule_error(&mut self, rule: Action, kind: PlanErrorKind, why: PlanReason) -> RuleError {
        let message = why.to_string();
        self.reasons.push(Reason::new(rule, Outcome::Failed, why));
        RuleError { kind, message }
    }
}

pub(crate) fn join_addresses(addresses: &[&str]) -> String {
    let named = addresses.iter().take(ADDRESSES_NAMED).copied().collect::<Vec<_>>().join(", ");
    match addresses.len().saturating_sub(ADDRESSES_NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
