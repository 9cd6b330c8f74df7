//! Clusters and their applications as plain data for the view, from the API's lists.

use std::collections::BTreeMap;

use serde_json::Value;

use super::scene::PERCENT;

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ClusterView {
    pub(crate) name: String,
    pub(crate) location: String,
    /// As in the API, such as `ONLINE`.
    pub(crate) state: String,
    /// Score for an application that is not bound to it; `None`: a value is missing.
    pub(crate) score: Option<f64>,
    /// Name and last fetched value of each metric.
    pub(crate) metrics: Vec<(String, Option<f64>)>,
    pub(crate) applications: Vec<BoundApplication>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BoundApplication {
    pub(crate) name: String,
    /// True if it never moves.
    pub(crate) settled: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PlacementOverview {
    pub(crate) places: Vec<ClusterView>,
    pub(crate) unbound: Vec<BoundApplication>,
}

impl PlacementOverview {
    /// From the API's lists and the last fetched values.
    pub(crate) fn from_resources(
        clusters: &[Value],
        applications: &[Value],
        fetched: &BTreeMap<String, f64>,
    ) -> Self {
        let mut places: Vec<ClusterView> =
            clusters.iter().map(|cluster| view_cluster(cluster, fetched)).collect();
        let mut unbound = Vec::new();
        for application in applications {
            let guest = BoundApplication {
                name: text_at(application, "/metadata/name"),
                settled: application.pointer("/spec/constraints/migration") == Some(&Value::Bool(false)),
            };
            let on = text_at(application, "/status/scheduled_to/name");
            match places.iter_mut().find(|place| place.name == on) {
                Some(place) => place.applications.push(guest),
                None => unbound.push(guest),
            }
        }
        Self { places, unbound }
    }

    pub(crate) fn count_applications(&self) -> usize {
        self.places.iter().map(|place| place.applications.len()).sum::<usize>() + self.unbound.len()
    }
}

fn view_cluster(cluster: &Value, fetched: &BTreeMap<String, f64>) -> ClusterView {
    let (mut metrics, mut weighted, mut weights) = (Vec::new(), Some(0.0), 0.0);
    for metric in cluster.pointer("/spec/metrics").and_then(Value::as_array).into_iter().flatten() {
        let name = text_at(metric, "/name");
        let weight = metric["weight"].as_f64().unwrap_or_default();
        let value = fetched.get(&name).copied();
        weighted = weighted.zip(value).map(|(sum, value)| {
            sum + weight * ((value - PERCENT.0) / (PERCENT.1 - PERCENT.0)).clamp(0.0, 1.0)
        });
        weights += weight;
        // The row names the cluster already.
        let short = name.split_once('_').map_or(name.as_str(), |(short, _)| short).to_owned();
        metrics.push((short, value));
    }
    ClusterView {
        name: text_at(cluster, "/metadata/name"),
        location: text_at(cluster, "/metadata/labels/location"),
        state: text_at(cluster, "/status/state"),
        score: weighted.filter(|_| weights > 0.0).map(|sum| sum / weights),
        metrics,
        applications: Vec::new(),
    }
}

fn text_at(of: &Value, pointer: &str) -> String {
    of.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn applications_stand_where_they_are_bound_and_a_score_is_the_weighted_mean() {
        let cluster = |name: &str| {
            json!({
                "metadata": {"name": name, "labels": {"location": "europe"}},
                "spec": {"metrics": [
                    {"name": format!("free_{name}"), "weight": 3.0},
                    {"name": "network_europe", "weight": 1.0},
                ]},
                "status": {"state": "ONLINE"},
            })
        };
        let application = |name: &str, on: Value, migration: bool| {
            json!({
                "metadata": {"name": name},
                "spec": {"constraints": {"migration": migration}},
                "status": {"scheduled_to": on},
            })
        };
        let applications = [
            application("shop", json!({"kind": "Cluster", "name": "oslo"}), true),
            application("ledger", json!({"kind": "Cluster", "name": "oslo"}), false),
            application("chat", Value::Null, true),
        ];
        let fetched = [("free_oslo".to_owned(), 80.0), ("network_europe".to_owned(), 40.0)].into();
        let landscape =
            PlacementOverview::from_resources(&[cluster("oslo"), cluster("bonn")], &applications, &fetched);
        let guest = |name: &str, settled| BoundApplication { name: name.to_owned(), settled };
        let [oslo, bonn] = &landscape.places[..] else { panic!("{landscape:?}") };
        assert_eq!(oslo.applications, [guest("shop", false), guest("ledger", true)]);
        assert_eq!((oslo.state.as_str(), oslo.location.as_str()), ("ONLINE", "europe"));
        assert!((oslo.score.unwrap() - 0.7).abs() < 1e-9, "{:?}", oslo.score);
        assert_eq!(oslo.metrics[0], ("free".to_owned(), Some(80.0)));
        assert_eq!((bonn.score, &bonn.metrics[0]), (None, &("free".to_owned(), None)));
        assert_eq!(landscape.unbound, [guest("chat", false)]);
        assert_eq!(landscape.count_applications(), 3);
    }
}
