//! A status that an operator provides in a file, read strictly.

use std::collections::BTreeMap;

use madako_json::go::go_object;
use madako_json::input::{InputError, Problems};
use madako_json::strict::Kind;
use madako_json::strict::tree::{Tree, shown_text};
use madako_json::strict::walk::{Path, read_strictly};
use madako_json::strict::yaml;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use self::typed::{TypedBootstrap, TypedCertificate, TypedContainer, TypedMember, TypedNode, TypedStatus};
use super::{
    Bootstrap, ConfigVersion, ContainerStatus, EtcdMember, EtcdStatus, EtcdVersion, FleetStatus, NodeStatus,
};
use crate::certificate::{NodeCertificate, Validity};
use crate::record::RecordStatus;

const SUBJECT: &str = "status of nodes";
const CONFIG_VERSION: &str = "\"1\" or \"2\", in quotes";
const ID: &str = "the id of a member: a whole number from 0 to 18446744073709551615, in quotes";
const VERSION: &str = "a version such as 3.5.15";
const RECORD_STATUS: &str = "new, running, cancelled or completed";
const TIME: &str = "a time such as 2026-05-01T00:00:00Z";
const OTHER_VOLUME: &str = "true or false, or the name of the volume";

/// The form of the file.
mod typed {
    #![allow(unreachable_pub, reason = "the macro makes public types")]

    use super::*;
    use crate::options::ServiceParams;

    go_object! {
        #[derive(Debug, Clone, Default)]
        pub struct TypedStatus {
            pub config_version: String = "config_version", is Kind::Word(CONFIG_VERSION);
            pub nodes: BTreeMap<String, TypedNode> = "nodes";
            pub etcd: Option<TypedEtcd> = "etcd";
            pub bootstrap: Option<TypedBootstrap> = "bootstrap";
            pub interrupted_removals: Vec<String> = "interrupted_removals";
            pub etcd_image_version: String = "etcd_image_version", is Kind::Word(VERSION);
            ..drop typed
        }
    }

    go_object! {
        #[derive(Debug, Clone, Default)]
        pub struct TypedNode {
            pub reachable: bool = "reachable";
            pub containers: BTreeMap<String, TypedContainer> = "containers";
            pub etcd_data: bool = "etcd_data";
            pub etcd_mark: bool = "etcd_mark";
            pub etcd_empty: Option<bool> = "etcd_empty";
            pub etcd_other_volume: Option<Tree> = "etcd_other_volume", is Kind::Any;
            pub etcd_certificates: BTreeMap<String, TypedCertificate> = "etcd_certificates";
            ..drop typed
        }
    }

    go_object! {
        #[derive(Debug, Clone, Default)]
        pub struct TypedCertificate {
            pub not_before: String = "not_before", is Kind::Word(TIME);
            pub not_after: String = "not_after", is Kind::Word(TIME);
            ..drop typed
        }
    }

    go_object! {
        #[derive(Debug, Clone, Default)]
        pub struct TypedContainer {
            pub running: bool = "running";
            pub image: String = "image";
            pub builtin: ServiceParams = "builtin";
            pub extra: ServiceParams = "extra";
            pub foreign: bool = "foreign";
            ..drop typed
        }
    }

    go_object! {
        #[derive(Debug, Clone, Default)]
        pub struct TypedEtcd {
            pub healthy: bool = "healthy";
            pub members: Vec<TypedMember> = "members";
            ..drop typed
        }
    }

    go_object! {
        #[derive(Debug, Clone, Default)]
        pub struct TypedMember {
            pub id: String = "id", is Kind::Word(ID);
            pub name: String = "name";
            pub peer_urls: Vec<String> = "peer_urls";
            pub learner: bool = "learner";
            pub in_sync: Option<bool> = "in_sync";
            pub version: String = "version", is Kind::Word(VERSION);
            ..drop typed
        }
    }

    go_object! {
        #[derive(Debug, Clone, Default)]
        pub struct TypedBootstrap {
            pub status: String = "status", is Kind::Word(RECORD_STATUS);
            pub targets: Vec<String> = "targets";
            ..drop typed
        }
    }
}

/// Reads a status in JSON or YAML, as `madako ops plan --status` takes it. Lists and maps may be `null`.
///
/// # Errors
/// The error names each wrong, unknown or missing field and the expected value.
pub fn status_from_yaml(text: &str) -> Result<FleetStatus, InputError> {
    let tree = yaml::read_yaml(SUBJECT, text)?;
    let mut problems = Problems::default();
    let mut reader = Reader { problems: Problems::default() };
    if !tree.fields().iter().any(|(name, _)| name == "nodes") {
        reader.problems.add("nodes", "", "an object from addresses of nodes to their states");
    }
    let typed = read_strictly(tree, Path::Root, &mut problems).unwrap_or_default();
    let status = reader.read_status(typed);
    problems.add_unrelated(reader.problems);
    problems.finish(SUBJECT)?;
    Ok(status)
}

/// Converts a status of the right shape, and notes the rules that it breaks.
struct Reader {
    problems: Problems,
}

impl Reader {
    fn read_status(&mut self, typed: TypedStatus) -> FleetStatus {
        let config_version = match typed.config_version.as_str() {
            "1" => ConfigVersion::One,
            "2" => ConfigVersion::Two,
            other => {
                self.note(Path::Root.field("config_version"), other, CONFIG_VERSION);
                ConfigVersion::Two
            }
        };
        let at = Path::Root.field("nodes");
        let nodes = typed.nodes.into_iter().map(|(address, node)| {
            let node = self.read_node(node, &at.entry(&address));
            (address, node)
        });
        let nodes = nodes.collect();
        let etcd = Path::Root.field("etcd");
        let at = etcd.field("members");
        let etcd = typed.etcd.map(|etcd| EtcdStatus {
            healthy: etcd.healthy,
            members: (etcd.members.into_iter().enumerate())
                .map(|(index, member)| self.read_member(member, &at.item(index)))
                .collect(),
        });
        FleetStatus {
            config_version,
            nodes,
            etcd,
            bootstrap: typed.bootstrap.map(|bootstrap| self.read_bootstrap(bootstrap)),
            interrupted_removals: typed.interrupted_removals.into_iter().collect(),
            etcd_image_version: self
                .read_version(&typed.etcd_image_version, Path::Root.field("etcd_image_version")),
            kubernetes: None,
        }
    }

    fn read_node(&mut self, typed: TypedNode, path: &Path<'_>) -> NodeStatus {
        let etcd_other_volume = match &typed.etcd_other_volume {
            None => false,
            Some(Tree::Bool(value)) => *value,
            Some(Tree::Text(name)) => !name.is_empty(),
            Some(other) => {
                self.problems.add(path.field("etcd_other_volume"), other.short_text(), OTHER_VOLUME);
                false
            }
        };
        let at = path.field("etcd_certificates");
        let certificates = typed.etcd_certificates.into_iter().map(|(name, certificate)| {
            let certificate = self.read_certificate(&certificate, &at.entry(&name));
            (name, certificate)
        });
        let etcd_certificates = certificates.collect();
        let containers = typed.containers.into_iter().map(|(name, typed)| {
            let TypedContainer { running, image, builtin, extra, foreign } = typed;
            (name, ContainerStatus { running, image, builtin, extra, foreign, started_at: None })
        });
        NodeStatus {
            reachable: typed.reachable,
            containers: containers.collect(),
            etcd_data: typed.etcd_data,
            etcd_mark: typed.etcd_mark,
            etcd_empty: typed.etcd_empty,
            etcd_other_volume,
            etcd_certificates,
            kubernetes_certificates: BTreeMap::new(),
            configurations: BTreeMap::new(),
        }
    }

    fn read_certificate(&mut self, typed: &TypedCertificate, path: &Path<'_>) -> NodeCertificate {
        let mut time = |field: &str, text: &str| {
            let time = OffsetDateTime::parse(text, &Rfc3339).ok();
            if time.is_none() {
                self.note(path.field(field), text, TIME);
            }
            time
        };
        let (from, to) = (time("not_before", &typed.not_before), time("not_after", &typed.not_after));
        let validity = from.zip(to).map(|(from, to)| Validity { from, to });
        NodeCertificate { text: String::new(), validity }
    }

    fn read_member(&mut self, typed: TypedMember, path: &Path<'_>) -> EtcdMember {
        let id = Some(&typed.id).filter(|id| id.bytes().all(|c| c.is_ascii_digit()));
        let id = id.and_then(|id| id.parse().ok());
        if id.is_none() {
            self.note(path.field("id"), &typed.id, ID);
        }
        EtcdMember {
            id: id.unwrap_or_default(),
            name: typed.name,
            peer_urls: typed.peer_urls,
            learner: typed.learner,
            in_sync: typed.in_sync,
            version: self.read_version(&typed.version, path.field("version")),
        }
    }

    fn read_bootstrap(&mut self, TypedBootstrap { status: text, targets }: TypedBootstrap) -> Bootstrap {
        let status = RecordStatus::from(text.as_str());
        if !RecordStatus::ALL.contains(&status) {
            self.note(Path::Root.field("bootstrap").field("status"), &text, RECORD_STATUS);
        }
        Bootstrap { status, targets }
    }

    /// A version; an empty text is none.
    fn read_version(&mut self, text: &str, path: Path<'_>) -> Option<EtcdVersion> {
        let version = text.parse().ok();
        if version.is_none() && !text.is_empty() {
            self.note(path, text, VERSION);
        }
        version
    }

    /// An empty text counts as missing.
    fn note(&mut self, path: Path<'_>, text: &str, expected: &str) {
        let got = if text.is_empty() { String::new() } else { shown_text(text) };
        self.problems.add(path, got, expected);
    }
}
