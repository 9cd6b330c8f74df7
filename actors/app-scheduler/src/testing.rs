//! Test support: resources at a revision, values of metrics, and passes whose writes are committed in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use madako_domain::placement::core::{GlobalMetric, GlobalMetricsProvider, Metric};
use madako_domain::placement::decision::{Decision, Outcome};
use madako_domain::placement::fit::{self, AnyCloud, Offer};
use madako_domain::placement::infrastructure::{Cloud, GlobalCloud};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::{Application, Cluster, ClusterState};
use madako_domain::placement::metadata::{MetricRef, Reason, ReasonCode};
use madako_domain::placement::metrics::{MetricKey, MetricState, MetricsObserved, Trust, Value};
use madako_domain::placement::object_value::{Object, Resource};
use madako_domain::placement::objects::{Change, Stored};
use madako_domain::placement::openstack::{MagnumCluster, Project};
use madako_json::krake::document::from_stored;
use serde_json::json;
use time::OffsetDateTime;

use crate::metric_values::DefinitionRevisions;
use crate::{Candidates, Memory, Pass, PassInput, SchedulerConfig, Snapshot, make_pass};

/// Namespace of all namespaced resources.
pub(crate) const NAMESPACE: &str = "testing";

pub(crate) fn begin() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap()
}

pub(crate) struct World {
    pub(crate) snapshot: Snapshot,
    pub(crate) metrics: Option<MetricsObserved>,
    pub(crate) config: SchedulerConfig,
    pub(crate) memory: Memory,
    pub(crate) now: OffsetDateTime,
    pub(crate) seed: u64,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for stored in self.snapshot.all() {
            writeln!(
                f,
                "{} at {}: {}",
                stored.key,
                stored.mod_revision,
                String::from_utf8_lossy(&stored.wire)
            )?;
        }
        write!(
            f,
            "{:?} {:?} {:?} at {}, seed {}",
            self.metrics, self.config, self.memory, self.now, self.seed
        )
    }
}

impl World {
    pub(crate) fn new() -> Self {
        let metrics = MetricsObserved { revision: 1, at: begin(), metrics: BTreeMap::new() };
        Self {
            snapshot: Snapshot::new(1, []),
            metrics: Some(metrics),
            config: SchedulerConfig { metric_wait: Duration::from_secs(20), ..SchedulerConfig::default() },
            memory: Memory::default(),
            now: begin(),
            seed: 1,
        }
    }

    pub(crate) fn put<T: Resource>(&mut self, value: T) -> ObjectKey {
        let object = value.into_object();
        let key = object.key();
        self.store(&key, Some(object));
        key
    }

    fn store(&mut self, key: &ObjectKey, object: Option<Object>) {
        let revision = self.snapshot.revision() + 1;
        let before = self.snapshot.get(key).map(|stored| stored.create_revision);
        let after = object.map(|object| {
            let wire = Bytes::from(object.to_json());
            // A round trip through JSON, as in the store.
            let object = Object::from_stored(key.kind, std::str::from_utf8(&wire).unwrap()).unwrap();
            Arc::new(Stored {
                key: key.clone(),
                create_revision: before.unwrap_or(revision),
                mod_revision: revision,
                object,
                wire,
            })
        });
        let change = Change { revision, key: key.clone(), before: None, after };
        self.snapshot.apply(&[Arc::new(change)]);
    }

    pub(crate) fn remove(&mut self, key: &ObjectKey) {
        self.store(key, None);
    }

    pub(crate) fn get<T: Resource + 'static>(&self, name: &str) -> &T {
        let namespace = T::KIND.namespaced().then_some(NAMESPACE);
        self.snapshot.typed::<T>(&ObjectKey::new(T::KIND, namespace, name)).unwrap().value
    }

    pub(crate) fn change<T: Resource + 'static>(&mut self, name: &str, change: impl FnOnce(&mut T)) {
        let mut value = self.get::<T>(name).clone();
        change(&mut value);
        self.put(value);
    }

    pub(crate) fn application(&mut self, name: &str, change: impl FnOnce(&mut Application)) -> ObjectKey {
        let mut application = application(name);
        change(&mut application);
        self.put(application)
    }

    pub(crate) fn cluster(&mut self, name: &str, change: impl FnOnce(&mut Cluster)) -> ObjectKey {
        let mut cluster = cluster(name);
        change(&mut cluster);
        self.put(cluster)
    }

    /// A cluster with its own metrics, each of weight 1, and their values.
    pub(crate) fn scored(&mut self, name: &str, values: &[(&str, f64)]) -> ObjectKey {
        for (metric, value) in values {
            self.metric(metric, *value);
        }
        self.cluster(name, |cluster| {
            cluster.spec.metrics =
                values.iter().map(|(metric, _)| MetricRef::new(*metric, 1.0, false)).collect();
        })
    }

    pub(crate) fn metric(&mut self, name: &str, value: f64) {
        let key = ObjectKey::new(Kind::GlobalMetric, None, name);
        if self.snapshot.get(&key).is_none() {
            self.put(metric(name));
        }
        let value = Value { raw: value, normalized: value, at: self.now };
        self.know(name, Some(value), None, false);
    }

    pub(crate) fn know(&mut self, name: &str, value: Option<Value>, reason: Option<Reason>, undefined: bool) {
        let trust = Trust { since: self.now, range: None, turns: 0 };
        let metric = ObjectKey::new(Kind::GlobalMetric, None, name);
        let resource = self.snapshot.typed::<GlobalMetric>(&metric);
        let defined = resource.map(|resource| {
            DefinitionRevisions::for_metric(&self.snapshot, resource.stored, &resource.value.spec)
        });
        let DefinitionRevisions { metric, provider } = defined.unwrap_or_default();
        let state = MetricState {
            metric_revision: metric,
            provider_revision: provider,
            value,
            reason,
            undefined,
            note: None,
            trust,
        };
        let observed = self.metrics.as_mut().unwrap();
        observed.metrics.insert(MetricKey { namespace: None, name: name.to_owned() }, state);
    }

    /// The metric's provider stops answering.
    pub(crate) fn lose(&mut self, name: &str) {
        let reason = Reason::new(ReasonCode::UnreachableMetricsProvider, "no answer");
        self.know(name, None, Some(reason), false);
    }

    /// A new leader takes over, without the history of changes.
    pub(crate) fn relist(&mut self) {
        let keys = self.snapshot.all().map(|stored| stored.key.clone());
        let objects = keys.filter_map(|key| self.snapshot.shared(&key)).collect::<Vec<_>>();
        self.snapshot = Snapshot::new(self.snapshot.revision(), objects);
    }

    pub(crate) fn pass(&self) -> Pass {
        make_pass(&PassInput {
            snapshot: &self.snapshot,
            metrics: self.metrics.as_ref(),
            config: &self.config,
            memory: &self.memory,
            now: self.now,
            seed: self.seed,
        })
    }

    /// Commits a pass as the store does.
    pub(crate) fn commit(&mut self, pass: &Pass) {
        let mut moves = 0;
        for unit in &pass.units {
            let unchanged = |world: &Self, key: &ObjectKey, revision: i64| {
                assert_eq!(
                    world.snapshot.get(key).map_or(0, |stored| stored.mod_revision),
                    revision,
                    "{key}"
                );
            };
            for (key, revision) in &unit.basis {
                unchanged(self, key, *revision);
            }
            for write in &unit.writes {
                unchanged(self, &write.key, write.revision);
            }
            if let Some((application, cluster)) = &unit.binding {
                self.check_binding(application, cluster);
            }
            for write in &unit.writes {
                self.store(&write.key, write.object.clone());
            }
            moves += u64::from(unit.moves);
        }
        self.memory = pass.memory.clone();
        self.memory.note_moves(moves, self.config.reschedule_after, self.now);
    }

    /// I11, as the leader checks it.
    fn check_binding(&self, application: &ObjectKey, cluster: &ObjectKey) {
        let application = self.snapshot.typed::<Application>(application).unwrap().value;
        let cluster = self.snapshot.typed::<Cluster>(cluster).unwrap().value;
        let cloud = cluster.status.scheduled_to.as_ref().and_then(|cloud| cloud.key());
        let cloud = cloud.and_then(|cloud| AnyCloud::from_object(&self.snapshot.get(&cloud)?.object));
        let metrics = &self.metrics.as_ref().unwrap().metrics;
        let offer = Offer::from_cluster(cluster, cloud, metrics, self.config.metric_constraints);
        assert_eq!(fit::unmet_requirements(application, cluster, &offer), [], "I11");
        if self.config.candidates == Candidates::Namespace {
            assert_eq!(
                cluster.metadata.namespace, application.metadata.namespace,
                "another tenant's cluster"
            );
        }
    }

    pub(crate) fn run(&mut self) -> Pass {
        let pass = self.pass();
        self.commit(&pass);
        pass
    }

    /// Runs passes until one decides nothing; fails after too many.
    pub(crate) fn settle(&mut self) {
        for _ in 0..20 {
            let pass = self.run();
            if pass.units.is_empty() {
                return;
            }
        }
        panic!("20 passes over the same inputs, and still there is something to do");
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    pub(crate) fn decision(&self, name: &str) -> Decision {
        self.pass().decisions[&ObjectKey::new(Kind::Application, Some(NAMESPACE), name)].clone()
    }

    pub(crate) fn outcome(&self, name: &str) -> Outcome {
        self.decision(name).outcome
    }

    pub(crate) fn bound(&self, name: &str) -> Option<&str> {
        self.get::<Application>(name).status.scheduled_to.as_ref().map(|to| to.name.as_str())
    }
}

fn metadata(name: &str, namespace: Option<&str>) -> serde_json::Value {
    json!({"name": name, "namespace": namespace, "uid": format!("uid of {name}"),
        "created": "2026-01-01T00:00:00Z", "modified": "2026-01-01T00:00:00Z"})
}

fn read<T: Resource>(value: &serde_json::Value) -> T {
    from_stored(T::KIND.name(), &value.to_string()).unwrap()
}

pub(crate) fn application(name: &str) -> Application {
    read(&json!({"api": "kubernetes", "kind": "Application", "metadata": metadata(name, Some(NAMESPACE)),
        "spec": {"manifest": []}}))
}

pub(crate) fn cluster(name: &str) -> Cluster {
    read(&json!({"api": "kubernetes", "kind": "Cluster", "metadata": metadata(name, Some(NAMESPACE)),
        "spec": {"kubeconfig": {"apiVersion": "v1"}}, "status": {"state": "ONLINE"}}))
}

/// A cluster that has to be created on a cloud.
pub(crate) fn cluster_to_be(name: &str) -> Cluster {
    let mut cluster = cluster(name);
    cluster.spec.kubeconfig = Default::default();
    cluster.status.state = ClusterState::Pending;
    cluster
}

fn openstack(metrics: &[(&str, f64)]) -> serde_json::Value {
    let metrics: Vec<_> =
        metrics.iter().map(|(name, weight)| json!({"name": name, "weight": weight})).collect();
    json!({"type": "openstack", "openstack": {
        "url": "http://127.0.0.1", "metrics": metrics, "infrastructure_provider": {"name": "im"},
        "auth": {"type": "password", "password": {
            "user": {"username": "u", "password": "p"}, "project": {"name": "p"}}}}})
}

pub(crate) fn cloud(name: &str, metrics: &[(&str, f64)]) -> Cloud {
    read(&json!({"api": "infrastructure", "kind": "Cloud", "metadata": metadata(name, Some(NAMESPACE)),
        "spec": openstack(metrics)}))
}

pub(crate) fn global_cloud(name: &str, metrics: &[(&str, f64)]) -> GlobalCloud {
    read(&json!({"api": "infrastructure", "kind": "GlobalCloud", "metadata": metadata(name, None),
        "spec": openstack(metrics)}))
}

pub(crate) fn project(name: &str, namespace: &str) -> Project {
    read(&json!({"api": "openstack", "kind": "Project", "metadata": metadata(name, Some(namespace)),
        "spec": {"url": "http://127.0.0.1", "template": format!("template of {name}"),
            "auth": {"type": "application_credential",
                "application_credential": {"id": "i", "secret": "s"}}}}))
}

pub(crate) fn magnum_cluster(name: &str) -> MagnumCluster {
    read(&json!({"api": "openstack", "kind": "MagnumCluster", "metadata": metadata(name, Some(NAMESPACE)),
        "spec": {}}))
}

pub(crate) fn metric(name: &str) -> GlobalMetric {
    read(&json!({"api": "core", "kind": "GlobalMetric", "metadata": metadata(name, None),
        "spec": {"min": 0, "max": 1, "allowed_values": [], "provider": {"name": "p", "metric": name}}}))
}

pub(crate) fn namespaced_metric(name: &str, namespace: &str) -> Metric {
    read(&json!({"api": "core", "kind": "Metric", "metadata": metadata(name, Some(namespace)),
        "spec": {"min": 0, "max": 1, "allowed_values": [], "provider": {"name": "p", "metric": name}}}))
}

pub(crate) fn provider(name: &str) -> GlobalMetricsProvider {
    read(&json!({"api": "core", "kind": "GlobalMetricsProvider", "metadata": metadata(name, None),
        "spec": {"type": "prometheus", "prometheus": {"url": "http://127.0.0.1"}}}))
}
