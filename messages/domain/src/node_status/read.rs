//! A status that an operator provides in a file, read strictly.

use std::collections::BTreeMap;

use madako_json::input::{InputError, Problems};
use madako_json::strict::tree::{Tree, shown_text};
use madako_json::strict::walk::{Kind, Path, Schema, SchemaWalk, UnknownFieldPolicy};
use madako_json::strict::yaml;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{
    Bootstrap, ConfigVersion, ContainerStatus, EtcdMember, EtcdStatus, EtcdVersion, FleetStatus, NodeStatus,
};
use crate::certificate::{NodeCertificate, Validity};
use crate::containers::ServiceParams;
use crate::record::RecordStatus;
use crate::schema;

const SUBJECT: &str = "status of nodes";
const CONFIG_VERSION: &str = "\"1\" or \"2\", in quotes";
const ID: &str = "the id of a member: a whole number from 0 to 18446744073709551615, in quotes";
const VERSION: &str = "a version such as 3.5.15";
const RECORD_STATUS: &str = "new, running, cancelled or completed";
const TIME: &str = "a time such as 2026-05-01T00:00:00Z";
const OTHER_VOLUME: &str = "true or false, or the name of the volume";

static STATUS: Schema = Schema {
    fields: &[
        ("config_version", Kind::Word(CONFIG_VERSION)),
        ("nodes", Kind::Map(&Kind::Object(&NODE))),
        ("etcd", Kind::Object(&ETCD)),
        ("bootstrap", Kind::Object(&BOOTSTRAP)),
        ("interrupted_removals", Kind::List(&Kind::Text)),
        ("etcd_image_version", Kind::Word(VERSION)),
    ],
};

static NODE: Schema = Schema {
    fields: &[
        ("reachable", Kind::Bool),
        ("containers", Kind::Map(&Kind::Object(&CONTAINER))),
        ("etcd_data", Kind::Bool),
        ("etcd_mark", Kind::Bool),
        ("etcd_empty", Kind::Bool),
        ("etcd_other_volume", Kind::Any),
        ("etcd_certificates", Kind::Map(&Kind::Object(&CERTIFICATE))),
    ],
};

static CERTIFICATE: Schema =
    Schema { fields: &[("not_before", Kind::Word(TIME)), ("not_after", Kind::Word(TIME))] };

static CONTAINER: Schema = Schema {
    fields: &[
        ("running", Kind::Bool),
        ("image", Kind::Text),
        ("builtin", Kind::Object(&schema::SERVICE)),
        ("extra", Kind::Object(&schema::SERVICE)),
        ("foreign", Kind::Bool),
    ],
};

static ETCD: Schema =
    Schema { fields: &[("healthy", Kind::Bool), ("members", Kind::List(&Kind::Object(&MEMBER)))] };

static MEMBER: Schema = Schema {
    fields: &[
        ("id", Kind::Word(ID)),
        ("name", Kind::Text),
        ("peer_urls", Kind::List(&Kind::Text)),
        ("learner", Kind::Bool),
        ("in_sync", Kind::Bool),
        ("version", Kind::Word(VERSION)),
    ],
};

static BOOTSTRAP: Schema =
    Schema { fields: &[("status", Kind::Word(RECORD_STATUS)), ("targets", Kind::List(&Kind::Text))] };

/// Reads a status in JSON or YAML, as `madako ops plan --status` takes it. Lists and maps may be `null`.
///
/// # Errors
/// The error names each wrong, unknown or missing field and the expected value.
pub fn status_from_yaml(text: &str) -> Result<FleetStatus, InputError> {
    let tree = yaml::read_yaml(SUBJECT, text)?;
    let mut problems = Problems::default();
    let nodes_are_null = tree.fields().iter().any(|(name, value)| name == "nodes" && *value == Tree::Null);
    let mut walk = SchemaWalk { root: &STATUS, unknown: UnknownFieldPolicy::Refuse, problems: &mut problems };
    let good = walk.check_object(tree, &STATUS, Path::Root);
    let mut reader = Reader { problems: Problems::default() };
    let status = reader.read_status(&good, nodes_are_null);
    problems.add_unrelated(reader.problems);
    problems.finish(SUBJECT)?;
    Ok(status)
}

/// Converts a tree of the right shape, and notes the rules that it breaks.
struct Reader {
    problems: Problems,
}

impl Reader {
    fn read_status(&mut self, tree: &Tree, nodes_are_null: bool) -> FleetStatus {
        let config_version = match text_at_field(tree, "config_version") {
            Some("1") => ConfigVersion::One,
            Some("2") => ConfigVersion::Two,
            other => {
                let got = other.map_or_else(String::new, shown_text);
                self.problems.add("config_version", got, CONFIG_VERSION);
                ConfigVersion::Two
            }
        };
        if tree.get("nodes").is_none() && !nodes_are_null {
            self.problems.add("nodes", "", "an object from addresses of nodes to their states");
        }
        let path = Path::Root.field("nodes");
        let mut nodes = BTreeMap::new();
        for (address, node) in object_entries(tree, "nodes") {
            nodes.insert(address.clone(), self.read_node(node, &path.entry(address)));
        }
        FleetStatus {
            config_version,
            nodes,
            etcd: tree.get("etcd").map(|etcd| self.read_etcd(etcd)),
            bootstrap: tree.get("bootstrap").map(|bootstrap| self.bootstrap(bootstrap)),
            interrupted_removals: list_of_texts(tree, "interrupted_removals").into_iter().collect(),
            etcd_image_version: self.read_version(tree, "etcd_image_version", Path::Root),
            kubernetes: None,
        }
    }

    fn read_node(&mut self, tree: &Tree, path: &Path<'_>) -> NodeStatus {
        let other_volume = match tree.get("etcd_other_volume") {
            None => false,
            Some(Tree::Bool(value)) => *value,
            Some(Tree::Text(name)) => !name.is_empty(),
            Some(other) => {
                self.problems.add(path.field("etcd_other_volume"), other.short_text(), OTHER_VOLUME);
                false
            }
        };
        let containers = object_entries(tree, "containers");
        let certificates = object_entries(tree, "etcd_certificates").iter();
        let at = path.field("etcd_certificates");
        let certificates = certificates
            .map(|(name, it)| (name.clone(), self.read_certificate(it, &at.entry(name))))
            .collect();
        NodeStatus {
            reachable: is_set(tree, "reachable"),
            containers: containers.iter().map(|(name, it)| (name.clone(), read_container(it))).collect(),
            etcd_data: is_set(tree, "etcd_data"),
            etcd_mark: is_set(tree, "etcd_mark"),
            etcd_empty: read_flag(tree, "etcd_empty"),
            etcd_other_volume: other_volume,
            etcd_certificates: certificates,
            kubernetes_certificates: BTreeMap::new(),
            configurations: BTreeMap::new(),
        }
    }

    fn read_certificate(&mut self, tree: &Tree, path: &Path<'_>) -> NodeCertificate {
        let mut time = |field: &str| {
            let text = text_at_field(tree, field);
            let time = text.and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok());
            if time.is_none() {
                self.problems.add(path.field(field), text.map_or_else(String::new, shown_text), TIME);
            }
            time
        };
        let (from, to) = (time("not_before"), time("not_after"));
        let validity = from.zip(to).map(|(from, to)| Validity { from, to });
        NodeCertificate { text: String::new(), validity }
    }

    fn read_etcd(&mut self, tree: &Tree) -> EtcdStatus {
        let path = Path::Root.field("etcd");
        let path = path.field("members");
        let members = tree.get("members").map(Tree::items).unwrap_or_default().iter().enumerate();
        EtcdStatus {
            healthy: is_set(tree, "healthy"),
            members: members.map(|(index, member)| self.read_member(member, &path.item(index))).collect(),
        }
    }

    fn read_member(&mut self, tree: &Tree, path: &Path<'_>) -> EtcdMember {
        let id = text_at_field(tree, "id").filter(|id| id.bytes().all(|c| c.is_ascii_digit()));
        let id = id.and_then(|id| id.parse().ok());
        if id.is_none() {
            self.problems.add(
                path.field("id"),
                text_at_field(tree, "id").map_or_else(String::new, shown_text),
                ID,
            );
        }
        EtcdMember {
            id: id.unwrap_or_default(),
            name: text_at_field(tree, "name").unwrap_or_default().to_owned(),
            peer_urls: list_of_texts(tree, "peer_urls"),
            learner: is_set(tree, "learner"),
            in_sync: read_flag(tree, "in_sync"),
            version: self.read_version(tree, "version", *path),
        }
    }

    fn bootstrap(&mut self, tree: &Tree) -> Bootstrap {
        let text = text_at_field(tree, "status").unwrap_or_default();
        let status = RecordStatus::from(text);
        if !RecordStatus::ALL.contains(&status) {
            let got = if text.is_empty() { String::new() } else { shown_text(text) };
            self.problems.add("bootstrap.status", got, RECORD_STATUS);
        }
        Bootstrap { status, targets: list_of_texts(tree, "targets") }
    }

    /// A version; an empty text is none.
    fn read_version(&mut self, tree: &Tree, field: &str, path: Path<'_>) -> Option<EtcdVersion> {
        let text = text_at_field(tree, field).filter(|text| !text.is_empty())?;
        let version = text.parse().ok();
        if version.is_none() {
            self.problems.add(path.field(field), shown_text(text), VERSION);
        }
        version
    }
}

fn read_container(tree: &Tree) -> ContainerStatus {
    let params = |field: &str| match tree.get(field) {
        None => ServiceParams::default(),
        Some(good) => {
            serde_json::from_str(&good.to_string()).expect("a value of the right shape can be read")
        }
    };
    ContainerStatus {
        running: is_set(tree, "running"),
        image: text_at_field(tree, "image").unwrap_or_default().to_owned(),
        builtin: params("builtin"),
        extra: params("extra"),
        foreign: is_set(tree, "foreign"),
        started_at: None,
    }
}

fn text_at_field<'a>(tree: &'a Tree, field: &str) -> Option<&'a str> {
    tree.get(field).and_then(Tree::text)
}

fn read_flag(tree: &Tree, field: &str) -> Option<bool> {
    match tree.get(field) {
        Some(Tree::Bool(value)) => Some(*value),
        _ => None,
    }
}

fn is_set(tree: &Tree, field: &str) -> bool {
    read_flag(tree, field) == Some(true)
}

fn object_entries<'a>(tree: &'a Tree, field: &str) -> &'a [(String, Tree)] {
    tree.get(field).map(Tree::fields).unwrap_or_default()
}

fn list_of_texts(tree: &Tree, field: &str) -> Vec<String> {
    let items = tree.get(field).map(Tree::items).unwrap_or_default();
    items.iter().filter_map(Tree::text).map(str::to_owned).collect()
}
