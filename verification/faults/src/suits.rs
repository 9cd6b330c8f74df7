//! The one table of what can be done to whom. docs/chaos.md has the same one; a test compares the two.

use std::time::Duration;

use crate::fault::{Act, TargetKind};

/// What [`Act::Delay`] adds to each way: a link to another continent, or a queue that is full. Far below every
/// deadline, so that what fails is order and timing, not the request; longer than that is a pause or a cut.
pub const DELAY: Duration = Duration::from_millis(200);
/// Of a hundred packets or messages, what [`Act::Loss`] loses: a bad cable. Enough to stall single requests beyond
/// their deadlines, too little to look like a cut.
pub const LOSS_PERCENT: u32 = 10;
/// How far ahead [`Act::ClockJump`] sets a clock while it lasts: a wrong time zone, the commonest of such mistakes. It
/// is longer than any lease, wait or age that the service compares times for. At its end the clock jumps back.
pub const CLOCK_JUMP: Duration = Duration::from_secs(3600);

/// How a fault goes on after it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasts {
    /// Until `for` is over, or until the faults of the run stop.
    While,
    /// It strikes once and is over; there is no `for`.
    Once,
}

/// The targets that an act suits. Why not the others:
/// machines are seen by the service only through the registry, so all that can happen to one is that it is gone;
/// an actor has neither process, connection nor disk of its own; only what keeps something has a disk to fill;
/// the store's members compare no wall clocks, and providers are not asked for times; what instances and the store
/// answer is never guessed at: a byte that TCP lets through is not a fault of this world.
#[must_use]
pub fn suiting(act: Act) -> &'static [TargetKind] {
    use TargetKind::{Actor, Address, Instance, Provider, Rack, Registry, Store};
    match act {
        Act::Kill => &[Rack, Address, Instance, Store, Registry, Provider, Actor],
        Act::Cut => &[Rack, Address, Instance, Store, Registry, Provider],
        Act::Pause | Act::Delay | Act::Loss | Act::Reset => &[Instance, Store, Registry, Provider],
        Act::Panic => &[Actor],
        Act::DiskFull | Act::Compact => &[Store],
        Act::ClockJump => &[Instance, Registry],
        Act::Corrupt => &[Registry, Provider],
    }
}

/// How an act on a target goes on. An actor that was killed is started anew by its supervisor, so nothing lasts.
#[must_use]
pub fn lasts(act: Act, target: TargetKind) -> Lasts {
    match (act, target) {
        (Act::Panic | Act::Reset | Act::Compact, _) | (Act::Kill, TargetKind::Actor) => Lasts::Once,
        _ => Lasts::While,
    }
}

/// What suits an act, in words.
pub(crate) fn suiting_words(act: Act) -> String {
    let kinds: Vec<String> = suiting(act).iter().map(ToString::to_string).collect();
    match kinds.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{}, or {last}", rest.join(", ")),
        _ => kinds.concat(),
    }
}

/// The acts that suit a kind of target, in words.
pub(crate) fn acts_on(kind: TargetKind) -> String {
    let acts = Act::ALL.iter().filter(|act| suiting(**act).contains(&kind)).map(ToString::to_string);
    acts.collect::<Vec<_>>().join(", ")
}
