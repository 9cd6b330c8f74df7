//! What the API of placement and its scheduler promise, asked over HTTP.
//!
//! Each part starts a store and the service anew. Requests come from a thread of its own, whose time on a core is shown: a
//! generator that takes much of the machine would measure itself. What etcd does alone is measured in the same run, by
//! clients in the same kind of thread.

pub(crate) mod at_rest;
mod bindings;
mod creates;
mod http;
mod load;
mod reads;
mod resources;
mod stage;
mod watchers;

use crate::table::Table;

/// Fills in its rows.
pub(crate) async fn measure(table: &mut Table) -> anyhow::Result<()> {
    creates::measure(table).await?;
    reads::measure(table).await?;
    watchers::measure(table).await?;
    bindings::measure(table).await
}
