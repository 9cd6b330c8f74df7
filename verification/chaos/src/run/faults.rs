//! The faults of a run, each at its time.
//!
//! A fault that would do nothing, since its target is not there, begins as soon as it does something. Where that is
//! after its end, it lasts for its whole time from then, and what still waits at the end of a run has [`PATIENCE`] there, with nothing
//! else broken. One that strikes once is tried for that long. What was not done is told.

use std::collections::BTreeMap;
use std::time::Duration;

use madako_faults::{Change, Injection, Schedule, Span};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Course, GLANCE};
use crate::history::Event;
use crate::inject::{Done, Impossible, Injector, Undone};
use crate::world::World;

/// How long a fault that strikes once, or is over, waits for its target: as long as a service that was just started may take to have a
/// leader.
const PATIENCE: Duration = super::BEGINS_WITHIN;
/// What is told of one that waited in vain.
const NOT_THERE: &str = "its target was not there in time";

/// Who does what is to be done, and tells what came of it.
trait Hand {
    /// As [`Injector::inject`].
    async fn inject(&mut self, fault: (usize, &Injection), begins: bool) -> Result<Done, Undone>;

    /// Tells of a change of an injection.
    fn tell(&mut self, fault: (usize, &Injection), told: Told);
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    /// Since the beginning, as the schedule says it unless it is late.
    at: Span,
    /// `begins`, `ends`, `strikes` or `skipped`.
    change: &'static str,
    /// Whom it happened to.
    on: Option<String>,
    /// Packets that it lost, where the kernel counts them.
    dropped: Option<u64>,
    /// Why it did not.
    why: Option<String>,
}

impl Course<'_> {
    /// Does what the schedule says, and gives the injections that were not possible, each with the reason.
    pub(super) async fn inject(
        &self,
        world: &mut World,
        injector: &mut Injector,
        schedule: &Schedule,
    ) -> BTreeMap<usize, String> {
        let hand = Real { course: self, world, injector };
        play(hand, schedule, self.options.length).await.1
    }
}

/// The processes.
struct Real<'a> {
    course: &'a Course<'a>,
    world: &'a mut World,
    injector: &'a mut Injector,
}

impl Hand for Real<'_> {
    async fn inject(&mut self, fault: (usize, &Injection), begins: bool) -> Result<Done, Undone> {
        self.injector.inject(self.world, fault, begins).await
    }

    fn tell(&mut self, (number, injection): (usize, &Injection), told: Told) {
        let Told { at, change, on, dropped, why } = told;
        let what = format!("{} {}", injection.act, injection.target);
        let on_whom = on.as_deref().filter(|on| *on != injection.target.to_string());
        (self.course.tell)(&format!(
            "{at}: {what}{} {change}{}{}",
            on_whom.map(|on| format!(" ({on})")).unwrap_or_default(),
            dropped.map(|packets| format!(", {packets} packets dropped")).unwrap_or_default(),
            why.as_deref().map(|why| format!(": {why}")).unwrap_or_default(),
        ));
        self.course.history.note(Event::Fault { injection: number, what, change, on, dropped, why });
    }
}

/// Does what a schedule says, and then what is late. Gives the hand back, and what was skipped.
async fn play<H: Hand>(hand: H, schedule: &Schedule, length: Span) -> (H, BTreeMap<usize, String>) {
    let began = Instant::now();
    let (waiting, lasting, skipped) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut playing = Playing { hand, schedule, began, waiting, lasting, skipped };
    for event in &schedule.events {
        playing.until(event.at).await;
        playing.change(event.injection, event.change).await;
    }
    playing.until(length).await;
    while playing.is_late() {
        sleep(GLANCE).await;
        playing.look_after().await;
    }
    (playing.hand, playing.skipped)
}

struct Playing<'a, H> {
    hand: H,
    schedule: &'a Schedule,
    began: Instant,
    /// What could not begin yet, and until when it is tried; `None`: its own end is still to come.
    waiting: BTreeMap<usize, Option<Instant>>,
    /// When those end that began after their own end.
    lasting: BTreeMap<usize, Instant>,
    skipped: BTreeMap<usize, String>,
}

impl<H: Hand> Playing<'_, H> {
    fn is_late(&self) -> bool {
        !self.waiting.is_empty() || !self.lasting.is_empty()
    }

    /// Waits until a time of the schedule, and looks after what is late meanwhile.
    async fn until(&mut self, at: Span) {
        let at = self.began + at.duration();
        while self.is_late() && Instant::now() + GLANCE < at {
            sleep(GLANCE).await;
            self.look_after().await;
        }
        sleep_until(at).await;
    }

    /// What the schedule says is done, or waits.
    async fn change(&mut self, number: usize, change: Change) {
        let injection = &self.schedule.injections[number];
        let now = Instant::now();
        match change {
            Change::Ends if self.skipped.contains_key(&number) => {}
            Change::Ends if self.lasting.contains_key(&number) => {}
            Change::Ends if self.waiting.contains_key(&number) => {
                self.waiting.insert(number, Some(now + PATIENCE));
            }
            Change::Ends => self.end(number, injection.ends.unwrap_or(injection.begins)).await,
            Change::Begins | Change::Strikes => {
                if !self.begin(number, injection.begins).await {
                    let until = injection.ends.is_none().then(|| now + PATIENCE);
                    self.waiting.insert(number, until);
                }
            }
        }
    }

    /// What waits is tried, and what began late ends.
    async fn look_after(&mut self) {
        for (number, until) in self.waiting.clone() {
            let injection = &self.schedule.injections[number];
            let now = Instant::now();
            if self.begin(number, self.elapsed()).await {
                self.waiting.remove(&number);
                let late = until.is_some() && !self.skipped.contains_key(&number);
                if let Some(ends) = injection.ends.filter(|_| late) {
                    let lasts = ends.duration().saturating_sub(injection.begins.duration());
                    self.lasting.insert(number, now + lasts);
                }
            } else if until.is_some_and(|until| until <= now) {
                self.waiting.remove(&number);
                self.skip(number, self.elapsed(), NOT_THERE.to_owned());
            }
        }
        let now = Instant::now();
        let over: Vec<usize> =
            self.lasting.extract_if(.., |_, ends| *ends <= now).map(|(number, _)| number).collect();
        for number in over {
            self.end(number, self.elapsed()).await;
        }
    }

    fn elapsed(&self) -> Span {
        Span::millis(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Whether it need not be tried again.
    async fn begin(&mut self, number: usize, at: Span) -> bool {
        let injection = &self.schedule.injections[number];
        match self.hand.inject((number, injection), true).await {
            Err(Undone::NotYet) => return false,
            Err(Undone::Impossible(Impossible(why))) => self.skip(number, at, why),
            Ok(Done { on, dropped }) => {
                let change = if injection.ends.is_some() { "begins" } else { "strikes" };
                self.hand.tell((number, injection), Told { at, change, on: Some(on), dropped, why: None });
            }
        }
        true
    }

    async fn end(&mut self, number: usize, at: Span) {
        let injection = &self.schedule.injections[number];
        match self.hand.inject((number, injection), false).await {
            Ok(Done { on, dropped }) => {
                let told = Told { at, change: "ends", on: Some(on), dropped, why: None };
                self.hand.tell((number, injection), told);
            }
            Err(Undone::Impossible(Impossible(why))) => self.skip(number, at, why),
            // Who led when it began is known.
            Err(Undone::NotYet) => self.skip(number, at, NOT_THERE.to_owned()),
        }
    }

    fn skip(&mut self, number: usize, at: Span, why: String) {
        let injection = &self.schedule.injections[number];
        self.hand.tell(
            (number, injection),
            Told { at, change: "skipped", on: None, dropped: None, why: Some(why.clone()) },
        );
        self.skipped.insert(number, why);
    }
}

#[cfg(test)]
mod tests {
    use madako_faults::{Fault, schedule};
    use rand::SeedableRng as _;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// A world in which nobody leads for some spans of seconds.
    struct Leaderless {
        began: Instant,
        nobody: Vec<[u64; 2]>,
        told: Vec<String>,
    }

    impl Hand for Leaderless {
        async fn inject(&mut self, _: (usize, &Injection), begins: bool) -> Result<Done, Undone> {
            let now = self.began.elapsed().as_secs();
            if begins && self.nobody.iter().any(|[from, until]| (*from..*until).contains(&now)) {
                return Err(Undone::NotYet);
            }
            Ok(Done { on: "instance=1".to_owned(), dropped: None })
        }

        fn tell(&mut self, (_, injection): (usize, &Injection), told: Told) {
            let now = self.began.elapsed().as_secs();
            let why = told.why.map(|why| format!(": {why}")).unwrap_or_default();
            self.told.push(format!("{now} {} {}{why}", injection.act, told.change));
        }
    }

    /// What is told of some faults of the leader in a run of a minute, and how many are skipped.
    async fn told(faults: &[&str], nobody: &[[u64; 2]]) -> (Vec<String>, usize) {
        let faults: Vec<_> = faults.iter().map(|line| Fault::parse(line).unwrap()).collect();
        let length = Span::seconds(60);
        let schedule = schedule(&faults, length, &mut ChaCha8Rng::seed_from_u64(1)).unwrap();
        let hand = Leaderless { began: Instant::now(), nobody: nobody.to_vec(), told: Vec::new() };
        let (hand, skipped) = play(hand, &schedule, length).await;
        (hand.told, skipped.len())
    }

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_fault_waits_until_somebody_leads_and_then_lasts() {
        let pause = "pause instance=leader at 10s for 20s";
        let at_its_time = lines(&["10 pause begins", "30 pause ends"]);
        assert_eq!(told(&[pause], &[]).await, (at_its_time, 0));
        // Before its end it is not longer for that.
        assert_eq!(told(&[pause], &[[5, 25]]).await, (lines(&["25 pause begins", "30 pause ends"]), 0));
        // After it, it has its whole time, at the end of the run as well.
        assert_eq!(told(&[pause], &[[5, 35]]).await, (lines(&["35 pause begins", "55 pause ends"]), 0));
        assert_eq!(told(&[pause], &[[5, 70]]).await, (lines(&["70 pause begins", "90 pause ends"]), 0));
        let never = lines(&["90 pause skipped: its target was not there in time"]);
        assert_eq!(told(&[pause], &[[5, 500]]).await, (never, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_strikes_once_is_tried_for_a_while_and_others_go_on() {
        let faults = ["reset instance=leader at 50s", "cut instance=leader at 52s for 4s"];
        let (told_late, skipped) = told(&faults, &[[45, 80]]).await;
        assert_eq!(told_late, lines(&["80 reset strikes", "80 cut begins", "84 cut ends"]));
        assert_eq!(skipped, 0);
        let (told_never, skipped) = told(&faults, &[[45, 500]]).await;
        let never = ": its target was not there in time";
        assert_eq!(told_never, [format!("110 reset skipped{never}"), format!("116 cut skipped{never}")]);
        assert_eq!(skipped, 2);
    }
}
