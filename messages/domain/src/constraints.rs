//! The operator's constraints (CKE's `constraints`, its `docs/constraints.md`).
//!
//! Without the key, [`Constraints::default`] applies; a field missing from a stored object is 0, as in CKE. CKE's
//! commands store negative numbers without an error. A negative number in a field that a plan uses is an error; in
//! the other fields it is read unchanged and means what it means to CKE, where every count exceeds it.

use crate::cluster::Cluster;
use crate::limits::MAX_COUNT;
use madako_json::go::{UnknownFields, go_object};
use madako_json::input::{InputError, Problems, Warning};
use madako_json::strict::tree::{Number, Tree, shown_text};
use madako_json::strict::walk::{HasSchema as _, Kind, Path, check_strictly};
use madako_json::strict::{nearest_name, yaml};

const SUBJECT: &str = "set of constraints";

/// Declares the constraints once: name, least valid value and default. The type, its default, the schema of typed
/// input and the setting by name derive from it.
macro_rules! constraints {
    ($($(#[$meta:meta])* $field:ident: $type:ty = $name:literal, least $least:literal, default $default:literal;)*) => {
        go_object! {
            /// Conditions that a cluster must satisfy.
            #[derive(Debug, Clone, PartialEq, Eq)]
            pub struct Constraints {
                $($(#[$meta])* pub $field: $type = $name, is Kind::Whole($least, MAX_COUNT);)*
                ..rest typed
            }
        }

        impl Default for Constraints {
            fn default() -> Self {
                Self { $($field: $default,)* rest: UnknownFields::default() }
            }
        }

        const FIELDS: &[Field] = &[$(Field {
            name: $name,
            least: $least,
            put: |constraints, value| constraints.$field = value.try_into().expect("the schema bounds it"),
        }),*];
    };
}

/// A constraint by its name.
struct Field {
    name: &'static str,
    least: i64,
    /// Sets a valid value.
    put: fn(&mut Constraints, i64),
}

constraints! {
    /// Exact number of control plane nodes. A cluster without a control plane is invalid, though CKE stores a 0.
    control_plane_count: u32 = "control-plane-count", least 1, default 1;
    /// Minimum number of workers.
    minimum_workers: u32 = "minimum-workers", least 0, default 1;
    /// Maximum number of workers; 0 means no maximum (CKE's meaning).
    maximum_workers: u32 = "maximum-workers", least 0, default 0;
    /// Reboots wait while more nodes than this are unreachable.
    maximum_unreachable_nodes_for_reboot: i64 = "maximum-unreachable-nodes-for-reboot", least 0, default 0;
    /// Maximum number of repair entries that automatic additions may reach.
    maximum_repair_queue_entries: i64 = "maximum-repair-queue-entries", least 0, default 0;
    /// Seconds during which an unreachable machine that reboots gets no repair entry.
    wait_seconds_to_repair_rebooting: i64 = "wait-seconds-to-repair-rebooting", least 0, default 0;
}

impl Constraints {
    /// The names that [`Constraints::set`] accepts.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FIELDS.iter().map(|field| field.name)
    }

    /// Reads typed constraints (YAML or JSON) strictly. An absent constraint gets its default.
    ///
    /// # Errors
    /// The error names each wrong field and the expected value.
    pub fn from_yaml(text: &str) -> Result<Self, InputError> {
        let tree = yaml::read_yaml(SUBJECT, text)?;
        let mut problems = Problems::default();
        let good = check_strictly(tree, Constraints::SCHEMA, Path::Root, &mut problems);
        let mut constraints = Self::default();
        for field in FIELDS {
            if let Some(Tree::Number(Number::Integer(value))) = good.get(field.name) {
                (field.put)(&mut constraints, *value);
            }
        }
        let mut broken = Problems::default();
        constraints.report_contradictions(&mut broken);
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
        let Some(field) = FIELDS.iter().find(|field| field.name == name) else {
            let expected = match nearest_name(name, Self::names()) {
                Some(near) => format!("a known constraint such as {near:?}"),
                None => format!("one of {}", Self::names().collect::<Vec<_>>().join(", ")),
            };
            problems.add("", format!("the unknown constraint {}", shown_text(name)), expected);
            return problems.finish(SUBJECT);
        };
        let valid = field.least..=MAX_COUNT;
        let Some(number) = value.parse().ok().filter(|number| valid.contains(number)) else {
            let expected = format!("a whole number from {} to {MAX_COUNT}", field.least);
            problems.add(name, shown_text(value), expected);
            return problems.finish(SUBJECT);
        };
        let mut changed = self.clone();
        (field.put)(&mut changed, number);
        if matches!(name, "minimum-workers" | "maximum-workers") {
            changed.report_contradictions(&mut problems);
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

    fn report_contradictions(&self, problems: &mut Problems) {
        if self.maximum_workers != 0 && self.minimum_workers > self.maximum_workers {
            let expected =
                format!("at least minimum-workers ({}), or 0 for no maximum", self.minimum_workers);
            problems.add("maximum-workers", self.maximum_workers.to_string(), expected);
        }
    }
}

#[cfg(test)]
mod tests;
