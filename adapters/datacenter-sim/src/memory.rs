//! HTTP to the registry without a socket: the port `HttpTransport` over a pipe in memory.
//!
//! Client and server run real HTTP/1.1 and GraphQL, so a client treats a spoiled answer as it would on a network.
//! Everything runs within the future of the request: no task is spawned, and dropping the future ends both sides.

use async_trait::async_trait;
use axum::Router;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::header::HOST;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use madako_protocol::ports::{HttpError, HttpRequest, HttpResponse, HttpTransport};
use tokio::io::DuplexStream;

use crate::faults::FaultSwitch;
use crate::service::SimulatedRegistry;

/// Capacity of the pipe in bytes per direction, about that of a socket buffer.
const PIPE: usize = 64 * 1024;

/// HTTP transport that sends every request to one server, such as a simulated registry, regardless of the host in its
/// URL.
#[derive(Debug, Clone)]
pub struct InMemoryHttp {
    router: Router,
    registry: FaultSwitch,
    link: FaultSwitch,
}

impl SimulatedRegistry {
    /// A transport to this registry with its own link.
    #[must_use]
    pub fn open_in_memory_transport(&self) -> InMemoryHttp {
        InMemoryHttp { router: self.router(), registry: self.faults().clone(), link: FaultSwitch::new() }
    }
}

impl InMemoryHttp {
    /// A transport that sends every request to one router.
    #[must_use]
    pub fn for_router(router: Router) -> Self {
        Self { router, registry: FaultSwitch::new(), link: FaultSwitch::new() }
    }

    /// Faults of this transport's own link, in addition to those of the registry. Only refusal, hanging and slowness
    /// have an effect here.
    #[must_use]
    pub fn link(&self) -> &FaultSwitch {
        &self.link
    }

    async fn exchange(&self, request: HttpRequest, shown: &str) -> Result<HttpResponse, HttpError> {
        self.link.wait_for_faults().await;
        let refused = || HttpError::Connect { url: shown.to_owned(), why: "connection refused".to_owned() };
        if self.registry.is_refusing() || self.link.is_refusing() {
            return Err(refused());
        }
        let limit = request.max_response_bytes;
        let request = to_hyper(request).map_err(|why| HttpError::Invalid { url: shown.to_owned(), why })?;
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let service = TowerToHyperService::new(self.router.clone());
        let server =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(theirs), service);
        let answer = exchange_in_memory(ours, request, limit, shown);
        tokio::pin!(answer);
        // Either side may end first: the server when it cuts off the answer, the client when it has read enough.
        let mut server = Some(Box::pin(server));
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                () = self.registry.wait_until_refusing(true) => return Err(cut_answer(shown, "connection reset")),
                () = self.link.wait_until_refusing(true) => return Err(cut_answer(shown, "connection reset")),
                // Dropping the server drops its half of the pipe, so the client sees the end.
                () = finish_server(&mut server), if server.is_some() => server = None,
            }
        }
    }
}

#[async_trait]
impl HttpTransport for InMemoryHttp {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let shown = hide_credentials(&request.url);
        let deadline = request.deadline;
        let exchange = Box::pin(self.exchange(request, &shown));
        match tokio::time::timeout(deadline, exchange).await {
            Ok(result) => result,
            Err(_) => Err(HttpError::Deadline { url: shown, deadline }),
        }
    }
}

/// Runs the server's side to its end. The client notices its errors.
async fn finish_server<E>(server: &mut Option<impl Future<Output = Result<(), E>> + Unpin>) {
    if let Some(server) = server {
        let _ = server.await;
    }
}

async fn exchange_in_memory(
    pipe: DuplexStream,
    request: Request<Full<Bytes>>,
    limit: usize,
    shown: &str,
) -> Result<HttpResponse, HttpError> {
    let broken = |error: hyper::Error| cut_answer(shown, &error.to_string());
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(pipe)).await.map_err(broken)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let (parts, mut incoming) = response.into_parts();
        let mut body = BytesMut::new();
        while let Some(frame) = incoming.frame().await {
            let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
            if body.len() + data.len() > limit {
                return Err(HttpError::TooLarge { url: shown.to_owned(), limit });
            }
            body.extend_from_slice(&data);
        }
        let headers = parts
            .headers
            .iter()
            .map(|(name, value)| {
                (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
            })
            .collect();
        Ok(HttpResponse { status: parts.status.as_u16(), headers, body: body.freeze() })
    };
    tokio::pin!(exchange, connection);
    let mut connected = true;
    loop {
        tokio::select! {
            biased;
            answer = &mut exchange => return answer,
            // The connection reports its error to the exchange before it ends.
            _ = &mut connection, if connected => connected = false,
        }
    }
}

fn to_hyper(request: HttpRequest) -> Result<Request<Full<Bytes>>, String> {
    let uri: Uri = request.url.parse().map_err(|error| format!("{error}"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("expected an http or https URL".to_owned());
    }
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let mut builder = Request::builder().method(request.method.name()).uri(target);
    builder = builder.header(HOST, uri.host().unwrap_or_default());
    for (name, value) in &request.headers {
        builder = builder.header(name, value);
    }
    builder.body(Full::new(request.body)).map_err(|error| error.to_string())
}

fn cut_answer(shown: &str, why: &str) -> HttpError {
    HttpError::Truncated { url: shown.to_owned(), why: why.to_owned() }
}

/// The URL without credentials, for error messages.
fn hide_credentials(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{path}")
        }
        None => "(not a URL)".to_owned(),
    }
}
