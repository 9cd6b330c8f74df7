//! Tests of placement with real processes: several services, a real etcd, clients over HTTP, and faults between them.

mod api;
mod encryption;
mod guide;
mod handover;
mod outages;
mod prefixes;
mod rehearse;
mod traces;
mod writers;

use super::etcd::RealEtcd;
use super::keys::Keys;
use super::stage::{Serve, eventually};
use crate::program::Files;

use api::Api;

const NAMESPACE: &str = "testing";
/// Placement on loopback, with one user that has all rights; some tests append to it.
const PLACEMENT: &str =
    "api: {authorization: always-allow, authentication: {strategy: {static: {enabled: true, name: admin}}}}";

/// A store, and files for its users.
struct PlacementFixture {
    etcd: RealEtcd,
    keys: Keys,
    files: Files,
}

impl PlacementFixture {
    /// `None`: no etcd is installed.
    async fn new() -> Option<Self> {
        let etcd = RealEtcd::start(&[]).await?;
        let keys = Keys::at(&etcd.endpoint(), None);
        Some(Self { etcd, keys, files: Files::new() })
    }

    /// A configuration file with these settings, and these in addition to the API's.
    fn config(&self, name: &str, settings: &str, placement: &str) -> String {
        self.files.write(name, format!("{settings}placement: {{{PLACEMENT}{placement}}}\n"))
    }

    /// A service on the store.
    async fn serve(&self, session_ttl: &str) -> Serve {
        let config = self.config("config.yml", &self.etcd.settings(), "");
        Serve::start(&config, session_ttl, "1s").await
    }

    /// Number of writes of an application, and the cluster that it is bound to.
    async fn stored(&self, application: &str) -> Option<(i64, Option<String>)> {
        let stored = self.keys.at_root(&key(application)).await?;
        let value: serde_json::Value = serde_json::from_slice(stored.value()).unwrap();
        Some((stored.version(), value["status"]["scheduled_to"]["name"].as_str().map(str::to_owned)))
    }

    /// Waits until an application is bound; returns the number of its writes by then, and its cluster.
    async fn until_bound(&self, application: &str) -> (i64, String) {
        eventually(&format!("{application} is bound"), async || {
            let (version, cluster) = self.stored(application).await?;
            Some((version, cluster?))
        })
        .await
    }
}

/// An application's key at the root of etcd.
fn key(application: &str) -> String {
    format!("/kubernetes/applications/{NAMESPACE}/{application}")
}

/// Waits until a service schedules.
async fn until_decides(service: &Serve) {
    service.until_metric("madako_placement_owner", &[], 1.0).await;
}

fn api(service: &Serve) -> Api {
    Api::at(service.address())
}
