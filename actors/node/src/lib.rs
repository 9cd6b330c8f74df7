//! NodeActor: the connection to one node, its state, and the actions on it in their order.
//!
//! # Guarantees
//! - At most one connection to the node, and at most one action at a time.
//! - With the policy [`HostKeyPolicy::Pin`], no read and no action reaches a node before its host key is pinned in the
//!   store, and none reaches a node with another key.
//! - A request is answered: with its result, or with the last error of the connection.
//! - Dropping the receiver of a reply cancels the request.
//!
//! # Assumes
//! The driver bounds each request in time and size.
//!
//! # Does not
//! Decide on actions, repeat them, or poll the node by itself.

mod actor;
mod backoff;
mod limits;

pub use crate::actor::{HostKeyPolicy, METRICS, Node, NodeArguments, PinnedKeyWriter};
