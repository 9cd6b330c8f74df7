//! Benchmarks of the placement API and its scheduler, measured over HTTP.
//!
//! Each part starts a new store and service. Requests come from a separate thread, whose CPU time is reported: a
//! generator that takes much of the machine would measure itself. The same run measures etcd alone, with clients in a
//! thread of the same kind.

pub(crate) mod at_rest;
mod bindings;
pub(crate) mod commands;
mod creates;
mod http;
mod load;
mod reads;
mod resources;
mod stage;
mod watchers;

use crate::table::Table;

pub(crate) async fn measure(table: &mut Table) -> anyhow::Result<()> {
    creates::measure(table).await?;
    reads::measure(table).await?;
    watchers::measure(table).await?;
    bindings::measure(table).await
}
