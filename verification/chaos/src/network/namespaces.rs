//! A network namespace for each node, and a bridge between them in another one, on which packets are dropped.
//!
//! A node has two addresses ([`addresses`]): one is affected by faults, the other is for observers and control. One
//! device leads from the machine's own namespace to the bridge. Nothing else leads out of the namespaces, not even to
//! the machine: the only route of a node is the one to the other nodes.
//!
//! Guarantees: [`Namespaces::create_and_test`] has checked that connections between two nodes and from outside work, that a node
//! that is cut off gets none, and that dropped packets are counted. On drop the kernel removes everything, as it does
//! when the run's process is killed.
//!
//! Assumes: root, or the capabilities needed; `ip`, `nft`, `nsenter` and `unshare`.
//!
//! Does not: delay or reset. Links do that, with namespaces as without.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream as Connection};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::addresses::{self, AddressBlock, BlockHalf, OUTSIDE, RANGE_SHOWN};
use super::rules::{self, FaultyNode, bridge_port};
use super::space::NetworkNamespace;
use super::tool::{self, ToolError, find_on_path};
use super::{DroppedShare, Node};

/// The required programs with their Debian packages.
const TOOLS: [(&str, &str); 4] =
    [("ip", "iproute2"), ("nft", "nftables"), ("nsenter", "util-linux"), ("unshare", "util-linux")];
/// Blocks that are tried: a machine cannot bear as many runs at once.
const TRIES: u32 = 64;
/// Time limit of a trial connection, which takes less than a millisecond.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);
/// Interval of checks of the counter during a trial cut.
const GLANCE: Duration = Duration::from_millis(10);

/// Reasons why nodes cannot be in namespaces.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// A program is missing; with its package.
    #[error("the program {0} is not installed: install the Debian package {1}")]
    NotInstalled(&'static str, &'static str),
    /// The address range is in use.
    #[error("the address range {RANGE_SHOWN} for the run is in use: this machine has the route {0} into it")]
    Routed(String),
    #[error("no free block of addresses in {RANGE_SHOWN}: {TRIES} blocks are taken, perhaps by other runs")]
    Taken,
    /// More nodes than addresses.
    #[error("the scenario has {0} processes, too many for the addresses of one run")]
    TooMany(usize),
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The packet filter failed.
    #[error(transparent)]
    Unlost(#[from] PacketDropError),
    #[error("a test connection between the new network namespaces failed: {0}")]
    Useless(String),
}

/// Reasons why packets are not dropped or not counted.
#[derive(Debug, thiserror::Error)]
pub enum PacketDropError {
    #[error("cannot drop packets of {0}: it has no network namespace")]
    NoNode(Node),
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error("cannot count the packets that {0} lost: the output of nft has no counter for them")]
    NotCounted(Node),
}

#[derive(Debug)]
struct NodeNamespace {
    host: u8,
    space: NetworkNamespace,
}

#[derive(Debug)]
pub(super) struct Namespaces {
    block: AddressBlock,
    hub: NetworkNamespace,
    sites: BTreeMap<Node, NodeNamespace>,
    /// Active drops around each node, counted.
    lost: Mutex<BTreeMap<Node, DropCounts>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct DropCounts {
    all: u32,
    some: u32,
}

impl Namespaces {
    /// Makes a namespace for each node, and tries them out.
    pub(super) async fn create_and_test(nodes: &[Node]) -> Result<Self, NamespaceError> {
        let missing = TOOLS.into_iter().find(|(program, _)| find_on_path(program).is_none());
        if let Some((program, package)) = missing {
            return Err(NamespaceError::NotInstalled(program, package));
        }
        let words = ["ip", "-oneline", "-4", "route", "show", "table", "all", "root", addresses::AROUND];
        let routes = tool::run("what routes there are", &words, "").await?;
        if let Some(route) = addresses::find_foreign_route(&routes) {
            return Err(NamespaceError::Routed(route.to_owned()));
        }
        let hub = NetworkNamespace::create("the network".to_owned()).await?;
        let mut sites = BTreeMap::new();
        let mut hosts = addresses::host_numbers();
        for node in nodes {
            let host = hosts.next().ok_or(NamespaceError::TooMany(nodes.len()))?;
            sites.insert(
                node.clone(),
                NodeNamespace { host, space: NetworkNamespace::create(node.to_string()).await? },
            );
        }
        let block = reserve_block(&hub).await?;
        let made = Self { block, hub, sites, lost: Mutex::default() };
        made.connect().await?;
        made.check_links_and_cuts().await?;
        Ok(made)
    }

    async fn connect(&self) -> Result<(), ToolError> {
        let mut bridge =
            "link add name hub type bridge\nlink set dev hub up\nlink set dev root master hub up\n"
                .to_owned();
        for NodeNamespace { host, space } in self.sites.values() {
            let port = bridge_port(*host);
            bridge += &format!("link add name {port} type veth peer name net netns {}\n", space.file_path());
            bridge += &format!("link set dev {port} master hub up\n");
        }
        let words = ["ip", "-batch", "-"];
        self.hub.run("a bridge", &words, &bridge).await?;
        for NodeNamespace { host, space } in self.sites.values() {
            let inside = format!("link set dev lo up\n{}", self.device_commands("net", *host));
            space.run("addresses", &words, &inside).await?;
        }
        let device = self.block.device_name();
        // Shows users of the machine the owner of the device.
        let whose = format!("link set dev {device} alias \"madako-chaos, process {}\"\n", std::process::id());
        tool::run("addresses", &words, &format!("{whose}{}", self.device_commands(&device, OUTSIDE))).await?;
        let table = rules::empty_rules(self.sites.values().map(|site| site.host));
        self.hub.run("a table for nft", &["nft", "-f", "-"], &table).await.map(drop)
    }

    /// Input for `ip` about a device.
    fn device_commands(&self, name: &str, host: u8) -> String {
        let address = |half| {
            let (address, bits) = (self.block.address_of(half, host), addresses::HALF_BITS);
            format!("address add {address}/{bits} dev {name}\n")
        };
        format!("{}{}link set dev {name} up\n", address(BlockHalf::Data), address(BlockHalf::Admin))
    }

    /// Checks that packets arrive, and that packets of a cut do not.
    async fn check_links_and_cuts(&self) -> Result<(), NamespaceError> {
        let useless = |why: &str| NamespaceError::Useless(why.to_owned());
        let mut nodes = self.sites.keys();
        let Some((one, other)) = nodes.next().map(|one| (one, nodes.next().unwrap_or(one))) else {
            return Ok(());
        };
        let failed = |error: io::Error| {
            NamespaceError::Useless(format!("a process cannot listen in a network namespace: {error}"))
        };
        let listener = self.listen(one).await.map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        let Some(from) = self.sites.get(other) else { return Ok(()) };
        let connecting = move || Connection::connect_timeout(&at, CONNECTS_WITHIN).map(drop);
        let connected = from.space.run_inside(connecting).await;
        connected
            .map_err(|error| NamespaceError::Useless(format!("nodes do not reach each other: {error}")))?;
        if !matches!(timeout(CONNECTS_WITHIN, TcpStream::connect(at)).await, Ok(Ok(_))) {
            return Err(useless("no node can be reached from outside of the namespaces"));
        }
        self.set_packet_loss(one, DroppedShare::All, true).await?;
        let counted = async {
            while self.count_dropped_packets(one, DroppedShare::All).await? == 0 {
                sleep(GLANCE).await;
            }
            Ok::<(), NamespaceError>(())
        };
        tokio::select! {
            biased;
            noticed = TcpStream::connect(at) => return Err(match noticed {
                Ok(_) => useless("a connection passes a cut"),
                Err(error) => NamespaceError::Useless(format!("a cut reports an error instead of losing packets: {error}")),
            }),
            counted = timeout(CONNECTS_WITHIN, counted) => {
                counted.map_err(|_| useless("nft counts no dropped packets"))??;
            }
        }
        Ok(self.set_packet_loss(one, DroppedShare::All, false).await?)
    }

    fn namespace_of(&self, node: &Node) -> Option<&NodeNamespace> {
        self.sites.get(node)
    }

    /// The address on which a node's processes listen, beyond the reach of faults.
    pub(super) fn faultless_address(&self, node: &Node) -> Option<Ipv4Addr> {
        self.namespace_of(node).map(|site| self.block.address_of(BlockHalf::Admin, site.host))
    }

    /// Listens at a node's address in the network with faults.
    pub(super) async fn listen(&self, node: &Node) -> io::Result<TcpListener> {
        let site = self.namespace_of(node).ok_or(io::ErrorKind::NotFound)?;
        let at = SocketAddr::from((self.block.address_of(BlockHalf::Data, site.host), 0));
        site.space.run_inside(move || TcpListener::bind(at)).await
    }

    /// The words before a command that runs in the node's namespace.
    pub(super) fn entering_words(&self, node: &Node) -> Option<[String; 2]> {
        self.namespace_of(node).map(|site| site.space.entering_words())
    }

    pub(super) fn node_at_address(&self, address: IpAddr) -> Option<Node> {
        let is_at = |site: &NodeNamespace| {
            [BlockHalf::Data, BlockHalf::Admin]
                .iter()
                .any(|half| self.block.address_of(*half, site.host) == address)
        };
        self.sites.iter().find(|(_, site)| is_at(site)).map(|(node, _)| node.clone())
    }

    /// Begins or ends dropping packets around a node. On an error nothing changes.
    pub(super) async fn set_packet_loss(
        &self,
        node: &Node,
        loses: DroppedShare,
        begins: bool,
    ) -> Result<(), PacketDropError> {
        self.namespace_of(node).ok_or_else(|| PacketDropError::NoNode(node.clone()))?;
        let mut lost = self.lost.lock().await;
        let mut next = lost.clone();
        let DropCounts { all, some } = next.entry(node.clone()).or_default();
        let count = if loses == DroppedShare::All { all } else { some };
        *count = if begins { *count + 1 } else { count.saturating_sub(1) };
        let hit = |(node, site): (&Node, &NodeNamespace)| {
            let DropCounts { all, some } = next.get(node).copied().unwrap_or_default();
            let address = self.block.address_of(BlockHalf::Data, site.host);
            FaultyNode { host: site.host, address, cut: all > 0, loss: some > 0 }
        };
        let hits: Vec<FaultyNode> = self.sites.iter().map(hit).collect();
        let what = format!("{} {loses} around {node}", if begins { "beginning" } else { "ending" });
        self.hub.run(&what, &["nft", "-f", "-"], &rules::nft_rules(&hits)).await?;
        *lost = next;
        Ok(())
    }

    /// Packets dropped around a node so far.
    pub(super) async fn count_dropped_packets(
        &self,
        node: &Node,
        loses: DroppedShare,
    ) -> Result<u64, PacketDropError> {
        let site = self.namespace_of(node).ok_or_else(|| PacketDropError::NoNode(node.clone()))?;
        let what = format!("counting {loses} around {node}");
        let counters = self.hub.run(&what, &rules::COUNTERS, "").await?;
        rules::count_dropped(&counters, site.host, loses)
            .ok_or_else(|| PacketDropError::NotCounted(node.clone()))
    }
}

/// Reserves a free block of addresses by creating its device.
async fn reserve_block(hub: &NetworkNamespace) -> Result<AddressBlock, NamespaceError> {
    let path = hub.file_path();
    for step in 0..TRIES {
        let block = AddressBlock::with_number(std::process::id().wrapping_add(step));
        let device = block.device_name();
        let words =
            ["ip", "link", "add", "name", &device, "type", "veth", "peer", "name", "root", "netns", &path];
        match tool::run("a device that leads to the namespaces", &words, "").await {
            Ok(_) => return Ok(block),
            Err(ToolError::Failed { output, .. }) if output.contains("File exists") => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(NamespaceError::Taken)
}

#[cfg(test)]
mod tests;
