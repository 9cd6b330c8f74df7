//! Leadership: a session lease, a key attached to it, and the create order of the candidates' keys.
//!
//! The recipe is that of etcd's own election, so that CKE's instances and this service's share one queue: each
//! candidate puts `leader//<lease in hex>` with its lease attached unless the key exists, and leads when no key below
//! `leader//` has a lower create revision. A watch of all these keys (one per instance) shows when this is the case,
//! and when the candidate's key vanishes.
//!
//! A term ends at the earliest of these events: the lease could have expired by this process's clock, less a margin;
//! the store reports that the lease is gone; the watch no longer shows the candidate's key; the campaign gives the term
//! up. [`Tenures`] shows the end to all readers before the receiver gets the event.

mod ballot;
mod requests;
mod session;

use std::collections::VecDeque;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::store::{Epoch, StoreError, StoreErrorKind};
use madako_protocol::store::{Campaign, CampaignCommand, CampaignEvent, CampaignOptions, WatchEvent};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use self::ballot::{Ballot, Own, Standing};
use self::requests::{SessionError, enrol, grant, renew, revoke};
use self::session::Session;
pub(crate) use self::session::Tenures;
use crate::backoff::Backoff;
use crate::limits::{CAMPAIGN_COMMANDS, CAMPAIGN_EVENTS};
use crate::lines::Lines;
use crate::namespace::Namespace;

pub(crate) struct Parts {
    pub(crate) lines: Arc<Lines>,
    pub(crate) namespace: Namespace,
    pub(crate) tenures: Tenures,
    pub(crate) options: CampaignOptions,
    pub(crate) candidates: mpsc::Receiver<WatchEvent>,
    pub(crate) backoff: Backoff,
}

pub(crate) fn start(parts: Parts) -> Campaign {
    let (events, receiver) = mpsc::channel(CAMPAIGN_EVENTS);
    let (sender, commands) = mpsc::channel(CAMPAIGN_COMMANDS);
    let candidate = Candidate {
        parts,
        events,
        commands,
        commanded: true,
        outbox: VecDeque::new(),
        ballot: Ballot::default(),
        told: Told::Nothing,
    };
    tokio::spawn(candidate.run());
    Campaign { events: receiver, commands: sender }
}

/// The latest state told to the receiver while this candidate does not lead.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Waiting(String),
    Unavailable(StoreErrorKind),
}

enum Wake {
    /// The receiver was dropped.
    Dropped,
    Command(CampaignCommand),
    Candidates(WatchEvent),
}

/// Why a session ended or could not be obtained.
enum Next {
    /// The receiver was dropped: revoke the lease and end.
    Dropped,
    Stop(oneshot::Sender<()>),
    Yield(Duration),
    /// Start over.
    Again,
}

impl From<CampaignCommand> for Next {
    fn from(command: CampaignCommand) -> Self {
        match command {
            CampaignCommand::Yield { pause } => Self::Yield(pause),
            CampaignCommand::Stop { done } => Self::Stop(done),
        }
    }
}

type Asking<T> = Option<Pin<Box<dyn Future<Output = T> + Send>>>;

/// Awaits the pending request; never returns if there is none.
async fn answer<T>(asking: &mut Asking<T>) -> T {
    let answer = match asking {
        Some(asked) => asked.await,
        None => pending().await,
    };
    *asking = None;
    answer
}

struct Candidate {
    parts: Parts,
    events: mpsc::Sender<CampaignEvent>,
    commands: mpsc::Receiver<CampaignCommand>,
    /// True if the sender of commands still exists.
    commanded: bool,
    /// Events that wait for room in the receiver's channel.
    outbox: VecDeque<CampaignEvent>,
    ballot: Ballot,
    told: Told,
}

impl Candidate {
    async fn run(mut self) {
        loop {
            let mut next = match self.session().await {
                Ok(session) => self.stand(session).await,
                Err(next) => next,
            };
            // A command during the pause can start another pause.
            loop {
                let pause = match next {
                    Next::Dropped => return,
                    Next::Stop(done) => {
                        self.flush();
                        // The sender of the command may be gone.
                        let _ = done.send(());
                        return;
                    }
                    Next::Yield(pause) => pause,
                    Next::Again => self.parts.backoff.wait(),
                };
                match self.attend(sleep(pause)).await {
                    Ok(()) => break,
                    Err(other) => next = other,
                }
            }
        }
    }

    /// Obtains a session; retries without limit.
    async fn session(&mut self) -> Result<Session, Next> {
        // A new term must not begin before the receiver knows of the end of the previous one.
        while !self.outbox.is_empty() {
            self.attend(self.events.clone().reserve_owned()).await.map(drop)?;
            self.flush();
        }
        // The store counts whole seconds; round up.
        let ttl = i64::try_from(self.parts.options.ttl.as_millis().div_ceil(1000).max(1)).unwrap_or(i64::MAX);
        loop {
            let error = match self.attend(grant(Arc::clone(&self.parts.lines), ttl)).await? {
                Ok(session) => return Ok(session),
                Err(error) => error,
            };
            self.tell_unavailable(error);
            let wait = self.parts.backoff.wait();
            self.attend(sleep(wait)).await?;
        }
    }

    /// Campaigns with a session, and leads if elected, until the session ends. Revokes the lease.
    async fn stand(&mut self, session: Session) -> Next {
        let lease = session.lease;
        let (next, gone) = self.stand_and_lead(session).await;
        self.ballot.withdraw();
        // Revoke also without a receiver: after a failed actor, its successor must not wait for the lease to expire.
        if !gone {
            self.release(lease).await;
        }
        next
    }

    /// Returns the next step, and whether the store is known to have ended the lease.
    async fn stand_and_lead(&mut self, mut session: Session) -> (Next, bool) {
        let lines = &Arc::clone(&self.parts.lines);
        let mut reign = Reign { tenures: self.parts.tenures.clone(), epoch: None };
        let mut own: Option<Own> = None;
        let mut enrolling: Asking<Result<Own, SessionError>> = None;
        let mut enrol_at = Instant::now();
        let mut renewing: Asking<Result<Instant, SessionError>> = None;
        loop {
            // Check this first: a process that was stopped for a long time continues here.
            if Instant::now() >= session.valid_until {
                self.tell_lost(&mut reign, "the session lease was not renewed in time");
                return (Next::Again, false);
            }
            match (self.ballot.standing(), &reign.epoch) {
                (Standing::Gone, _) => {
                    self.tell_lost(&mut reign, "the leader key is gone");
                    return (Next::Again, false);
                }
                (Standing::Behind { leader }, None) => self.tell_waiting(leader),
                (Standing::Behind { .. }, Some(_)) => {
                    self.tell_lost(
                        &mut reign,
                        "the store has an older leader key: its state went back to an earlier revision",
                    );
                    return (Next::Again, false);
                }
                (Standing::First, None) => {
                    if let Some(Own { key, create_revision }) = &own {
                        let epoch =
                            Epoch { number: *create_revision, key: key.clone(), lease: session.lease };
                        reign.begin(epoch.clone(), session.valid_until);
                        self.told = Told::Nothing;
                        self.put(CampaignEvent::Elected(epoch));
                    }
                }
                (Standing::First, Some(_)) | (Standing::Unknown, _) => {}
            }
            let (valid_until, renew_at) = (session.valid_until, session.renew_at);
            tokio::select! {
                biased;
                () = sleep_until(valid_until) => {}
                wake = self.wake(true) => match wake {
                    Wake::Dropped => return (Next::Dropped, false),
                    Wake::Command(command) => {
                        self.tell_lost(&mut reign, "the leader resigned");
                        return (command.into(), false);
                    }
                    Wake::Candidates(event) => {
                        if matches!(event, WatchEvent::Interrupted(_)) {
                            // Check whether the store still answers.
                            session.renew_at = session.renew_at.min(Instant::now());
                        }
                        self.ballot.take(event);
                    }
                },
                renewed = answer(&mut renewing) => match renewed {
                    Ok(sent) => {
                        let late = is_planted(Canary::LeaseFromAnswer);
                        session.renewed(if late { Instant::now() } else { sent });
                        reign.extend(session.valid_until);
                        self.parts.backoff.reset();
                        self.tell_available();
                    }
                    Err(SessionError::Gone) => {
                        self.tell_lost(&mut reign, "the session lease is gone");
                        return (Next::Again, true);
                    }
                    Err(SessionError::Store(error)) => {
                        tracing::warn!(%error, leading = reign.epoch.is_some(), "the session lease was not renewed");
                        let patience = session.patience(lines.timeout());
                        session.renew_at = Instant::now() + self.parts.backoff.wait().min(patience);
                        if reign.epoch.is_none() {
                            self.tell_unavailable(error);
                        }
                    }
                },
                enrolled = answer(&mut enrolling) => match enrolled {
                    Ok(enrolled) => {
                        self.parts.backoff.reset();
                        self.ballot.enrol(enrolled.clone());
                        own = Some(enrolled);
                    }
                    Err(SessionError::Gone) => return (Next::Again, true),
                    Err(SessionError::Store(error)) => {
                        self.tell_unavailable(error);
                        enrol_at = Instant::now() + self.parts.backoff.wait();
                    }
                },
                () = sleep_until(renew_at), if renewing.is_none() => {
                    let patience = session.patience(lines.timeout());
                    renewing = Some(Box::pin(renew(Arc::clone(lines), session.lease, patience)));
                }
                () = sleep_until(enrol_at), if own.is_none() && enrolling.is_none() => {
                    let (namespace, host) = (self.parts.namespace.clone(), self.parts.options.host.clone());
                    enrolling = Some(Box::pin(enrol(Arc::clone(lines), namespace, session.lease, host)));
                }
            }
        }
    }

    /// Revokes a lease if the store can be reached; otherwise the lease expires by itself.
    async fn release(&mut self, lease: i64) {
        let lines = Arc::clone(&self.parts.lines);
        let patience = lines.timeout();
        let mut revoking = pin!(revoke(lines, lease, patience));
        let revoked = loop {
            tokio::select! {
                biased;
                revoked = &mut revoking => break revoked,
                // Commands wait for the next step.
                wake = self.wake(false) => match wake {
                    // The receiver is gone or the watch has ended: only finish the revocation.
                    Wake::Dropped => break revoking.await,
                    Wake::Candidates(event) => self.ballot.take(event),
                    Wake::Command(_) => {}
                }
            }
        };
        match revoked {
            Ok(()) | Err(SessionError::Gone) => {}
            Err(SessionError::Store(error)) => {
                tracing::warn!(%error, "a session lease was not revoked; it expires by itself");
            }
        }
    }

    /// Runs `work` while handling external events.
    async fn attend<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Next> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                wake = self.wake(true) => match wake {
                    Wake::Dropped => return Err(Next::Dropped),
                    Wake::Command(command) => return Err(command.into()),
                    Wake::Candidates(event) => self.ballot.take(event),
                },
                done = &mut work => return Ok(done),
            }
        }
    }

    /// The next external event; meanwhile sends queued events to the receiver.
    async fn wake(&mut self, commands: bool) -> Wake {
        loop {
            tokio::select! {
                biased;
                () = self.events.closed() => return Wake::Dropped,
                command = self.commands.recv(), if commands && self.commanded => match command {
                    Some(command) => return Wake::Command(command),
                    None => self.commanded = false,
                },
                permit = self.events.reserve(), if !self.outbox.is_empty() => {
                    if let (Ok(permit), Some(event)) = (permit, self.outbox.pop_front()) {
                        permit.send(event);
                    }
                }
                event = self.parts.candidates.recv() => match event {
                    Some(event) => return Wake::Candidates(event),
                    // The watch ends only with its runtime.
                    None => return Wake::Dropped,
                },
            }
        }
    }

    /// Sends queued events without waiting, as far as the channel has room.
    fn flush(&mut self) {
        while let Some(event) = self.outbox.pop_front() {
            if let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event) {
                self.outbox.push_front(event);
                return;
            }
        }
    }

    fn put(&mut self, event: CampaignEvent) {
        use CampaignEvent::{Unavailable, Waiting};
        // Of consecutive state reports keep only the last, so that the outbox stays short.
        if matches!(
            (self.outbox.back(), &event),
            (Some(Waiting { .. } | Unavailable(_)), Waiting { .. } | Unavailable(_))
        ) {
            self.outbox.pop_back();
        }
        self.outbox.push_back(event);
        self.flush();
    }

    fn tell_waiting(&mut self, leader: String) {
        // During an interruption, do not report waiting until the store answers again.
        let news = match &self.told {
            Told::Waiting(told) => *told != leader,
            Told::Nothing | Told::Unavailable(_) => true,
        };
        if news && !matches!(self.told, Told::Unavailable(_)) {
            self.told = Told::Waiting(leader.clone());
            self.put(CampaignEvent::Waiting { leader });
        }
    }

    fn tell_unavailable(&mut self, error: StoreError) {
        if self.told != Told::Unavailable(error.kind) {
            self.told = Told::Unavailable(error.kind);
            self.put(CampaignEvent::Unavailable(error));
        }
    }

    /// The store answers again: the next state is reported even if it is unchanged.
    fn tell_available(&mut self) {
        if matches!(self.told, Told::Unavailable(_)) {
            self.told = Told::Nothing;
        }
    }

    fn tell_lost(&mut self, reign: &mut Reign, why: &str) {
        if let Some(epoch) = reign.end() {
            self.told = Told::Nothing;
            self.put(CampaignEvent::Lost { epoch, why: why.to_owned() });
        }
    }
}

struct Reign {
    tenures: Tenures,
    epoch: Option<Epoch>,
}

impl Reign {
    fn begin(&mut self, epoch: Epoch, until: Instant) {
        self.tenures.hold(&epoch, until);
        self.epoch = Some(epoch);
    }

    fn extend(&mut self, until: Instant) {
        if let Some(epoch) = &self.epoch {
            self.tenures.hold(epoch, until);
        }
    }

    fn end(&mut self) -> Option<Epoch> {
        let epoch = self.epoch.take()?;
        self.tenures.end(&epoch);
        Some(epoch)
    }
}

impl Drop for Reign {
    fn drop(&mut self) {
        self.end();
    }
}
