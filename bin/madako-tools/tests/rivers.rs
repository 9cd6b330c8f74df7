//! Tests of rivers as a process, between clients and upstreams on loopback.

use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

const PROGRAM: &str = env!("CARGO_BIN_EXE_madako-tools");
/// Time after which a test fails that waits for an event.
const PATIENCE: Duration = Duration::from_secs(60);

/// Awaits an event that must happen.
async fn soon<T>(event: impl Future<Output = T>) -> T {
    timeout(PATIENCE, event).await.expect("the event happens in time")
}

struct Rivers {
    process: Child,
    log: Lines<BufReader<ChildStderr>>,
    address: SocketAddr,
}

impl Rivers {
    /// Starts rivers and waits until they listen.
    async fn start(upstreams: &[SocketAddr], flags: &[&str]) -> Self {
        Self::start_by(Command::new(PROGRAM), upstreams, flags).await
    }

    /// Starts rivers by a command to which their words are added.
    async fn start_by(mut command: Command, upstreams: &[SocketAddr], flags: &[&str]) -> Self {
        let upstreams = upstreams.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
        let mut process = command
            .args(["rivers", "--listen=127.0.0.1:0", "--upstreams", &upstreams])
            .args(flags)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        let log = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        let mut rivers = Self { process, log, address: SocketAddr::from(([0, 0, 0, 0], 0)) };
        let line = rivers.logged("rivers listen").await;
        let address = line.split("address=\"").nth(1).and_then(|rest| rest.split('"').next());
        rivers.address = address.and_then(|address| address.parse().ok()).expect("the log names the address");
        rivers
    }

    /// The next line of the log with this text.
    async fn logged(&mut self, text: &str) -> String {
        soon(async {
            loop {
                let line = self.log.next_line().await.expect("a readable log");
                let line = line.unwrap_or_else(|| panic!("the log ends without {text:?}"));
                if line.contains(text) {
                    return line;
                }
            }
        })
        .await
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("rivers listen")
    }

    fn signal(&self, signal: Signal) {
        let pid = self.process.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("it runs");
        kill_process(pid, signal).expect("it runs");
    }

    async fn ended(&mut self) -> ExitStatus {
        soon(self.process.wait()).await.expect("the program ends")
    }
}

async fn upstream() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
    let address = listener.local_addr().expect("a bound listener has an address");
    (listener, address)
}

/// The next connection that carries bytes; health checks carry none.
async fn accepted(listener: &TcpListener) -> (TcpStream, u8) {
    soon(async {
        loop {
            let (mut stream, _) = listener.accept().await.expect("an open listener");
            if let Ok(first) = stream.read_u8().await {
                return (stream, first);
            }
        }
    })
    .await
}

/// True if the connection has ended, with a reset or without.
async fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(
        soon(stream.read_u8()).await.map_err(|error| error.kind()),
        Err(std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset)
    )
}

#[tokio::test]
async fn connections_pass_over_a_dead_upstream() {
    let (dead, dead_address) = upstream().await;
    let (alive, alive_address) = upstream().await;
    drop(dead);
    let rivers = Rivers::start(&[dead_address, alive_address], &["--check-interval=1h"]).await;
    for number in 0..20 {
        let mut client = rivers.connect().await;
        client.write_u8(number).await.expect("rivers are alive");
        let (mut served, first) = accepted(&alive).await;
        assert_eq!(first, number);
        served.write_u8(number + 100).await.expect("rivers are alive");
        assert_eq!(soon(client.read_u8()).await.expect("an answer"), number + 100);
    }
}

#[tokio::test]
async fn an_upstream_that_starts_after_all_were_unhealthy_gets_the_next_connection() {
    let (dead, dead_address) = upstream().await;
    let (late, late_address) = upstream().await;
    drop((dead, late));
    let mut rivers = Rivers::start(&[dead_address, late_address], &["--check-interval=1h"]).await;
    rivers.logged("the upstream is unhealthy").await;
    rivers.logged("the upstream is unhealthy").await;
    assert!(is_closed(&mut rivers.connect().await).await);
    let late = TcpListener::bind(late_address).await.expect("the port is free again");
    let mut client = rivers.connect().await;
    client.write_u8(7).await.expect("rivers are alive");
    let (mut served, first) = accepted(&late).await;
    served.write_u8(first + 1).await.expect("rivers are alive");
    assert_eq!(soon(client.read_u8()).await.expect("an answer"), 8);
    rivers.logged("the upstream is healthy").await;
}

#[tokio::test]
async fn connections_reach_every_upstream() {
    let (one, one_address) = upstream().await;
    let (other, other_address) = upstream().await;
    let rivers = Rivers::start(&[one_address, other_address], &["--check-interval=1h"]).await;
    let (mut at_one, mut at_other) = (0, 0);
    // The generator has a random seed: all connections reach the same upstream once in 2^63 runs.
    for number in 0..64 {
        let mut client = rivers.connect().await;
        client.write_u8(number).await.expect("rivers are alive");
        tokio::select! {
            _ = accepted(&one) => at_one += 1,
            _ = accepted(&other) => at_other += 1,
        }
    }
    assert!(at_one > 0 && at_other > 0, "{at_one} and {at_other}");
}

#[tokio::test]
async fn an_upstream_that_turns_unhealthy_loses_its_connections_and_comes_back() {
    let (listener, address) = upstream().await;
    let mut rivers = Rivers::start(&[address], &["--check-interval=50ms"]).await;
    rivers.logged("the upstream is healthy").await;
    let mut client = rivers.connect().await;
    client.write_u8(1).await.expect("rivers are alive");
    let (served, _) = accepted(&listener).await;
    drop(listener);
    rivers.logged("the upstream is unhealthy").await;
    assert!(is_closed(&mut client).await, "the connection through the lost upstream");
    assert!(is_closed(&mut rivers.connect().await).await, "a connection without an upstream");
    drop(served);
    let again = TcpListener::bind(address).await.expect("the port is free");
    rivers.logged("the upstream is healthy").await;
    let mut client = rivers.connect().await;
    client.write_u8(2).await.expect("rivers are alive");
    assert_eq!(accepted(&again).await.1, 2);
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_until_another_ends() {
    let (listener, address) = upstream().await;
    // Of 70 files, 64 are reserved, and a connection has two.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 70; exec \"$@\"", "sh", PROGRAM]);
    let mut rivers = Rivers::start_by(limited, &[address], &["--check-interval=1h"]).await;
    let mut open = Vec::new();
    for number in 0..3 {
        let mut client = rivers.connect().await;
        client.write_u8(number).await.expect("rivers are alive");
        open.push((client, accepted(&listener).await));
    }
    assert!(rivers.logged("no more connections are accepted").await.contains("connections=\"3\""));
    let mut waiting = rivers.connect().await;
    waiting.write_u8(3).await.expect("the kernel takes it");
    drop(open.pop());
    assert_eq!(accepted(&listener).await.1, 3);
}

#[tokio::test]
async fn half_closes_are_passed_on() {
    let (listener, address) = upstream().await;
    let rivers = Rivers::start(&[address], &["--check-interval=1h"]).await;
    let mut client = rivers.connect().await;
    client.write_all(b"question").await.expect("rivers are alive");
    client.shutdown().await.expect("rivers are alive");
    let (mut served, _) = accepted(&listener).await;
    let mut question = Vec::new();
    soon(served.read_to_end(&mut question)).await.expect("the half-close arrives");
    assert_eq!(question, b"uestion");
    served.write_all(b"answer").await.expect("the other half is open");
    drop(served);
    let mut answer = Vec::new();
    soon(client.read_to_end(&mut answer)).await.expect("the end arrives");
    assert_eq!(answer, b"answer");
}

#[tokio::test]
async fn sigterm_waits_for_the_end_of_a_transfer() {
    let (listener, address) = upstream().await;
    let mut rivers = Rivers::start(&[address], &["--shutdown-timeout=0", "--check-interval=1h"]).await;
    let mut client = rivers.connect().await;
    client.write_u8(1).await.expect("rivers are alive");
    let (mut served, _) = accepted(&listener).await;
    rivers.signal(Signal::TERM);
    rivers.logged("rivers stop").await;
    let refused = TcpStream::connect(rivers.address).await.expect_err("the listener is closed");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let content = vec![7; 8 << 20];
    let (sent, received) = tokio::join!(
        async {
            served.write_all(&content).await?;
            served.shutdown().await
        },
        async {
            let mut received = Vec::new();
            soon(client.read_to_end(&mut received)).await.map(|_| received)
        },
    );
    sent.expect("the connection lives");
    assert!(received.expect("the connection lives") == content, "all bytes arrive");
    drop(client);
    assert_eq!(rivers.ended().await.code(), Some(0));
}

#[tokio::test]
async fn shutdown_timeout_or_a_second_signal_cuts_connections() {
    for (flag, is_signalled_again) in [("--shutdown-timeout=50ms", false), ("--shutdown-timeout=0", true)] {
        let (listener, address) = upstream().await;
        let mut rivers = Rivers::start(&[address], &[flag, "--check-interval=1h"]).await;
        let mut client = rivers.connect().await;
        client.write_u8(1).await.expect("rivers are alive");
        let (mut served, _) = accepted(&listener).await;
        rivers.signal(Signal::TERM);
        rivers.logged("rivers stop").await;
        if is_signalled_again {
            rivers.signal(Signal::INT);
        }
        rivers.logged("rivers cut connections").await;
        assert!(is_closed(&mut client).await && is_closed(&mut served).await, "{flag}");
        assert_eq!(rivers.ended().await.code(), Some(0), "{flag}");
    }
}
