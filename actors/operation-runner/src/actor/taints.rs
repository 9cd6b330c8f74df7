//! The boot taints of Node objects: their check before a kubelet boots, and the command that adds them.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::cluster::{Node, Taint};
use madako_domain::component::Component;
use madako_domain::invariants::check_boot_taints;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::permit::Permit;
use tokio::time::Instant;

use super::execute::{Basis, Executor, Failure};
use super::objects::left_to_next_pass;
use crate::kubernetes::command::KubernetesCommand as Command;
use crate::limits::NODE_CHANGES_DEADLINE;
use crate::operation::Operation;

/// The nodes whose taints are refused, or not as they should be. Each backs off alone.
#[derive(Default)]
struct FailedTaints {
    nodes: BTreeSet<String>,
    why: Vec<String>,
    /// Name of the first node that was not begun in time.
    next: Option<String>,
}

impl FailedTaints {
    fn note(&mut self, address: &str, why: Option<impl Display>) {
        if let Some(why) = why {
            self.nodes.insert(address.to_owned());
            self.why.push(why.to_string());
        }
    }

    /// A refusal concerns the node alone; any other error concerns the API servers.
    fn note_error(&mut self, address: &str, error: KubernetesError) -> Result<(), Failure> {
        match error {
            KubernetesError::Refused { .. } => {
                self.note(address, Some(error));
                Ok(())
            }
            error => Err(error.into()),
        }
    }

    /// A node that was not begun is not a failure: the next pass begins with it.
    fn into_result(self) -> Result<(), Failure> {
        let Self { nodes, mut why, next } = self;
        why.extend(next.map(|next| left_to_next_pass(&next)));
        if why.is_empty() {
            return Ok(());
        }
        let is_hold = nodes.is_empty();
        Err(Failure { nodes, why: why.join("; "), is_hold })
    }
}

impl Executor {
    /// I18, evaluated on the present Node object before each command that boots a kubelet.
    pub(super) async fn refuse_untainted_boot(
        &self,
        operation: &Operation,
        command: &Command,
        basis: &Basis,
    ) -> Result<(), Failure> {
        let Command::RunContainer { component: Component::Kubelet, restart: false } = command else {
            return Ok(());
        };
        let boot_taints = basis.kubernetes.iter().flat_map(|options| &options.boot_taints).cloned();
        let boot_taints: Vec<Taint> = boot_taints.collect();
        if boot_taints.is_empty() || is_planted(Canary::BootTaintsLate) {
            return Ok(());
        }
        // The nodes back off, so that another client that removes their taints holds no other node.
        let mut failed = FailedTaints::default();
        for node in basis.cluster.nodes.iter().filter(|node| operation.targets.contains(&node.address)) {
            match self.components.read_taints(&basis.servers, node.name()).await {
                Ok(present) => {
                    let violation = check_boot_taints(node.name(), present.as_deref(), &boot_taints);
                    failed.note(&node.address, violation);
                }
                Err(error) => failed.note_error(&node.address, error)?,
            }
        }
        failed.into_result()
    }

    /// Adds the boot taints to the Node objects of these names.
    pub(super) async fn add_boot_taints(
        &self,
        names: &[String],
        boot_taints: &[Taint],
        basis: &Basis,
    ) -> Result<(), Failure> {
        let is_named = |node: &&Node| names.iter().any(|name| name == node.name());
        let nodes: Vec<&Node> = basis.cluster.nodes.iter().filter(is_named).collect();
        let add = |place: usize| {
            let node = nodes[place];
            self.permits.try_effect(move |permit: Permit| {
                let components = Arc::clone(&self.components);
                async move { components.add_taints(&permit, &basis.servers, node.name(), boot_taints).await }
            })
        };
        taint_one_by_one(&nodes, add).await
    }
}

/// Changes the taints of nodes one after another, each by its place. Those that are not begun within [`NODE_CHANGES_DEADLINE`] are
/// left to the next pass.
async fn taint_one_by_one<F>(nodes: &[&Node], add: impl Fn(usize) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), KubernetesError>>,
{
    let end = Instant::now() + NODE_CHANGES_DEADLINE;
    let mut failed = FailedTaints::default();
    for (place, node) in nodes.iter().enumerate() {
        if Instant::now() >= end {
            failed.next = Some(node.name().to_owned());
            break;
        }
        if let Err(error) = add(place).await {
            failed.note_error(&node.address, error)?;
        }
    }
    failed.into_result()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn refused_taints_hold_their_nodes_and_other_errors_the_operation() {
        let what = || "node a".to_owned();
        let mut failed = FailedTaints::default();
        assert!(
            failed
                .note_error("b", KubernetesError::Unavailable { what: what(), why: "x".to_owned() })
                .is_err()
        );
        assert!(FailedTaints::default().into_result().is_ok());
        let refused = KubernetesError::Refused { what: what(), status: 403, why: "a webhook".to_owned() };
        assert!(failed.note_error("a", refused).is_ok());
        let Err(Failure { nodes, why, is_hold }) = failed.into_result() else { panic!("a node failed") };
        assert_eq!((nodes, is_hold), (BTreeSet::from(["a".to_owned()]), false));
        assert!(why.contains("a webhook"), "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_changes_of_taints_leave_the_other_nodes_to_the_next_pass() {
        let node = |number: usize| Node { address: format!("10.0.0.{number}"), ..Node::default() };
        let nodes: Vec<Node> = (0..9).map(node).collect();
        let nodes: Vec<&Node> = nodes.iter().collect();
        let refused =
            KubernetesError::Refused { what: "a".to_owned(), status: 500, why: "a webhook".to_owned() };
        for (result, count) in [(Err(refused), 3), (Ok(()), 0)] {
            let began = Instant::now();
            let add = |_: usize| {
                let result = result.clone();
                async move {
                    tokio::time::sleep(Duration::from_secs(10)).await;
                    result
                }
            };
            let Err(Failure { nodes: failed, why, is_hold }) = taint_one_by_one(&nodes, add).await else {
                panic!("nodes are left")
            };
            assert_eq!((began.elapsed().as_secs(), failed.len(), is_hold), (30, count, count == 0), "{why}");
            assert!(why.contains("from 10.0.0.3 on"), "{why}");
        }
    }
}
