//! One way to have an effect outside etcd: announce it durably, get a permit, begin it, record how it ended.
//!
//! [`Workflow`] is the brain: a state machine. Its inputs are what an actor hears ([`EffectEvent`]: a commit was answered, a permit
//! was given or refused, an attempt ended, time passed, the epoch is over) and what the actor decides on a state of the store
//! ([`Workflow::change`], [`Workflow::announce`], [`Workflow::record`]); its outputs are [`Action`]s. [`Hands`] carries actions
//! out for an actor, and [`Permits`] is for tasks that have many small effects of their own.
//!
//! # Guarantees
//! - At most one change is in flight, and each is decided on a state that shows the last one.
//! - An attempt begins only after the change that announces its effect is durable, only with a permit that holds at that moment,
//!   and only while no other attempt goes on. An effect has at most as many attempts as it says, and none after one that is not known to
//!   have ended.
//! - An effect whose announcement may be durable begins only when the store shows the announcement; an announcement that
//!   another one replaced never begins.
//! - Every effect that was announced ends in a [`Conclusion`], which is offered until a change that records it is durable, or is
//!   reported when the epoch is over.
//! - An answer that is lost holds nothing up: each wait has an end, if [`EffectEvent::Passed`] is told at [`Workflow::wake`]
//!   and once a round.
//!
//! # Assumes
//! The port of the effect checks its permit when it begins, and ends the effect when its future is dropped.
//!
//! # Does not
//! The brain knows no clock, no task and no store. It does not know how a change is made: its user makes one of the newest
//! state, and judges what stands against an effect.

mod action;
mod changes;
mod limits;
mod permits;
mod shell;
mod workflow;

pub use madako_protocol::effect::{AttemptEnd, EffectEvent};

pub use crate::action::{Action, Conclusion, Effect, Left, Seen};
pub use crate::changes::{RETRY_FIRST, RETRY_MOST};
pub use crate::permits::{PERMIT_PAUSE, Permits};
pub use crate::shell::Hands;
pub use crate::workflow::Workflow;
