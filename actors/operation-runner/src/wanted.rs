//! The containers that should run on a node: their images and parameters.

use madako_domain::canary::{Canary, is_planted};
use madako_domain::cluster::Cluster;
use madako_domain::containers::{Container, ContainerOptions, ETCD_PKI, Mount, ServiceParams};
use madako_domain::node_status::ContainerStatus;

use crate::input::Images;

/// Files in [`ETCD_PKI`], in the order of CKE's records.
const ETCD_FILES: [&str; 6] =
    ["server.crt", "server.key", "peer.crt", "peer.key", "ca-peer.crt", "ca-client.crt"];

/// The first members of a cluster of etcd, as a starting member takes them. A member that has data ignores them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialCluster<'a> {
    /// The member has data. The state `existing` without members makes etcd refuse an empty volume, on which it would
    /// form a cluster of its own.
    None,
    /// All members start for the first time. Each has its address as its name.
    New(&'a [String]),
    /// The member joins these members; each is `NAME=URL`.
    Existing(&'a [String]),
}

/// Paths of etcd's certificates and keys.
#[must_use]
pub fn etcd_files() -> [String; 6] {
    ETCD_FILES.map(|file| format!("{ETCD_PKI}/{file}"))
}

#[must_use]
pub fn client_url(address: &str) -> String {
    format!("https://{address}:2379")
}

/// The URL of a member for other members.
#[must_use]
pub fn peer_url(address: &str) -> String {
    format!("https://{address}:2380")
}

/// Built-in parameters of the rivers; all nodes have the same.
#[must_use]
pub fn rivers_parameters(cluster: &Cluster) -> ServiceParams {
    proxy_parameters(cluster, 6443, 16443)
}

/// Built-in parameters of the rivers of etcd; all control plane nodes have the same.
#[must_use]
pub fn etcd_rivers(cluster: &Cluster) -> ServiceParams {
    proxy_parameters(cluster, 2379, 12379)
}

fn proxy_parameters(cluster: &Cluster, upstream: u16, listen: u16) -> ServiceParams {
    let upstreams: Vec<String> =
        cluster.control_plane().map(|node| format!("{}:{upstream}", node.address)).collect();
    let args = vec![
        "rivers".to_owned(),
        format!("--upstreams={}", upstreams.join(",")),
        format!("--listen=127.0.0.1:{listen}"),
    ];
    ServiceParams { args, ..ServiceParams::default() }
}

/// Built-in parameters of a member of etcd.
#[must_use]
pub fn etcd_parameters(address: &str, initial: InitialCluster<'_>) -> ServiceParams {
    let file = |option: &str, name: &str| format!("--{option}={ETCD_PKI}/{name}");
    let mut args = vec![
        format!("--name={address}"),
        format!("--listen-peer-urls={}", peer_url("0.0.0.0")),
        format!("--listen-client-urls={}", client_url("0.0.0.0")),
        format!("--advertise-client-urls={}", client_url(address)),
        file("cert-file", "server.crt"),
        file("key-file", "server.key"),
        "--client-cert-auth=true".to_owned(),
        file("trusted-ca-file", "ca-client.crt"),
        file("peer-cert-file", "peer.crt"),
        file("peer-key-file", "peer.key"),
        "--peer-client-cert-auth=true".to_owned(),
        file("peer-trusted-ca-file", "ca-peer.crt"),
        "--enable-pprof=true".to_owned(),
        "--auto-compaction-mode=periodic".to_owned(),
        "--auto-compaction-retention=5m".to_owned(),
        "--experimental-initial-corrupt-check".to_owned(),
    ];
    let (members, state) = match initial {
        InitialCluster::None => (None, "existing"),
        InitialCluster::New(addresses) => {
            let members = addresses.iter().map(|address| format!("{address}={}", peer_url(address)));
            (Some(members.collect::<Vec<_>>().join(",")), "new")
        }
        InitialCluster::Existing(members) => (Some(members.join(",")), "existing"),
    };
    if let Some(members) = members {
        args.push(format!("--initial-advertise-peer-urls={}", peer_url(address)));
        args.push(format!("--initial-cluster={members}"));
        args.push("--initial-cluster-token=cke".to_owned());
    }
    if initial != InitialCluster::None || !is_planted(Canary::EmptyVolumeStarted) {
        args.push(format!("--initial-cluster-state={state}"));
    }
    let bind = Mount {
        source: ETCD_PKI.to_owned(),
        destination: ETCD_PKI.to_owned(),
        read_only: true,
        selinux_label: "Z".to_owned(),
        ..Mount::default()
    };
    ServiceParams { args, binds: vec![bind], ..ServiceParams::default() }
}

/// True if a running container differs from the wanted one. For etcd, the arguments of the first start do not count.
pub(crate) fn is_outdated(
    container: Container,
    status: &ContainerStatus,
    builtin: &ServiceParams,
    options: &ContainerOptions,
    images: &Images,
) -> bool {
    let is_same = match container {
        Container::Rivers | Container::EtcdRivers => ServiceParams::is_same_service,
        Container::Etcd => ServiceParams::is_same_member,
    };
    status.image != images.image_of(container)
        || !is_same(builtin, &status.builtin)
        || !is_same(options.extra(container), &status.extra)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_on_data_refuses_an_empty_volume_and_is_the_same_member_for_cke() {
        let started = etcd_parameters("10.0.0.1", InitialCluster::None);
        let initial: Vec<&String> = started.args.iter().filter(|arg| arg.starts_with("--initial-")).collect();
        assert_eq!(initial, ["--initial-cluster-state=existing"]);
        let members = ["10.0.0.1".to_owned()];
        assert!(started.is_same_member(&etcd_parameters("10.0.0.1", InitialCluster::New(&members))));
    }
}
