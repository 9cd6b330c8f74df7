//! The state machine of an actor's changes to the store, and of the effects that they announce. Each event returns the
//! next actions. Pure.

use madako_domain::canary::{Canary, is_planted};
use madako_protocol::actors::{CommitError, Committed, Failure};
use madako_protocol::effect::{AttemptEnd, EffectEvent};
use madako_protocol::leader::COMMIT_DEADLINE;
use madako_protocol::permit::{Moment, Permit};

use crate::action::{Action, Conclusion, Effect, Evidence, RemainingEffect};
use crate::changes::Changes;
use crate::limits::PERMIT_LOST;
use crate::permits::PERMIT_PAUSE;

/// The state machine of one actor's changes and effects; the crate's documentation has its guarantees.
#[derive(Debug)]
pub struct Workflow<A, E: Effect> {
    changes: Changes,
    purpose: Option<Purpose<E>>,
    /// An effect whose announcement may be durable.
    unsure: Option<E>,
    job: Option<Job<E>>,
    /// An ended effect without a record of its end.
    ended: Option<(E, Conclusion<E::Outcome>)>,
    number: u64,
    is_over: bool,
    _change: std::marker::PhantomData<fn(A)>,
}

#[derive(Debug)]
enum Purpose<E> {
    /// The change concerns no effect.
    Plain,
    /// The change announces an effect.
    Announces(E),
    /// The change records the end of an effect, and may announce the next.
    Records(Option<E>),
}

#[derive(Debug)]
struct Job<E: Effect> {
    effect: E,
    /// Number of the next or running attempt, from 1.
    attempt: u32,
    last: Option<E::Outcome>,
    withdrawn: Option<String>,
    since: Moment,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// A request for a permit runs; it is repeated at `again_at`.
    Asking { number: u64, again_at: Moment },
    /// No permit was given; the next request follows at `again_at`.
    Refused { again_at: Moment },
    /// An attempt runs; it counts as lost at `lost_at`.
    Running { number: u64, lost_at: Moment },
    /// The pause before another attempt runs; it counts as lost at `lost_at`.
    Pausing { number: u64, lost_at: Moment },
}

impl<A, E: Effect> Default for Workflow<A, E> {
    fn default() -> Self {
        Self {
            changes: Changes::default(),
            purpose: None,
            unsure: None,
            job: None,
            ended: None,
            number: 0,
            is_over: false,
            _change: std::marker::PhantomData,
        }
    }
}

type Actions<A, E> = Vec<Action<A, E>>;

impl<A, E: Effect> Workflow<A, E> {
    /// True if a state of this revision is valid for decisions: it contains the last change, and no change based on
    /// it failed.
    #[must_use]
    pub fn may_decide_on(&self, revision: i64) -> bool {
        !self.is_over && self.changes.may_decide_on(revision)
    }

    /// The announced effect that has not ended.
    #[must_use]
    pub fn announced_effect(&self) -> Option<&E> {
        self.job.as_ref().map(|job| &job.effect)
    }

    /// The effect whose announcement may be durable: report with [`Self::observe`] what a newer state shows of it.
    #[must_use]
    pub fn unconfirmed_announcement(&self) -> Option<&E> {
        self.unsure.as_ref()
    }

    /// The end to record before any other announcement.
    #[must_use]
    pub fn conclusion(&self) -> Option<(&E, &Conclusion<E::Outcome>)> {
        self.ended.as_ref().map(|(effect, conclusion)| (effect, conclusion))
    }

    /// The time at which [`EffectEvent::Passed`] is needed. It is also needed once a reconcile pass, to detect lost answers.
    #[must_use]
    pub fn wake(&self) -> Option<Moment> {
        let job = self.job.as_ref().and_then(|job| match job.phase {
            Phase::Refused { again_at } => Some(again_at),
            Phase::Asking { .. } | Phase::Running { .. } | Phase::Pausing { .. } => None,
        });
        job.into_iter().chain(self.changes.wake()).min()
    }

    /// Sends a change that was decided on a state of this revision and announces nothing. `None` if no change is
    /// possible now.
    #[must_use]
    pub fn send_change(&mut self, change: A, decided_on: i64, now: Moment) -> Option<Action<A, E>> {
        self.send(change, Purpose::Plain, decided_on, now)
    }

    /// Sends a change that announces an effect. `None` if no change is possible now, as in [`Self::change`], or if
    /// another effect is not recorded yet.
    #[must_use]
    pub fn announce(&mut self, change: A, effect: E, decided_on: i64, now: Moment) -> Option<Action<A, E>> {
        if self.job.is_some() || self.ended.is_some() {
            return None;
        }
        self.send(change, Purpose::Announces(effect), decided_on, now)
    }

    /// Sends a change that records the [`Self::conclusion`], and announces the next effect of the same series. `None`
    /// if no change is possible now or there is no conclusion.
    #[must_use]
    pub fn record(
        &mut self,
        change: A,
        next: Option<E>,
        decided_on: i64,
        now: Moment,
    ) -> Option<Action<A, E>> {
        self.ended.as_ref()?;
        self.send(change, Purpose::Records(next), decided_on, now)
    }

    /// Drops the [`Self::conclusion`] without a change, because the store shows that its record has ended.
    pub fn is_recorded(&mut self) {
        self.ended = None;
    }

    fn send(&mut self, change: A, purpose: Purpose<E>, decided_on: i64, now: Moment) -> Option<Action<A, E>> {
        if !self.may_decide_on(decided_on) {
            return None;
        }
        let number = self.take_number();
        self.changes.record_sent(number, decided_on, now);
        self.purpose = Some(purpose);
        Some(Action::Commit { number, change })
    }

    fn take_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Allows decisions on refused states at the start of a new pass.
    pub fn clear_refusal(&mut self) {
        self.changes.clear_refusal();
    }

    /// Allows decisions on a refused state after an unrelated change, unless a pause is running.
    pub fn allow_refused_states(&mut self, now: Moment) {
        self.changes.allow_refused_states(now);
    }

    /// Takes the evidence of a newer state about the [`Self::unconfirmed_announcement`] announcement.
    #[must_use]
    pub fn observe(&mut self, evidence: Evidence, now: Moment) -> Actions<A, E> {
        if evidence == Evidence::NotYet {
            return Vec::new();
        }
        let Some(effect) = self.unsure.take() else { return Vec::new() };
        match evidence {
            Evidence::NotYet | Evidence::Never => Vec::new(),
            Evidence::Announced => self.begin_announced_effect(effect, now),
            Evidence::AnnouncedInVain { why } => {
                self.ended = Some((effect, Conclusion::Withdrawn { why, last: None }));
                Vec::new()
            }
        }
    }

    /// Excludes further attempts at the current effect. The first reason counts.
    #[must_use]
    pub fn withdraw(&mut self, why: &str, now: Moment) -> Actions<A, E> {
        let Some(job) = &mut self.job else { return Vec::new() };
        let why = job.withdrawn.get_or_insert_with(|| why.to_owned()).clone();
        match job.phase {
            Phase::Running { .. } => Vec::new(),
            Phase::Asking { .. } | Phase::Refused { .. } | Phase::Pausing { .. } => {
                self.conclude(now, |last| Conclusion::Withdrawn { why, last })
            }
        }
    }

    /// Handles an event.
    #[must_use]
    pub fn handle_event(&mut self, event: EffectEvent<E::Outcome>, now: Moment) -> Actions<A, E> {
        if self.is_over {
            return Vec::new();
        }
        match event {
            EffectEvent::Committed { number, result } => self.handle_answer(number, result, now),
            EffectEvent::Permitted { number, permit } => self.handle_permit(number, permit, now),
            EffectEvent::Ended { number, end } => self.handle_attempt_end(number, end, now),
            EffectEvent::Paused { number, against } => self.handle_pause(number, against, now),
            EffectEvent::Passed => self.handle_time(now),
            EffectEvent::Lost => self.handle_lost_epoch(),
        }
    }

    fn handle_answer(
        &mut self,
        number: u64,
        result: Result<Committed, CommitError>,
        now: Moment,
    ) -> Actions<A, E> {
        if !self.changes.take_answer(number, &result, now) {
            return Vec::new();
        }
        let purpose = self.purpose.take();
        let failure = result.as_ref().err().map(CommitError::failure_class);
        let mut actions = vec![Action::Answered { result }];
        match (failure, purpose) {
            (None, Some(Purpose::Announces(effect))) => {
                actions.extend(self.begin_announced_effect(effect, now))
            }
            (None, Some(Purpose::Records(next))) => {
                self.ended = None;
                actions.extend(next.into_iter().flat_map(|effect| self.begin_announced_effect(effect, now)));
            }
            (Some(Failure::Unknown), Some(Purpose::Announces(effect) | Purpose::Records(Some(effect)))) => {
                if is_planted(Canary::UnannouncedCommand) {
                    actions.extend(self.begin_announced_effect(effect, now));
                } else {
                    self.unsure = Some(effect);
                }
            }
            _ => {}
        }
        actions.push(Action::Decide);
        actions
    }

    /// Begins an effect whose announcement is durable. The same change recorded the previous effect.
    fn begin_announced_effect(&mut self, effect: E, now: Moment) -> Actions<A, E> {
        (self.unsure, self.ended) = (None, None);
        let stage = Phase::Refused { again_at: now };
        self.job = Some(Job { effect, attempt: 1, last: None, withdrawn: None, since: now, phase: stage });
        self.ask(now)
    }

    fn ask(&mut self, now: Moment) -> Actions<A, E> {
        let number = self.take_number();
        let Some(job) = &mut self.job else { return Vec::new() };
        job.phase = Phase::Asking { number, again_at: now + PERMIT_LOST };
        vec![Action::Ask { number, effect: job.effect.clone() }]
    }

    fn handle_permit(&mut self, permit_number: u64, permit: Option<Permit>, now: Moment) -> Actions<A, E> {
        let number = self.take_number();
        let Some(job) = &mut self.job else { return Vec::new() };
        if !matches!(job.phase, Phase::Asking { number, .. } if number == permit_number) {
            return Vec::new();
        }
        let Some(permit) = permit.filter(|permit| permit.check(now).is_ok()) else {
            job.phase = Phase::Refused { again_at: now + PERMIT_PAUSE };
            return Vec::new();
        };
        job.phase = Phase::Running { number, lost_at: now + job.effect.attempt_limit() };
        vec![Action::Start { number, attempt: job.attempt, effect: job.effect.clone(), permit }]
    }

    fn handle_attempt_end(
        &mut self,
        started: u64,
        end: AttemptEnd<E::Outcome>,
        now: Moment,
    ) -> Actions<A, E> {
        let number = self.take_number();
        let Some(job) = &mut self.job else { return Vec::new() };
        if !matches!(job.phase, Phase::Running { number, .. } if number == started) {
            return Vec::new();
        }
        let failed = match end {
            AttemptEnd::Failed(outcome) if job.attempt < job.effect.attempts() => Some(outcome),
            AttemptEnd::Final(outcome) | AttemptEnd::Failed(outcome) => {
                return self.conclude(now, |_| Conclusion::Ended(outcome));
            }
            AttemptEnd::NotBegun => None,
        };
        let begun = failed.is_some();
        job.last = failed.or(job.last.take());
        if let Some(why) = job.withdrawn.take() {
            return self.conclude(now, |last| Conclusion::Withdrawn { why, last });
        }
        if !begun {
            return self.ask(now);
        }
        job.phase = Phase::Pausing { number, lost_at: now + job.effect.pause_limit() };
        vec![Action::Pause { number, effect: job.effect.clone() }]
    }

    fn handle_pause(&mut self, pause: u64, against: Option<String>, now: Moment) -> Actions<A, E> {
        let Some(job) = &mut self.job else { return Vec::new() };
        if !matches!(job.phase, Phase::Pausing { number, .. } if number == pause) {
            return Vec::new();
        }
        match against {
            Some(why) => self.conclude(now, |last| Conclusion::Withdrawn { why, last }),
            None => {
                job.attempt += 1;
                self.ask(now)
            }
        }
    }

    fn conclude(
        &mut self,
        now: Moment,
        how: impl FnOnce(Option<E::Outcome>) -> Conclusion<E::Outcome>,
    ) -> Actions<A, E> {
        let Some(job) = self.job.take() else { return Vec::new() };
        self.ended = Some((job.effect.clone(), how(job.last)));
        let took = now.saturating_duration_since(job.since);
        vec![Action::Abort, Action::Record { effect: job.effect, took }, Action::Decide]
    }

    fn handle_time(&mut self, now: Moment) -> Actions<A, E> {
        let mut actions = Vec::new();
        if let Some(number) = self.changes.overdue_change(now) {
            let result = Err(CommitError::Unanswered { deadline: COMMIT_DEADLINE });
            actions.extend(self.handle_answer(number, result, now));
        }
        match self.job.as_ref().map(|job| (&job.phase, &job.effect)) {
            Some((Phase::Asking { again_at, .. } | Phase::Refused { again_at }, _)) if *again_at <= now => {
                actions.extend(self.ask(now));
            }
            Some((Phase::Running { lost_at, .. }, effect)) if *lost_at <= now => {
                let limit = effect.attempt_limit();
                actions.extend(self.conclude(now, |_| Conclusion::Unheard { limit }));
            }
            Some((Phase::Pausing { lost_at, .. }, effect)) if *lost_at <= now => {
                let why = format!("no report of the pause arrived within {:?}", effect.pause_limit());
                actions.extend(self.conclude(now, |last| Conclusion::Withdrawn { why, last }));
            }
            _ => {}
        }
        if self.changes.retry_is_due(now) {
            actions.push(Action::Decide);
        }
        actions
    }

    /// Ends all work with the epoch. The next leader finds the record unfinished and cancels it.
    fn handle_lost_epoch(&mut self) -> Actions<A, E> {
        self.is_over = true;
        self.purpose = None;
        self.changes.forget();
        let job = self.job.take().map(|job| {
            let left = match job.phase {
                Phase::Running { .. } => RemainingEffect::Unknown,
                _ if job.last.is_none() => RemainingEffect::NotBegun,
                _ => RemainingEffect::NotRecorded,
            };
            Action::Report { effect: job.effect, left }
        });
        let report = |left| move |effect| Action::Report { effect, left };
        let ended = self.ended.take().map(|(effect, _)| effect).map(report(RemainingEffect::NotRecorded));
        let unsure = self.unsure.take().map(report(RemainingEffect::NotBegun));
        [Action::Abort].into_iter().chain(job).chain(ended).chain(unsure).collect()
    }
}
