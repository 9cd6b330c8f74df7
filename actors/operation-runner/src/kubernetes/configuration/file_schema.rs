//! The fields of configuration files: names as Kubernetes writes them, and values that mean the same as their absence.

use madako_json::strict::tree::Number;
use madako_json::strict::walk::Kind;
use madako_json::strict::{Schema, Tree};

/// The treatment of fields that CKE's types lack, which CKE drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// For Kubernetes of CKE's release, which does not know them either.
    Drop,
    /// For another release of Kubernetes, which may know them.
    Keep,
}

/// Fields whose zero value differs from their absence (pointers in Kubernetes' types); a name with a point is one within
/// that object or list. Source: the same packages as of the schemas.
pub(super) const KUBELET_POINTERS: &[&str] = &[
    "enableServer",
    "enabled",
    "registryPullQPS",
    "eventRecordQPS",
    "enableDebuggingHandlers",
    "healthzPort",
    "oomScoreAdj",
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
    "cgroupsPerQOS",
    "podPidsLimit",
    "resolvConf",
    "cpuCFSQuota",
    "cpuCFSQuotaPeriod",
    "nodeStatusMaxImages",
    "kubeAPIQPS",
    "serializeImagePulls",
    "maxParallelImagePulls",
    "enableControllerAttachDetach",
    "makeIPTablesUtilChains",
    "iptablesMasqueradeBit",
    "iptablesDropBit",
    "failSwapOn",
    "containerLogMaxFiles",
    "containerLogMaxWorkers",
    "containerLogMonitorInterval",
    "enableSystemLogHandler",
    "enableSystemLogQuery",
    "enableProfilingHandler",
    "enableDebugFlagsHandler",
    "seccompDefault",
    "memoryThrottlingFactor",
    "timeAdded",
    "registerNode",
    "tracing",
    "endpoint",
    "samplingRatePerMillion",
    "localStorageCapacityIsolation",
];

pub(super) const PROXY_POINTERS: &[&str] = &[
    "masqueradeBit",
    "localhostNodePorts",
    "oomScoreAdj",
    "maxPerCore",
    "min",
    "tcpEstablishedTimeout",
    "tcpCloseWaitTimeout",
];

pub(super) const SCHEDULER_POINTERS: &[&str] = &[
    "parallelism",
    "leaderElect",
    "enableProfiling",
    "enableContentionProfiling",
    "percentageOfNodesToScore",
    "podInitialBackoffSeconds",
    "podMaxBackoffSeconds",
    "schedulerName",
    "plugins",
    "enabled.weight",
    "disabled.weight",
    "tlsConfig",
];

/// The fields of one kind of configuration file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileSchema {
    pub(super) schema: &'static Schema,
    pub(super) pointers: &'static [&'static str],
    pub(super) unknown: Unknown,
}

impl FileSchema {
    /// The same value with Kubernetes' names. Names match in any case, as in Go; of two spellings the later one in
    /// alphabetical order counts.
    pub(super) fn to_canonical(self, tree: &Tree) -> Tree {
        self.canonical_object(tree, self.schema)
    }

    fn canonical_object(self, tree: &Tree, schema: &'static Schema) -> Tree {
        let mut given: Vec<&(String, Tree)> = tree.fields().iter().collect();
        given.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut fields = Tree::Object(Vec::new());
        for (name, value) in given {
            match find_field(schema, name) {
                Some((known, kind)) => {
                    let value = self.canonical_value(value, kind);
                    self.overlay_field(&mut fields, known, value);
                }
                None if self.unknown == Unknown::Keep => self.overlay_field(&mut fields, name, value.clone()),
                None => {}
            }
        }
        fields
    }

    fn canonical_value(self, value: &Tree, kind: &'static Kind) -> Tree {
        match (kind, value) {
            (Kind::Object(schema), Tree::Object(_)) => self.canonical_object(value, schema),
            (Kind::List(Kind::Object(schema)), Tree::List(items)) => {
                Tree::List(items.iter().map(|item| self.canonical_object(item, schema)).collect())
            }
            (_, value) => value.clone(),
        }
    }

    /// Puts the fields of one object over those of another. `null` removes lists, maps and fields with a pointer, and
    /// changes no other one, as in Go.
    pub(super) fn overlay(self, under: &mut Tree, over: Tree) {
        let Tree::Object(over) = over else { return };
        for (name, value) in over {
            self.overlay_field(under, &name, value);
        }
    }

    fn overlay_field(self, under: &mut Tree, name: &str, value: Tree) {
        let Tree::Object(fields) = under else { return };
        match fields.iter_mut().find(|(known, _)| known == name) {
            Some((_, present @ Tree::Object(_))) if matches!(value, Tree::Object(_)) => {
                self.overlay(present, value)
            }
            Some((_, Tree::Text(_) | Tree::Bool(_) | Tree::Number(_) | Tree::Object(_)))
                if value == Tree::Null && !self.pointers.contains(&name) => {}
            Some((_, present)) => *present = value,
            None => fields.push((name.to_owned(), value)),
        }
    }

    /// Leaves out fields that say nothing: absent ones, empty lists and maps, and zeros that mean the same as absence.
    pub(super) fn without_defaults(self, tree: Tree) -> Tree {
        self.object_without_defaults(tree, self.schema, "")
    }

    fn object_without_defaults(self, tree: Tree, schema: &'static Schema, parent: &str) -> Tree {
        let Tree::Object(fields) = tree else { return Tree::Object(Vec::new()) };
        let kept = fields.into_iter().filter_map(|(name, value)| {
            let Some((_, kind)) = find_field(schema, &name) else { return Some((name, value)) };
            let value = self.value_without_defaults(value, kind, &name);
            let is_pointer = || {
                self.pointers.iter().any(|pointer| match pointer.split_once('.') {
                    None => *pointer == name,
                    Some((above, below)) => above == parent && below == name,
                })
            };
            (value != Tree::Null
                && (!is_zero(&value, kind) || (is_pointer() && !is_collection(&value, kind))))
            .then_some((name, value))
        });
        Tree::Object(kept.collect())
    }

    fn value_without_defaults(self, value: Tree, kind: &'static Kind, name: &str) -> Tree {
        match (kind, value) {
            (Kind::Object(schema), value @ Tree::Object(_)) => {
                self.object_without_defaults(value, schema, name)
            }
            (Kind::List(Kind::Object(schema)), Tree::List(items)) => Tree::List(
                items.into_iter().map(|item| self.object_without_defaults(item, schema, name)).collect(),
            ),
            (_, value) => value,
        }
    }
}

/// The field of a schema, by its exact name, else in any case.
pub(super) fn find_field(schema: &'static Schema, name: &str) -> Option<(&'static str, &'static Kind)> {
    let exact = schema.fields.iter().find(|(known, _)| *known == name);
    let found = exact.or_else(|| schema.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)));
    found.map(|(known, kind)| (*known, kind))
}

fn is_zero(value: &Tree, kind: &Kind) -> bool {
    match value {
        Tree::Null | Tree::Bool(false) => true,
        Tree::Bool(true) => false,
        Tree::Number(number) => matches!(number, Number::Integer(0) | Number::Float(0.0)),
        Tree::Text(text) => {
            text.is_empty()
                || (matches!(
                    kind,
                    Kind::Duration | Kind::OptionalDuration | Kind::LogDuration | Kind::Quantity
                ) && super::compare::parse_amount(value, kind) == Some(0))
        }
        Tree::List(items) => items.is_empty(),
        Tree::Object(fields) => fields.is_empty(),
    }
}

/// A list or a map: an empty one and none are the same.
fn is_collection(value: &Tree, kind: &Kind) -> bool {
    matches!(value, Tree::List(_)) || matches!(kind, Kind::Map(_))
}

/// The value at a path of exact names.
pub(super) fn get<'t>(tree: &'t Tree, path: &[&str]) -> Option<&'t Tree> {
    path.iter().try_fold(tree, |tree, name| {
        tree.fields().iter().find(|(known, _)| known == name).map(|(_, value)| value)
    })
}

/// Puts a value at a path of exact names.
pub(super) fn set(tree: &mut Tree, path: &[&str], value: Tree) {
    let Some((name, below)) = path.split_first() else {
        *tree = value;
        return;
    };
    if !matches!(tree, Tree::Object(_)) {
        *tree = Tree::Object(Vec::new());
    }
    let Tree::Object(fields) = tree else { return };
    let place = match fields.iter().position(|(known, _)| known == name) {
        Some(place) => place,
        None => {
            fields.push(((*name).to_owned(), Tree::Null));
            fields.len() - 1
        }
    };
    set(&mut fields[place].1, below, value);
}

/// Removes a field.
pub(super) fn remove(tree: &mut Tree, name: &str) {
    if let Tree::Object(fields) = tree {
        fields.retain(|(known, _)| known != name);
    }
}
