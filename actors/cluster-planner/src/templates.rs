//! Which worker template fits a machine, and which one is to be filled next.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::cluster::Node;
use madako_domain::template::Template;

use crate::inventory::{Inventory, RoleId};

/// Index of a worker template, in the template's order.
pub(crate) type TemplateId = usize;

/// The template, prepared for many questions.
#[derive(Debug)]
pub(crate) struct Templates<'a> {
    template: &'a Template,
    roles: Vec<Option<Arc<str>>>,
    control_plane_role: Option<Arc<str>>,
    /// For each role of the inventory, the template that fits.
    fitting: Vec<Option<TemplateId>>,
}

impl<'a> Templates<'a> {
    pub(crate) fn new(template: &'a Template, inventory: &Inventory<'_>) -> Self {
        let mut by_role = BTreeMap::new();
        let mut for_any = None;
        for (id, worker) in template.workers().iter().enumerate() {
            match worker.role.as_deref() {
                Some(role) => {
                    by_role.entry(role).or_insert(id);
                }
                None => {
                    for_any.get_or_insert(id);
                }
            }
        }
        Self {
            template,
            roles: template.workers().iter().map(|worker| worker.role.as_deref().map(Arc::from)).collect(),
            control_plane_role: template.control_plane_role().map(Arc::from),
            fitting: inventory.roles().iter().map(|role| by_role.get(role).copied().or(for_any)).collect(),
        }
    }

    /// The template that a worker of a role is made from; `None` when it cannot be a worker.
    pub(crate) fn fitting(&self, role: RoleId) -> Option<TemplateId> {
        self.fitting[role]
    }

    /// The one with the smallest number of workers for its weight; the first of equals.
    pub(crate) fn next(&self, workers: &[u64]) -> TemplateId {
        let share = |id: TemplateId| workers[id] as f64 / self.weight(id);
        let mut least = 0;
        for id in 1..self.roles.len() {
            if share(id) < share(least) {
                least = id;
            }
        }
        least
    }

    pub(crate) fn weight(&self, id: TemplateId) -> f64 {
        self.template.workers()[id].weight
    }

    pub(crate) fn role(&self, id: TemplateId) -> Option<&Arc<str>> {
        self.roles[id].as_ref()
    }

    pub(crate) fn roles(&self) -> impl Iterator<Item = &Arc<str>> {
        self.roles.iter().flatten()
    }

    /// The nodes of the worker templates.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &'a Node> {
        self.template.workers().iter().map(|worker| self.template.worker_node(worker))
    }

    pub(crate) fn count(&self) -> usize {
        self.roles.len()
    }

    /// The role that the control plane is restricted to, if any.
    pub(crate) fn control_plane_role(&self) -> Option<&Arc<str>> {
        self.control_plane_role.as_ref()
    }
}
