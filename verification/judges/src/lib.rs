//! The oracle: predicates over time on what an operator is promised, judged on facts that are seen from outside.
//!
//! For: the simulation, and every other world in which the service runs and is watched. A world tells one stream of
//! [`Fact`]s in the order of time; each [`Promise`] has a predicate that consumes the stream. Clock and tolerance are
//! parameters ([`Terms`]), so that real processes are judged by the same predicates with a larger tolerance.
//!
//! Guarantees: the same stream gives the same verdicts. A predicate counts how often it had something to judge; a promise
//! that was never put to the test is not kept, but not exercised.
//!
//! Assumes: revisions of the store come whole and in order.
//!
//! Does not: read a clock, a store or a network, and judge invariants of the state (`madako_domain::invariants` does).
//!
//! Beside the oracle, [`player`] plays the schedules of both worlds.

mod exemptions;
mod fact;
mod keeping;
mod leading;
mod liveness;
mod oracle;
mod pace;
mod picture;
mod placement;
pub mod player;
mod promise;
pub mod registry;
mod repairs;
mod requests;
mod terms;
#[cfg(test)]
mod tests;

pub use crate::exemptions::{Exemption, Exemptions, Use};
pub use crate::fact::{At, Change, Command, Fact, MachineSeen, Place, Question};
pub use crate::oracle::Oracle;
pub use crate::promise::{Promise, Verdict};
pub use crate::terms::Terms;
