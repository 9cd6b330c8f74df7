//! Watch clients of the placement API: each watches all applications at one instance, lists them through the same
//! instance, and records both. When the watch breaks, it continues at the next instance.
//!
//! The API has no watch from a revision. So the watch opens before the list is requested, as Krake's clients do: a
//! write between the two is in both, and no write is in neither.
//!
//! At the end of a run each follower lists once more and reads until it has received the heartbeats that the instance
//! sent after that list. A watch sends pending events before a heartbeat, so that it has then delivered everything in
//! the list.

use std::net::SocketAddr;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::clients::{ApiEndpoints, list_path};
use crate::history::{Event, History};
use crate::web::{self, LineStream, RequestError, WebRequest};

/// More followers than the usual number of instances, so that two watch the same one at times.
pub(crate) const FOLLOWERS: u32 = 4;
/// Time limit for the head of a watch, and for a list.
const WITHIN: Duration = Duration::from_secs(5);
/// Requested heartbeat interval: the shortest that the API allows.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A watch without a heartbeat for this long is abandoned.
const SILENCE: Duration = Duration::from_secs(5);
/// Pause before the next instance is tried.
const AGAIN: Duration = Duration::from_millis(500);
/// Heartbeats awaited after the last list: the first may have been sent before the list was answered.
const SIGNS: u32 = 2;
/// Time limit of the last watch at the end of a run, without faults.
const LAST_WITHIN: Duration = Duration::from_secs(30);

pub(crate) async fn follow_applications(
    number: u32,
    endpoints: ApiEndpoints,
    history: History,
    stop: watch::Receiver<bool>,
) {
    let mut follower = Follower { number, history, stop };
    let mut ends: Option<Instant> = None;
    for (instance, endpoint) in endpoints.iter().cycle().skip(number as usize) {
        let why = match follower.listen(*instance, *endpoint).await {
            Ok(()) => None,
            Err(error) => Some(error.to_string()),
        };
        let over = why.is_none();
        follower.history.note(Event::Closed { follower: number, why });
        if *follower.stop.borrow() {
            let ends = *ends.get_or_insert_with(|| Instant::now() + LAST_WITHIN);
            if over || Instant::now() >= ends {
                return;
            }
        }
        sleep(AGAIN).await;
    }
}

struct Follower {
    number: u32,
    history: History,
    stop: watch::Receiver<bool>,
}

impl Follower {
    /// Watches through one instance until the run is over and everything was delivered.
    async fn listen(&mut self, instance: u32, endpoint: SocketAddr) -> Result<(), RequestError> {
        let follower = self.number;
        let requested_at = self.history.now();
        let path = format!("{}?watch&heartbeat={}", list_path(), HEARTBEAT.as_secs());
        let mut lines = web::open_stream(endpoint, &path, WITHIN).await?;
        self.history.note(Event::Opened { follower, instance, requested_at });
        self.list(endpoint).await?;
        loop {
            let line = tokio::select! {
                biased;
                // A dropped sender means that the run is over too.
                _ = self.stop.wait_for(|stop| *stop) => break,
                line = lines.next(SILENCE) => line?,
            };
            self.record_line(&line);
        }
        self.list(endpoint).await?;
        self.read_until_heartbeats(&mut lines).await
    }

    async fn read_until_heartbeats(&self, lines: &mut LineStream) -> Result<(), RequestError> {
        let mut signs = 0;
        while signs < SIGNS {
            signs += u32::from(!self.record_line(&lines.next(SILENCE).await?));
        }
        Ok(())
    }

    async fn list(&self, endpoint: SocketAddr) -> Result<(), RequestError> {
        let (follower, requested_at) = (self.number, self.history.now());
        let answer = web::send_request(endpoint, WebRequest::get(&list_path(), WITHIN)).await?;
        if answer.status != StatusCode::OK {
            return Err(RequestError::Unknown(endpoint, format!("status {}", answer.status)));
        }
        self.history.note(Event::Listed { follower, requested_at, answer: answer.json() });
        Ok(())
    }

    /// Records a line. Returns whether it is an event and no heartbeat.
    fn record_line(&self, line: &[u8]) -> bool {
        if line.is_empty() {
            return false;
        }
        // A line that is not JSON is kept as text, for the judge.
        let line = serde_json::from_slice(line)
            .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(line).into_owned()));
        self.history.note(Event::WatchLine { follower: self.number, line });
        true
    }
}
