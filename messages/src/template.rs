//! A cluster template that has been checked whole (seed 000, "Cluster template", "Roles and weights").

use crate::cluster::{Cluster, LABEL_ROLE, LABEL_WEIGHT, Node};
use crate::input::{InputError, Problems};

/// The part of a template that workers of one role are made from.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerTemplate {
    /// Index into the template's nodes.
    pub index: usize,
    /// Role it asks for; `None` takes any machine.
    pub role: Option<String>,
    /// Weight: finite and above 0; 1 when not given.
    pub weight: f64,
}

/// A valid template: exactly one control plane node, at least one other, roles and weights in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    cluster: Cluster,
    control_plane: usize,
    workers: Vec<WorkerTemplate>,
}

impl Template {
    /// Checks a template whole.
    ///
    /// # Errors
    /// Names each wrong field and what was expected there.
    pub fn new(cluster: Cluster) -> Result<Self, InputError> {
        let mut problems = Problems::default();
        let mut workers = Vec::new();
        let mut control_plane = Vec::new();
        for (index, node) in cluster.nodes.iter().enumerate() {
            if node.control_plane {
                control_plane.push(index);
                continue;
            }
            let weight = match node.labels.get(LABEL_WEIGHT) {
                None => 1.0,
                Some(text) => match text.parse::<f64>() {
                    Ok(weight) if weight.is_finite() && weight > 0.0 => weight,
                    _ => {
                        problems.add(
                            format!("nodes[{index}].labels[{LABEL_WEIGHT}]"),
                            format!("{text:?}"),
                            "a finite number above 0",
                        );
                        1.0
                    }
                },
            };
            let role = node.labels.get(LABEL_ROLE).filter(|role| !role.is_empty()).cloned();
            workers.push(WorkerTemplate { index, role, weight });
        }
        if control_plane.len() != 1 {
            problems.add("nodes", format!("{} control plane nodes", control_plane.len()), "exactly one");
        }
        if workers.is_empty() {
            problems.add("nodes", "no other node", "at least one that is not a control plane node");
        }
        problems.finish("template")?;
        Ok(Self { cluster, control_plane: control_plane[0], workers })
    }

    /// The template as it is stored.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The node that control plane nodes are made from.
    #[must_use]
    pub fn control_plane(&self) -> &Node {
        &self.cluster.nodes[self.control_plane]
    }

    /// The role that control plane nodes must have, if any.
    #[must_use]
    pub fn control_plane_role(&self) -> Option<&str> {
        self.control_plane().labels.get(LABEL_ROLE).map(String::as_str).filter(|role| !role.is_empty())
    }

    /// The worker templates, in the template's order.
    #[must_use]
    pub fn workers(&self) -> &[WorkerTemplate] {
        &self.workers
    }

    /// The node of a worker template.
    #[must_use]
    pub fn worker_node(&self, worker: &WorkerTemplate) -> &Node {
        &self.cluster.nodes[worker.index]
    }
}
