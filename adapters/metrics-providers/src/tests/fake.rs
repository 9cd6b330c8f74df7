//! Test support: an HTTP server on loopback with scripted answers; it records its requests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

#[derive(Debug, Clone)]
pub(super) struct RecordedRequest {
    pub(super) method: String,
    /// Path and query.
    pub(super) target: String,
    /// Names in lower case.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl RecordedRequest {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A parameter of the query, or of a form in the body.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        let query = self.target.split_once('?').map_or("", |(_, query)| query);
        let is_form = self.header("content-type") == Some("application/x-www-form-urlencoded");
        let form = if is_form { self.body.as_str() } else { "" };
        let pairs =
            url::form_urlencoded::parse(query.as_bytes()).chain(url::form_urlencoded::parse(form.as_bytes()));
        pairs.into_iter().find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
    }
}

#[derive(Debug, Clone)]
pub(super) enum Reply {
    /// A complete answer.
    Whole(u16, String),
    /// A body without end (a gibibyte, if the client reads it).
    Endless,
    /// A head that announces a gibibyte.
    Promise,
    /// Half of a body.
    CutOff,
    /// No answer; the connection stays open.
    Hang,
}

/// A running server; dropping this stops it.
pub(super) struct Fake {
    pub(super) url: String,
    asked: Arc<Mutex<Vec<RecordedRequest>>>,
    written: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Fake {
    pub(super) async fn start(reply: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (asked, written) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let reply: Arc<dyn Fn(&RecordedRequest) -> Reply + Send + Sync> = Arc::new(reply);
        let (all, count) = (Arc::clone(&asked), Arc::clone(&written));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, Arc::clone(&reply), Arc::clone(&all), Arc::clone(&count)));
            }
        });
        Self { url, asked, written, task }
    }

    pub(super) fn asked(&self) -> Vec<RecordedRequest> {
        self.asked.lock().unwrap().clone()
    }

    /// Bytes of endless bodies that were written before the client disconnected.
    pub(super) fn written(&self) -> usize {
        self.written.load(Ordering::SeqCst)
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
    written: Arc<AtomicUsize>,
) {
    let mut stream = BufReader::new(stream);
    let Some(asked) = read(&mut stream).await else { return };
    all.lock().unwrap().push(asked.clone());
    let head = |status: u16, rest: &str| format!("HTTP/1.1 {status} x\r\nConnection: close\r\n{rest}\r\n");
    let text = match reply(&asked) {
        Reply::Whole(status, body) => {
            format!("{}{body}", head(status, &format!("Content-Length: {}\r\n", body.len())))
        }
        Reply::Promise => head(200, "Content-Length: 1073741824\r\n"),
        Reply::CutOff => format!("{}half", head(200, "Content-Length: 100\r\n")),
        Reply::Endless => {
            let mut sent = stream.write_all(head(200, "").as_bytes()).await;
            let block = [b' '; 64 * 1024];
            while sent.is_ok() && written.load(Ordering::SeqCst) < 1 << 30 {
                sent = stream.write_all(&block).await;
                written.fetch_add(block.len(), Ordering::SeqCst);
            }
            return;
        }
        Reply::Hang => {
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            return;
        }
    };
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<RecordedRequest> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(0, |(_, length)| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(RecordedRequest { method, target, headers, body: String::from_utf8(body).unwrap() })
}
