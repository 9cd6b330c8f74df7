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

pub(crate) async fn measure_placement(table: &mut Table) -> anyhow::Result<()> {
    creates::measure_all_creates(table).await?;
    reads::measure_all_reads(table).await?;
    watchers::measure_watchers(table).await?;
    bindings::measure_all_bindings(table).await
}
