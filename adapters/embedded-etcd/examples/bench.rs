//! Benchmark of the embedded store against a real etcd: `cargo run --release -p madako-embedded-etcd --example bench`.
//!
//! Each server is a process of its own on loopback. Both use the same disk and the same client, and take turns. Puts
//! have new keys and values of 1.7 KB (a node of a cluster's configuration); every client has its own connection.
#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, Options};
use tokio::process::{Child, Command};
use tokio::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const VALUE_BYTES: usize = 1_700;
const CLIENTS: [usize; 3] = [1, 32, 128];
/// Measured time of one turn.
const PUT_TIME: Duration = Duration::from_secs(3);
/// Turns of each server; the median counts.
const TURNS: usize = 3;
const GETS: usize = 3_000;
const RANGE_KEYS: usize = 2_000;
const RANGES: usize = 20;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match arguments.next().as_deref() {
        Some("serve") => {
            let directory = arguments.next().ok_or("the directory is missing")?;
            let address: SocketAddr = arguments.next().ok_or("the address is missing")?.parse()?;
            runtime.block_on(serve(directory, address))
        }
        _ => runtime.block_on(compare()),
    }
}

async fn serve(directory: String, address: SocketAddr) -> Outcome<()> {
    let store = EmbeddedEtcd::open(Options::new(Backend::File(directory.into()), Commit::Thread, 1))?;
    let _server = store.serve(address, None).await?;
    tokio::signal::ctrl_c().await?;
    store.shutdown().await;
    Ok(())
}

struct Peer {
    name: &'static str,
    url: String,
    child: Child,
}

async fn compare() -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let peers = [start_embedded(directory.path())?, start_etcd(directory.path())?];
    for peer in &peers {
        peer.connect_client().await?;
    }
    println!("{:<34} {:>14} {:>14} {:>7}", "", peers[0].name, peers[1].name, "ratio");
    for clients in CLIENTS {
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..TURNS {
            for (peer, rates) in peers.iter().zip(&mut rates) {
                rates.push(puts_per_second(peer, clients).await?);
            }
        }
        let [embedded, etcd] = rates.map(median_of);
        print_row(&format!("puts of 1.7 KB, {clients} clients"), "/s", embedded, etcd, embedded / etcd);
    }
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (peer, times) in peers.iter().zip(&mut times) {
            times.push(get_micros(peer).await?);
        }
    }
    let [embedded, etcd] = times.map(median_of);
    print_row("get of one key, median", "us", embedded, etcd, etcd / embedded);
    let mut times = [Vec::new(), Vec::new()];
    for peer in &peers {
        fill_range(peer).await?;
    }
    for _ in 0..TURNS {
        for (peer, times) in peers.iter().zip(&mut times) {
            times.push(range_micros(peer).await?);
        }
    }
    let [embedded, etcd] = times.map(median_of);
    print_row("range of 2,000 such keys, median", "us", embedded, etcd, etcd / embedded);
    for peer in &peers {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", peer.child.id().unwrap_or_default()))?;
        let resident = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
        println!("{:<34} {resident}", format!("resident memory, {}", peer.name));
    }
    Ok(())
}

fn print_row(what: &str, unit: &str, embedded: f64, etcd: f64, ratio: f64) {
    println!("{what:<34} {embedded:>11.0} {unit:>2} {etcd:>11.0} {unit:>2} {ratio:>7.2}");
}

fn median_of(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

impl Peer {
    async fn connect_client(&self) -> Outcome<Client> {
        let start = Instant::now();
        loop {
            let error = match Client::connect([&self.url], None).await {
                Ok(mut client) => match client.status().await {
                    Ok(_) => return Ok(client),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if start.elapsed() > Duration::from_secs(10) {
                return Err(format!("{} does not answer: {error}", self.name).into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn free_port() -> Outcome<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn start_embedded(directory: &Path) -> Outcome<Peer> {
    let port = free_port()?;
    let child = Command::new(std::env::current_exe()?)
        .arg("serve")
        .arg(directory.join("embedded"))
        .arg(format!("127.0.0.1:{port}"))
        .kill_on_drop(true)
        .spawn()?;
    Ok(Peer { name: "embedded", url: format!("http://127.0.0.1:{port}"), child })
}

fn start_etcd(directory: &Path) -> Outcome<Peer> {
    let (port, peer_port) = (free_port()?, free_port()?);
    let (url, peer_url) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
    let child = Command::new("etcd")
        .args(["--name", "real", "--log-level", "error", "--logger", "zap"])
        .arg("--data-dir")
        .arg(directory.join("etcd"))
        .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
        .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
        .args(["--initial-cluster", &format!("real={peer_url}")])
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok(Peer { name: "etcd", url, child })
}

async fn puts_per_second(peer: &Peer, clients: usize) -> Outcome<f64> {
    let mut connected = Vec::new();
    for _ in 0..clients {
        connected.push(peer.connect_client().await?);
    }
    let start = Instant::now();
    let end = start + PUT_TIME;
    let tasks: Vec<_> = connected
        .into_iter()
        .enumerate()
        .map(|(number, mut client)| {
            tokio::spawn(async move {
                let value = vec![b'v'; VALUE_BYTES];
                let mut done = 0_u64;
                while Instant::now() < end {
                    client.put(format!("bench/{clients}/{number}/{done}"), value.clone(), None).await?;
                    done += 1;
                }
                Ok::<_, etcd_client::Error>(done)
            })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        done += task.await??;
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

async fn get_micros(peer: &Peer) -> Outcome<f64> {
    let mut client = peer.connect_client().await?;
    let mut times = Vec::with_capacity(GETS);
    for number in 0..GETS {
        let key = format!("bench/1/0/{}", number % 500);
        let start = Instant::now();
        let response = client.get(key, None).await?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        assert_eq!(response.count(), 1);
    }
    Ok(median_of(times))
}

async fn fill_range(peer: &Peer) -> Outcome<()> {
    let mut client = peer.connect_client().await?;
    for number in 0..RANGE_KEYS {
        client.put(format!("range/{number:05}"), vec![b'r'; VALUE_BYTES], None).await?;
    }
    Ok(())
}

async fn range_micros(peer: &Peer) -> Outcome<f64> {
    let mut client = peer.connect_client().await?;
    let mut times = Vec::with_capacity(RANGES);
    for _ in 0..RANGES {
        let start = Instant::now();
        let response = client.get("range/", Some(GetOptions::new().with_prefix())).await?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        assert_eq!(response.kvs().len(), RANGE_KEYS);
    }
    Ok(median_of(times))
}
