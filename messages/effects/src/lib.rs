//! One way to have an effect outside etcd: announce it durably, get a permit, begin it, record its result.
//!
//! [`Workflow`] is a pure state machine. Its inputs are the events of an actor ([`EffectEvent`]: a commit was
//! answered, a permit was given or refused, an attempt ended, time passed, the epoch is over) and the actor's
//! decisions on a state of the store ([`Workflow::change`], [`Workflow::announce`], [`Workflow::record`]). Its
//! outputs are [`Action`]s. [`EffectRunner`] executes actions for an actor; [`Permits`] is for tasks with many small effects
//! of their own, such as a drain ([`DrainOrder`]).
//!
//! # Guarantees
//! - At most one change is in flight. Each change is decided on a state that contains the previous one.
//! - An attempt begins only after the change that announces its effect is durable, only with a permit that is valid
//!   at that moment, and only while no other attempt runs. An effect has at most its own maximum of attempts, and
//!   none after an attempt whose end is unknown.
//! - An effect whose announcement may be durable begins only when the store shows the announcement. An announcement
//!   that another one replaced never begins.
//! - Every announced effect ends in a [`Conclusion`], which is offered until a change that records it is durable, or
//!   is reported at the end of the epoch.
//! - A lost answer blocks nothing: each wait has an end, provided that [`EffectEvent::Passed`] arrives at
//!   [`Workflow::wake`] and once a reconcile pass.
//!
//! # Assumes
//! - The effect's port checks its permit at the beginning, and stops the effect when its future is dropped.
//! - The workflow's user cancels each unfinished record of its own that is neither [`Workflow::announced_effect`] nor the
//!   [`Workflow::conclusion`] after [`Workflow::observe`]: an announcement that another one replaced can become
//!   durable at any later time, and the workflow has forgotten it.
//!
//! # Does not
//! The state machine has no clock, no task and no store. It does not make changes: its user makes one from the newest
//! state, and evaluates the reasons against an effect.

#![warn(missing_docs)]

mod action;
mod changes;
mod drain;
mod host;
mod limits;
mod permits;
mod shell;
mod workflow;

pub use madako_protocol::effect::{AttemptEnd, EffectEvent};

pub use crate::action::{Action, Conclusion, Effect, Evidence, RemainingEffect};
pub use crate::changes::{RETRY_FIRST, RETRY_MOST};
pub use crate::drain::{CordonCheck, DrainOrder, DrainRules, find_undrained};
pub use crate::host::{Attempts, attempt_command, command_end, run_check};
pub use crate::permits::{PERMIT_PAUSE, Permits};
pub use crate::shell::EffectRunner;
pub use crate::workflow::Workflow;
