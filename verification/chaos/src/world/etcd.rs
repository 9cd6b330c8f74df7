//! Starts a real etcd of three members for a chaos run.

use std::collections::BTreeMap;

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::{Member, Plan, WorldError, io_error, process_name, served_address, wait_for_answer};
use crate::network::{Link, Network, Node};
use crate::process::Ports;

/// Starts all members and waits until each is healthy. Returns them with the links between them.
pub(super) async fn start(
    plan: &Plan<'_>,
    network: &Network,
    ports: &mut Ports,
    chance: &mut ChaCha8Rng,
) -> Result<(BTreeMap<u32, Member>, Vec<Link>), WorldError> {
    let mut peers = Vec::new();
    let mut places = BTreeMap::new();
    for number in 1..=plan.wanted().store.members() {
        let node = Node::Store(number);
        let (client, peer) = (served_address(network, ports, &node)?, served_address(network, ports, &node)?);
        let link = Link::open(network, None, node, peer, ChaCha8Rng::from_rng(chance)).await;
        let link = link.map_err(io_error("cannot open a link to a member of etcd"))?;
        places.insert(number, (client, peer, link.address()));
        peers.push(link);
    }
    let cluster: Vec<String> = places
        .iter()
        .map(|(number, (_, _, link))| format!("{}=http://{link}", process_name(&Node::Store(*number))))
        .collect();
    let mut members = BTreeMap::new();
    for (number, (client, peer, link)) in &places {
        let node = Node::Store(*number);
        let name = process_name(&node);
        let place = plan.data.join(&name);
        let disk = plan.mount_disk(&place).await;
        // A subdirectory of the mount: etcd creates its own data directory.
        let data = place.join("data").display().to_string();
        let args = [
            format!("--name={name}"),
            format!("--data-dir={data}"),
            format!("--listen-client-urls=http://{client}"),
            format!("--advertise-client-urls=http://{client}"),
            format!("--listen-peer-urls=http://{peer}"),
            format!("--initial-advertise-peer-urls=http://{link}"),
            format!("--initial-cluster={}", cluster.join(",")),
            "--logger=zap".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        let process = plan.start(network, &node, (&plan.programs.etcd, args.to_vec()), Vec::new())?;
        members.insert(*number, Member { process, client: *client, disk });
    }
    for member in members.values_mut() {
        // A member is healthy once a leader is elected.
        wait_for_answer(&mut member.process, member.client, "/health").await?;
    }
    Ok((members, peers))
}
