//! Test support: resources in the form in which etcd stores them, and a store for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::metrics::MetricKey;
use madako_domain::placement::object_value::Object;
use madako_domain::placement::objects::{Change, Stored};
use serde_json::{Value, json};

/// A metric and its weight in a reference; `namespaced` or global.
pub(crate) fn reference(name: &str, namespaced: bool) -> Value {
    json!({ "name": name, "weight": 1.0, "namespaced": namespaced })
}

pub(crate) fn metadata(namespace: Option<&str>, name: &str) -> Value {
    let then = "2026-01-01T00:00:00.000000+00:00";
    json!({ "name": name, "namespace": namespace, "uid": "u", "created": then, "modified": then })
}

pub(crate) fn metric(key: &MetricKey, provider: &str, there: &str, min: f64, max: f64) -> Object {
    metric_with(key, provider, there, min, max, &[])
}

pub(crate) fn metric_with(
    key: &MetricKey,
    provider: &str,
    there: &str,
    min: f64,
    max: f64,
    allowed: &[i64],
) -> Object {
    let kind = if key.namespace.is_some() { Kind::Metric } else { Kind::GlobalMetric };
    let spec = json!({ "min": min, "max": max, "allowed_values": allowed, "provider": { "name": provider, "metric": there } });
    object(kind, &json!({ "metadata": metadata(key.namespace.as_deref(), &key.name), "spec": spec }))
}

pub(crate) fn prometheus(namespace: Option<&str>, name: &str, url: &str) -> Object {
    provider(namespace, name, "prometheus", &json!({ "url": url }))
}

pub(crate) fn table(namespace: Option<&str>, name: &str, metrics: &Value) -> Object {
    provider(namespace, name, "static", &json!({ "metrics": metrics }))
}

fn provider(namespace: Option<&str>, name: &str, of: &str, content: &Value) -> Object {
    let kind = if namespace.is_some() { Kind::MetricsProvider } else { Kind::GlobalMetricsProvider };
    object(kind, &json!({ "metadata": metadata(namespace, name), "spec": { "type": of, of: content } }))
}

pub(crate) fn cluster(namespace: &str, name: &str, metrics: &[Value]) -> Object {
    let spec = json!({ "metrics": metrics, "constraints": { "cloud": {} } });
    object(Kind::Cluster, &json!({ "metadata": metadata(Some(namespace), name), "spec": spec }))
}

pub(crate) fn object(kind: Kind, value: &Value) -> Object {
    Object::from_stored(kind, &value.to_string()).unwrap()
}

pub(crate) fn global(name: &str) -> MetricKey {
    MetricKey { namespace: None, name: name.to_owned() }
}

pub(crate) fn of(namespace: &str, name: &str) -> MetricKey {
    MetricKey { namespace: Some(namespace.to_owned()), name: name.to_owned() }
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) revision: i64,
    pub(crate) objects: BTreeMap<ObjectKey, Arc<Stored>>,
}

impl Store {
    pub(crate) fn put(&mut self, object: Object) -> Arc<Change> {
        self.revision += 1;
        let key = object.key();
        let before = self.objects.get(&key).cloned();
        let stored = Arc::new(Stored {
            key: key.clone(),
            create_revision: before.as_ref().map_or(self.revision, |before| before.create_revision),
            mod_revision: self.revision,
            object,
            wire: Bytes::new(),
        });
        self.objects.insert(key.clone(), Arc::clone(&stored));
        Arc::new(Change { revision: self.revision, key, before, after: Some(stored) })
    }

    pub(crate) fn delete(&mut self, key: &ObjectKey) -> Arc<Change> {
        self.revision += 1;
        let before = self.objects.remove(key);
        Arc::new(Change { revision: self.revision, key: key.clone(), before, after: None })
    }

    pub(crate) fn all(&self) -> Vec<Arc<Stored>> {
        self.objects.values().cloned().collect()
    }
}
