//! The resources of the demo: five clusters with their properties, and ten applications with their constraints.

use std::time::Duration;

use madako_datacenter_sim::RandomWalkMetric;
use serde_json::{Value, json};

use super::api::{ApiError, DemoApi};

/// Bounds of every metric, in percent.
pub(super) const PERCENT: (f64, f64) = (0.0, 100.0);
/// The provider of all metrics.
const PROVIDER: &str = "prometheus";
/// Time between two turning points of a cluster's metric: some moves a minute.
const PACE: Duration = Duration::from_secs(40);
/// Time between two turning points of a region's metric.
const REGION_PACE: Duration = Duration::from_secs(60);

pub(super) struct DemoSite {
    pub(super) name: &'static str,
    pub(super) location: &'static str,
    hardware: &'static str,
    /// Weights of `free_NAME`, `green_NAME` and `network_LOCATION`: the priorities of the cluster's owner.
    weights: [f64; 3],
}

/// A weight of 0: the cluster does not have the metric.
pub(super) const SITES: [DemoSite; 5] = [
    DemoSite { name: "oslo", location: "europe", hardware: "cpu", weights: [0.4, 0.5, 0.2] },
    DemoSite { name: "munich", location: "europe", hardware: "gpu", weights: [0.6, 0.3, 0.2] },
    DemoSite { name: "lisbon", location: "europe", hardware: "cpu", weights: [0.5, 0.5, 0.0] },
    DemoSite { name: "osaka", location: "asia", hardware: "gpu", weights: [0.6, 0.2, 0.3] },
    DemoSite { name: "pune", location: "asia", hardware: "cpu", weights: [0.5, 0.3, 0.3] },
];
const REGIONS: [&str; 2] = ["europe", "asia"];

/// An application: name, label constraints, metrics constraints, and whether it may move.
type DemoApplication = (&'static str, &'static [&'static str], &'static [&'static str], bool);

const APPLICATIONS: [DemoApplication; 10] = [
    ("shop", &["location is europe"], &[], true),
    ("ledger", &["location is europe"], &[], false),
    ("search", &[], &[], true),
    ("video", &["hardware is gpu"], &[], true),
    ("training", &["hardware is gpu"], &[], true),
    ("chat", &["location in (europe, asia)", "hardware is not gpu"], &[], true),
    ("sensors", &["location is asia"], &[], true),
    ("games", &[], &["network_asia > 20"], true),
    ("mail", &["location is not asia"], &[], true),
    ("backup", &[], &["network_europe >= 15"], true),
];

fn own_metrics(site: &DemoSite) -> [(String, f64); 3] {
    let [free, green, network] = site.weights;
    [
        (format!("free_{}", site.name), free),
        (format!("green_{}", site.name), green),
        (format!("network_{}", site.location), network),
    ]
}

pub(super) fn simulated_metrics() -> Vec<RandomWalkMetric> {
    let wandering =
        |name, pace| RandomWalkMetric { name, least: PERCENT.0 + 5.0, greatest: PERCENT.1 - 5.0, pace };
    let own = SITES.iter().flat_map(|site| {
        [format!("free_{}", site.name), format!("green_{}", site.name)].map(|name| wandering(name, PACE))
    });
    own.chain(REGIONS.map(|region| wandering(format!("network_{region}"), REGION_PACE))).collect()
}

pub(super) async fn install(api: &DemoApi, prometheus_url: &str) -> Result<(), ApiError> {
    let provider = json!({
        "metadata": {"name": PROVIDER},
        "spec": {"type": "prometheus", "prometheus": {"url": prometheus_url}},
    });
    api.create_global("globalmetricsproviders", &provider).await?;
    for RandomWalkMetric { name, .. } in simulated_metrics() {
        let metric = json!({
            "metadata": {"name": name},
            "spec": {
                "min": PERCENT.0,
                "max": PERCENT.1,
                "allowed_values": [],
                "provider": {"name": PROVIDER, "metric": name},
            },
        });
        api.create_global("globalmetrics", &metric).await?;
    }
    for site in &SITES {
        api.create("clusters", &cluster_json(site)).await?;
        api.set_state(site.name, "ONLINE").await?;
    }
    for wish in &APPLICATIONS {
        api.create("applications", &application_json(wish)).await?;
    }
    Ok(())
}

fn cluster_json(site: &DemoSite) -> Value {
    let metrics: Vec<Value> = own_metrics(site)
        .into_iter()
        .filter(|(_, weight)| *weight > 0.0)
        .map(|(name, weight)| json!({"name": name, "weight": weight, "namespaced": false}))
        .collect();
    let name = site.name;
    json!({
        "metadata": {"name": name, "labels": {"location": site.location, "hardware": site.hardware}},
        "spec": {
            // No client calls this server: a cluster with a kubeconfig counts as existing.
            "kubeconfig": {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": name,
                "contexts": [{"name": name, "context": {"cluster": name, "user": "demo"}}],
                "users": [{"name": "demo", "user": {}}],
                "clusters": [{"name": name, "cluster": {"server": format!("https://{name}.invalid:6443")}}],
            },
            "constraints": {"cloud": {"labels": [], "metrics": []}},
            "metrics": metrics,
        },
    })
}

fn application_json((name, labels, metrics, migration): &DemoApplication) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "manifest": [{
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "selector": {"matchLabels": {"app": name}},
                    "template": {
                        "metadata": {"labels": {"app": name}},
                        "spec": {"containers": [{"name": name, "image": format!("{name}:1")}]},
                    },
                },
            }],
            "constraints": {"cluster": {"labels": labels, "metrics": metrics}, "migration": migration},
        },
    })
}
