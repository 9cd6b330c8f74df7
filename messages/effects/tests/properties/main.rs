//! Property tests of the effect workflow with events in random order: answers come late, twice, never, or out of order.
//! Commits are written without an answer, long after it, or not at all.

mod cases;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_effects::{
    Action, AttemptEnd, Conclusion, Effect, EffectEvent, Evidence, RemainingEffect, Workflow,
};
use madako_protocol::actors::{CommitError, Committed};
use madako_protocol::permit::{Moment, Permit};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::proptest;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Task {
    thing: u8,
    record: u64,
    attempts: u32,
}

impl Effect for Task {
    type Outcome = String;

    fn attempts(&self) -> u32 {
        self.attempts
    }

    fn attempt_limit(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn pause_limit(&self) -> Duration {
        Duration::from_secs(30)
    }
}

#[derive(Debug, Clone)]
enum Change {
    Plain,
    /// Registers a record if its id is still the next.
    Announce(Task),
    /// Ends an unfinished record, and may register the next one.
    Record(Task, Conclusion<String>, Option<Task>),
    /// Ends a record of another actor.
    Disown(u64),
}

#[derive(Debug, Clone, Default)]
struct Store {
    revision: i64,
    next: u64,
    unfinished: BTreeMap<u64, u8>,
}

impl Store {
    fn register(&mut self, task: &Task) -> bool {
        let fits = self.next == task.record && self.unfinished.is_empty();
        if fits {
            self.next += 1;
            self.unfinished.insert(task.record, task.thing);
        }
        fits
    }

    /// Returns true if the change was written.
    fn write(&mut self, change: &Change) -> bool {
        let written = match change {
            Change::Plain => true,
            Change::Announce(task) => self.register(task),
            Change::Disown(record) => self.unfinished.remove(record).is_some(),
            Change::Record(task, _, next) => {
                let fits = self.unfinished.contains_key(&task.record)
                    && next.is_none_or(|next| next.record == self.next);
                if fits {
                    self.unfinished.remove(&task.record);
                    if let Some(next) = next {
                        assert!(self.register(next));
                    }
                }
                fits
            }
        };
        self.revision += i64::from(written);
        written
    }
}

#[derive(Debug, Clone)]
enum Pending {
    Event(EffectEvent<String>),
    /// An attempt runs until this message arrives or is lost.
    Ends(u64, AttemptEnd<String>),
}

#[derive(Debug, Clone)]
enum Step {
    Deliver(usize),
    /// Delivers an event now and again later.
    Repeat(usize),
    Lose(usize),
    /// Writes a commit whose answer was lost.
    Land(usize),
    Look,
    Passes(u64),
    Withdraw,
    Lost,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        16 => (0..4_usize).prop_map(Step::Deliver),
        2 => (0..4_usize).prop_map(Step::Repeat),
        2 => (0..4_usize).prop_map(Step::Lose),
        3 => (0..4_usize).prop_map(Step::Land),
        12 => Just(Step::Look),
        4 => (1..3_000_u64).prop_map(Step::Passes),
        1 => (10_000..90_000_u64).prop_map(Step::Passes),
        1 => Just(Step::Withdraw),
    ]
}

/// A workflow with its store, and checks of each action.
struct World {
    flow: Workflow<Change, Task>,
    now: Moment,
    store: Store,
    view: Store,
    pending: Vec<Pending>,
    /// Unwritten commits that may still be written.
    floating: Vec<Change>,
    running: Option<(u64, Task)>,
    begun: BTreeMap<u64, Vec<u32>>,
    /// Number of the pause before the next attempt.
    pause: Option<u64>,
    /// Records without further attempts.
    objected: BTreeSet<u64>,
    /// True if the last attempt of a record reported that it did not begin.
    not_begun: bool,
    /// Results of attempts by record.
    outcomes: BTreeMap<u64, Vec<String>>,
    recorded: BTreeMap<u64, Conclusion<String>>,
    disowned: BTreeSet<u64>,
    reported: BTreeMap<u64, RemainingEffect>,
    is_over: bool,
    /// From then on no operation fails.
    is_good: bool,
    /// From then on no effect is announced.
    is_quiet: bool,
    draws: u64,
}

impl World {
    fn new(draws: u64) -> Self {
        Self {
            flow: Workflow::default(),
            now: Moment::now(),
            store: Store::default(),
            view: Store::default(),
            pending: Vec::new(),
            floating: Vec::new(),
            running: None,
            begun: BTreeMap::new(),
            pause: None,
            objected: BTreeSet::new(),
            not_begun: false,
            outcomes: BTreeMap::new(),
            recorded: BTreeMap::new(),
            disowned: BTreeSet::new(),
            reported: BTreeMap::new(),
            is_over: false,
            is_good: false,
            is_quiet: false,
            draws: draws | 1,
        }
    }

    /// A number below `most`: xorshift, seeded by the case.
    fn draw(&mut self, most: u64) -> u64 {
        self.draws ^= self.draws << 13;
        self.draws ^= self.draws >> 7;
        self.draws ^= self.draws << 17;
        self.draws % most
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Deliver(number) | Step::Repeat(number) | Step::Lose(number) if !self.pending.is_empty() => {
                let pending = self.pending.remove(number % self.pending.len());
                if let Step::Repeat(_) = step {
                    self.pending.push(pending.clone());
                }
                let event = match pending {
                    Pending::Event(event) => event,
                    Pending::Ends(number, end) => {
                        self.running.take_if(|(running, _)| *running == number);
                        EffectEvent::Ended { number, end }
                    }
                };
                if !matches!(step, Step::Lose(_)) {
                    let is_over = |pause: &mut u64| matches!(&event, EffectEvent::Paused { number, .. } if number == pause);
                    self.pause.take_if(is_over);
                    self.tell(event);
                }
            }
            Step::Deliver(_) | Step::Repeat(_) | Step::Lose(_) => {}
            Step::Land(number) => {
                if !self.floating.is_empty() {
                    let change = self.floating.remove(number % self.floating.len());
                    self.write(&change);
                }
            }
            Step::Look => {
                self.view = self.store.clone();
                self.flow.allow_refused_states(self.now);
                self.decide();
            }
            Step::Passes(time) => {
                self.now += Duration::from_millis(time);
                if self.flow.wake().is_some_and(|at| at <= self.now) || time > 10_000 {
                    self.tell(EffectEvent::Passed);
                }
            }
            Step::Withdraw => {
                self.objected.extend(self.flow.announced_effect().map(|task| task.record));
                let actions = self.flow.withdraw("an objection", self.now);
                self.perform(actions);
            }
            Step::Lost => {
                self.tell(EffectEvent::Lost);
                self.is_over = true;
            }
        }
    }

    fn tell(&mut self, event: EffectEvent<String>) {
        let actions = self.flow.handle_event(event, self.now);
        assert!(!self.is_over || actions.is_empty(), "the epoch is over: {actions:?}");
        self.perform(actions);
    }

    /// Decides on the last seen state, like an actor.
    fn decide(&mut self) {
        if !self.flow.may_decide_on(self.view.revision) {
            return;
        }
        let view = self.view.clone();
        if let Some(task) = self.flow.unconfirmed_announcement().copied() {
            let announced = view.unfinished.get(&task.record) == Some(&task.thing);
            let observed = match (announced, view.next > task.record) {
                (true, _) if self.draw(4) == 0 => Evidence::AnnouncedInVain { why: "too late".to_owned() },
                (true, _) => Evidence::Announced,
                (false, true) => Evidence::Never,
                (false, false) => Evidence::NotYet,
            };
            let actions = self.flow.observe(observed, self.now);
            self.perform(actions);
        }
        // An actor that finds its conclusion recorded drops it and decides in the same look: both users of the workflow
        // do so. Otherwise a record that became durable with the same change waits for another look.
        if self.flow.conclusion().is_some_and(|(task, _)| !view.unfinished.contains_key(&task.record)) {
            self.flow.is_recorded();
        }
        let conclusion = self.flow.conclusion().map(|(task, conclusion)| (*task, conclusion.clone()));
        let ours = self.flow.announced_effect().copied().or(conclusion.as_ref().map(|(task, _)| *task));
        let lost = view.unfinished.keys().find(|record| ours.is_none_or(|task| task.record != **record));
        let next = Task {
            thing: u8::try_from(self.draw(2)).expect("it is below 2"),
            record: view.next,
            attempts: 1 + u32::try_from(self.draw(3)).expect("it is below 3"),
        };
        if ours.is_some() {
            let beside = self.flow.announce(Change::Announce(next), next, view.revision, self.now);
            assert!(beside.is_none(), "{next:?} is announced beside {ours:?}");
        }
        let goes_on = !self.is_quiet && self.draw(4) > 0;
        let action = if let Some((task, conclusion)) = conclusion {
            let next = (goes_on && self.draw(2) == 0).then_some(next);
            self.flow.record(Change::Record(task, conclusion, next), next, view.revision, self.now)
        } else if let Some(record) = lost {
            self.flow.send_change(Change::Disown(*record), view.revision, self.now)
        } else if goes_on && ours.is_none() {
            self.flow.announce(Change::Announce(next), next, view.revision, self.now)
        } else if goes_on {
            self.flow.send_change(Change::Plain, view.revision, self.now)
        } else {
            None
        };
        self.perform(action.into_iter().collect());
    }

    fn perform(&mut self, actions: Vec<Action<Change, Task>>) {
        for action in actions {
            match action {
                Action::Commit { number, change } => self.commit(number, change),
                Action::Answered { .. } | Action::Record { .. } | Action::Decide => {}
                Action::Ask { number, .. } => {
                    let permit = match self.draw(if self.is_good { 1 } else { 5 }) {
                        0..=1 => Some(Permit::give(7, self.now + Duration::from_secs(10))),
                        2 => Some(Permit::give(7, self.now + Duration::from_millis(500))),
                        3 => None,
                        _ => continue,
                    };
                    self.pending.push(Pending::Event(EffectEvent::Permitted { number, permit }));
                }
                Action::Start { number, attempt, effect, permit } => {
                    self.start(number, attempt, effect, permit);
                }
                Action::Pause { number, .. } => {
                    self.pause = Some(number);
                    let against = match self.draw(if self.is_good { 1 } else { 4 }) {
                        0..=1 => None,
                        2 => Some("it is healthy".to_owned()),
                        _ => continue,
                    };
                    self.pending.push(Pending::Event(EffectEvent::Paused { number, against }));
                }
                Action::Abort => (self.running, self.pause) = (None, None),
                Action::Report { effect, left } => {
                    self.reported.insert(effect.record, left);
                }
            }
        }
    }

    fn write(&mut self, change: &Change) -> bool {
        let written = self.store.write(change);
        match change {
            Change::Record(task, conclusion, _) if written => {
                let before = self.recorded.insert(task.record, conclusion.clone());
                assert_eq!(before, None, "{task:?} is recorded twice");
                if let Conclusion::Ended(outcome) = conclusion {
                    let had = self.outcomes.get(&task.record);
                    assert!(
                        had.is_some_and(|had| had.contains(outcome)),
                        "{task:?} never ended so: {outcome}"
                    );
                }
            }
            Change::Disown(record) if written => {
                self.disowned.insert(*record);
            }
            _ => {}
        }
        written
    }

    fn commit(&mut self, number: u64, change: Change) {
        let unanswered = Err(CommitError::Unanswered { deadline: Duration::from_secs(10) });
        let conflict = || Err(CommitError::Conflict { keys: Vec::new() });
        let result = match self.draw(if self.is_good { 1 } else { 10 }) {
            0..=3 => match self.write(&change) {
                true => Ok(Committed { revision: self.store.revision }),
                false => conflict(),
            },
            4..=5 => {
                self.write(&change);
                unanswered
            }
            6..=7 => {
                self.floating.push(change);
                unanswered
            }
            8 => conflict(),
            _ => Err(CommitError::Invariant { violations: Vec::new() }),
        };
        self.pending.push(Pending::Event(EffectEvent::Committed { number, result }));
    }

    fn start(&mut self, number: u64, attempt: u32, task: Task, permit: Permit) {
        assert_eq!(permit.check(self.now), Ok(()), "{task:?} begins without a permit");
        assert_eq!(
            self.store.unfinished.get(&task.record),
            Some(&task.thing),
            "{task:?} begins and is not announced"
        );
        assert_eq!(self.running, None, "{task:?} begins beside another attempt");
        assert!(!self.objected.contains(&task.record), "{task:?} begins despite an objection");
        assert_eq!(self.pause, None, "{task:?} begins before its pause is over");
        let begun = self.begun.entry(task.record).or_default();
        if std::mem::take(&mut self.not_begun) {
            begun.pop();
        }
        assert_eq!(begun.len() + 1, attempt as usize, "{task:?}: {begun:?}");
        assert!(attempt <= task.attempts);
        begun.push(attempt);
        self.running = Some((number, task));
        let text = format!("attempt {attempt} of {}", task.record);
        let end = match self.draw(if self.is_good { 1 } else { 6 }) {
            0..=1 => AttemptEnd::Final(text.clone()),
            2..=3 => AttemptEnd::Failed(text.clone()),
            4 => AttemptEnd::NotBegun,
            _ => return,
        };
        self.not_begun = end == AttemptEnd::NotBegun;
        self.outcomes.entry(task.record).or_default().push(text);
        self.pending.push(Pending::Ends(number, end));
    }

    /// Ends all failures and runs until everything has ended.
    fn settle(&mut self) {
        (self.is_good, self.is_quiet) = (true, true);
        for _ in 0..200 {
            while !self.pending.is_empty() {
                self.step(&Step::Deliver(0));
            }
            self.step(&Step::Look);
            if self.pending.is_empty() {
                let before = self.flow.wake();
                self.now = before.unwrap_or(self.now + Duration::from_secs(100)).max(self.now);
                self.tell(EffectEvent::Passed);
                self.flow.clear_refusal();
                self.decide();
                if self.pending.is_empty() && before.is_none() {
                    return;
                }
            }
        }
        panic!("it does not come to its end: {:?}", self.flow);
    }

    fn judge_the_end(&self) {
        assert_eq!(self.flow.announced_effect(), None);
        assert_eq!(self.flow.conclusion(), None);
        assert_eq!(self.store.unfinished, BTreeMap::new(), "not recorded");
        for record in self.begun.keys() {
            assert!(
                self.recorded.contains_key(record),
                "record {record} had an effect, and its end is not recorded"
            );
            assert!(!self.disowned.contains(record));
        }
    }
}

proptest! {
    #[test]
    fn effects_begin_announced_and_permitted_and_once_and_end_recorded(
        seed in any::<u64>(),
        steps in vec(step(), 1..150),
    ) {
        let mut world = World::new(seed);
        for step in &steps {
            world.step(step);
        }
        world.settle();
        world.judge_the_end();
        // Each commit without an answer that can still become durable does so last of all.
        while !world.floating.is_empty() {
            world.step(&Step::Land(0));
            world.settle();
            world.judge_the_end();
        }
        // Late answers have no effect, and the next effect can begin and end.
        let count = world.recorded.len();
        world.is_quiet = false;
        while world.recorded.len() == count {
            world.step(&Step::Look);
            while !world.pending.is_empty() {
                world.step(&Step::Deliver(0));
            }
            world.flow.clear_refusal();
        }
    }

    #[test]
    fn after_the_epoch_no_effect_begins_and_unrecorded_effects_are_reported(
        seed in any::<u64>(),
        before in vec(step(), 1..80),
        after in vec(step(), 1..40),
    ) {
        let mut world = World::new(seed);
        for step in &before {
            world.step(step);
        }
        let under_way = world.flow.announced_effect().copied();
        let running = world.running;
        let ended = world.flow.conclusion().map(|(task, _)| *task);
        world.step(&Step::Lost);
        assert_eq!(world.running, None, "the running attempt is ended");
        if let Some((_, task)) = running {
            assert_eq!(world.reported.get(&task.record), Some(&RemainingEffect::Unknown));
        }
        for task in under_way.into_iter().chain(ended) {
            assert!(world.reported.contains_key(&task.record), "{task:?} is not reported");
        }
        for step in &after {
            world.step(step);
        }
        assert_eq!(world.flow.wake(), None, "nothing is waited for");
    }
}
