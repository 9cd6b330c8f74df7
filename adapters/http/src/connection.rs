//! Serves one HTTP connection: each request has a deadline and a log line, and a client that stops reading is cut off
//! after a limit.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, StatusCode};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tower::ServiceExt;

use crate::limits::LOGGED_PATH_MAX_BYTES;
use crate::placement::{ClientCertificate, ServerClosing, additional_wait, deadline_response};
use crate::routes::problem_response;
use crate::server::Limits;
use crate::telemetry::{madako_http_request_seconds, madako_http_requests_total};

/// First path segments of placement's API.
const API_GROUPS: [&str; 4] = ["/core", "/infrastructure", "/kubernetes", "/openstack"];

pub(crate) struct Client {
    pub(crate) peer: String,
    pub(crate) certificate: Option<ClientCertificate>,
}

/// Answers the requests of a connection until it ends, or until `closing` is set and the current request is answered.
pub(crate) async fn answer_connection<Io>(
    io: Io,
    Client { peer, certificate }: Client,
    router: Router,
    limits: Limits,
    mut closing: watch::Receiver<bool>,
) where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(WriteTimeout::new(io, limits.write_stall));
    let closes = ServerClosing::new(closing.clone());
    let service = service_fn(|request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(closes.clone());
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        let deadline = limits.request + additional_wait(request.uri());
        answer_one(&peer, router.clone(), deadline, request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_read)
        .max_buf_size(limits.header_bytes)
        .serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => Some(ended),
        // An error means that the server is gone, which closes as well.
        _ = closing.wait_for(|closing| *closing) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // A client that disconnects or is too slow is not an event for an operator.
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

async fn answer_one(
    peer: &str,
    router: Router,
    deadline: Duration,
    request: Request,
) -> Result<Response, Infallible> {
    let began = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let id = request.headers().get(HeaderName::from_static("x-cybozu-request-id")).cloned();
    let response = match tokio::time::timeout(deadline, router.oneshot(request)).await {
        Ok(Ok(response)) => response,
        // Pages use CKE's format of problems, the API uses Krake's.
        Err(_) if API_GROUPS.contains(&endpoint_label(&path)) => deadline_response(),
        Err(_) => problem_response(StatusCode::SERVICE_UNAVAILABLE, "no answer in time", id.as_ref()),
    };
    let status = response.status().as_u16();
    let took = began.elapsed();
    madako_http_requests_total(endpoint_label(&path), status.to_string()).increment(1);
    // The time until the answer begins, because the end of a watch is not meaningful.
    madako_http_request_seconds(endpoint_label(&path)).record(took);
    let shown = &path[..path.floor_char_boundary(LOGGED_PATH_MAX_BYTES)];
    let shown = shown.escape_debug();
    // Only visible characters are logged; the field is missing for a request without an id.
    let request_id = id.as_ref().and_then(|id| id.to_str().ok());
    match status {
        500.. => {
            tracing::warn!(peer, %method, path = %shown, status, ?took, request_id, "a request was answered")
        }
        _ => {
            tracing::debug!(peer, %method, path = %shown, status, ?took, request_id, "a request was answered")
        }
    }
    Ok(response)
}

/// Few values for all paths, because each value of a label is a series of its own.
fn endpoint_label(path: &str) -> &'static str {
    match path {
        "/health" => "/health",
        "/version" => "/version",
        "/metrics" => "/metrics",
        _ => {
            let group = path.split('/').nth(1).unwrap_or_default();
            API_GROUPS.into_iter().find(|known| known[1..] == *group).unwrap_or("other")
        }
    }
}

/// Fails a write if the client does not read for too long. hyper limits only reads.
struct WriteTimeout<Io> {
    io: Io,
    limit: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<Io> WriteTimeout<Io> {
    fn new(io: Io, limit: Duration) -> Self {
        Self { io, limit, stalled: None }
    }

    /// Turns `Pending` into an error after the whole limit without progress.
    fn limit_write<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.stalled = None;
            return poll;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(stalled.as_mut().poll(cx));
        self.stalled = None;
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for WriteTimeout<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.limit_write(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.limit_write(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_flush(cx);
        self.limit_write(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_shutdown(cx);
        self.limit_write(cx, poll)
    }
}
