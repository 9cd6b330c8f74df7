//! The containers that the service runs on nodes: their names, their parameters (CKE's label `com.cybozu.cke`), and the
//! options of a cluster for them.

use std::fmt;

use madako_json::go::RawJson;

use crate::component::Component;
use crate::options::{EtcdOptions, StoredOptions, read_component};
pub use crate::options::{Mount, ServiceParams};

/// CKE's default for the volume of etcd.
pub const DEFAULT_ETCD_VOLUME: &str = "etcd-cke";
/// Directory of etcd's certificates and keys, on a node and in the container.
pub const ETCD_PKI: &str = "/etc/etcd/pki";
/// Certificate of a member for its clients, in [`ETCD_PKI`].
pub const ETCD_SERVER: &str = "server.crt";
/// Certificate of a member for other members.
pub const ETCD_PEER: &str = "peer.crt";
/// Certificate of the authority of other members.
pub const ETCD_PEER_CA: &str = "ca-peer.crt";
/// Certificate of the authority of clients.
pub const ETCD_CLIENT_CA: &str = "ca-client.crt";
/// The volume that marks a node whose member was added completely.
pub const ETCD_MARK: &str = "etcd-added-member";

/// A container with a name that the service claims on every node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Container {
    /// The proxy of every node to the API servers.
    Rivers,
    /// The proxy of a control plane node to the members of etcd.
    EtcdRivers,
    /// A member of etcd.
    Etcd,
}

impl Container {
    /// All containers, in the order of their start.
    pub const ALL: [Self; 3] = [Self::Rivers, Self::EtcdRivers, Self::Etcd];

    /// Name of the container at the engine, as CKE names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rivers => "rivers",
            Self::EtcdRivers => "etcd-rivers",
            Self::Etcd => "etcd",
        }
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of a container that the service claims on every node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerName(&'static str);

impl ContainerName {
    /// The name of a container of etcd or of the rivers.
    #[must_use]
    pub const fn for_container(container: Container) -> Self {
        Self(container.name())
    }

    /// All claimed names, in the order of their start.
    pub fn all() -> impl Iterator<Item = Self> {
        Container::ALL.into_iter().map(Self::from).chain(Component::ALL.into_iter().map(Self::from))
    }

    /// The name as text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl From<Container> for ContainerName {
    fn from(container: Container) -> Self {
        Self::for_container(container)
    }
}

impl From<Component> for ContainerName {
    fn from(component: Component) -> Self {
        Self(component.name())
    }
}

impl fmt::Display for ContainerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Arguments of etcd that count only at the first start of a member begin so.
const FIRST_START: &str = "--initial-";

impl ServiceParams {
    /// True if a container with the other parameters does the same. Propagation and SELinux labels do not count, as in
    /// CKE.
    #[must_use]
    pub fn is_same_service(&self, other: &Self) -> bool {
        self.args == other.args && self.has_same_surroundings(other)
    }

    /// As [`Self::is_same_service`], without the arguments for the first start of a member of etcd.
    #[must_use]
    pub fn is_same_member(&self, other: &Self) -> bool {
        self.lasting_args().eq(other.lasting_args()) && self.has_same_surroundings(other)
    }

    fn lasting_args(&self) -> impl Iterator<Item = &String> {
        self.args.iter().filter(|arg| !arg.starts_with(FIRST_START))
    }

    fn has_same_surroundings(&self, other: &Self) -> bool {
        let same = |(one, two): (&Mount, &Mount)| {
            one.source == two.source && one.destination == two.destination && one.read_only == two.read_only
        };
        self.binds.len() == other.binds.len()
            && self.binds.iter().zip(&other.binds).all(same)
            && self.env == other.env
    }
}

/// Options of a cluster configuration for the containers of this module (its field `options`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerOptions {
    /// Parameters that the operator adds to the rivers.
    pub rivers: ServiceParams,
    /// Parameters that the operator adds to the rivers of etcd.
    pub etcd_rivers: ServiceParams,
    /// Parameters that the operator adds to etcd.
    pub etcd: ServiceParams,
    /// Volume with the data of a member.
    pub etcd_volume: String,
}

impl ContainerOptions {
    /// Reads the field `options` of a cluster.
    ///
    /// # Errors
    /// The field has another shape.
    pub fn read(options: &RawJson) -> Result<Self, serde_json::Error> {
        let stored: StoredOptions = options.parse()?;
        let etcd: EtcdOptions = read_component("etcd", &stored.etcd)?;
        let volume = Some(etcd.volume_name.clone()).filter(|volume| !volume.is_empty());
        Ok(Self {
            rivers: read_component("rivers", &stored.rivers)?,
            etcd_rivers: read_component("etcd-rivers", &stored.etcd_rivers)?,
            etcd: etcd.into(),
            etcd_volume: volume.unwrap_or_else(|| DEFAULT_ETCD_VOLUME.to_owned()),
        })
    }

    /// The parameters that the operator adds to a container.
    #[must_use]
    pub fn extra(&self, container: Container) -> &ServiceParams {
        match container {
            Container::Rivers => &self.rivers,
            Container::EtcdRivers => &self.etcd_rivers,
            Container::Etcd => &self.etcd,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(json: &str) -> ServiceParams {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn null_equals_empty_and_labels_do_not_count() {
        let empty = params(r#"{"extra_args": null, "extra_binds": null, "extra_env": null}"#);
        assert!(empty.is_same_service(&params("{}")));
        let one = params(r#"{"extra_binds": [{"source": "/a", "destination": "/b", "selinux_label": "Z"}]}"#);
        let two =
            params(r#"{"extra_binds": [{"source": "/a", "destination": "/b", "propagation": "shared"}]}"#);
        assert!(one.is_same_service(&two) && !one.is_same_service(&empty));
        let other = params(r#"{"extra_binds": [{"source": "/a", "destination": "/b", "read_only": true}]}"#);
        assert!(!one.is_same_service(&other));
        assert!(!params(r#"{"extra_env": {"A": "1"}}"#).is_same_service(&empty));
    }

    #[test]
    fn the_order_of_arguments_counts_and_the_first_start_counts_only_for_services() {
        let one = params(r#"{"extra_args": ["--a", "--initial-cluster=x", "--b"]}"#);
        let two = params(r#"{"extra_args": ["--a", "--b"]}"#);
        assert!(one.is_same_member(&two) && !one.is_same_service(&two));
        assert!(!two.is_same_member(&params(r#"{"extra_args": ["--b", "--a"]}"#)));
        assert!(!two.is_same_member(&params(r#"{"extra_args": ["--a"]}"#)));
    }

    #[test]
    fn options_have_the_volume_of_cke_unless_they_name_another() {
        let read = |text: &str| ContainerOptions::read(&RawJson::from_text(text.to_owned()).unwrap());
        assert_eq!(read("null").unwrap().etcd_volume, "etcd-cke");
        let options =
            read(r#"{"etcd": {"volume_name": "v", "extra_args": ["--a"]}, "etcd-rivers": null}"#).unwrap();
        assert_eq!((options.etcd_volume.as_str(), options.etcd.args.len()), ("v", 1));
        assert_eq!(options.extra(Container::EtcdRivers), &ServiceParams::default());
        assert!(read(r#"{"etcd": []}"#).is_err() && read(r#"{"rivers": {"extra_args": {}}}"#).is_err());
    }
}
