//! An API server on loopback with scripted answers over plain HTTP; it records its requests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use madako_kubernetes::{ApiServer, ApiServerAccess, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

#[derive(Debug, Clone)]
pub(crate) struct RecordedRequest {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) head: String,
    pub(crate) body: String,
}

pub(crate) enum Reply {
    /// A complete answer.
    Whole(u16, String),
    Endless,
    /// Lines, each after so many milliseconds. The answer ends with them, or stays open.
    Lines {
        lines: Vec<(u64, String)>,
        stays_open: bool,
    },
    /// Half of a body.
    CutOff,
    /// No answer; the connection stays open.
    Hang,
}

/// A running server; dropping this stops it.
pub(crate) struct Fake {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<RecordedRequest>>>,
    task: JoinHandle<()>,
}

impl Fake {
    pub(crate) async fn start(reply: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let reply: Arc<dyn Fn(&RecordedRequest) -> Reply + Send + Sync> = Arc::new(reply);
        let all = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, Arc::clone(&reply), Arc::clone(&all)));
            }
        });
        Self { url, asked, task }
    }

    pub(crate) fn asked(&self) -> Vec<RecordedRequest> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn adapter(&self, limits: Limits) -> ApiServer {
        ApiServer::new(&self.access(), limits).unwrap()
    }

    pub(crate) fn access(&self) -> ApiServerAccess {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, crate::server::kubeconfig(&self.url, "{}", "{token: a-secret-token}")).unwrap();
        crate::server::restrict(&path);
        ApiServerAccess::read(&path).unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers one request of a connection. A disconnect of the client ends it.
async fn serve(
    stream: TcpStream,
    reply: Arc<dyn Fn(&RecordedRequest) -> Reply + Send + Sync>,
    all: Arc<Mutex<Vec<RecordedRequest>>>,
) {
    let mut stream = BufReader::new(stream);
    let Some(asked) = read(&mut stream).await else { return };
    all.lock().unwrap().push(asked.clone());
    let head = |status: u16, rest: &str| format!("HTTP/1.1 {status} x\r\nConnection: close\r\n{rest}\r\n");
    let text = match reply(&asked) {
        Reply::Whole(status, body) => {
            format!("{}{body}", head(status, &format!("Content-Length: {}\r\n", body.len())))
        }
        Reply::CutOff => format!("{}half", head(200, "Content-Length: 100\r\n")),
        Reply::Endless => {
            let mut sent = stream.write_all(head(200, "").as_bytes()).await;
            while sent.is_ok() {
                sent = stream.write_all(&[b' '; 64 * 1024]).await;
            }
            return;
        }
        Reply::Lines { lines, stays_open } => {
            let mut sent = stream.write_all(head(200, "").as_bytes()).await;
            for (after, line) in lines {
                tokio::time::sleep(Duration::from_millis(after)).await;
                sent = sent.and(stream.write_all(format!("{line}\n").as_bytes()).await);
            }
            match sent {
                Ok(()) if stays_open => return wait_for_end(&mut stream).await,
                _ => String::new(),
            }
        }
        Reply::Hang => return wait_for_end(&mut stream).await,
    };
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// Waits until the client leaves.
async fn wait_for_end(stream: &mut BufReader<TcpStream>) {
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<RecordedRequest> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut first = head.lines().next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let length = head.lines().filter_map(|line| line.split_once(':'));
    let mut length =
        length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length")).map(|(_, length)| length);
    let mut body = vec![0; length.next_back().map_or(0, |length| length.trim().parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    Some(RecordedRequest { method, target, head, body: String::from_utf8(body).unwrap() })
}
