//! HTTP to the registry without a socket: the port `HttpTransport` over a pipe in memory.
//!
//! HTTP/1.1 and GraphQL really run, client and server both, so what a client makes of a spoiled answer is what
//! it would make of it on a network. Everything runs within the future of the request: nothing is spawned, and
//! dropping the future ends both sides.

use async_trait::async_trait;
use axum::Router;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::header::HOST;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use madako_protocol::ports::{HttpError, HttpMethod, HttpRequest, HttpResponse, HttpTransport};
use tokio::io::DuplexStream;

use crate::faults::FaultSwitch;
use crate::service::SimulatedRegistry;

/// Bytes that one side of the pipe may be ahead of the other, about what a socket holds.
const PIPE: usize = 64 * 1024;

/// An HTTP transport whose every request goes to one server, such as a simulated registry, whatever host its URL names.
#[derive(Debug, Clone)]
pub struct InMemoryHttp {
    router: Router,
    registry: FaultSwitch,
    link: FaultSwitch,
}

impl SimulatedRegistry {
    /// A transport to this registry, with a link of its own.
    #[must_use]
    pub fn in_memory(&self) -> InMemoryHttp {
        InMemoryHttp { router: self.router(), registry: self.faults().clone(), link: FaultSwitch::new() }
    }
}

impl InMemoryHttp {
    /// A transport whose every request goes to one router.
    #[must_use]
    pub fn to(router: Router) -> Self {
        Self { router, registry: FaultSwitch::new(), link: FaultSwitch::new() }
    }

    /// Faults of this transport's own way to the registry, beside those of the registry: refusal, hanging and
    /// slowness. Other faults have no effect here.
    #[must_use]
    pub fn link(&self) -> &FaultSwitch {
        &self.link
    }

    async fn exchange(&self, request: HttpRequest, shown: &str) -> Result<HttpResponse, HttpError> {
        self.link.delay().await;
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
        let answer = talk(ours, request, limit, shown);
        tokio::pin!(answer);
        // Either side may end first: the server when it cuts the answer off, the client when it has enough.
        let mut server = Some(Box::pin(server));
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                () = self.registry.until_refusing(true) => return Err(cut(shown, "connection reset")),
                () = self.link.until_refusing(true) => return Err(cut(shown, "connection reset")),
                // Its half of the pipe goes with it, so the client sees the end.
                () = finish(&mut server), if server.is_some() => server = None,
            }
        }
    }
}

#[async_trait]
impl HttpTransport for InMemoryHttp {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let shown = without_credentials(&request.url);
        let deadline = request.deadline;
        let exchange = Box::pin(self.exchange(request, &shown));
        match tokio::time::timeout(deadline, exchange).await {
            Ok(result) => result,
            Err(_) => Err(HttpError::Deadline { url: shown, deadline }),
        }
    }
}

/// Runs the server's side to its end; how it ends is for the client to notice.
async fn finish<E>(server: &mut Option<impl Future<Output = Result<(), E>> + Unpin>) {
    if let Some(server) = server {
        let _ = server.await;
    }
}

async fn talk(
    pipe: DuplexStream,
    request: Request<Full<Bytes>>,
    limit: usize,
    shown: &str,
) -> Result<HttpResponse, HttpError> {
    let broken = |error: hyper::Error| cut(shown, &error.to_string());
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
            // It hands what it met to the exchange before it ends.
            _ = &mut connection, if connected => connected = false,
        }
    }
}

fn to_hyper(request: HttpRequest) -> Result<Request<Full<Bytes>>, String> {
    let uri: Uri = request.url.parse().map_err(|error| format!("{error}"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("expected an http or https URL".to_owned());
    }
    let method = match request.method {
        HttpMethod::Get => "GET",
        HttpMethod::Post => "POST",
        HttpMethod::Put => "PUT",
    };
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let mut builder = Request::builder().method(method).uri(target);
    builder = builder.header(HOST, uri.host().unwrap_or_default());
    for (name, value) in &request.headers {
        builder = builder.header(name, value);
    }
    builder.body(Full::new(request.body)).map_err(|error| error.to_string())
}

fn cut(shown: &str, why: &str) -> HttpError {
    HttpError::Truncated { url: shown.to_owned(), why: why.to_owned() }
}

/// The URL as errors may show it.
fn without_credentials(url: &str) -> String {
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
