//! The oracle: predicates over time on the promises to operators, judged on facts that are observed from outside.
//!
//! The simulation uses it, and every other world in which the service runs and is watched. A world reports one stream
//! of [`Fact`]s in the order of time; each [`Promise`] has a predicate that consumes the stream. Clock and tolerance
//! are parameters ([`PromiseTerms`]), so that the same predicates judge real processes with a larger tolerance.
//!
//! Guarantees: an equal stream gives equal verdicts. A predicate counts how often it was put to the test; a promise
//! with a count of 0 is reported as not exercised, not as kept.
//!
//! Assumes: revisions of the store come whole and in order.
//!
//! Does not: read a clock, a store or a network, or judge invariants of the state (`madako_domain::invariants` does).
//!
//! Apart from the oracle, [`player`] plays the schedules of simulation and chaos, [`workload`] has the writes of their
//! clients, [`history`] and [`standing`] judge the revisions of the store and the states of the repair queue, and
//! [`final_cluster`] judges the cluster at the end.

pub mod bindings;
mod components;
mod drains;
mod exemptions;
mod fact;
pub mod final_cluster;
pub mod history;
mod keeping;
mod leading;
mod liveness;
mod observed_world;
mod operations;
mod oracle;
mod pace;
mod placement;
pub mod player;
mod promise;
pub mod registry;
mod repairs;
mod requests;
mod restores;
pub mod standing;
mod terms;
#[cfg(test)]
mod tests;
mod waves;
pub mod workload;

pub use crate::exemptions::{Exemption, ExemptionUse, Exemptions};
pub use crate::fact::{
    Change, Command, ComponentFact, EffectStage, EtcdFact, Fact, FactTime, FaultPlace, KubernetesRequest,
    MachineReport, NodeEffect, PodFact, RegistryQuestion, Voter,
};
pub use crate::oracle::Oracle;
pub use crate::promise::{Promise, Verdict};
pub use crate::terms::PromiseTerms;
