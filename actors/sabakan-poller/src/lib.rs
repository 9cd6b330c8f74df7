//! SabakanPoller: polls the registry for machines, and holds back apparent mass removals.
//!
//! `actor` does the I/O; `guard` and `shared` are pure. A failed poll changes nothing: the last good observation stays,
//! with its age.

mod actor;
pub mod guard;
pub mod shared;

pub use actor::{METRICS, Poller, PollerArguments};
