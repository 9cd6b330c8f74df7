//! Nodes on which a command failed: they are left out for a while, as if they were unreachable. An operation that failed
//! without a node of the cluster as its cause is left out itself, by its name; that of a component on its targets alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_protocol::permit::Moment;

use crate::command::Command;
use crate::limits::{BACK_OFF_FIRST, BACK_OFF_MOST};
use crate::operation::{Operation, OperationName};

#[derive(Debug, Default)]
pub(crate) struct BackingOff(BTreeMap<String, Failure>);

#[derive(Debug, Clone)]
struct Failure {
    count: u32,
    until: Moment,
    why: String,
}

impl BackingOff {
    /// Leaves nodes out: 30 s after the first failure, twice as long after each further one, at most 10 min.
    pub(crate) fn record_failure<'n>(
        &mut self,
        nodes: impl IntoIterator<Item = &'n String>,
        why: &str,
        now: Moment,
    ) {
        for node in nodes {
            let count = self.0.get(node).map_or(0, |failure| failure.count);
            let failure = Failure { count: count + 1, until: now + pause_after(count), why: why.to_owned() };
            self.0.insert(node.clone(), failure);
        }
    }

    /// A command succeeded on these nodes: their next failure is a first one.
    pub(crate) fn clear_failures<'n>(&mut self, nodes: impl IntoIterator<Item = &'n String>) {
        for node in nodes {
            self.0.remove(node);
        }
    }

    /// Forgets nodes outside of the cluster.
    pub(crate) fn retain(&mut self, is_node: impl Fn(&str) -> bool) {
        let is_known = |name: &str| OperationName::from_record_name(name).is_some();
        self.0.retain(|name, _| is_known(name) || is_node(name.rsplit(' ').next().unwrap_or(name)));
    }

    /// Nodes that are left out at `now`.
    pub(crate) fn nodes_backing_off(&self, now: Moment) -> BTreeSet<String> {
        self.remaining_pauses(now).map(|(node, ..)| node.clone()).collect()
    }

    /// Nodes that are left out, with the end of their pause and their last error.
    pub(crate) fn remaining_pauses(&self, now: Moment) -> impl Iterator<Item = (&String, Moment, &str)> {
        let left_out = self.0.iter().filter(move |(_, failure)| failure.until > now);
        left_out.map(|(node, failure)| (node, failure.until, failure.why.as_str()))
    }
}

/// The pause after a failure that so many others precede.
pub(crate) fn pause_after(failures: u32) -> Duration {
    BACK_OFF_FIRST.saturating_mul(1 << failures.min(16)).min(BACK_OFF_MOST)
}

/// The name of an operation on a node, which backs off without others of the same name, and without others on the node.
pub(crate) fn name_on_node(operation: &str, address: &str) -> String {
    format!("{operation} of {address}")
}

/// Names that back off after a failure: the nodes at fault, or else the operation. That of a component backs off on its targets
/// alone, since the starts on other nodes have the same name.
pub(crate) fn names_to_leave_out(operation: &Operation, at_fault: Vec<String>) -> Vec<String> {
    let name = operation.name.name();
    match operation.name {
        _ if !at_fault.is_empty() => at_fault,
        OperationName::Kubernetes(_) => names_on_targets(operation).collect(),
        _ => vec![name.to_owned()],
    }
}

/// The name of an operation on each of its targets.
pub(crate) fn names_on_targets(operation: &Operation) -> impl Iterator<Item = String> {
    let name = operation.name.name();
    operation.targets.iter().map(move |address| name_on_node(name, address))
}

/// The nodes that caused a failure, of which the command knows those on which it failed. If it knows none, its targets
/// are the cause where it waits for a member that the operation has started on them, and in a bootstrap, which needs all
/// of them. A command of a rotation runs on none of its targets, also if its end is not known.
pub(crate) fn nodes_at_fault<'o>(
    operation: &'o Operation,
    command: &Command,
    failed: &'o [String],
) -> &'o [String] {
    use OperationName::{EtcdAddMember, EtcdBootstrap, EtcdStart, KubernetesRotateEncryptionKey};
    if operation.name == KubernetesRotateEncryptionKey {
        return &[];
    }
    let is_of_targets = matches!(
        (operation.name, command),
        (EtcdBootstrap, _) | (EtcdStart | EtcdAddMember, Command::WaitEtcdSync { .. })
    );
    if failed.is_empty() && is_of_targets { &operation.targets } else { failed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::command::KubernetesCommand;
    use crate::kubernetes::operation::KubernetesOperationName;
    use crate::operation::{single_command_operation, start};

    #[test]
    fn only_nodes_that_can_be_the_cause_are_left_out() {
        let [a, b] = ["a".to_owned(), "b".to_owned()];
        let operation = start(vec![a.clone(), b.clone()]);
        let wait = operation.commands.last().unwrap();
        assert_eq!(nodes_at_fault(&operation, wait, &[]), [a.clone(), b.clone()]);
        assert_eq!(nodes_at_fault(&operation, wait, std::slice::from_ref(&b)), std::slice::from_ref(&b));
        let prepare = Command::PrepareEtcdCertificates;
        assert_eq!(nodes_at_fault(&operation, &prepare, &[]), [""; 0], "an authority is the cause");
        let restart = single_command_operation(OperationName::EtcdRestart, vec![a.clone()], wait.clone());
        assert_eq!(nodes_at_fault(&restart, wait, &[]), [""; 0], "another member is the cause");
        let rewrite =
            Command::Kubernetes(KubernetesCommand::RewriteSecrets { key: "2026-11-21T12:00:00Z".to_owned() });
        let name = OperationName::KubernetesRotateEncryptionKey;
        let rotation = single_command_operation(name, vec![a.clone(), b.clone()], rewrite.clone());
        assert_eq!(nodes_at_fault(&rotation, &rewrite, &[a, b]), [""; 0], "it did not end in time");
    }

    #[test]
    fn a_failure_without_a_node_leaves_out_a_component_on_its_targets_alone() {
        let left_out = |name, nodes: &[&str]| {
            let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
            names_to_leave_out(&Operation::new(name, vec!["a".to_owned()], Vec::new()), nodes)
        };
        let restart = OperationName::Kubernetes(KubernetesOperationName::KubeApiserverRestart);
        assert_eq!(left_out(restart, &[]), ["kube-apiserver-restart of a"]);
        assert_eq!(left_out(restart, &["b"]), ["b"]);
        assert_eq!(left_out(OperationName::EtcdRestart, &[]), [OperationName::EtcdRestart.name()]);
        let mut backing_off = BackingOff::default();
        backing_off.record_failure(&left_out(restart, &[]), "x", Moment::now());
        backing_off.retain(|address| address == "a");
        assert_eq!(backing_off.0.len(), 1);
        backing_off.retain(|address| address == "b");
        assert!(backing_off.0.is_empty(), "the node has left the cluster");
    }

    #[test]
    fn pauses_double_until_a_success() {
        let now = Moment::now();
        let node = ["a".to_owned()];
        let mut backing_off = BackingOff::default();
        let mut pauses = Vec::new();
        for _ in 0..6 {
            backing_off.record_failure(&node, "it is full", now);
            let (_, until, _) = backing_off.remaining_pauses(now).next().unwrap();
            pauses.push((until - now).as_secs());
        }
        assert_eq!(pauses, [30, 60, 120, 240, 480, 600]);
        assert!(backing_off.nodes_backing_off(now + Duration::from_secs(600)).is_empty());
        backing_off.clear_failures(&node);
        backing_off.record_failure(&node, "it is full", now);
        assert_eq!(backing_off.remaining_pauses(now).next().unwrap().1 - now, BACK_OFF_FIRST);
    }
}
