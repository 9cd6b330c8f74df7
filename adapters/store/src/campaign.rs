//! Leadership: a session lease, a key attached to it, and the create order of the candidates' keys.
//!
//! The recipe is that of etcd's own election, so that CKE's instances and this service's share one queue: each
//! candidate puts `leader//<lease in hex>` with its lease attached unless the key exists, and leads when no key below
//! `leader//` has a lower create revision. A watch of all these keys (one per instance) shows when this is the case,
//! and when the candidate's key vanishes.
//!
//! An epoch ends at the earliest of these events: the lease could have expired by this process's clock, less a margin;
//! the store reports that the lease is gone; the watch no longer shows the candidate's key; the campaign gives the epoch
//! up. [`ValidEpochs`] shows the end to all readers before the receiver gets the event.

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

use self::ballot::{CandidateList, CandidateStanding, OwnKey};
use self::requests::{SessionError, create_candidate_key, grant, renew_lease, revoke};
use self::session::Session;
pub(crate) use self::session::ValidEpochs;
use crate::backoff::Backoff;
use crate::connections::Connections;
use crate::limits::{CAMPAIGN_COMMANDS, CAMPAIGN_EVENTS};
use crate::namespace::Namespace;

pub(crate) struct CampaignParts {
    pub(crate) connections: Arc<Connections>,
    pub(crate) namespace: Namespace,
    pub(crate) epochs: ValidEpochs,
    pub(crate) options: CampaignOptions,
    pub(crate) candidates: mpsc::Receiver<WatchEvent>,
    pub(crate) backoff: Backoff,
}

pub(crate) fn start(parts: CampaignParts) -> Campaign {
    let (events, receiver) = mpsc::channel(CAMPAIGN_EVENTS);
    let (sender, commands) = mpsc::channel(CAMPAIGN_COMMANDS);
    let candidate = Candidate {
        parts,
        events,
        commands,
        commanded: true,
        outbox: VecDeque::new(),
        ballot: CandidateList::default(),
        reported: ReportedState::Nothing,
    };
    tokio::spawn(candidate.run());
    Campaign { events: receiver, commands: sender }
}

/// The latest state that the receiver got while this candidate does not lead.
#[derive(Debug, PartialEq, Eq)]
enum ReportedState {
    Nothing,
    Waiting(String),
    Unavailable(StoreErrorKind),
}

enum WakeReason {
    /// The receiver was dropped.
    Dropped,
    Command(CampaignCommand),
    Candidates(WatchEvent),
}

/// Reasons for the end of a session, or for the failure to obtain one.
enum SessionEnd {
    /// The receiver was dropped: revoke the lease and end.
    Dropped,
    Stop(oneshot::Sender<()>),
    Yield(Duration),
    /// Start over.
    Again,
}

impl From<CampaignCommand> for SessionEnd {
    fn from(command: CampaignCommand) -> Self {
        match command {
            CampaignCommand::Yield { pause } => Self::Yield(pause),
            CampaignCommand::Stop { done } => Self::Stop(done),
        }
    }
}

type PendingRequest<T> = Option<Pin<Box<dyn Future<Output = T> + Send>>>;

/// Awaits the pending request; never returns if there is none.
async fn await_answer<T>(asking: &mut PendingRequest<T>) -> T {
    let answer = match asking {
        Some(request) => request.await,
        None => pending().await,
    };
    *asking = None;
    answer
}

struct Candidate {
    parts: CampaignParts,
    events: mpsc::Sender<CampaignEvent>,
    commands: mpsc::Receiver<CampaignCommand>,
    /// True if the sender of commands still exists.
    commanded: bool,
    /// Events that wait for room in the receiver's channel.
    outbox: VecDeque<CampaignEvent>,
    ballot: CandidateList,
    reported: ReportedState,
}

impl Candidate {
    async fn run(mut self) {
        loop {
            let mut next = match self.open_session().await {
                Ok(session) => self.campaign_with_session(session).await,
                Err(next) => next,
            };
            // A command during the pause can start another pause.
            loop {
                let pause = match next {
                    SessionEnd::Dropped => return,
                    SessionEnd::Stop(done) => {
                        self.flush();
                        // The sender of the command may be gone.
                        let _ = done.send(());
                        return;
                    }
                    SessionEnd::Yield(pause) => pause,
                    SessionEnd::Again => self.parts.backoff.wait(),
                };
                match self.run_while_serving(sleep(pause)).await {
                    Ok(()) => break,
                    Err(other) => next = other,
                }
            }
        }
    }

    /// Obtains a session; retries without limit.
    async fn open_session(&mut self) -> Result<Session, SessionEnd> {
        // A new epoch must not begin before the receiver knows of the end of the previous one.
        while !self.outbox.is_empty() {
            self.run_while_serving(self.events.clone().reserve_owned()).await.map(drop)?;
            self.flush();
        }
        // The store counts whole seconds; round up.
        let ttl = i64::try_from(self.parts.options.ttl.as_millis().div_ceil(1000).max(1)).unwrap_or(i64::MAX);
        loop {
            let error = match self.run_while_serving(grant(Arc::clone(&self.parts.connections), ttl)).await? {
                Ok(session) => return Ok(session),
                Err(error) => error,
            };
            self.report_unavailable(error);
            let wait = self.parts.backoff.wait();
            self.run_while_serving(sleep(wait)).await?;
        }
    }

    /// Campaigns with a session, and leads if elected, until the session ends. Revokes the lease.
    async fn campaign_with_session(&mut self, session: Session) -> SessionEnd {
        let lease = session.lease;
        let (next, gone) = self.campaign_and_lead(session).await;
        self.ballot.clear_own_key();
        // Revoke also without a receiver: after a failed actor, its successor must not wait for the lease to expire.
        if !gone {
            self.release(lease).await;
        }
        next
    }

    /// Returns the next step, and whether the store is known to have ended the lease.
    async fn campaign_and_lead(&mut self, mut session: Session) -> (SessionEnd, bool) {
        let connections = &Arc::clone(&self.parts.connections);
        let mut held = HeldEpoch { epochs: self.parts.epochs.clone(), epoch: None };
        let mut own: Option<OwnKey> = None;
        let mut enrolling: PendingRequest<Result<OwnKey, SessionError>> = None;
        let mut enrol_at = Instant::now();
        let mut renewing: PendingRequest<Result<Instant, SessionError>> = None;
        loop {
            // Check this first: a process that was stopped for a long time continues here.
            if Instant::now() >= session.valid_until {
                self.report_lost(&mut held, "the session lease was not renewed in time");
                return (SessionEnd::Again, false);
            }
            match (self.ballot.evaluate(), &held.epoch) {
                (CandidateStanding::Gone, _) => {
                    self.report_lost(&mut held, "the leader key is gone");
                    return (SessionEnd::Again, false);
                }
                (CandidateStanding::Behind { leader }, None) => self.report_waiting(leader),
                (CandidateStanding::Behind { .. }, Some(_)) => {
                    self.report_lost(
                        &mut held,
                        "the store has an older leader key: its state went back to an earlier revision",
                    );
                    return (SessionEnd::Again, false);
                }
                (CandidateStanding::First, None) => {
                    if let Some(OwnKey { key, create_revision }) = &own {
                        let epoch =
                            Epoch { number: *create_revision, key: key.clone(), lease: session.lease };
                        held.begin(epoch.clone(), session.valid_until);
                        self.reported = ReportedState::Nothing;
                        self.put(CampaignEvent::Elected(epoch));
                    }
                }
                (CandidateStanding::First, Some(_)) | (CandidateStanding::Unknown, _) => {}
            }
            let (valid_until, renew_at) = (session.valid_until, session.renew_at);
            tokio::select! {
                biased;
                () = sleep_until(valid_until) => {}
                wake = self.wake(true) => match wake {
                    WakeReason::Dropped => return (SessionEnd::Dropped, false),
                    WakeReason::Command(command) => {
                        self.report_lost(&mut held, "the leader resigned");
                        return (command.into(), false);
                    }
                    WakeReason::Candidates(event) => {
                        if matches!(event, WatchEvent::Interrupted(_)) {
                            // Check whether the store still answers.
                            session.renew_at = session.renew_at.min(Instant::now());
                        }
                        self.ballot.apply_event(event);
                    }
                },
                renewed = await_answer(&mut renewing) => match renewed {
                    Ok(sent) => {
                        let late = is_planted(Canary::LeaseFromAnswer);
                        session.note_renewal(if late { Instant::now() } else { sent });
                        held.extend(session.valid_until);
                        self.parts.backoff.reset();
                        self.report_available();
                    }
                    Err(SessionError::Gone) => {
                        self.report_lost(&mut held, "the session lease is gone");
                        return (SessionEnd::Again, true);
                    }
                    Err(SessionError::Store(error)) => {
                        tracing::warn!(%error, leading = held.epoch.is_some(), "the session lease was not renewed");
                        let patience = session.shorten_timeout(connections.timeout());
                        session.renew_at = Instant::now() + self.parts.backoff.wait().min(patience);
                        if held.epoch.is_none() {
                            self.report_unavailable(error);
                        }
                    }
                },
                enrolled = await_answer(&mut enrolling) => match enrolled {
                    Ok(enrolled) => {
                        self.parts.backoff.reset();
                        self.ballot.set_own_key(enrolled.clone());
                        own = Some(enrolled);
                    }
                    Err(SessionError::Gone) => return (SessionEnd::Again, true),
                    Err(SessionError::Store(error)) => {
                        self.report_unavailable(error);
                        enrol_at = Instant::now() + self.parts.backoff.wait();
                    }
                },
                () = sleep_until(renew_at), if renewing.is_none() => {
                    let patience = session.shorten_timeout(connections.timeout());
                    renewing = Some(Box::pin(renew_lease(Arc::clone(connections), session.lease, patience)));
                }
                () = sleep_until(enrol_at), if own.is_none() && enrolling.is_none() => {
                    let (namespace, host) = (self.parts.namespace.clone(), self.parts.options.host.clone());
                    enrolling = Some(Box::pin(create_candidate_key(Arc::clone(connections), namespace, session.lease, host)));
                }
            }
        }
    }

    /// Revokes a lease if the store can be reached; otherwise the lease expires by itself.
    async fn release(&mut self, lease: i64) {
        let connections = Arc::clone(&self.parts.connections);
        let patience = connections.timeout();
        let mut revoking = pin!(revoke(connections, lease, patience));
        let revoked = loop {
            tokio::select! {
                biased;
                revoked = &mut revoking => break revoked,
                // Commands wait for the next step.
                wake = self.wake(false) => match wake {
                    // The receiver is gone or the watch has ended: only finish the revocation.
                    WakeReason::Dropped => break revoking.await,
                    WakeReason::Candidates(event) => self.ballot.apply_event(event),
                    WakeReason::Command(_) => {}
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
    async fn run_while_serving<T>(&mut self, work: impl Future<Output = T>) -> Result<T, SessionEnd> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                wake = self.wake(true) => match wake {
                    WakeReason::Dropped => return Err(SessionEnd::Dropped),
                    WakeReason::Command(command) => return Err(command.into()),
                    WakeReason::Candidates(event) => self.ballot.apply_event(event),
                },
                done = &mut work => return Ok(done),
            }
        }
    }

    /// The next external event; meanwhile sends queued events to the receiver.
    async fn wake(&mut self, commands: bool) -> WakeReason {
        loop {
            tokio::select! {
                biased;
                () = self.events.closed() => return WakeReason::Dropped,
                command = self.commands.recv(), if commands && self.commanded => match command {
                    Some(command) => return WakeReason::Command(command),
                    None => self.commanded = false,
                },
                permit = self.events.reserve(), if !self.outbox.is_empty() => {
                    if let (Ok(permit), Some(event)) = (permit, self.outbox.pop_front()) {
                        permit.send(event);
                    }
                }
                event = self.parts.candidates.recv() => match event {
                    Some(event) => return WakeReason::Candidates(event),
                    // The watch ends only with its runtime.
                    None => return WakeReason::Dropped,
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

    fn report_waiting(&mut self, leader: String) {
        // During an interruption, do not report waiting until the store answers again.
        let news = match &self.reported {
            ReportedState::Waiting(reported) => *reported != leader,
            ReportedState::Nothing | ReportedState::Unavailable(_) => true,
        };
        if news && !matches!(self.reported, ReportedState::Unavailable(_)) {
            self.reported = ReportedState::Waiting(leader.clone());
            self.put(CampaignEvent::Waiting { leader });
        }
    }

    fn report_unavailable(&mut self, error: StoreError) {
        if self.reported != ReportedState::Unavailable(error.kind) {
            self.reported = ReportedState::Unavailable(error.kind);
            self.put(CampaignEvent::Unavailable(error));
        }
    }

    /// The store answers again: the next state is reported even if it is unchanged.
    fn report_available(&mut self) {
        if matches!(self.reported, ReportedState::Unavailable(_)) {
            self.reported = ReportedState::Nothing;
        }
    }

    fn report_lost(&mut self, held: &mut HeldEpoch, why: &str) {
        if let Some(epoch) = held.end_epoch() {
            self.reported = ReportedState::Nothing;
            self.put(CampaignEvent::Lost { epoch, why: why.to_owned() });
        }
    }
}

struct HeldEpoch {
    epochs: ValidEpochs,
    epoch: Option<Epoch>,
}

impl HeldEpoch {
    fn begin(&mut self, epoch: Epoch, until: Instant) {
        self.epochs.extend_epoch(&epoch, until);
        self.epoch = Some(epoch);
    }

    fn extend(&mut self, until: Instant) {
        if let Some(epoch) = &self.epoch {
            self.epochs.extend_epoch(epoch, until);
        }
    }

    fn end_epoch(&mut self) -> Option<Epoch> {
        let epoch = self.epoch.take()?;
        self.epochs.end(&epoch);
        Some(epoch)
    }
}

impl Drop for HeldEpoch {
    fn drop(&mut self) {
        self.end_epoch();
    }
}
