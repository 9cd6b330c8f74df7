//! Plays a schedule of faults: decides which fault is attempted at which time, and which is skipped.
//!
//! A fault whose target is absent or refuses it begins with the first successful attempt. If that is after its
//! scheduled end, the fault lasts for its whole duration from then. A fault that strikes once is attempted until the
//! world's patience ends. After the end of the schedule, each fault that still waits is attempted once more for the
//! length of the patience, with no other fault in force.
//!
//! Assumes: the world makes each attempt that it is given, and reports its outcome before it asks for the next one.
//!
//! Does not: read a clock or inject a fault. Times are arguments, counted from the beginning of the run.

use std::collections::BTreeMap;
use std::time::Duration;

use madako_faults::{Injection, InjectionChange, Schedule, Span};

/// Reason for skipping a fault whose target never appeared.
const NOT_THERE: &str = "its target was not there in time, or did not take it";

/// A change of the world to be attempted now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultAttempt<'a> {
    /// Index of the injection in the schedule.
    pub number: usize,
    pub injection: &'a Injection,
    /// True if the fault begins or strikes; otherwise it ends.
    pub begins: bool,
    /// The scheduled time, or a later one for a fault that had to wait.
    at: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectedFault {
    /// The target, which may have been resolved during the attempt (the leader).
    pub on: String,
    /// Packets that a fault of the network dropped until its end, where they are counted.
    pub dropped: Option<u64>,
}

/// The reason why a fault can never be injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImpossibleFault(pub String);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultRefusal {
    Impossible(ImpossibleFault),
    /// The target is absent or refuses the fault at present.
    NotYet,
}

impl From<ImpossibleFault> for FaultRefusal {
    fn from(impossible: ImpossibleFault) -> Self {
        Self::Impossible(impossible)
    }
}

/// Outcome of an attempt, for the history of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultChange {
    /// Since the beginning of the run.
    pub at: Span,
    /// `begins`, `ends`, `strikes` or `skipped`.
    pub change: &'static str,
    pub on: Option<String>,
    pub dropped: Option<u64>,
    pub why: Option<String>,
}

/// The state of a schedule that is being played.
pub struct Player<'a> {
    schedule: &'a Schedule,
    patience: Duration,
    /// Index of the next event.
    next: usize,
    /// `None`: the run is over.
    length: Option<Duration>,
    /// Faults that could not begin yet, each with the time until which it is attempted; `None`: until its own end.
    waiting: BTreeMap<usize, Option<Duration>>,
    /// Ends of the faults that began after their scheduled ends.
    lasting: BTreeMap<usize, Duration>,
    skipped: BTreeMap<usize, String>,
}

impl<'a> Player<'a> {
    /// `patience`: maximum time of the attempts of one fault, see the module.
    #[must_use]
    pub fn new(schedule: &'a Schedule, length: Span, patience: Duration) -> Self {
        let length = Some(length.duration());
        let (waiting, lasting, skipped) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { schedule, patience, next: 0, length, waiting, lasting, skipped }
    }

    /// Time of the next event, or of the end of the run; `None`: the run is over.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        self.schedule.events.get(self.next).map(|event| event.at.duration()).or(self.length)
    }

    /// True if a fault waits for its target, or lasts beyond its scheduled end because it had to wait.
    #[must_use]
    pub fn is_late(&self) -> bool {
        !self.waiting.is_empty() || !self.lasting.is_empty()
    }

    pub fn next_scheduled(&mut self, now: Duration) -> Option<FaultAttempt<'a>> {
        while let Some(event) = self.schedule.events.get(self.next) {
            let (number, at) = (event.injection, event.at.duration());
            if at > now {
                return None;
            }
            self.next += 1;
            let begins = event.change != InjectionChange::Ends;
            if begins || !(self.skipped.contains_key(&number) || self.waiting.contains_key(&number)) {
                return Some(self.build_attempt(number, begins, at));
            }
            if let Some(until) = self.waiting.get_mut(&number) {
                *until = Some(at + self.patience);
            }
        }
        if let Some(length) = self.length.take_if(|length| *length <= now) {
            self.waiting.values_mut().for_each(|until| *until = Some(length + self.patience));
        }
        None
    }

    /// Attempts of late faults: beginnings of those that wait, and ends of those whose time is over.
    #[must_use]
    pub fn overdue_attempts(&self, now: Duration) -> Vec<FaultAttempt<'a>> {
        let begin = self.waiting.keys().map(|number| self.build_attempt(*number, true, now));
        let over = self.lasting.iter().filter(|(_, ends)| **ends <= now);
        begin.chain(over.map(|(number, _)| self.build_attempt(*number, false, now))).collect()
    }

    /// Takes the outcome of an attempt. Returns the entry for the history, unless the fault goes on waiting.
    pub fn take_outcome(
        &mut self,
        attempt: &FaultAttempt<'_>,
        outcome: Result<InjectedFault, FaultRefusal>,
    ) -> Option<FaultChange> {
        let FaultAttempt { number, injection, begins, at } = *attempt;
        let waited = if begins { self.waiting.remove(&number) } else { None };
        if !begins {
            self.lasting.remove(&number);
        }
        let done = match outcome {
            Ok(done) => done,
            Err(FaultRefusal::Impossible(ImpossibleFault(why))) => {
                return Some(self.skip_fault(number, at, why));
            }
            Err(FaultRefusal::NotYet) if begins => {
                let strikes = injection.ends.is_none();
                let until = waited.unwrap_or_else(|| strikes.then(|| at + self.patience));
                if until.is_none_or(|until| at < until) {
                    self.waiting.insert(number, until);
                    return None;
                }
                return Some(self.skip_fault(number, at, NOT_THERE.to_owned()));
            }
            // The target was known when the fault began.
            Err(FaultRefusal::NotYet) => return Some(self.skip_fault(number, at, NOT_THERE.to_owned())),
        };
        if let (Some(Some(_)), Some(ends)) = (waited, injection.ends) {
            let lasts = ends.duration().saturating_sub(injection.begins.duration());
            self.lasting.insert(number, at + lasts);
        }
        let change = match (begins, injection.ends) {
            (true, Some(_)) => "begins",
            (true, None) => "strikes",
            (false, _) => "ends",
        };
        Some(FaultChange { at: to_span(at), change, on: Some(done.on), dropped: done.dropped, why: None })
    }

    /// Skips each fault that still waits.
    pub fn give_up(&mut self, now: Duration) -> Vec<(FaultAttempt<'a>, FaultChange)> {
        let waiting = std::mem::take(&mut self.waiting).into_keys();
        waiting
            .map(|number| {
                (self.build_attempt(number, true, now), self.skip_fault(number, now, NOT_THERE.to_owned()))
            })
            .collect()
    }

    /// Numbers of the skipped injections, each with the reason.
    #[must_use]
    pub fn skipped(self) -> BTreeMap<usize, String> {
        self.skipped
    }

    fn build_attempt(&self, number: usize, begins: bool, at: Duration) -> FaultAttempt<'a> {
        FaultAttempt { number, injection: &self.schedule.injections[number], begins, at }
    }

    fn skip_fault(&mut self, number: usize, at: Duration, why: String) -> FaultChange {
        self.skipped.insert(number, why.clone());
        FaultChange { at: to_span(at), change: "skipped", on: None, dropped: None, why: Some(why) }
    }
}

fn to_span(at: Duration) -> Span {
    Span::from_millis(u64::try_from(at.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use madako_faults::{Act, Event, InstanceTarget, Target};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);
    const LENGTH: Span = Span::from_seconds(60);

    /// A fault of the leader; times in seconds.
    fn fault(act: Act, begins: u64, ends: Option<u64>) -> Injection {
        let target = Target::Instance(InstanceTarget::Leader);
        Injection {
            fault: 0,
            act,
            target,
            begins: Span::from_seconds(begins),
            ends: ends.map(Span::from_seconds),
        }
    }

    fn schedule(injections: Vec<Injection>) -> Schedule {
        let events = injections.iter().enumerate().flat_map(|(injection, one)| {
            let change = if one.ends.is_some() { InjectionChange::Begins } else { InjectionChange::Strikes };
            let begins = Event { at: one.begins, change, injection };
            let ends = one.ends.map(|at| Event { at, change: InjectionChange::Ends, injection });
            [begins].into_iter().chain(ends)
        });
        let mut events: Vec<Event> = events.collect();
        events.sort_unstable();
        Schedule { injections, events, draws: Vec::new() }
    }

    /// Plays faults in a world that is polled every second and has no leader during some spans of seconds. Returns the
    /// history and the number of skipped faults.
    fn played(faults: &[Injection], leaderless: &[[u64; 2]]) -> (Vec<String>, usize) {
        let schedule = schedule(faults.to_vec());
        let mut player = Player::new(&schedule, LENGTH, PATIENCE);
        let mut reported = Vec::new();
        let mut make = |player: &mut Player<'_>, attempt: FaultAttempt<'_>, second: u64| {
            let absent = leaderless.iter().any(|[from, until]| (*from..*until).contains(&second));
            let outcome = if attempt.begins && absent {
                Err(FaultRefusal::NotYet)
            } else {
                Ok(InjectedFault { on: "instance=1".to_owned(), dropped: None })
            };
            if let Some(FaultChange { at, change, why, .. }) = player.take_outcome(&attempt, outcome) {
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                reported.push(format!("{at} {} {change}{why}", attempt.injection.act));
            }
        };
        for second in 0.. {
            let now = Duration::from_secs(second);
            while let Some(attempt) = player.next_scheduled(now) {
                make(&mut player, attempt, second);
            }
            for attempt in player.overdue_attempts(now) {
                make(&mut player, attempt, second);
            }
            if player.next_due().is_none() && !player.is_late() {
                break;
            }
        }
        (reported, player.skipped().len())
    }

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn a_fault_waits_for_its_target_and_then_lasts() {
        let pause = [fault(Act::Pause, 10, Some(30))];
        assert_eq!(played(&pause, &[]), (lines(&["10s pause begins", "30s pause ends"]), 0));
        // A beginning before the scheduled end does not extend the fault.
        assert_eq!(played(&pause, &[[5, 25]]), (lines(&["25s pause begins", "30s pause ends"]), 0));
        // A beginning after the scheduled end gives the fault its whole duration, at the end of the run as well.
        assert_eq!(played(&pause, &[[5, 35]]), (lines(&["35s pause begins", "55s pause ends"]), 0));
        assert_eq!(played(&pause, &[[5, 70]]), (lines(&["1m10s pause begins", "1m30s pause ends"]), 0));
        let never = format!("2m pause skipped: {NOT_THERE}");
        assert_eq!(played(&pause, &[[5, 500]]), (vec![never], 1));
    }

    #[test]
    fn instant_fault_is_attempted_for_a_while_beside_other_faults() {
        let faults = [fault(Act::Reset, 50, None), fault(Act::Cut, 52, Some(56))];
        let late = lines(&["1m20s reset strikes", "1m20s cut begins", "1m24s cut ends"]);
        assert_eq!(played(&faults, &[[45, 80]]), (late, 0));
        let never = ["reset", "cut"].map(|act| format!("2m {act} skipped: {NOT_THERE}"));
        assert_eq!(played(&faults, &[[45, 500]]), (never.to_vec(), 2));
    }

    #[test]
    fn an_early_instant_fault_is_skipped_before_the_schedule_ends() {
        let strike = Span::from_seconds(100);
        let schedule = schedule(vec![fault(Act::Reset, 1, None)]);
        let mut player = Player::new(&schedule, strike, PATIENCE);
        let attempt = player.next_scheduled(Duration::from_secs(1)).unwrap();
        assert_eq!(player.take_outcome(&attempt, Err(FaultRefusal::NotYet)), None);
        let again = player.overdue_attempts(Duration::from_secs(60)).remove(0);
        assert_eq!(player.take_outcome(&again, Err(FaultRefusal::NotYet)), None);
        let again = player.overdue_attempts(Duration::from_secs(61)).remove(0);
        assert_eq!(player.take_outcome(&again, Err(FaultRefusal::NotYet)).unwrap().change, "skipped");
        assert!(!player.is_late());
    }

    #[test]
    fn a_fault_that_is_impossible_or_given_up_is_skipped_and_does_not_end() {
        let schedule = schedule(vec![fault(Act::Pause, 1, Some(3)), fault(Act::Cut, 2, Some(4))]);
        let mut player = Player::new(&schedule, LENGTH, PATIENCE);
        let pause = player.next_scheduled(Duration::from_secs(1)).unwrap();
        let reported = player.take_outcome(&pause, Err(ImpossibleFault("no".to_owned()).into())).unwrap();
        assert_eq!((reported.change, reported.why.as_deref()), ("skipped", Some("no")));
        let cut = player.next_scheduled(Duration::from_secs(2)).unwrap();
        assert_eq!(player.take_outcome(&cut, Err(FaultRefusal::NotYet)), None);
        let given_up = player.give_up(Duration::from_secs(3));
        assert_eq!(given_up.iter().map(|(attempt, _)| attempt.number).collect::<Vec<_>>(), [1]);
        assert_eq!(player.next_scheduled(Duration::from_secs(60)), None);
        assert_eq!((player.next_due(), player.is_late()), (None, false));
        assert_eq!(player.skipped().into_keys().collect::<Vec<_>>(), [0, 1]);
    }
}
