//! Renders the reasons of a cluster plan as sentences.

use std::fmt;

use super::{Choice, Deselection, LeavingReason, PlanReason, Score, Shortage, Source, Unpromotable};
use crate::limits::MAX_NODES_SHOWN;
use crate::machine::BadLabel;
use crate::plan::Part;
use madako_json::strict::tree::shown_text;

fn count_with_noun(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

/// Seconds to a tenth: a registry counts in nanoseconds, and a wait may be shorter than a second.
fn round_seconds(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

impl fmt::Display for PlanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCluster => f.write_str("there is no cluster yet"),
            Self::ClusterExists => f.write_str("there is a cluster already"),
            Self::TemplateChanged => f.write_str("the template has changed"),
            Self::TemplateUnchanged => f.write_str("the template has not changed"),
            Self::LeaderStarts => f.write_str("a leader is starting, which only applies a changed template"),
            Self::After(rule) => write!(f, "{} fired, and a plan does one thing", rule.name()),
            Self::TemplateUsedBy(rule) => {
                write!(f, "{} fired, and it uses the changed template", rule.name())
            }
            Self::AfterFailureOf(rule) => {
                write!(f, "{} failed, and no later rule is tried then", rule.name())
            }
            Self::AllExist { nodes } => write!(f, "all {nodes} nodes have a machine in the list"),
            Self::NonExistent { part } => {
                write!(f, "no machine in the list has the address of this {}", part_noun(*part))
            }
            Self::TooManyNonExistent { lost, total } => write!(
                f,
                "{lost} of {total} control plane nodes no longer exist; with half or more gone the \
                 configuration must be repaired by hand"
            ),
            Self::MissingMachine => {
                f.write_str("the changed template cannot be applied: no machine in the list has this address")
            }
            Self::ControlPlaneSize { nodes, count } => write!(
                f,
                "the control plane has {}, control-plane-count is {count}",
                count_with_noun(*nodes, "node", "nodes")
            ),
            Self::ControlPlaneGood { nodes } => write!(
                f,
                "none of {} is in a bad state or has a taint that is not tolerated",
                count_with_noun(*nodes, "control plane node", "control plane nodes")
            ),
            Self::BadState(state) => {
                write!(f, "the machine of this control plane node is {}", state.name())
            }
            Self::BadTaint { key } => {
                write!(f, "this control plane node has the taint {key}, which is not tolerated")
            }
            Self::TooFewToReplace { nodes: 1 } => {
                f.write_str("it is bad, but a single control plane node is never replaced")
            }
            Self::TooFewToReplace { nodes } => write!(
                f,
                "it is bad, but replacing one of {nodes} control plane nodes would replace half of them"
            ),
            Self::Workers { healthy, total, minimum, maximum } => {
                write!(f, "{healthy} of {} healthy", count_with_noun(*total, "worker is", "workers are"))?;
                write!(f, ", minimum-workers is {minimum}")?;
                if *maximum == 0 {
                    f.write_str(" and there is no maximum-workers")
                } else {
                    write!(f, " and maximum-workers is {maximum}")
                }
            }
            Self::NoneRetired { retired: 0, .. } => f.write_str("no worker is retired"),
            Self::NoneRetired { retired, wait_seconds } => write!(
                f,
                "{} retired, but none for more than {} s that could be removed",
                count_with_noun(*retired, "worker is", "workers are"),
                round_seconds(*wait_seconds)
            ),
            Self::Retired { seconds, wait_seconds } => write!(
                f,
                "this worker has been retired for {} s, which is more than {} s",
                round_seconds(*seconds),
                round_seconds(*wait_seconds)
            ),
            Self::NoSpare(shortage) => {
                write!(f, "this retired worker stays, as it cannot be replaced: {shortage}")
            }
            Self::TaintsRight { nodes } => {
                write!(f, "all {nodes} nodes have the taint that belongs to their machine's state")
            }
            Self::TaintWrong { state, expected: Some(value) } => write!(
                f,
                "the machine is {}, but the node's state taint is not {value}:NoExecute",
                state.name()
            ),
            Self::TaintWrong { state, expected: None } => {
                write!(f, "the machine is {}, but the node has a state taint", state.name())
            }
            Self::Chosen(choice) => choice.fmt(f),
            Self::Deselected(deselection) => deselection.fmt(f),
            Self::BecomesWorker => f.write_str("this control plane node becomes a worker"),
            Self::Leaves(leaving) => write!(f, "this control plane node leaves the cluster: {leaving}"),
            Self::Shortage(shortage) => shortage.fmt(f),
            Self::EmptyControlPlane => {
                f.write_str("control-plane-count is 0, but a cluster needs a control plane node")
            }
            Self::Contradiction { minimum, maximum } => {
                write!(f, "minimum-workers, {minimum}, is above maximum-workers, {maximum}")
            }
            Self::RoleWithoutTemplate { role } => {
                write!(f, "no worker template has this worker's role, {role:?}")
            }
            Self::DuplicateAddress { serials, in_use } => {
                write!(f, "{} machines claim this address ({}), ", serials.len(), ListedItems(serials))?;
                f.write_str(if *in_use { "the node stays in the cluster" } else { "none of them is chosen" })
            }
            Self::SharedAddressStays(leaving) => write!(
                f,
                "this control plane node stays although it would be demoted: several machines claim its address, \
                 and it could only leave the cluster, as {leaving}"
            ),
            Self::ListedAgain { times, serial, state } => write!(
                f,
                "the list holds the machine {serial} {times} times with this address; it counts once, as {}",
                state.name()
            ),
            Self::NoSuchLabels(bad) => {
                write!(
                    f,
                    "the machine is not chosen, because its labels would be invalid: {}",
                    ListedItems(bad)
                )
            }
            Self::UnderRepair => f.write_str(
                "the machine is not chosen for the control plane, as it is being repaired or rebooted",
            ),
            Self::LabelsLeftOut(bad) => {
                write!(f, "the node lacks labels that would be invalid: {}", ListedItems(bad))
            }
            Self::NoneUnused(shortage) => {
                write!(f, "workers beyond minimum-workers are promoted: {shortage}")
            }
            Self::Exchange { maximum } => write!(
                f,
                "a worker is promoted in exchange for this node, as the workers are at maximum-workers, {maximum}"
            ),
        }
    }
}

fn part_noun(part: Part) -> &'static str {
    match part {
        Part::ControlPlane => "control plane node",
        Part::Worker => "worker",
    }
}

impl fmt::Display for LeavingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom { maximum } => write!(f, "the workers are at maximum-workers, {maximum}"),
            Self::RoleWithoutTemplate { role } => write!(f, "no worker template has its role, {role:?}"),
        }
    }
}

struct ListedItems<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for ListedItems<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.0.iter().take(MAX_NODES_SHOWN).enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            item.fmt(f)?;
        }
        match self.0.len().checked_sub(MAX_NODES_SHOWN) {
            Some(more) if more > 0 => write!(f, " and {more} more"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chosen as {}", part_noun(self.part))?;
        let (one, many) = match self.from {
            Source::Unused => ("unused machine", "unused machines"),
            Source::Workers => ("worker", "workers"),
        };
        write!(f, ", the best of {}", count_with_noun(u64::from(self.considered), one, many))?;
        if let Some(role) = &self.role {
            write!(f, " of role {role:?}")?;
            if self.part == Part::Worker {
                let workers = count_with_noun(u64::from(self.workers), "worker", "workers");
                write!(f, " (its share is the smallest: {workers} for weight {})", self.weight)?;
            }
        }
        write!(f, "; {}", self.score)?;
        match &self.runner_up {
            Some(rival) => write_next(f, &rival.address, rival.score, self.score.total()),
            None => f.write_str("; there was no other"),
        }
    }
}

impl fmt::Display for Deselection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lowest score of {} control plane nodes", self.considered)?;
        write!(f, "; {}", self.score)?;
        match &self.runner_up {
            Some((address, score)) => write_next(f, address, *score, self.score.total()),
            None => Ok(()),
        }
    }
}

fn write_next(
    f: &mut fmt::Formatter<'_>,
    address: &dyn fmt::Display,
    score: i64,
    chosen: i64,
) -> fmt::Result {
    write!(f, "; next was {address} with {score}")?;
    if score == chosen { f.write_str(" too, and the lowest address decides") } else { Ok(()) }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("score: ")?;
        if self.health_points != 0 {
            write!(f, "{} as it is healthy, ", self.health_points)?;
        }
        let nodes = count_with_noun(u64::from(self.in_rack), "such node", "such nodes");
        write!(f, "{} for {nodes} in its rack, ", self.rack_points)?;
        let days = count_with_noun(u64::from(self.days.unsigned_abs()), "day", "days");
        let side = if self.days < 0 { "past" } else { "until" };
        write!(f, "{} for {days} {side} its retire date", self.lifetime_points)
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no healthy machine")?;
        if let Some(role) = &self.role {
            write!(f, " of role {role:?}")?;
        }
        write!(f, " is available as {}", part_noun(self.part))?;
        write!(
            f,
            " ({} of {}): of {}",
            self.have,
            self.want,
            count_with_noun(self.machines, "machine", "machines")
        )?;
        let counts = [
            (self.other_role, "of another role"),
            (self.in_cluster, "in the cluster"),
            (self.not_healthy, "not healthy"),
            (self.bad_address, BAD_ADDRESS),
            (self.bad_labels, BAD_LABELS),
            (self.tainted, BAD_TAINT),
            (self.under_repair, UNDER_REPAIR),
        ];
        let mut separator = ", ";
        if counts.iter().all(|(count, _)| *count == 0) {
            f.write_str(", none is left")?;
            separator = "; ";
        }
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{separator}{count} {what}")?;
        }
        if let Some(minimum) = self.workers_at_minimum {
            write!(f, "; no worker is promoted while there are only minimum-workers, {minimum}")?;
        }
        match &self.unpromotable {
            Some(workers) => write!(f, "; {workers}"),
            None => Ok(()),
        }
    }
}

const BAD_ADDRESS: &str = "with an address of several machines";
const BAD_LABELS: &str = "with an invalid role or label";
const BAD_TAINT: &str = "with a taint that is not tolerated";
const UNDER_REPAIR: &str = "being repaired or rebooted";

impl fmt::Display for Unpromotable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.workers == 0 {
            return f.write_str("there is no worker to promote");
        }
        write!(f, "of {} none can be promoted:", count_with_noun(self.workers, "worker", "workers"))?;
        let counts = [
            (self.other_role, "of another role"),
            (self.not_healthy, "not healthy"),
            (self.bad_address, BAD_ADDRESS),
            (self.bad_labels, BAD_LABELS),
            (self.tainted, BAD_TAINT),
            (self.under_repair, UNDER_REPAIR),
        ];
        let mut separator = " ";
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{separator}{count} {what}")?;
            separator = ", ";
        }
        Ok(())
    }
}

impl fmt::Display for BadLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Role(role) => write!(f, "its role {}", shown_text(role)),
            Self::Rack(rack) => write!(f, "its rack {rack}"),
            Self::IndexInRack(index) => write!(f, "its index in the rack {index}"),
            Self::Name(name) => write!(f, "its label {}", shown_text(name)),
            Self::Value { name, value } => {
                write!(f, "the value {} of its label {}", shown_text(value), shown_text(name))
            }
        }
    }
}
