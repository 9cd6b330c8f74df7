//! Clients of the API of placement that watch: each opens a watch of all applications at one instance, lists them through the
//! same instance, and writes down what both tell; when the watch breaks off it does the same at the next instance.
//!
//! The API knows no watch from a revision on. So a watch is opened before the list is asked for, as Krake's clients do: what is
//! written between the two is told by both, and nothing by neither.
//!
//! At the end of a run each lists once more and reads on until the signs of life that were sent after that list have come: a
//! watch sends what is to be told before them. Then it has told everything that the list knew.

use std::net::SocketAddr;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::clients::{Doors, all};
use crate::history::{Event, History};
use crate::web::{self, Ask, Lines, Unanswered};

/// Clients that watch: more than a world has instances as a rule, so that two watch the same one now and then.
pub(crate) const FOLLOWERS: u32 = 4;
/// Time for the head of a watch, and for a list.
const WITHIN: Duration = Duration::from_secs(5);
/// How often a watch that has nothing to tell shows a sign of life: the shortest time that the API knows.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A watch without a sign of life for so long is given up.
const SILENCE: Duration = Duration::from_secs(5);
/// Pause before the next instance is asked.
const AGAIN: Duration = Duration::from_millis(500);
/// Signs of life that are waited for after the last list: the first may have been under way when the list was answered.
const SIGNS: u32 = 2;
/// Time for a last watch at the end of a run, when everything is well again.
const LAST_WITHIN: Duration = Duration::from_secs(30);

/// A client that watches until it is told to stop.
pub(crate) async fn follow(number: u32, doors: Doors, history: History, stop: watch::Receiver<bool>) {
    let mut follower = Follower { number, history, stop };
    let mut ends: Option<Instant> = None;
    for (instance, door) in doors.iter().cycle().skip(number as usize) {
        let why = match follower.listen(*instance, *door).await {
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
    /// Watches through one instance until the run is over, and everything was told.
    async fn listen(&mut self, instance: u32, door: SocketAddr) -> Result<(), Unanswered> {
        let follower = self.number;
        let asked = self.history.now();
        let path = format!("{}?watch&heartbeat={}", all(), HEARTBEAT.as_secs());
        let mut lines = web::follow(door, &path, WITHIN).await?;
        self.history.note(Event::Opened { follower, instance, asked });
        self.list(door).await?;
        loop {
            let line = tokio::select! {
                biased;
                // Whoever could say so is gone, too.
                _ = self.stop.wait_for(|stop| *stop) => break,
                line = lines.next(SILENCE) => line?,
            };
            self.tell(&line);
        }
        self.list(door).await?;
        self.signs(&mut lines).await
    }

    async fn signs(&self, lines: &mut Lines) -> Result<(), Unanswered> {
        let mut signs = 0;
        while signs < SIGNS {
            signs += u32::from(!self.tell(&lines.next(SILENCE).await?));
        }
        Ok(())
    }

    async fn list(&self, door: SocketAddr) -> Result<(), Unanswered> {
        let (follower, asked) = (self.number, self.history.now());
        let answer = web::ask(door, Ask::get(&all(), WITHIN)).await?;
        if answer.status != StatusCode::OK {
            return Err(Unanswered::Unknown(door, format!("status {}", answer.status)));
        }
        self.history.note(Event::Listed { follower, asked, answer: answer.json() });
        Ok(())
    }

    /// Writes down what a line says. Whether it says something: a sign of life does not.
    fn tell(&self, line: &[u8]) -> bool {
        if line.is_empty() {
            return false;
        }
        // What is no JSON is kept as it is, for the judge.
        let line = serde_json::from_slice(line)
            .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(line).into_owned()));
        self.history.note(Event::Told { follower: self.number, line });
        true
    }
}
