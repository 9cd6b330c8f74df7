//! The line of the log at the start: version, store, listeners, registry, and the parts that are off.

use std::sync::Arc;

use madako_domain::keys;
use madako_store::EtcdStore;
use madako_supervisor::config::StoreChoice;
use madako_supervisor::service::Service;

use crate::VERSION;
use crate::access::get_entry;
use crate::serve_args::ServeOptions;

/// Logs the version, the store with its directory, the listeners, the registry, and all that is off.
pub(super) async fn log_start(service: &Service, options: &ServeOptions) {
    let config = &options.config;
    let (store, data_dir) = match &config.store {
        StoreChoice::External => (config.clients.endpoints.join(","), None),
        StoreChoice::Embedded(embedded) => {
            (format!("embedded, serves {}", embedded.listen), Some(embedded.data_dir.display()))
        }
    };
    tracing::info!(
        version = VERSION,
        store,
        data_dir = data_dir.map(tracing::field::display),
        prefix = config.prefix,
        http = %service.http(),
        placement_api = service.placement_http().map(tracing::field::display),
        registry = read_registry_url(service.store()).await,
        off = parts_switched_off(options).join(","),
        "the service started"
    );
}

/// The URL of the registry, or why it is not known. Polls read it again.
async fn read_registry_url(store: &Arc<EtcdStore>) -> String {
    match get_entry(store.as_ref(), keys::SABAKAN_URL).await {
        Ok(Some(entry)) => String::from_utf8_lossy(&entry.value).into_owned(),
        Ok(None) => "none: madako sabakan set-url stores its URL".to_owned(),
        Err(failure) => format!("unknown: {}", failure.message().unwrap_or_default()),
    }
}

/// The parts of the service that its settings switch off.
fn parts_switched_off(options: &ServeOptions) -> Vec<&'static str> {
    let config = &options.config;
    let reaches_kubernetes = config.reaches_kubernetes() || options.simulated.is_some();
    let parts = [
        ("operations on nodes", config.operations.mode.is_none()),
        ("drains and taints (no kubeconfig)", !reaches_kubernetes),
        ("placement", config.placement.is_none()),
        ("placement decisions", config.placement.as_ref().is_some_and(|placement| !placement.controllers)),
        ("metrics", !options.telemetry),
    ];
    parts.into_iter().filter(|(_, is_off)| *is_off).map(|(part, _)| part).collect()
}
