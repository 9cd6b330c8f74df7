//! A TCP proxy between two processes of a run, on which network faults act.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};

use super::carry::{CopyEnd, relay_both_ways};
use super::{LinkView, MAX_CONNECTIONS, Network, Node};

/// Pause after a failed accept.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A link; its drop ends it with its connections.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// Listens on a free port of loopback or of the namespace of `to`, and carries connections to `upstream`, whose
    /// address is beyond the reach of faults. The client's node is identified for each connection, unless `from` names
    /// it for all.
    ///
    /// # Errors
    /// No port is available.
    pub async fn open(
        network: &Network,
        from: Option<Node>,
        to: Node,
        upstream: SocketAddr,
        mut chance: ChaCha8Rng,
    ) -> io::Result<Self> {
        let listener = network.listen(&to).await?;
        let address = listener.local_addr()?;
        let network = network.clone();
        let task = tokio::spawn(async move {
            // Dropped with the task, and the connections with the set.
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    biased;
                    Some(_) = connections.join_next() => {}
                    taken = listener.accept(), if connections.len() < MAX_CONNECTIONS => match taken {
                        Ok((client, _)) => {
                            let (network, from, to) = (network.clone(), from.clone(), to.clone());
                            let chances =
                                [ChaCha8Rng::from_rng(&mut chance), ChaCha8Rng::from_rng(&mut chance)];
                            connections.spawn(connect(network, from, to, client, upstream, chances));
                        }
                        Err(error) => {
                            tracing::debug!(%error, "a link cannot take a connection");
                            tokio::time::sleep(RETRY_PAUSE).await;
                        }
                    },
                }
            }
        });
        Ok(Self { address, task })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn connect(
    network: Network,
    from: Option<Node>,
    to: Node,
    mut client: TcpStream,
    upstream: SocketAddr,
    chances: [ChaCha8Rng; 2],
) {
    let from = match from {
        Some(from) => from,
        None => network.node_of_peer(&client).await,
    };
    let _counts = network.open.count([from.clone(), to.clone()]);
    let view = network.view_link(from, to);
    let end = serve(&mut client, upstream, &view, chances).await;
    if end == CopyEnd::Reset {
        // Dropping this socket sends a reset. An error means that the socket is gone already.
        let _ = client.set_zero_linger();
    }
}

async fn serve(
    client: &mut TcpStream,
    upstream: SocketAddr,
    view: &LinkView,
    chances: [ChaCha8Rng; 2],
) -> CopyEnd {
    let resets = view.current_faults().resets;
    let dialled = async {
        view.wait_until_restored().await;
        TcpStream::connect(upstream).await
    };
    let server = tokio::select! {
        biased;
        () = view.wait_until(|trouble| trouble.resets != resets) => return CopyEnd::Reset,
        server = dialled => server,
    };
    let Ok(mut server) = server else { return CopyEnd::Reset };
    // Small requests must not wait for each other (Nagle); the next read notices a socket that is gone.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let end = relay_both_ways(client, &mut server, view, chances).await;
    if end == CopyEnd::Reset {
        let _ = server.set_zero_linger();
    }
    end
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::network::{DELAY, NetworkFaults, carry};

    /// Far more than any step takes.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn chance() -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(1)
    }

    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        address
    }

    async fn linked() -> (Network, Link, TcpStream) {
        let network = Network::default();
        // This process plays an instance.
        network.register_process(&Node::Instance(1), std::process::id());
        let link = Link::open(&network, None, Node::Registry, echo().await, chance()).await.unwrap();
        let client = TcpStream::connect(link.address()).await.unwrap();
        (network, link, client)
    }

    async fn says(client: &mut TcpStream, word: &[u8; 4]) -> io::Result<[u8; 4]> {
        client.write_all(word).await?;
        let mut heard = [0; 4];
        timeout(PATIENCE, client.read_exact(&mut heard)).await.expect("it answers")?;
        Ok(heard)
    }

    #[tokio::test]
    async fn bytes_sent_during_a_cut_arrive_after_it() {
        for node in [Node::Instance(1), Node::Registry] {
            let (network, _link, mut client) = linked().await;
            assert_eq!(&says(&mut client, b"open").await.unwrap(), b"open");
            network.change(&node, |trouble| trouble.cut += 1);
            client.write_all(b"late").await.unwrap();
            let mut heard = [0; 4];
            let early = timeout(Duration::from_millis(100), client.read_exact(&mut heard)).await;
            assert!(early.is_err(), "{node}: nothing passes a cut");
            network.change(&node, |trouble| trouble.cut -= 1);
            timeout(PATIENCE, client.read_exact(&mut heard)).await.unwrap().unwrap();
            assert_eq!(&heard, b"late");
        }
    }

    #[tokio::test]
    async fn a_cut_of_another_node_does_not_affect_the_link() {
        let (network, _link, mut client) = linked().await;
        network.change(&Node::Instance(2), |trouble| trouble.cut += 1);
        assert_eq!(&says(&mut client, b"open").await.unwrap(), b"open");
    }

    #[tokio::test]
    async fn a_delay_applies_in_each_direction() {
        let (network, _link, mut client) = linked().await;
        network.change(&Node::Registry, |trouble| trouble.delay += 1);
        let began = Instant::now();
        assert_eq!(&says(&mut client, b"slow").await.unwrap(), b"slow");
        assert!(began.elapsed() >= DELAY * 2, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_node_is_connected_for_as_long_as_a_link_holds_a_connection_of_it() {
        let (network, _link, mut client) = linked().await;
        assert_eq!(&says(&mut client, b"open").await.unwrap(), b"open");
        let connected =
            || [Node::Instance(1), Node::Registry, Node::Store(1)].map(|node| network.is_connected(&node));
        assert_eq!(connected(), [true, true, false]);
        drop(client);
        let gone = async {
            while connected() != [false; 3] {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, gone).await.expect("it is found out");
    }

    #[tokio::test]
    async fn reset_ends_only_existing_connections() {
        let (network, link, mut client) = linked().await;
        assert_eq!(&says(&mut client, b"open").await.unwrap(), b"open");
        network.change(&Node::Instance(1), |trouble| trouble.resets += 1);
        let ended = timeout(PATIENCE, client.read(&mut [0; 4])).await.expect("the reset reaches the client");
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let mut again = TcpStream::connect(link.address()).await.unwrap();
        assert_eq!(&says(&mut again, b"anew").await.unwrap(), b"anew");
    }

    #[tokio::test]
    async fn connection_of_an_unknown_process_has_only_the_faults_of_its_target() {
        let network = Network::default();
        network.register_process(&Node::Instance(1), std::process::id());
        network.register_process(&Node::Instance(1), u32::MAX);
        let link = Link::open(&network, None, Node::Store(2), echo().await, chance()).await.unwrap();
        let mut client = TcpStream::connect(link.address()).await.unwrap();
        assert_eq!(&says(&mut client, b"open").await.unwrap(), b"open");
        network.change(&Node::Instance(1), |trouble| trouble.resets += 1);
        assert_eq!(
            &says(&mut client, b"mine").await.unwrap(),
            b"mine",
            "another process is the instance now"
        );
        network.change(&Node::Store(2), |trouble| trouble.resets += 1);
        let ended = timeout(PATIENCE, client.read(&mut [0; 4])).await.expect("the reset reaches the client");
        assert!(ended.is_err(), "{ended:?}");
    }

    #[test]
    fn a_lost_piece_is_delayed_with_doubling_retransmissions() {
        let mut chance = chance();
        let trouble = NetworkFaults { loss: 1, ..NetworkFaults::default() };
        let late: Vec<Duration> = (0..10_000).map(|_| carry::draw_delay(trouble, &mut chance)).collect();
        let lost = late.iter().filter(|late| !late.is_zero()).count();
        assert!((900..1100).contains(&lost), "{lost}");
        let twice = late.iter().filter(|late| **late == Duration::from_millis(600)).count();
        assert!((50..150).contains(&twice), "{twice}");
        assert_eq!(carry::draw_delay(NetworkFaults::default(), &mut chance), Duration::ZERO);
    }
}
