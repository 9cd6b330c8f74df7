//! The whole service in one process, on one thread and on paused time: several instances, the embedded store, the
//! simulated data center with its hosts and its Kubernetes, placement with its providers, and all users.
//!
//! For: `madako-chaos simulate`, `madako rehearse`, and the alerts among the tests.
//!
//! Guarantees: one seed decides everything; the same seed gives the same history in every process. Judges observe
//! from outside: they read the store's history, the acknowledgements of instances, and the requests that reach the
//! registry and the hosts.
//!
//! Assumes: a tokio runtime of one thread whose time is paused.
//!
//! Does not bypass a part of a real service: messages go through mailboxes, requests through HTTP and GraphQL, writes
//! through gRPC into the embedded store.

#![allow(
    clippy::unwrap_used,
    reason = "a simulated world whose own parts fail cannot go on; what comes from people is judged before it begins"
)]
#![allow(clippy::large_futures, reason = "one run at a time: none of them is ever moved while it runs")]

pub mod api;
pub mod cancels;
pub mod checker;
pub mod clock;
pub mod contents;
pub mod corruption;
pub mod disk;
pub mod drains;
pub mod effects;
pub mod facts;
pub mod history;
pub mod holding;
pub mod link;
pub mod network;
pub mod node_facts;
pub mod nodes;
pub mod operator;
pub mod pace;
pub mod placement;
pub mod planted;
pub mod prometheus;
pub mod queue_user;
pub mod repair;
pub mod requests;
mod retries;
pub mod revisions;
pub mod rivals;
pub mod routed;
pub mod run;
pub mod serving;
pub mod store_process;
pub mod user;
pub mod walk;
pub mod world;
