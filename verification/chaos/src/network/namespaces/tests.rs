//! Tests with two real network namespaces, where the machine allows them.

use std::fs;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use madako_protocol::causes::error_with_causes;

/// Far more than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Nothing may arrive for this long.
const SILENCE: Duration = Duration::from_millis(300);
/// Words exchanged between two reads of the counter.
const WORDS: u32 = 20;

const CLIENT: Node = Node::Instance(1);
const SERVER: Node = Node::Store(1);

#[tokio::test]
async fn packets_are_lost_on_the_wire_and_nothing_is_left() {
    let Some(namespaces) = made().await else { return };
    assert_eq!(devices().len(), 1);
    let listener = namespaces.listen(&SERVER).await.unwrap();
    let at = listener.local_addr().unwrap();
    let server = echo(listener);
    let mut client = connected(&namespaces, &CLIENT, at, PATIENCE).await.unwrap();
    let from = client.local_addr().unwrap();
    assert_eq!(namespaces.node_at_address(from.ip()), Some(CLIENT));
    assert_eq!(namespaces.node_at_address(Ipv4Addr::LOCALHOST.into()), None);
    says(&mut client, b"open").await;
    for node in [CLIENT, SERVER] {
        cut_off(&namespaces, &node, &mut client, at).await;
        lossy(&namespaces, &node, &mut client).await;
    }
    let error = namespaces.set_packet_loss(&Node::Registry, DroppedShare::All, true).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot drop packets of registry: it has no network namespace");

    let mut spaces: Vec<&NetworkNamespace> = namespaces.sites.values().map(|site| &site.space).collect();
    spaces.push(&namespaces.hub);
    let held: Vec<PathBuf> =
        spaces.into_iter().map(|space| fs::read_link(space.file_path()).unwrap()).collect();
    assert!(held.iter().all(|namespace| is_held(namespace)), "{held:?}");
    server.abort();
    drop((client, namespaces));
    until("nothing is left", async || devices().is_empty() && !held.iter().any(|it| is_held(it))).await;
    dropped_in_the_middle().await;
}

/// Nothing passes a cut, without notice, and data sent meanwhile arrives afterwards. Observers are not cut off.
async fn cut_off(namespaces: &Namespaces, node: &Node, client: &mut TcpStream, at: SocketAddr) {
    let before = namespaces.count_dropped_packets(node, DroppedShare::All).await.unwrap();
    // Two cuts: they hold until both are over.
    for _ in 0..2 {
        namespaces.set_packet_loss(node, DroppedShare::All, true).await.unwrap();
    }
    namespaces.set_packet_loss(node, DroppedShare::All, false).await.unwrap();
    client.write_all(b"late").await.unwrap();
    until("it is counted", async || {
        namespaces.count_dropped_packets(node, DroppedShare::All).await.unwrap() > before
    })
    .await;
    let mut heard = [0; 4];
    assert!(timeout(SILENCE, client.read_exact(&mut heard)).await.is_err(), "{node}: nothing passes a cut");
    let attempt = connected(namespaces, &CLIENT, at, SILENCE).await;
    assert_eq!(
        attempt.unwrap_err().kind(),
        io::ErrorKind::TimedOut,
        "{node}: a cut drops packets without an answer"
    );
    let home = SocketAddr::from((namespaces.faultless_address(node).unwrap(), 0));
    let space = &namespaces.sites[node].space;
    let past = space.run_inside(move || TcpListener::bind(home)).await.unwrap().local_addr();
    // Without a listener the connection is refused at once: packets arrive.
    let message = timeout(PATIENCE, TcpStream::connect(past.unwrap())).await.unwrap();
    assert_eq!(message.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    namespaces.set_packet_loss(node, DroppedShare::All, false).await.unwrap();
    hears(client, b"late").await;
}

/// Dropped packets are retransmitted: all data arrives.
async fn lossy(namespaces: &Namespaces, node: &Node, client: &mut TcpStream) {
    assert_eq!(namespaces.count_dropped_packets(node, DroppedShare::Some).await.unwrap(), 0);
    namespaces.set_packet_loss(node, DroppedShare::Some, true).await.unwrap();
    let began = Instant::now();
    while namespaces.count_dropped_packets(node, DroppedShare::Some).await.unwrap() == 0 {
        assert!(began.elapsed() < PATIENCE, "{node}: nothing was lost within {PATIENCE:?}");
        for _ in 0..WORDS {
            says(client, b"more").await;
        }
    }
    namespaces.set_packet_loss(node, DroppedShare::Some, false).await.unwrap();
    says(client, b"done").await;
}

/// Namespaces whose making is cancelled leave nothing behind either.
async fn dropped_in_the_middle() {
    let nodes = [CLIENT, SERVER];
    let mut making = Box::pin(Namespaces::create_and_test(&nodes));
    tokio::select! {
        biased;
        () = until("a device", async || !devices().is_empty()) => drop(making),
        made = &mut making => drop(made.unwrap()),
    }
    until("nothing is left", async || devices().is_empty()).await;
}

/// `None`: the machine does not allow namespaces. CI must allow them.
async fn made() -> Option<Namespaces> {
    match Namespaces::create_and_test(&[CLIENT, SERVER]).await {
        Ok(made) => Some(made),
        Err(error) => {
            let why = error_with_causes(&error);
            assert!(std::env::var_os("CI").is_none(), "CI must not do without namespaces: {why}");
            println!("skipped: {why}");
            None
        }
    }
}

fn echo(listener: TcpListener) -> JoinHandle<()> {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut from, mut to) = stream.split();
        // The test ends the connection.
        let _ = tokio::io::copy(&mut from, &mut to).await;
    })
}

async fn connected(
    namespaces: &Namespaces,
    from: &Node,
    to: SocketAddr,
    within: Duration,
) -> io::Result<TcpStream> {
    let space = &namespaces.sites[from].space;
    let stream = space.run_inside(move || Connection::connect_timeout(&to, within)).await?;
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}

async fn says(stream: &mut TcpStream, word: &[u8; 4]) {
    stream.write_all(word).await.unwrap();
    hears(stream, word).await;
}

async fn hears(stream: &mut TcpStream, word: &[u8; 4]) {
    let mut heard = [0; 4];
    timeout(PATIENCE, stream.read_exact(&mut heard)).await.expect("it answers").unwrap();
    assert_eq!(&heard, word);
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < PATIENCE, "{what} within {PATIENCE:?}");
        sleep(GLANCE).await;
    }
}

/// Devices from here to namespaces that this process has made.
fn devices() -> Vec<PathBuf> {
    let alias = format!("madako-chaos, process {}", std::process::id());
    let all = fs::read_dir("/sys/class/net").unwrap().flatten().map(|entry| entry.path());
    // A device may disappear meanwhile.
    all.filter(|at| fs::read_to_string(at.join("ifalias")).is_ok_and(|said| said.trim() == alias)).collect()
}

/// True if a process is in a namespace, or holds it open.
fn is_held(namespace: &Path) -> bool {
    let is_it = |link: PathBuf| fs::read_link(link).is_ok_and(|to| to == namespace);
    fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).any(|process| {
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        is_it(process.join("ns/net")) || open.map(|file| file.path()).any(is_it)
    })
}
