//! The inputs of a decision about operations, indexed for the rules: nodes by role, running containers, members of
//! etcd.

use std::borrow::Cow;
use std::collections::BTreeMap;

use madako_domain::containers::{Container, ServiceParams};
use madako_domain::node_status::{EtcdMember, NodeStatus};

use crate::held::{BlockedBy, Held};
use crate::input::Input;
use crate::kubernetes::row::status;
use crate::kubernetes::status::KubernetesStatus;
use crate::operation::{CommandMaker, Operation, OperationName};
use crate::wanted;

/// A node of the cluster configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeView<'a> {
    pub(crate) address: &'a str,
    pub(crate) control_plane: bool,
    pub(crate) status: &'a NodeStatus,
    pub(crate) backs_off: bool,
}

impl NodeView<'_> {
    /// True if commands may run on the node.
    pub(crate) fn is_ready(&self) -> bool {
        self.status.reachable && !self.backs_off
    }

    /// The reason for which no command may run on the node.
    fn reason_for_absence(&self) -> Option<BlockedBy> {
        match (self.status.reachable, self.backs_off) {
            (false, _) => Some(BlockedBy::Unreachable),
            (true, true) => Some(BlockedBy::BackingOff),
            (true, false) => None,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct MemberView<'a> {
    pub(crate) address: Cow<'a, str>,
    pub(crate) member: &'a EtcdMember,
}

/// A requirement of an operation on a node, besides that commands may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationNeed {
    Name(Container),
    /// The configured volume of etcd is the one with the data.
    Volume,
}

static UNKNOWN: NodeStatus = NodeStatus {
    reachable: false,
    containers: BTreeMap::new(),
    etcd_data: false,
    etcd_mark: false,
    etcd_empty: None,
    etcd_other_volume: false,
    etcd_certificates: BTreeMap::new(),
    kubernetes_certificates: BTreeMap::new(),
    configurations: BTreeMap::new(),
};

#[derive(Debug)]
pub(crate) struct View<'a> {
    pub(crate) input: &'a Input<'a>,
    /// The nodes in the order of the configuration.
    pub(crate) nodes: Vec<NodeView<'a>>,
    by_address: BTreeMap<&'a str, usize>,
    /// Addresses of the control plane nodes.
    pub(crate) control_plane: Vec<String>,
    /// The members in the order of their addresses; none if etcd does not answer.
    pub(crate) members: Vec<MemberView<'a>>,
    /// The state of Kubernetes' containers, which several rows use; empty if Kubernetes is left to CKE.
    pub(crate) kubernetes: KubernetesStatus<'a>,
}

impl<'a> View<'a> {
    pub(crate) fn new(input: &'a Input<'a>) -> Self {
        let view = |node: &'a madako_domain::cluster::Node| NodeView {
            address: &node.address,
            control_plane: node.control_plane,
            status: input.status.nodes.get(&node.address).unwrap_or(&UNKNOWN),
            backs_off: input.backing_off.contains(&node.address),
        };
        let nodes: Vec<NodeView<'a>> = input.cluster.nodes.iter().map(view).collect();
        let members = input.status.etcd.iter().flat_map(|etcd| &etcd.members);
        let mut members: Vec<MemberView<'a>> =
            members.map(|member| MemberView { address: member.address(), member }).collect();
        members.sort_by(|one, two| (&one.address, one.member.id).cmp(&(&two.address, two.member.id)));
        Self {
            by_address: nodes.iter().enumerate().map(|(index, node)| (node.address, index)).collect(),
            control_plane: input.cluster.control_plane().map(|node| node.address.clone()).collect(),
            input,
            nodes,
            members,
            kubernetes: input.kubernetes.map(|_| status(input)).unwrap_or_default(),
        }
    }

    pub(crate) fn control_plane_nodes(&self) -> impl Iterator<Item = &NodeView<'a>> {
        self.nodes.iter().filter(|node| node.control_plane)
    }

    pub(crate) fn node(&self, address: &str) -> Option<&NodeView<'a>> {
        self.by_address.get(address).map(|index| &self.nodes[*index])
    }

    pub(crate) fn node_of_member(&self, member: &MemberView<'_>) -> Option<&NodeView<'a>> {
        self.node(&member.address)
    }

    pub(crate) fn is_member(&self, address: &str) -> bool {
        self.members.iter().any(|member| member.address == address)
    }

    /// True if the node may have data of before the last restore of etcd.
    pub(crate) fn is_stale(&self, address: &str) -> bool {
        self.input.stale.contains(address)
    }

    /// True if etcd grants leases.
    pub(crate) fn is_healthy(&self) -> bool {
        self.input.status.etcd.as_ref().is_some_and(|etcd| etcd.healthy)
    }

    /// True if etcd is healthy and all members are in sync.
    pub(crate) fn is_good(&self) -> bool {
        self.is_healthy() && self.members.iter().all(|member| member.member.is_in_sync())
    }

    /// Members that are not known to be in sync.
    pub(crate) fn out_of_sync(&self) -> Vec<String> {
        let members = self.members.iter().filter(|member| !member.member.is_in_sync());
        members.map(|member| member.address.to_string()).collect()
    }

    pub(crate) fn command_maker(&self) -> CommandMaker<'_> {
        CommandMaker {
            etcd_image: &self.input.settings.images.etcd,
            tools_image: &self.input.settings.images.tools,
            volume: &self.input.options.etcd_volume,
            control_plane: &self.control_plane,
        }
    }

    /// True if the container runs on the node and differs from the wanted one.
    pub(crate) fn is_outdated(
        &self,
        node: &NodeView<'_>,
        container: Container,
        builtin: &ServiceParams,
    ) -> bool {
        let (options, images) = (self.input.options, &self.input.settings.images);
        let own = node.status.own_container(container).filter(|status| status.running);
        own.is_some_and(|status| wanted::is_outdated(container, status, builtin, options, images))
    }

    fn obstacle_to_operation(&self, node: &NodeView<'_>, needs: &[OperationNeed]) -> Option<BlockedBy> {
        let missing = |need: &OperationNeed| match *need {
            OperationNeed::Name(container) => node
                .status
                .is_foreign(container)
                .then(|| BlockedBy::ForeignContainer { container: container.into() }),
            OperationNeed::Volume => node
                .status
                .etcd_other_volume
                .then(|| BlockedBy::VolumeChanged { volume: self.input.options.etcd_volume.clone() }),
        };
        node.reason_for_absence().or_else(|| needs.iter().find_map(missing))
    }

    /// The nodes on which an operation can run now. The others are held, in one entry a reason.
    pub(crate) fn select_usable_nodes<'n>(
        &self,
        what: OperationName,
        needs: &[OperationNeed],
        nodes: impl IntoIterator<Item = &'n NodeView<'a>>,
        held: &mut Vec<Held>,
    ) -> Vec<String>
    where
        'a: 'n,
    {
        let mut usable = Vec::new();
        let first = held.len();
        for node in nodes {
            let address = node.address.to_owned();
            let Some(reason) = self.obstacle_to_operation(node, needs) else {
                usable.push(address);
                continue;
            };
            match held[first..].iter_mut().find(|entry| entry.reason == reason) {
                Some(entry) => entry.targets.push(address),
                None => held.push(Held { what, reason, targets: vec![address] }),
            }
        }
        usable
    }

    /// Holds an operation back if a control plane node is not ready.
    pub(crate) fn lacks_control_plane(&self, what: OperationName, held: &mut Vec<Held>) -> bool {
        let before = held.len();
        self.select_usable_nodes(what, &[], self.control_plane_nodes(), held);
        held.len() > before
    }

    /// The reason against a start of members from the image: a member runs a newer etcd.
    pub(crate) fn older_image(&self) -> Option<BlockedBy> {
        let image = self.input.status.etcd_image_version.as_ref()?;
        let running = self.members.iter().filter_map(|member| member.member.version.as_ref()).max()?;
        (image < running).then(|| BlockedBy::OlderImage { image: image.clone(), running: running.clone() })
    }

    /// The reason against an operation that stops or removes members.
    pub(crate) fn quorum_obstacle(&self, operation: &Operation) -> Option<BlockedBy> {
        let etcd = self.input.status.etcd.as_ref()?;
        operation.quorum_violation(&etcd.members).map(|violation| BlockedBy::Quorum {
            violation: violation.what,
            needed: self
                .out_of_sync()
                .into_iter()
                .filter(|member| !operation.targets.contains(member))
                .collect(),
        })
    }
}
