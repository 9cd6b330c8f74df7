//! A scenario as data: a world, its clients, the faults that happen to it, and what is expected of it.
//!
//! For: simulation, rehearsal and chaos, which all read the one language that docs/chaos.md tells.
//!
//! Guarantees: a scenario that was read is possible as far as it can be judged without building its world: each
//! fault suits its target, each target is in the world, each number is within its bounds. What is wrong is told
//! whole, with the lines. The same scenario, length and generator give the same schedule.
//!
//! Assumes: the text is in memory; whoever hands it in bounds it by [`MAX_BYTES`], or it is refused here.
//!
//! Does not: inject anything, read a clock or a file, or know what runs. Who leads, and which addresses the
//! machines have, is known to whoever injects.

mod expand;
mod fault;
mod line;
mod name;
mod read;
mod scenario;
mod shipped;
mod span;
mod suits;
#[cfg(test)]
mod tests;
mod verdict;
mod words;

pub use expand::{Change, Draw, Event, Injection, MAX_STRIKES, Schedule, TooMany, schedule};
pub use fault::{ACTORS, Act, Fault, InstanceTarget, Target, TargetKind, When};
pub use read::MAX_BYTES;
pub use scenario::{Client, ClientKind, Expect, Rate, Scenario, Store, World};
pub use shipped::{SHIPPED, Shipped, shipped};
pub use span::{Span, WRITTEN};
pub use suits::{CLOCK_JUMP, DELAY, LOSS_PERCENT, Lasts, lasts, suiting};
pub use verdict::{Count, Counts, Observed, Shortfall, shortfalls};
