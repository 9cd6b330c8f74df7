//! The protocol of the actors: their messages, feeds and mailboxes, events, permits, and the ports to the outside.
//!
//! Does no I/O, reads no clock, draws no random number.

#![warn(missing_docs)]

pub mod actors;
pub mod authorities;
pub mod backup;
pub mod causes;
pub mod components;
pub mod effect;
pub mod etcd;
pub mod event;
pub mod feed;
pub mod first_seen;
pub mod host;
pub mod kubernetes;
pub mod kubernetes_secrets;
pub mod latest;
pub mod leader;
pub mod limits;
pub mod login_keys;
pub mod mailbox;
pub mod node;
pub mod objects;
pub mod operations;
pub mod permit;
pub mod placement;
pub mod ports;
pub mod secret;
pub mod store;
pub mod telemetry;
pub mod vault;
