//! Selects the worker template of a machine, and the template of the next worker.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::cluster::Node;
use madako_domain::template::Template;

use crate::inventory::{Inventory, RoleId};

/// Index in the template's list of workers.
pub(crate) type TemplateId = usize;

/// The template with precomputed lookups.
#[derive(Debug)]
pub(crate) struct Templates<'a> {
    template: &'a Template,
    roles: Vec<Option<Arc<str>>>,
    control_plane_role: Option<Arc<str>>,
    /// The fitting template for each role of the inventory.
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

    /// The template of workers with this role; `None`: the role has none.
    pub(crate) fn template_for_role(&self, role: RoleId) -> Option<TemplateId> {
        self.fitting[role]
    }

    /// The template with the smallest ratio of workers to weight; the first of equals.
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

    pub(crate) fn template_nodes(&self) -> impl Iterator<Item = &'a Node> {
        self.template.workers().iter().map(|worker| self.template.worker_node(worker))
    }

    pub(crate) fn count(&self) -> usize {
        self.roles.len()
    }

    pub(crate) fn control_plane_role(&self) -> Option<&Arc<str>> {
        self.control_plane_role.as_ref()
    }
}
