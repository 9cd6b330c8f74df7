//! Rivers beside haproxy: requests a second and their p99, and bulk transfers, over loopback.
//!
//! `cargo bench --workspace --bench rivers` prints a table. Both proxies run at the same time and take turns in short
//! rounds, because other programs may use the machine; the table shows the medians of the rounds. A server and the
//! clients run in this process, on two threads. haproxy (Debian's package) runs in TCP mode with its defaults.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::print_stdout, reason = "a benchmark's output is its table")]

use std::io;
use std::net::{SocketAddr, TcpListener as Reserved};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Rounds of each proxy for each measure.
const ROUNDS: usize = 15;
/// Length of a round.
const ROUND: Duration = Duration::from_secs(1);
/// Connections with requests.
const CONNECTIONS: usize = 64;
/// Connections of a bulk transfer.
const BULK_CONNECTIONS: usize = 2;
const BODY: usize = 1024;
const CHUNK: usize = 256 * 1024;
/// Time for a proxy to start.
const START: Duration = Duration::from_secs(10);

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n";
const BULK: &[u8] = b"GET /bulk HTTP/1.1\r\nHost: bench\r\n\r\n";

/// Ends its process when it is dropped.
struct Proxy {
    name: &'static str,
    process: Child,
    address: SocketAddr,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The bench ends; a process that has ended already is fine.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A free address. The port is free again when the proxy binds it.
fn free_address() -> io::Result<SocketAddr> {
    Reserved::bind("127.0.0.1:0")?.local_addr()
}

fn start_rivers(upstream: SocketAddr) -> io::Result<Proxy> {
    let address = free_address()?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_madako-tools"));
    command.args(["rivers", &format!("--listen={address}"), &format!("--upstreams={upstream}")]);
    Ok(Proxy { name: "rivers", process: command.stderr(Stdio::null()).spawn()?, address })
}

fn start_haproxy(upstream: SocketAddr, directory: &std::path::Path) -> io::Result<Proxy> {
    let address = free_address()?;
    let file = directory.join("haproxy.cfg");
    let settings = format!(
        "global\n  maxconn 4096\ndefaults\n  mode tcp\n  timeout connect 10s\n  timeout client 1m\n  \
         timeout server 1m\nlisten rivers\n  bind {address}\n  balance random\n  server one {upstream} check\n"
    );
    std::fs::write(&file, settings)?;
    let program =
        if std::path::Path::new("/usr/sbin/haproxy").exists() { "/usr/sbin/haproxy" } else { "haproxy" };
    let mut command = Command::new(program);
    command.arg("-db").arg("-f").arg(file).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(Proxy { name: "haproxy", process: command.spawn()?, address })
}

/// Answers requests until the client ends.
async fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n").into_bytes();
    answer.resize(answer.len() + BODY, b'x');
    let chunk = vec![b'x'; CHUNK];
    let mut request = vec![0; REQUEST.len().max(BULK.len())];
    loop {
        let length = stream.read(&mut request).await?;
        match &request[..length] {
            [] => return Ok(()),
            received if received == REQUEST => stream.write_all(&answer).await?,
            received if received == BULK => loop {
                stream.write_all(&chunk).await?;
            },
            _ => return Err(io::Error::other("a request came in pieces")),
        }
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends one request after the other until the deadline. Returns the time of each.
async fn send_requests(address: SocketAddr, deadline: Instant) -> io::Result<Vec<Duration>> {
    let mut stream = connect(address).await?;
    let mut answer = vec![0; format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n").len() + BODY];
    let mut times = Vec::new();
    loop {
        let start = Instant::now();
        if start >= deadline {
            return Ok(times);
        }
        stream.write_all(REQUEST).await?;
        stream.read_exact(&mut answer).await?;
        times.push(start.elapsed());
    }
}

/// Reads a bulk transfer until the deadline. Returns the bytes.
async fn fetch(address: SocketAddr, deadline: Instant) -> io::Result<usize> {
    let mut stream = connect(address).await?;
    stream.write_all(BULK).await?;
    let mut buffer = vec![0; CHUNK];
    let mut bytes = 0;
    while Instant::now() < deadline {
        bytes += stream.read(&mut buffer).await?;
    }
    Ok(bytes)
}

/// Requests a second, and the p99 in microseconds.
async fn measure_requests(address: SocketAddr) -> io::Result<(f64, f64)> {
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        clients.spawn(send_requests(address, start + ROUND));
    }
    let mut times = Vec::new();
    for answered in clients.join_all().await {
        times.extend(answered?);
    }
    let elapsed = start.elapsed().as_secs_f64();
    times.sort_unstable();
    let p99 = times[times.len() * 99 / 100].as_secs_f64() * 1e6;
    Ok((times.len() as f64 / elapsed, p99))
}

/// MB a second.
async fn measure_throughput(address: SocketAddr) -> io::Result<f64> {
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..BULK_CONNECTIONS {
        clients.spawn(fetch(address, start + ROUND));
    }
    let mut bytes = 0;
    for fetched in clients.join_all().await {
        bytes += fetched?;
    }
    Ok(bytes as f64 / 1e6 / start.elapsed().as_secs_f64())
}

fn median_of(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn wait_until_ready(address: SocketAddr) -> io::Result<()> {
    let connected = async {
        while TcpStream::connect(address).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(START, connected).await.map_err(|_| io::Error::other("a proxy does not start"))
}

/// The medians of each of two proxies: requests a second, p99, MB a second.
async fn measure_proxies(proxies: &[Proxy; 2]) -> io::Result<[[f64; 3]; 2]> {
    let mut measured = [const { [const { Vec::new() }; 3] }; 2];
    for round in 0..ROUNDS {
        // Neither is always first.
        for at in [round % 2, 1 - round % 2] {
            let (rate, p99) = measure_requests(proxies[at].address).await?;
            measured[at][0].push(rate);
            measured[at][1].push(p99);
        }
        for at in [round % 2, 1 - round % 2] {
            measured[at][2].push(measure_throughput(proxies[at].address).await?);
        }
    }
    Ok(measured.map(|values| values.map(median_of)))
}

async fn run() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let upstream = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that ends in mid-answer is the end of a bulk round.
            tokio::spawn(async move { drop(serve(stream).await) });
        }
    });
    let directory = tempfile::tempdir()?;
    let Ok(beside) = start_haproxy(upstream, directory.path()) else {
        println!("haproxy is not installed (apt-get install haproxy): nothing is measured");
        return Ok(());
    };
    let proxies = [start_rivers(upstream)?, beside];
    for proxy in &proxies {
        wait_until_ready(proxy.address)
            .await
            .map_err(|error| io::Error::other(format!("{}: {error}", proxy.name)))?;
    }
    let [own, beside] = measure_proxies(&proxies).await?;
    println!("| Measure | Aim | rivers | haproxy in the same run | ratio |\n|---|---|---|---|---|");
    for (at, measure, aim) in [
        (0, "requests a second, 1 KiB, 64 connections", "at least 90 %"),
        (1, "p99 of these requests, microseconds", "at most 110 %"),
        (2, "bulk, MB a second, 2 connections", "at least 80 %"),
    ] {
        let ratio = own[at] / beside[at] * 100.0;
        println!("| {measure} | {aim} | {:.0} | {:.0} | {ratio:.0} % |", own[at], beside[at]);
    }
    Ok(())
}

fn main() -> io::Result<()> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(run())
}
