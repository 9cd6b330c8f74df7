//! SabakanPoller: asks the registry for its machines, and holds back what looks like a mass removal.
//!
//! `actor` is the shell; `guard` and `shared` are its brain. A poll that fails changes nothing: the last good
//! observation stays, with its age.

mod actor;
pub mod guard;
pub mod shared;

pub use actor::{Poller, PollerArguments, describe_metrics};
