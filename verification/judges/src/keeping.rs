//! Promises about each committed cluster plan, as predicates over observed facts.

use std::collections::BTreeSet;

use madako_domain::cluster::Cluster;
use madako_domain::guard::GuardState;
use madako_domain::keys;
use madako_domain::machine::MachineState;

use crate::exemptions::Exemption;
use crate::fact::{Fact, FactTime, RegistryQuestion};
use crate::observed_world::{ObservedWorld, changes_planning_inputs, is_plan};
use crate::oracle::{Context, FactJudgement, Predicate};
use crate::terms::{POLLS_TO_AGREE, SHARE};

#[derive(Default)]
pub(crate) struct IntegrationDisabled;

impl Predicate for IntegrationDisabled {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        let Some(since) = now.switched_on_since(keys::SABAKAN_DISABLED) else { return };
        match fact {
            Fact::Stored { revision, .. } if is_plan(written) => {
                ruling.report_broken(format_args!(
                    "revision {revision} is a plan, and the integration is disabled"
                ));
            }
            // A change that would be planned on.
            Fact::Stored { .. } if changes_planning_inputs(written) && *at > since => ruling.count_test(),
            // A leader that is cut off learns of the switch when its lease has ended at the latest.
            Fact::Polled { instance, question: RegistryQuestion::Machines }
                if *at > since + terms.session_ttl + terms.tolerance =>
            {
                if terms.holds_back && !now.is_undisturbed(since) {
                    ruling.exemptions.record_use(Exemption::HeldBack, *at - since);
                } else {
                    ruling.report_broken(format_args!(
                        "{instance} asks the registry for machines, and the integration is disabled since {since:?}"
                    ));
                }
            }
            _ => {}
        }
    }
}

pub(crate) struct FreshObservation;

impl Predicate for FreshObservation {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        let Fact::Stored { revision, .. } = fact else { return };
        let answered = now.last_machine_answer().map(|answer| answer.at);
        let stale = answered.map(|answered| answered + terms.stale_after());
        if !is_plan(written) {
            // A change that would be planned on.
            if changes_planning_inputs(written)
                && now.switched_on_since(keys::SABAKAN_DISABLED).is_none()
                && stale.is_some_and(|stale| *at > stale)
            {
                ruling.count_test();
            }
            return;
        }
        match stale {
            Some(stale) if *at <= stale + terms.tolerance => {}
            Some(stale) if now.is_leading_troubled(stale) => {
                ruling.exemptions.record_use(Exemption::UnderWay, *at - stale);
            }
            _ => ruling.report_broken(format_args!(
                "revision {revision} is a plan, and the leader's last answer of the registry came at {answered:?}"
            )),
        }
    }
}

#[derive(Default)]
pub(crate) struct HeldRemoval {
    /// Missing nodes whose removal was agreed on or confirmed.
    given_up: BTreeSet<String>,
    /// Nodes that the last answers lack, and the number of answers that agree.
    missing: BTreeSet<String>,
    agreed: usize,
    held: Option<FactTime>,
}

impl HeldRemoval {
    fn handle_answer(&mut self, at: FactTime, now: &ObservedWorld) {
        let (Some(answer), Some(cluster)) = (now.last_machine_answer(), &now.cluster) else { return };
        let answered: BTreeSet<&str> = answer.machines.iter().map(|machine| &*machine.address).collect();
        let nodes: BTreeSet<&str> = cluster.nodes.iter().map(|node| &*node.address).collect();
        self.given_up.retain(|node| nodes.contains(&**node) && !answered.contains(&**node));
        let missing: BTreeSet<String> = nodes
            .difference(&answered)
            .filter(|node| !self.given_up.contains(**node))
            .map(|node| (*node).to_owned())
            .collect();
        if missing.len() <= 1 || missing.len() * SHARE <= nodes.len() {
            (self.missing, self.agreed, self.held) = (BTreeSet::new(), 0, None);
            return;
        }
        self.agreed = if missing == self.missing { self.agreed + 1 } else { 1 };
        let guard = now.values.get(keys::REMOVAL_GUARD).and_then(|value| value.read::<GuardState>());
        let confirmed = guard.is_some_and(|guard| guard.confirmed && missing.is_subset(&guard.vanished));
        self.missing = missing;
        if self.agreed >= POLLS_TO_AGREE || confirmed {
            self.given_up.append(&mut self.missing);
            (self.agreed, self.held) = (0, None);
        } else {
            self.held.get_or_insert(at);
        }
    }
}

impl Predicate for HeldRemoval {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        match fact {
            Fact::Answered { instance, question: RegistryQuestion::Machines, .. }
                if now.leader.as_ref().is_some_and(|leader| leader.instance == *instance) =>
            {
                self.handle_answer(*at, now);
                if self.held.is_some() {
                    ruling.count_test();
                }
            }
            Fact::Stored { revision, .. } if is_plan(written) => match self.held {
                Some(held) if now.is_leading_troubled(held) => {
                    ruling.exemptions.record_use(Exemption::UnderWay, *at - held);
                }
                Some(held) if *at > held + terms.tolerance => ruling.report_broken(format_args!(
                    "revision {revision} is a plan, and since {held:?} the registry's answers lack {:?}",
                    self.missing
                )),
                _ => {}
            },
            _ => {}
        }
    }
}

#[derive(Default)]
pub(crate) struct CurrentInputs {
    /// Times of the last change of the inputs and of the one before.
    changed: Option<(FactTime, Option<FactTime>)>,
}

impl Predicate for CurrentInputs {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        let Fact::Stored { revision, .. } = fact else { return };
        if changes_planning_inputs(written) {
            self.changed = Some((*at, self.changed.map(|(last, _)| last)));
        }
        if !is_plan(written) {
            return;
        }
        let noted = now.values.get(keys::CLUSTER_REVISION).and_then(|value| value.read::<i64>());
        let template = now.values.get(keys::SABAKAN_TEMPLATE).map(|value| value.modified);
        let right = template.is_none() || noted == template;
        // The plan after the first change was on its way when the second change came.
        let raced = matches!(self.changed, Some((last, Some(first)))
            if *at <= last + terms.tolerance && last <= first + terms.tolerance);
        if raced {
            ruling.count_test();
        }
        if !right {
            ruling.report_broken(format_args!(
                "revision {revision} is a plan of the template of {noted:?}, and the template is of {template:?}"
            ));
        }
    }
}

pub(crate) struct RetiredNotEarly;

impl Predicate for RetiredNotEarly {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        let Fact::Stored { revision, .. } = fact else { return };
        let (Some(answer), true) = (now.last_machine_answer(), is_plan(written)) else { return };
        let Some(cluster) = written.iter().find(|written| written.key == keys::CLUSTER) else { return };
        let (Some(before), Some(after)) = cluster.read::<Cluster>() else { return };
        let left =
            before.workers().filter(|node| after.nodes.iter().all(|other| other.address != node.address));
        for node in left {
            let Some(machine) = answer.machine_at(&node.address) else { continue };
            if machine.state != MachineState::Retired {
                continue;
            }
            ruling.count_test();
            let retired = at.saturating_sub(machine.since);
            if retired + terms.tolerance >= terms.retire_wait {
                continue;
            }
            if now.is_clock_wrong(at.saturating_sub(terms.retire_wait)) {
                ruling.exemptions.record_use(Exemption::WrongClock, terms.retire_wait - retired);
            } else {
                ruling.report_broken(format_args!(
                    "revision {revision} lets {} go, which is retired since {:?}",
                    node.address, machine.since
                ));
            }
        }
    }
}
