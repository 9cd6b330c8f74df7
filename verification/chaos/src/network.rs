//! What fails between processes.
//!
//! Where the machine allows it, each node is in a network namespace of its own, and what is cut off or lost the kernel's packet filter drops
//! on the wire between them, so that all ends meet what the kernel makes of it. Elsewhere nodes are on loopback, and
//! links do that too. Which of both it is, a run says, and why.
//!
//! A link is a TCP proxy of ours before a node: in the node's namespace, or on loopback. Who is at its other end it learns
//! from the address, or from the kernel, which knows the process that holds a socket. What it does to bytes is what TCP
//! makes of a bad network, seen from both ends:
//! - *cut* (without namespaces): nothing arrives, in either direction, and nobody is told. TCP sends again for as long as
//!   the ends wait, so that what was said meanwhile arrives when the cut is over. A new connection is taken and never answered.
//! - *loss* (without namespaces): of the pieces that are sent, [`LOSS_PERCENT`] percent are lost. TCP sends each again
//!   after [`RETRANSMIT`], twice that when it is lost once more, and so on; what comes behind it waits.
//! - *delay*: everything arrives [`DELAY`] later, each way.
//! - *reset*: both ends of every connection get a reset, whatever is under way.
//!
//! Guarantees: bytes arrive whole and in order, or the connection ends; a link forgets its connections when dropped;
//! it holds at most [`MAX_CONNECTIONS`], and per direction at most [`QUEUE`] pieces of [`PIECE`] bytes. Nothing of it is left
//! on the machine when a run ends, however it does.
//!
//! Does not: lose bytes in the middle of a stream (TCP does not either), or reach what does not go through a link.

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
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) use self::addresses::{RANGE_SHOWN, is_apart};
pub use self::link::Link;
use self::namespaces::Namespaces;
pub use self::namespaces::{Unavailable, Unlost};
use self::open::Open;
pub use self::tool::{ToolError, on_path};

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

/// Packets that are lost around a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loses {
    /// Each of them.
    All,
    /// [`LOSS_PERCENT`] of a hundred, each way.
    Some,
}

impl Loses {
    /// Those that a fault loses.
    fn by(act: Act) -> Option<Self> {
        match act {
            Act::Cut => Some(Self::All),
            Act::Loss => Some(Self::Some),
            _ => None,
        }
    }
}

impl fmt::Display for Loses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "a cut",
            Self::Some => "loss",
        })
    }
}

/// What a run's network shall be made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Choice {
    /// Namespaces where that is possible, and proxies elsewhere.
    #[default]
    Auto,
    /// Namespaces, or there is no run.
    Namespaces,
    /// Proxies on loopback.
    Proxies,
}

/// What a run's network is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Carrier {
    /// Namespaces, where packets are lost, and proxies in them.
    Namespaces,
    /// Proxies on loopback, for all of it.
    Proxies {
        /// Why there are no namespaces.
        why: String,
    },
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespaces => f.write_str("namespaces"),
            Self::Proxies { why } => write!(f, "proxies ({why})"),
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

/// Where nodes are.
#[derive(Debug, Clone)]
enum Ground {
    /// On loopback, for a reason.
    Loopback(String),
    Namespaces(Arc<Namespaces>),
}

/// The network of a run. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Network {
    board: Arc<watch::Sender<Board>>,
    ground: Ground,
    open: Open,
}

impl Default for Network {
    /// One on loopback.
    fn default() -> Self {
        let ground = Ground::Loopback("as asked for".to_owned());
        Self { board: Arc::default(), ground, open: Open::default() }
    }
}

impl Network {
    /// One for all these nodes.
    ///
    /// # Errors
    /// Namespaces are asked for, and cannot be had.
    pub async fn open(choice: Choice, nodes: &[Node]) -> Result<Self, Unavailable> {
        if choice == Choice::Proxies {
            return Ok(Self::default());
        }
        let ground = match Namespaces::make(nodes).await {
            Ok(namespaces) => Ground::Namespaces(Arc::new(namespaces)),
            Err(error) if choice == Choice::Namespaces => return Err(error),
            Err(error) => Ground::Loopback(with_causes(&error)),
        };
        Ok(Self { ground, ..Self::default() })
    }

    /// What it is made of.
    #[must_use]
    pub fn carrier(&self) -> Carrier {
        match &self.ground {
            Ground::Namespaces(_) => Carrier::Namespaces,
            Ground::Loopback(why) => Carrier::Proxies { why: why.clone() },
        }
    }

    fn namespaces(&self) -> Option<&Namespaces> {
        match &self.ground {
            Ground::Namespaces(namespaces) => Some(namespaces),
            Ground::Loopback(_) => None,
        }
    }

    /// The address that processes of a node listen on, where it has one of its own: no fault reaches them there.
    #[must_use]
    pub fn home(&self, node: &Node) -> Option<Ipv4Addr> {
        self.namespaces()?.home(node)
    }

    /// The program and its arguments, so that it runs where the node is.
    #[must_use]
    pub fn enter(&self, node: &Node, program: &Path, args: Vec<String>) -> (PathBuf, Vec<String>) {
        let Some([enter, place]) = self.namespaces().and_then(|it| it.enter(node)) else {
            return (program.to_owned(), args);
        };
        let words = [place, "--".to_owned(), program.display().to_string()];
        (enter.into(), words.into_iter().chain(args).collect())
    }

    /// Listens where everybody reaches a node by a link.
    async fn listen(&self, node: &Node) -> io::Result<TcpListener> {
        let Some(namespaces) = self.namespaces() else {
            return TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        };
        let listener = namespaces.listen(node).await?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }

    /// Who is at the other end of a connection.
    async fn whose(&self, stream: &TcpStream) -> Node {
        let node = match self.namespaces() {
            Some(namespaces) => stream.peer_addr().ok().and_then(|from| namespaces.whose(from.ip())),
            None => {
                let processes = self.board.borrow().processes.clone();
                owner::owner(stream, processes).await
            }
        };
        node.unwrap_or(Node::Client)
    }

    /// Begins a fault of the network around a node, or ends it.
    ///
    /// # Errors
    /// Packets cannot be lost; then all is as it was.
    pub async fn fail(&self, node: &Node, act: Act, begins: bool) -> Result<(), Unlost> {
        if let Some((namespaces, loses)) = self.namespaces().zip(Loses::by(act)) {
            return namespaces.lose(node, loses, begins).await;
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

    /// Packets that such a fault has cost a node so far; `None`: nobody counts them.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub async fn dropped(&self, node: &Node, act: Act) -> Result<Option<u64>, Unlost> {
        match self.namespaces().zip(Loses::by(act)) {
            Some((namespaces, loses)) => namespaces.dropped(node, loses).await.map(Some),
            None => Ok(None),
        }
    }

    /// Whether a link holds a connection with a node at one of its ends.
    #[must_use]
    pub fn is_connected(&self, node: &Node) -> bool {
        self.open.any(node)
    }

    /// Changes what links do around a node.
    fn change(&self, node: &Node, change: impl FnOnce(&mut Trouble)) {
        self.board.send_modify(|board| change(board.nodes.entry(node.clone()).or_default()));
    }

    /// Says which process a node is from now on.
    pub fn runs(&self, node: &Node, process: u32) {
        self.board.send_modify(|board| {
            board.processes.retain(|_, other| other != node);
            board.processes.insert(process, node.clone());
        });
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

/// An error with what is behind it.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
