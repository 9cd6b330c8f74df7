//! The operator's constraints (CKE's `constraints`, its `docs/constraints.md`).
//!
//! Without the key, [`Constraints::default`] applies; a field missing from a stored object is 0, as in CKE. CKE's
//! commands store negative numbers without an error. A negative number in a field that a plan uses is an error; in
//! the other fields it is read unchanged and means what it means to CKE, where every count exceeds it.

use crate::cluster::Cluster;
use madako_json::go::{UnknownFields, go_object};
use madako_json::input::{InputError, Problems, Warning};
use madako_json::strict::schema::{self, MAX_COUNT};
use madako_json::strict::tree::{Number, Tree, shown_text};
use madako_json::strict::walk::{Kind, Path, Unknown, Walk};
use madako_json::strict::{nearest, yaml};

const SUBJECT: &str = "set of constraints";

go_object! {
    /// Conditions that a cluster must satisfy.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Constraints {
        /// Exact number of control plane nodes.
        pub control_plane_count: u32 = "control-plane-count";
        /// Minimum number of workers.
        pub minimum_workers: u32 = "minimum-workers";
        /// Maximum number of workers; 0 means no maximum (CKE's meaning).
        pub maximum_workers: u32 = "maximum-workers";
        /// Reboots wait while more nodes than this are unreachable.
        pub maximum_unreachable_nodes_for_reboot: i64 = "maximum-unreachable-nodes-for-reboot";
        /// Maximum number of repair entries that automatic additions may reach.
        pub maximum_repair_queue_entries: i64 = "maximum-repair-queue-entries";
        /// Seconds during which an unreachable machine that reboots gets no repair entry.
        pub wait_seconds_to_repair_rebooting: i64 = "wait-seconds-to-repair-rebooting";
        ..rest
    }
}

impl Default for Constraints {
    fn default() -> Self {
        Self {
            control_plane_count: 1,
            minimum_workers: 1,
            maximum_workers: 0,
            maximum_unreachable_nodes_for_reboot: 0,
            maximum_repair_queue_entries: 0,
            wait_seconds_to_repair_rebooting: 0,
            rest: UnknownFields::default(),
        }
    }
}

impl Constraints {
    /// The names that [`Constraints::set`] accepts.
    pub fn names() -> impl Iterator<Item = &'static str> {
        schema::CONSTRAINTS.fields.iter().map(|(name, _)| *name)
    }

    /// Reads typed constraints (YAML or JSON) strictly. An absent constraint gets its default.
    ///
    /// # Errors
    /// The error names each wrong field and the expected value.
    pub fn from_yaml(text: &str) -> Result<Self, InputError> {
        let tree = yaml::read(SUBJECT, text)?;
        let mut problems = Problems::default();
        let mut walk = Walk { root: &schema::CONSTRAINTS, unknown: Unknown::Refuse, problems: &mut problems };
        let good = walk.object(tree, &schema::CONSTRAINTS, Path::Root);
        let mut constraints = Self::default();
        for (name, value) in good.fields() {
            if let Tree::Number(Number::Integer(value)) = value {
                constraints.put(name, *value);
            }
        }
        let mut broken = Problems::default();
        constraints.contradictions(&mut broken);
        problems.add_unrelated(broken);
        problems.finish(SUBJECT)?;
        Ok(constraints)
    }

    /// Sets one constraint from its typed name and integer.
    ///
    /// # Errors
    /// The name is unknown, the value is not an integer or out of range, or it contradicts another constraint. Then
    /// nothing is set.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), InputError> {
        let mut problems = Problems::default();
        let Some((_, kind)) = schema::CONSTRAINTS.fields.iter().find(|(known, _)| *known == name) else {
            let expected = match nearest(name, Self::names()) {
                Some(near) => format!("a known constraint such as {near:?}"),
                None => format!("one of {}", Self::names().collect::<Vec<_>>().join(", ")),
            };
            problems.add("", format!("the unknown constraint {}", shown_text(name)), expected);
            return problems.finish(SUBJECT);
        };
        let (least, greatest) = match kind {
            Kind::Whole(least, greatest) => (*least, *greatest),
            _ => (0, MAX_COUNT),
        };
        let Some(number) = value.parse::<i64>().ok().filter(|number| (least..=greatest).contains(number))
        else {
            problems.add(name, shown_text(value), format!("a whole number from {least} to {greatest}"));
            return problems.finish(SUBJECT);
        };
        let mut changed = self.clone();
        changed.put(name, number);
        if matches!(name, "minimum-workers" | "maximum-workers") {
            changed.contradictions(&mut problems);
        }
        problems.finish(SUBJECT)?;
        *self = changed;
        Ok(())
    }

    /// Checks that a cluster satisfies the constraints, as CKE checks a cluster that an operator sets.
    ///
    /// # Errors
    /// The error names each unsatisfied constraint.
    pub fn check(&self, cluster: &Cluster) -> Result<(), InputError> {
        let control_plane = cluster.control_plane().count();
        let workers = cluster.nodes.len() - control_plane;
        let mut problems = Problems::default();
        if control_plane as u64 != u64::from(self.control_plane_count) {
            let expected = format!("{}, the constraint control-plane-count", self.control_plane_count);
            problems.add("nodes", format!("{control_plane} control plane nodes"), expected);
        }
        if self.maximum_workers != 0 && workers as u64 > u64::from(self.maximum_workers) {
            let expected = format!("at most {}, the constraint maximum-workers", self.maximum_workers);
            problems.add("nodes", format!("{workers} workers"), expected);
        }
        if (workers as u64) < u64::from(self.minimum_workers) {
            let expected = format!("at least {}, the constraint minimum-workers", self.minimum_workers);
            problems.add("nodes", format!("{workers} workers"), expected);
        }
        problems.finish("cluster")
    }

    /// Settings that are valid but probably mistakes.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if self.control_plane_count > 0 && self.control_plane_count.is_multiple_of(2) {
            let fewer = self.control_plane_count - 1;
            let message =
                format!("etcd on an even number of nodes survives no more failures than on {fewer}");
            warnings.push(Warning::new("control-plane-count", message));
        }
        warnings
    }

    fn contradictions(&self, problems: &mut Problems) {
        if self.maximum_workers != 0 && self.minimum_workers > self.maximum_workers {
            let expected =
                format!("at least minimum-workers ({}), or 0 for no maximum", self.minimum_workers);
            problems.add("maximum-workers", self.maximum_workers.to_string(), expected);
        }
    }

    /// Sets a constraint of the schema; the caller has checked the value.
    fn put(&mut self, name: &str, value: i64) {
        let count = || u32::try_from(value).expect("the schema bounds it");
        match name {
            "control-plane-count" => self.control_plane_count = count(),
            "minimum-workers" => self.minimum_workers = count(),
            "maximum-workers" => self.maximum_workers = count(),
            "maximum-unreachable-nodes-for-reboot" => self.maximum_unreachable_nodes_for_reboot = value,
            "maximum-repair-queue-entries" => self.maximum_repair_queue_entries = value,
            "wait-seconds-to-repair-rebooting" => self.wait_seconds_to_repair_rebooting = value,
            other => unreachable!("the schema has no {other}"),
        }
    }
}

#[cfg(test)]
mod tests;
