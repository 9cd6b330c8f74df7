//! Sends HTTP requests over a simulated link: the state of the link decides whether a request is refused, unanswered,
//! late or reset.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use madako_protocol::ports::{HttpError, HttpRequest, HttpResponse, HttpTransport};
use tokio::time::{sleep, timeout};

use crate::link::Link;

/// A transport that makes a new connection over one link for each request.
pub struct LinkedTransport<T> {
    inner: T,
    link: Link,
    requests: Arc<AtomicU64>,
}

impl<T> LinkedTransport<T> {
    /// `requests` counts the answers of the other end, errors included. It does not count abandoned requests.
    pub fn new(inner: T, link: Link, requests: Arc<AtomicU64>) -> Self {
        Self { inner, link, requests }
    }
}

fn connection_error(url: &str, error: &io::Error) -> HttpError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            HttpError::Connect { url: url.to_owned(), why: "connection refused".to_owned() }
        }
        _ => HttpError::Truncated { url: url.to_owned(), why: "connection reset".to_owned() },
    }
}

impl<T: HttpTransport> LinkedTransport<T> {
    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let url = request.url.clone();
        let lost = |error: io::Error| connection_error(&url, &error);
        let generation = self.link.wait_until_passed().await.map_err(lost)?;
        // Two segments for the connection, one for the request.
        for _ in 0..3 {
            let latency = self.link.draw_latency();
            if !latency.is_zero() {
                sleep(latency).await;
            }
        }
        self.link.wait_until_passable(generation).await.map_err(lost)?;
        let answer = tokio::select! {
            biased;
            answer = self.inner.send(request) => {
                self.requests.fetch_add(1, Ordering::Relaxed);
                answer?
            }
            () = self.link.wait_until_broken(generation) => {
                return Err(connection_error(&url, &io::ErrorKind::ConnectionReset.into()));
            }
        };
        let latency = self.link.draw_latency();
        if !latency.is_zero() {
            sleep(latency).await;
        }
        self.link.wait_until_passable(generation).await.map_err(lost)?;
        Ok(answer)
    }
}

#[async_trait]
impl<T: HttpTransport> HttpTransport for LinkedTransport<T> {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (url, deadline) = (request.url.clone(), request.deadline);
        match timeout(deadline, self.exchange(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(HttpError::Deadline { url, deadline }),
        }
    }
}
