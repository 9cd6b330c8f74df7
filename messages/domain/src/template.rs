//! A fully checked cluster template (CKE's `sabakan-integration.md`, "Cluster template", "Roles and weights").
//!
//! Guarantees: exactly one control plane node and at least one other; different roles if there are several others;
//! finite weights above 0; no addresses; and otherwise the rules of a cluster configuration. A cluster made from the
//! template is valid if its addresses are.

use std::collections::BTreeMap;

use crate::cluster::{Cluster, LABEL_ROLE, LABEL_WEIGHT, Node};
use crate::rules::{self, ClusterForm};
use madako_json::input::{InputError, Problems, Warning};
use madako_json::strict::nearest_name;
use madako_json::strict::tree::shown_text;
use madako_json::strict::walk::Path;

const SUBJECT: &str = "template";
/// The field that marks a node as part of the control plane.
const CONTROL_PLANE: &str = "control_plane";

/// The part of a template for workers of one role.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerTemplate {
    /// Index into the template's nodes.
    pub index: usize,
    /// The required role; `None` allows any machine.
    pub role: Option<String>,
    /// Weight: finite and above 0; 1 by default.
    pub weight: f64,
}

/// A valid template: exactly one control plane node, at least one other, valid roles and weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    cluster: Cluster,
    control_plane: usize,
    workers: Vec<WorkerTemplate>,
}

impl Template {
    /// Checks a template except for unknown fields, which a newer version may have stored. Fills in CKE's defaults,
    /// so that the clusters made from it are valid for CKE as well.
    ///
    /// # Errors
    /// The error names each wrong field and the expected value.
    pub fn new(mut cluster: Cluster) -> Result<Self, InputError> {
        let mut problems = Problems::default();
        let parts = TemplateParts::read(&cluster, &mut problems);
        parts.check(&mut problems);
        rules::check_configuration(&cluster, ClusterForm::Template, &mut problems);
        problems.finish(SUBJECT)?;
        cluster.fill_defaults();
        Ok(Self::from_parts(cluster, parts))
    }

    /// Reads a typed template (YAML or JSON) strictly, and fills in CKE's defaults.
    ///
    /// # Errors
    /// The error names each wrong field and the expected value.
    pub fn from_yaml(text: &str) -> Result<Self, InputError> {
        let mut parts = TemplateParts::default();
        let cluster =
            Cluster::read_typed(SUBJECT, text, ClusterForm::Template, |cluster, shape, problems| {
                // Skip the check of the parts if the wrong shape of a field leaves a node's part unclear.
                let is_control_plane = |name: &str| nearest_name(name, [CONTROL_PLANE].into_iter()).is_some();
                let unclear = |field: &str| {
                    let node = field.strip_prefix("nodes[");
                    node.is_some_and(|node| {
                        node.split_once("].").is_none_or(|(_, name)| is_control_plane(name))
                    })
                };
                parts = TemplateParts::read(cluster, problems);
                if !shape.has_problem(unclear) {
                    parts.check(problems);
                }
            })?;
        Ok(Self::from_parts(cluster, parts))
    }

    fn from_parts(cluster: Cluster, parts: TemplateParts) -> Self {
        let control_plane = parts.control_plane.first().copied().expect("a checked template has one");
        Self { cluster, control_plane, workers: parts.workers }
    }

    /// Settings that are valid but probably mistakes.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        rules::warnings(&self.cluster, ClusterForm::Template)
    }

    /// The template with its defaults, in the stored form.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The template of control plane nodes.
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

#[derive(Default)]
struct TemplateParts {
    control_plane: Vec<usize>,
    workers: Vec<WorkerTemplate>,
}

impl TemplateParts {
    fn read(cluster: &Cluster, problems: &mut Problems) -> Self {
        let mut parts = Self::default();
        for (index, node) in cluster.nodes.iter().enumerate() {
            if node.control_plane {
                parts.control_plane.push(index);
                continue;
            }
            let path = Path::Root.field("nodes");
            let path = path.item(index);
            let weight = match node.labels.get(LABEL_WEIGHT) {
                None => 1.0,
                Some(text) => match text.parse::<f64>() {
                    Ok(weight) if weight.is_finite() && weight > 0.0 => weight,
                    _ => {
                        let path = path.field("labels");
                        problems.add(path.entry(LABEL_WEIGHT), shown_text(text), "a finite number above 0");
                        1.0
                    }
                },
            };
            let role = node.labels.get(LABEL_ROLE).filter(|role| !role.is_empty()).cloned();
            parts.workers.push(WorkerTemplate { index, role, weight });
        }
        parts
    }

    fn check(&self, problems: &mut Problems) {
        let control_plane = self.control_plane.len();
        if control_plane != 1 {
            let got = if control_plane == 0 { String::new() } else { format!("{control_plane} of them") };
            problems.add("nodes", got, "exactly one node with control_plane: true");
        }
        match self.workers.len() {
            0 => problems.add("nodes", "", "at least one node that is not a control plane node"),
            1 => {}
            _ => self.check_roles(problems),
        }
    }

    fn check_roles(&self, problems: &mut Problems) {
        let mut known = BTreeMap::new();
        for worker in &self.workers {
            let path = Path::Root.field("nodes");
            let path = path.item(worker.index);
            let path = path.field("labels");
            let path = path.entry(LABEL_ROLE);
            match &worker.role {
                None => problems.add(path, "", "a role, since there is more than one worker template"),
                Some(role) => {
                    if let Some(first) = known.insert(role, worker.index) {
                        let expected = format!("a unique role (nodes[{first}] has the same role)");
                        problems.add(path, shown_text(role), expected);
                    }
                }
            }
        }
    }
}
