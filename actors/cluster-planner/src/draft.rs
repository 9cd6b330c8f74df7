//! The draft of a plan: the machines of the control plane, the workers, and the unused machines.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::cluster::{Cluster, Node};
use madako_domain::plan::Part;

use crate::inventory::{Inventory, MachineId};
use crate::templates::{TemplateId, Templates};

/// Both lists start in the order of the current configuration.
#[derive(Debug)]
pub(crate) struct ClusterDraft<'a> {
    inventory: &'a Inventory<'a>,
    control_plane: Vec<MachineId>,
    workers: Vec<MachineId>,
    template_workers: Vec<u64>,
    /// For each id: it was part of the cluster before, or has joined.
    taken: Vec<bool>,
    /// For each id: its node before the plan.
    before: Vec<Option<&'a Node>>,
    missing: Vec<&'a Node>,
    /// Every node of the current configuration; the id is missing if its machine is. Of nodes with one address, which
    /// is invalid, only the first is here and counts.
    all_before: Vec<(&'a Node, Option<MachineId>)>,
    /// Ids whose address the current configuration lists again.
    listed_again: BTreeSet<MachineId>,
}

impl<'a> ClusterDraft<'a> {
    /// Starts from the current configuration: control plane first, then workers.
    pub(crate) fn new(
        inventory: &'a Inventory<'a>,
        templates: &Templates<'_>,
        current: Option<&'a Cluster>,
    ) -> Self {
        let size = inventory.entries().len();
        let mut draft = Self {
            inventory,
            control_plane: Vec::new(),
            workers: Vec::new(),
            template_workers: vec![0; templates.count()],
            taken: vec![false; size],
            before: vec![None; size],
            missing: Vec::new(),
            all_before: Vec::new(),
            listed_again: BTreeSet::new(),
        };
        let mut missing = BTreeSet::new();
        for node in current.iter().flat_map(|cluster| cluster.control_plane().chain(cluster.workers())) {
            let id = inventory.find(&node.address);
            match id {
                Some(id) if draft.before[id].is_some() => {
                    draft.listed_again.insert(id);
                }
                Some(id) => {
                    draft.all_before.push((node, Some(id)));
                    draft.before[id] = Some(node);
                    if node.control_plane {
                        draft.add_control_plane(id);
                    } else {
                        draft.add_worker(id, templates);
                    }
                }
                None => {
                    if missing.insert(&*node.address) {
                        draft.all_before.push((node, None));
                        draft.missing.push(node);
                    }
                }
            }
        }
        draft
    }

    pub(crate) fn control_plane(&self) -> &[MachineId] {
        &self.control_plane
    }

    pub(crate) fn workers(&self) -> &[MachineId] {
        &self.workers
    }

    pub(crate) fn missing_nodes(&self) -> &[&'a Node] {
        &self.missing
    }

    /// Every address of the current configuration once, control plane first; without an id if its machine is missing.
    pub(crate) fn nodes_before(&self) -> &[(&'a Node, Option<MachineId>)] {
        &self.all_before
    }

    /// True if the current configuration lists the address again.
    pub(crate) fn is_listed_again(&self, id: MachineId) -> bool {
        self.listed_again.contains(&id)
    }

    pub(crate) fn node_before(&self, id: MachineId) -> Option<&'a Node> {
        self.before[id]
    }

    pub(crate) fn is_taken(&self, id: MachineId) -> bool {
        self.taken[id]
    }

    pub(crate) fn count(&self, part: Part) -> u64 {
        let nodes = match part {
            Part::ControlPlane => &self.control_plane,
            Part::Worker => &self.workers,
        };
        nodes.len() as u64
    }

    pub(crate) fn template_workers(&self) -> &[u64] {
        &self.template_workers
    }

    pub(crate) fn healthy_workers(&self) -> u64 {
        self.workers.iter().filter(|id| self.inventory.entry(**id).is_healthy()).count() as u64
    }

    pub(crate) fn add_control_plane(&mut self, id: MachineId) {
        self.taken[id] = true;
        self.control_plane.push(id);
    }

    pub(crate) fn add_worker(&mut self, id: MachineId, templates: &Templates<'_>) {
        self.taken[id] = true;
        self.workers.push(id);
        if let Some(template) = self.find_template(id, templates) {
            self.template_workers[template] += 1;
        }
    }

    /// Removes nodes from the control plane; they may join the workers afterwards.
    pub(crate) fn remove_control_plane(&mut self, ids: &BTreeSet<MachineId>) {
        self.control_plane.retain(|id| !ids.contains(id));
    }

    /// Removes nodes from the workers; they may join the control plane afterwards.
    pub(crate) fn remove_workers(&mut self, ids: &BTreeSet<MachineId>, templates: &Templates<'_>) {
        for id in ids {
            if let Some(template) = self.find_template(*id, templates) {
                self.template_workers[template] -= 1;
            }
        }
        self.workers.retain(|id| !ids.contains(id));
    }

    pub(crate) fn find_template(&self, id: MachineId, templates: &Templates<'_>) -> Option<TemplateId> {
        templates.template_for_role(self.inventory.entry(id).role)
    }

    pub(crate) fn count_by_rack(&self, nodes: impl IntoIterator<Item = MachineId>) -> BTreeMap<i64, u64> {
        let mut racks = BTreeMap::new();
        for id in nodes {
            *racks.entry(self.inventory.entry(id).rack).or_insert(0) += 1;
        }
        racks
    }
}
