//! What fails between processes: one board that says how the network is, and links that obey it.
//!
//! A link is a TCP proxy of ours on loopback before a node. Who is at its other end it learns from the kernel, which
//! knows the process that holds a socket. What it does to bytes is what TCP makes of a bad network, seen from both ends:
//! - *cut*: nothing arrives, in either direction, and nobody is told. TCP sends again for as long as the ends wait, so
//!   that what was said meanwhile arrives when the cut is over. A new connection is taken and never answered.
//! - *delay*: everything arrives [`DELAY`] later, each way.
//! - *loss*: of the pieces that are sent, [`LOSS_PERCENT`] percent are lost. TCP sends each again after [`RETRANSMIT`],
//!   twice that when it is lost once more, and so on; what comes behind it waits.
//! - *reset*: both ends of every connection get a reset, whatever is under way.
//!
//! Guarantees: bytes arrive whole and in order, or the connection ends; a link forgets its connections when dropped;
//! it holds at most [`MAX_CONNECTIONS`], and per direction at most [`QUEUE`] pieces of [`PIECE`] bytes.
//!
//! Does not: lose bytes in the middle of a stream (TCP does not either), or reach what does not go through a link.

mod carry;
mod link;
mod owner;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub use self::link::Link;

/// What a delayed piece takes longer, each way: what the language says.
pub const DELAY: Duration = madako_faults::DELAY;
/// Of a hundred pieces, those that are lost: what the language says.
pub const LOSS_PERCENT: u32 = madako_faults::LOSS_PERCENT;
/// The shortest time after which Linux sends again what was not acknowledged (`TCP_RTO_MIN`).
pub const RETRANSMIT: Duration = Duration::from_millis(200);
/// Most times that one piece is lost in a row: a seventh has a chance of one in ten million.
const MAX_LOSSES: u32 = 6;
/// Connections of a link at once: an instance has a handful to each member of the store.
const MAX_CONNECTIONS: usize = 256;
/// Pieces of a direction that are on their way.
const QUEUE: usize = 64;
/// Bytes of a piece: what Linux puts into one segment on a slow link is less, on loopback as much.
const PIECE: usize = 16 * 1024;

/// An end of a link.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// An instance of the service, counted from 1.
    Instance(u32),
    /// A member of the store, counted from 1.
    Store(u32),
    /// The registry of machines.
    Registry,
    /// The metrics provider of that name.
    Provider(String),
    /// Whoever works with the service, and every process that is no node: nothing ever fails there.
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

/// What fails around a node, each as often as it was begun and not ended yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Nothing arrives.
    pub cut: u32,
    /// Everything arrives late.
    pub delay: u32,
    /// A part is lost.
    pub loss: u32,
    /// Resets so far: each one that is added ends the connections that are there.
    pub resets: u32,
}

impl Trouble {
    fn beside(self, other: Self) -> Self {
        Self {
            cut: self.cut + other.cut,
            delay: self.delay + other.delay,
            loss: self.loss + other.loss,
            resets: self.resets + other.resets,
        }
    }
}

/// How the network is at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Board {
    nodes: BTreeMap<Node, Trouble>,
    /// Processes of nodes.
    processes: BTreeMap<u32, Node>,
}

/// The network of a run. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Network {
    board: Arc<watch::Sender<Board>>,
}

impl Network {
    /// Changes what fails around a node.
    pub fn change(&self, node: &Node, change: impl FnOnce(&mut Trouble)) {
        self.board.send_modify(|board| change(board.nodes.entry(node.clone()).or_default()));
    }

    /// Says which process a node is from now on.
    pub fn runs(&self, node: &Node, process: u32) {
        self.board.send_modify(|board| {
            board.processes.retain(|_, other| other != node);
            board.processes.insert(process, node.clone());
        });
    }

    fn processes(&self) -> BTreeMap<u32, Node> {
        self.board.borrow().processes.clone()
    }

    fn view(&self, from: Node, to: Node) -> View {
        View { board: self.board.subscribe(), from, to }
    }
}

/// The network as one connection meets it.
#[derive(Debug, Clone)]
struct View {
    board: watch::Receiver<Board>,
    from: Node,
    to: Node,
}

impl View {
    fn of(&self, board: &Board) -> Trouble {
        let around = |node: &Node| board.nodes.get(node).copied().unwrap_or_default();
        around(&self.to).beside(around(&self.from))
    }

    fn now(&self) -> Trouble {
        self.of(&self.board.borrow())
    }

    /// Returns when the trouble is as asked for.
    async fn until(&self, mut is_so: impl FnMut(Trouble) -> bool) {
        let mut board = self.board.clone();
        // The sender lives as long as the network that the link holds; a link that is dropped waits for nothing.
        let _ = board.wait_for(|board| is_so(self.of(board))).await;
    }

    async fn until_whole(&self) {
        self.until(|trouble| trouble.cut == 0).await;
    }
}
