//! The requests of a simulated user of placement: it creates, changes and deletes resources and definitions of metrics.

use madako_domain::placement::kind::{Kind, ObjectKey};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::{NAMESPACE, TABLED, User, api_path_of, collection_path};
use crate::prometheus::{RANGE, SERIES};

impl User {
    pub(super) async fn create(&mut self, kind: Kind, name: &str, spec: Value, labels: Value) -> String {
        let key = ObjectKey::new(kind, Some(NAMESPACE), name);
        let body = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
        self.checker.note_creation(&key);
        let answer = self.write("POST", &key, &collection_path(kind), None, Some(&body)).await;
        format!("makes {key}: {:?}", answer.map(|answer| answer.status))
    }

    /// Makes the missing metrics and providers.
    pub(super) async fn define_resource(&mut self) {
        let there = self.stored_revisions().await;
        let global = |kind: Kind, name: &str| ObjectKey::new(kind, None, name);
        let mut wanted = vec![(
            global(Kind::GlobalMetricsProvider, "table"),
            json!({"type": "static", "static": {"metrics": {TABLED: 40.0}}}),
        )];
        for server in ["prometheus-one.invalid", "prometheus-two.invalid"] {
            let spec = json!({"type": "prometheus", "prometheus": {"url": format!("http://{server}:9090")}});
            wanted.push((global(Kind::GlobalMetricsProvider, server), spec));
        }
        for (provider, name) in SERIES.into_iter().chain([("table", TABLED)]) {
            wanted.push((global(Kind::GlobalMetric, name), metric_of(provider, name)));
        }
        for (key, spec) in wanted.into_iter().filter(|(key, _)| !there.contains_key(key)) {
            self.create(key.kind, &key.name, spec, json!({})).await;
        }
    }

    /// Deletes a definition, or restores the missing ones.
    pub(super) async fn define_anew(&mut self) -> String {
        let there = self.stored_revisions().await;
        if there.keys().filter(|key| key.kind == Kind::GlobalMetric).count() <= SERIES.len() {
            self.define_resource().await;
            return "defines what is missing".to_owned();
        }
        let (server, name) = SERIES[self.chance.random_range(0..SERIES.len())];
        let key = match self.chance.random_range(0..4_u32) {
            0 => ObjectKey::new(Kind::GlobalMetricsProvider, None, server),
            _ => ObjectKey::new(Kind::GlobalMetric, None, name),
        };
        self.remove(&key).await
    }

    pub(super) async fn create_static_provider(&mut self) -> String {
        let key = ObjectKey::new(Kind::GlobalMetricsProvider, None, "table");
        let value = f64::from(self.chance.random_range(0..100_u8));
        self.change(&key, "", |table| table["spec"]["static"]["metrics"][TABLED] = json!(value)).await
    }

    pub(super) async fn make_cluster(&mut self) -> String {
        if self.count(Kind::Cluster).await >= self.size.clusters.1 {
            return "has enough clusters".to_owned();
        }
        self.named += 1;
        let name = format!("cluster-{}", self.named);
        let (metrics, labels) = (self.random_metrics(), self.random_labels());
        self.define_cluster(&name, metrics, labels).await
    }

    pub(super) async fn define_cluster(&mut self, name: &str, metrics: Value, labels: Value) -> String {
        let resources = &["databases.example.org"][..self.chance.random_range(0..2_usize)];
        let spec = json!({
            "kubeconfig": {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": "https://cluster.invalid:6443"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
                "users": [{"name": "u", "user": {"token": "secret"}}],
            },
            "custom_resources": resources,
            "constraints": {"cloud": {"labels": [], "metrics": []}},
            "metrics": metrics,
        });
        let made = self.create(Kind::Cluster, name, spec, labels).await;
        let key = ObjectKey::new(Kind::Cluster, Some(NAMESPACE), name);
        let online =
            self.change(&key, "/status", |cluster| cluster["status"]["state"] = json!("ONLINE")).await;
        format!("{made}, {online}")
    }

    pub(super) async fn make_application(&mut self) -> String {
        if self.count(Kind::Application).await >= self.size.applications.1 {
            return "has enough applications".to_owned();
        }
        self.named += 1;
        let spec = json!({
            "manifest": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}],
            "constraints": self.random_constraints(),
            "backoff_delay": 20,
        });
        let name = format!("app-{}", self.named);
        self.create(Kind::Application, &name, spec, json!({})).await
    }

    pub(super) fn random_labels(&mut self) -> Value {
        let zone = ["a", "b", "c"][self.chance.random_range(0..3_usize)];
        json!({"zone": zone})
    }

    pub(super) fn random_metrics(&mut self) -> Value {
        let mut all = Vec::new();
        for name in SERIES.into_iter().map(|(_, name)| name).chain([TABLED]) {
            if self.chance.random_range(0..3_u32) == 0 {
                all.push(
                    json!({"name": name, "weight": f64::from(self.chance.random_range(0..20_u8)) / 4.0}),
                );
            }
        }
        Value::Array(all)
    }

    pub(super) fn random_constraints(&mut self) -> Value {
        let one = |chance: &mut ChaCha8Rng, of: u32| chance.random_range(0..of) == 0;
        let mut labels = Vec::new();
        if one(&mut self.chance, 3) {
            let all = ["zone is a", "zone is not b", "zone in (a, c)", "zone not in (a)"];
            labels.push(all[self.chance.random_range(0..all.len())]);
        }
        let mut metrics = Vec::new();
        if one(&mut self.chance, 4) {
            let name = SERIES[self.chance.random_range(0..SERIES.len())].1;
            let bound = self.chance.random_range(10..90_u8);
            let sign = [">=", "less than", "!=", "gt"][self.chance.random_range(0..4_usize)];
            metrics.push(format!("{name} {sign} {bound}"));
        }
        let resources = if one(&mut self.chance, 6) { vec!["databases.example.org"] } else { Vec::new() };
        json!({
            "cluster": {"labels": labels, "metrics": metrics, "custom_resources": resources},
            "migration": !one(&mut self.chance, 6),
        })
    }

    /// Reads a resource, changes it, and writes it with the version that was read.
    pub(super) async fn change(
        &mut self,
        key: &ObjectKey,
        part: &str,
        change: impl FnOnce(&mut Value),
    ) -> String {
        let Some((tag, mut value)) = self.read(key).await else { return format!("finds no {key}") };
        change(&mut value);
        let path = format!("{}{part}", api_path_of(key));
        let answer = self.write("PUT", key, &path, Some(tag), Some(&value)).await;
        format!("changes {key}: {:?}", answer.map(|answer| answer.status))
    }

    pub(super) async fn change_application(&mut self) -> String {
        let Some(key) = self.pick_resource(Kind::Application).await else {
            return "finds no application".to_owned();
        };
        let constraints = self.random_constraints();
        let label = self.chance.random_range(0..100_u32).to_string();
        self.change(&key, "", |application| {
            application["metadata"]["labels"]["version"] = json!(label);
            application["spec"]["constraints"] = constraints;
        })
        .await
    }

    pub(super) async fn change_cluster(&mut self) -> String {
        let Some(key) = self.pick_resource(Kind::Cluster).await else { return "finds no cluster".to_owned() };
        let (labels, metrics) = (self.random_labels(), self.random_metrics());
        self.change(&key, "", |cluster| {
            cluster["metadata"]["labels"] = labels;
            cluster["spec"]["metrics"] = metrics;
        })
        .await
    }

    /// Sets the state of a random cluster, as the observer of a cluster does.
    pub(super) async fn set_state(&mut self) -> String {
        let Some(key) = self.pick_resource(Kind::Cluster).await else { return "finds no cluster".to_owned() };
        let states = ["ONLINE", "ONLINE", "ONLINE", "OFFLINE", "NOTREADY", "UNHEALTHY"];
        let state = states[self.chance.random_range(0..states.len())];
        let done = self.change(&key, "/status", |cluster| cluster["status"]["state"] = json!(state)).await;
        format!("{done}, {state}")
    }

    pub(super) async fn delete(&mut self, kind: Kind) -> String {
        let Some(key) = self.pick_resource(kind).await else { return format!("finds no {kind}") };
        self.remove(&key).await
    }

    pub(super) async fn remove(&mut self, key: &ObjectKey) -> String {
        self.checker.note_deletion(key);
        let answer = self.write("DELETE", key, &api_path_of(key), None, None).await;
        format!("deletes {key}: {:?}", answer.map(|answer| answer.status))
    }
}

pub(super) fn metric_of(provider: &str, name: &str) -> Value {
    json!({
        "allowed_values": [],
        "min": RANGE.0,
        "max": RANGE.1,
        "provider": {"name": provider, "metric": name},
    })
}
