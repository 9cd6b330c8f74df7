//! Scenarios as data: a world, its clients, the faults of the run, and the expected outcome.
//!
//! Simulation, rehearsal and chaos read this one language, which docs/chaos.md describes.
//!
//! Guarantees: a parsed scenario is possible as far as that can be judged without building its world: each fault suits
//! its target, each target is in the world, each number is within its bounds. An error lists all problems with their
//! lines. Equal scenario, length and generator give an equal schedule.
//!
//! Assumes: the text is in memory; a text longer than [`MAX_BYTES`] is refused.
//!
//! Does not: inject a fault, read a clock or a file, or know which processes run. The injector knows which instance
//! leads and which addresses the machines have.

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

pub use expand::{
    DrawnBeginning, Event, Injection, InjectionChange, MAX_STRIKES, Schedule, TooManyFaults, schedule,
};
pub use fault::{ACTORS, Act, Fault, FaultTimes, InstanceTarget, Target, TargetKind};
pub use read::MAX_BYTES;
pub use scenario::{Client, ClientKind, Expectations, Operations, Rate, Scenario, Store, World};
pub use shipped::{SHIPPED, ShippedScenario, find_shipped};
pub use span::{Span, WRITTEN};
pub use suits::{CLOCK_JUMP, DELAY, FaultLength, LOSS_PERCENT, fault_length, needs_nodes, suitable_targets};
pub use verdict::{Count, Counts, Observed, Shortfall, find_shortfalls};
