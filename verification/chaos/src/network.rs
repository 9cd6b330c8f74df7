//! Simulates network faults between the processes of a run. Where the machine allows it, each node has a network
//! namespace, and the kernel's packet filter drops packets of a cut or loss on the wire between the namespaces, so that
//! both ends experience the kernel's own behaviour. Elsewhere nodes are on loopback, and links simulate cuts and losses
//! too. The run reports which of both it uses, and why.
//!
//! A link is a TCP proxy in front of a node: in the node's namespace, or on loopback. It identifies its client by
//! address, or through the kernel, which knows the process of a socket. Its effects on bytes are those of TCP on a bad
//! network, seen from both ends:
//! - *cut* (without namespaces): nothing arrives in either direction, without any notice. TCP retransmits for as long
//!   as the ends wait, so that data sent meanwhile arrives after the cut. A new connection is accepted and never
//!   answered.
//! - *loss* (without namespaces): [`LOSS_PERCENT`] percent of the pieces are lost. TCP retransmits each after
//!   [`RETRANSMIT`], after twice that when it is lost once more, and so on; later pieces wait.
//! - *delay*: everything arrives [`DELAY`] later, each way.
//! - *reset*: both ends of every connection get a reset, whatever is under way.
//!
//! Guarantees: bytes arrive whole and in order, or the connection ends. A link drops its connections when it is
//! dropped; it holds at most [`MAX_CONNECTIONS`], and per direction at most [`QUEUE`] pieces of [`PIECE`] bytes.
//! Nothing of it remains on the machine after the run, however the run ends.
//!
//! Does not: lose bytes in the middle of a stream (nor does TCP), or affect traffic that does not pass a link.

mod addresses;
mod carry;
mod link;
mod namespaces;
mod open;
mod owner;
mod rules;
mod space;
mod tool;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use madako_faults::Act;
use madako_protocol::causes::error_with_causes;
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) use self::addresses::{RANGE_SHOWN, is_in_run_range};
pub use self::link::Link;
use self::namespaces::Namespaces;
pub use self::namespaces::{NamespaceError, PacketDropError};
use self::open::OpenConnections;
pub use self::tool::{ToolError, find_on_path};

/// Additional delay of a piece in each direction, from the fault language.
pub const DELAY: Duration = madako_faults::DELAY;
/// Percentage of lost pieces, from the fault language.
pub const LOSS_PERCENT: u32 = madako_faults::LOSS_PERCENT;
/// Minimum retransmission time of Linux (`TCP_RTO_MIN`).
pub const RETRANSMIT: Duration = Duration::from_millis(200);
/// Maximum consecutive losses of one piece: a seventh has a chance of one in ten million.
const MAX_LOSSES: u32 = 6;
/// Connections of a link at once: an instance has a handful to each member of the store.
const MAX_CONNECTIONS: usize = 256;
/// Pieces under way in one direction.
const QUEUE: usize = 64;
/// Bytes of a piece: one segment of Linux has less on a slow link, and as much on loopback.
const PIECE: usize = 16 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// Counted from 1.
    Instance(u32),
    /// Counted from 1.
    Store(u32),
    Registry,
    Provider(String),
    /// Clients and every process that is not a node: without faults.
    Client,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance(number) => write!(f, "instance={number}"),
            Self::Store(number) => write!(f, "store={number}"),
            Self::Registry => f.write_str("registry"),
            Self::Provider(name) => write!(f, "provider={name}"),
            Self::Client => f.write_str("client"),
        }
    }
}

/// Active faults around a node, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetworkFaults {
    pub cut: u32,
    pub delay: u32,
    pub loss: u32,
    /// Resets so far: each additional one ends the present connections.
    pub resets: u32,
}

impl NetworkFaults {
    fn combine(self, other: Self) -> Self {
        Self {
            cut: self.cut + other.cut,
            delay: self.delay + other.delay,
            loss: self.loss + other.loss,
            resets: self.resets + other.resets,
        }
    }
}

/// The share of packets dropped around a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
pub(crate) enum DroppedShare {
    #[strum(serialize = "a cut")]
    All,
    /// [`LOSS_PERCENT`] percent, each way.
    #[strum(serialize = "loss")]
    Some,
}

impl DroppedShare {
    fn share_for_act(act: Act) -> Option<Self> {
        match act {
            Act::Cut => Some(Self::All),
            Act::Loss => Some(Self::Some),
            _ => None,
        }
    }
}

/// The requested kind of network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NetworkChoice {
    /// Namespaces where possible, proxies elsewhere.
    #[default]
    Auto,
    /// Namespaces; without them the run fails.
    Namespaces,
    Proxies,
}

/// The kind of network in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum NetworkCarrier {
    /// Namespaces, in which packets are dropped, with proxies inside.
    Namespaces,
    /// Proxies on loopback for all faults.
    Proxies {
        /// The reason why there are no namespaces.
        why: String,
    },
}

impl fmt::Display for NetworkCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespaces => f.write_str("namespaces"),
            Self::Proxies { why } => write!(f, "proxies ({why})"),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NetworkState {
    nodes: BTreeMap<Node, NetworkFaults>,
    processes: BTreeMap<u32, Node>,
}

#[derive(Debug, Clone)]
enum NodeLocation {
    Loopback(String),
    Namespaces(Arc<Namespaces>),
}

/// The network of a run. A clone is the same network.
#[derive(Debug, Clone)]
pub struct Network {
    board: Arc<watch::Sender<NetworkState>>,
    ground: NodeLocation,
    open: OpenConnections,
}

impl Default for Network {
    fn default() -> Self {
        let ground = NodeLocation::Loopback("as asked for".to_owned());
        Self { board: Arc::default(), ground, open: OpenConnections::default() }
    }
}

impl Network {
    /// A network for these nodes.
    ///
    /// # Errors
    /// Namespaces were requested and are not available.
    pub async fn open(choice: NetworkChoice, nodes: &[Node]) -> Result<Self, NamespaceError> {
        if choice == NetworkChoice::Proxies {
            return Ok(Self::default());
        }
        let ground = match Namespaces::create_and_test(nodes).await {
            Ok(namespaces) => NodeLocation::Namespaces(Arc::new(namespaces)),
            Err(error) if choice == NetworkChoice::Namespaces => return Err(error),
            Err(error) => NodeLocation::Loopback(error_with_causes(&error)),
        };
        Ok(Self { ground, ..Self::default() })
    }

    #[must_use]
    pub fn carrier_kind(&self) -> NetworkCarrier {
        match &self.ground {
            NodeLocation::Namespaces(_) => NetworkCarrier::Namespaces,
            NodeLocation::Loopback(why) => NetworkCarrier::Proxies { why: why.clone() },
        }
    }

    fn namespaces(&self) -> Option<&Namespaces> {
        match &self.ground {
            NodeLocation::Namespaces(namespaces) => Some(namespaces),
            NodeLocation::Loopback(_) => None,
        }
    }

    /// The address on which a node's processes listen, if it has its own: beyond the reach of faults.
    #[must_use]
    pub fn faultless_address(&self, node: &Node) -> Option<Ipv4Addr> {
        self.namespaces()?.faultless_address(node)
    }

    /// The program and arguments that run a command in the node's namespace.
    #[must_use]
    pub fn enter(&self, node: &Node, program: &Path, args: Vec<String>) -> (PathBuf, Vec<String>) {
        let Some([enter, place]) = self.namespaces().and_then(|it| it.entering_words(node)) else {
            return (program.to_owned(), args);
        };
        let words = [place, "--".to_owned(), program.display().to_string()];
        (enter.into(), words.into_iter().chain(args).collect())
    }

    /// Listens at the address where clients reach a node by a link.
    async fn listen(&self, node: &Node) -> io::Result<TcpListener> {
        let Some(namespaces) = self.namespaces() else {
            return TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        };
        let listener = namespaces.listen(node).await?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }

    /// The node at the other end of a connection.
    async fn node_of_peer(&self, stream: &TcpStream) -> Node {
        let node = match self.namespaces() {
            Some(namespaces) => {
                stream.peer_addr().ok().and_then(|from| namespaces.node_at_address(from.ip()))
            }
            None => {
                let processes = self.board.borrow().processes.clone();
                owner::find_owner(stream, processes).await
            }
        };
        node.unwrap_or(Node::Client)
    }

    /// Begins or ends a network fault around a node.
    ///
    /// # Errors
    /// The packet filter failed; the network is unchanged.
    pub async fn fail(&self, node: &Node, act: Act, begins: bool) -> Result<(), PacketDropError> {
        if let Some((namespaces, loses)) = self.namespaces().zip(DroppedShare::share_for_act(act)) {
            return namespaces.set_packet_loss(node, loses, begins).await;
        }
        let count = |holds: &mut u32| *holds = if begins { *holds + 1 } else { holds.saturating_sub(1) };
        self.change(node, |trouble| match act {
            Act::Cut => count(&mut trouble.cut),
            Act::Delay => count(&mut trouble.delay),
            Act::Loss => count(&mut trouble.loss),
            Act::Reset => trouble.resets += 1,
            _ => {}
        });
        Ok(())
    }

    /// Packets that such faults dropped around a node so far; `None`: not counted.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub async fn count_dropped_packets(&self, node: &Node, act: Act) -> Result<Option<u64>, PacketDropError> {
        match self.namespaces().zip(DroppedShare::share_for_act(act)) {
            Some((namespaces, loses)) => namespaces.count_dropped_packets(node, loses).await.map(Some),
            None => Ok(None),
        }
    }

    /// True if a link holds a connection with the node at one of its ends.
    #[must_use]
    pub fn is_connected(&self, node: &Node) -> bool {
        self.open.has_connection(node)
    }

    /// Changes the faults of links around a node.
    fn change(&self, node: &Node, change: impl FnOnce(&mut NetworkFaults)) {
        self.board.send_modify(|board| change(board.nodes.entry(node.clone()).or_default()));
    }

    pub fn register_process(&self, node: &Node, process: u32) {
        self.board.send_modify(|board| {
            board.processes.retain(|_, other| other != node);
            board.processes.insert(process, node.clone());
        });
    }

    fn view_link(&self, from: Node, to: Node) -> LinkView {
        LinkView { board: self.board.subscribe(), from, to }
    }
}

#[derive(Debug, Clone)]
struct LinkView {
    board: watch::Receiver<NetworkState>,
    from: Node,
    to: Node,
}

impl LinkView {
    fn faults_in(&self, board: &NetworkState) -> NetworkFaults {
        let around = |node: &Node| board.nodes.get(node).copied().unwrap_or_default();
        around(&self.to).combine(around(&self.from))
    }

    fn current_faults(&self) -> NetworkFaults {
        self.faults_in(&self.board.borrow())
    }

    /// Returns when `is_so` holds for the faults of the connection.
    async fn wait_until(&self, mut is_so: impl FnMut(NetworkFaults) -> bool) {
        let mut board = self.board.clone();
        // The sender lives as long as the network that the link holds; a dropped link does not wait.
        let _ = board.wait_for(|board| is_so(self.faults_in(board))).await;
    }

    async fn wait_until_restored(&self) {
        self.wait_until(|trouble| trouble.cut == 0).await;
    }
}
