use bytes::Bytes;
use serde_json::json;
use time::macros::datetime;

use super::*;
use crate::placement::fit::ComparedMetrics;
use crate::placement::kubernetes::ClusterState;
use crate::placement::metrics::{MetricKey, MetricState, MetricsObserved, Trust, Value};

fn metadata(name: &str, labels: serde_json::Value) -> serde_json::Value {
    json!({"name": name, "namespace": "n", "uid": "u", "labels": labels,
        "created": "2026-01-01T00:00:00Z", "modified": "2026-01-01T00:00:00Z"})
}

fn stored(kind: Kind, value: &serde_json::Value, revision: i64) -> Arc<Stored> {
    let object = Object::from_stored(kind, &value.to_string()).unwrap();
    let wire = Bytes::from(object.to_json());
    Arc::new(Stored { key: object.key(), create_revision: 1, mod_revision: revision, object, wire })
}

fn application(bound: Option<&str>) -> serde_json::Value {
    let to =
        bound.map(|name| json!({"api": "kubernetes", "kind": "Cluster", "namespace": "n", "name": name}));
    json!({
        "metadata": metadata("a", json!({})),
        "spec": {"manifest": [], "constraints": {"cluster": {
            "labels": ["location is DE"], "metrics": ["load < 5"]}}},
        "status": {"scheduled_to": to},
    })
}

fn cluster(name: &str) -> serde_json::Value {
    json!({
        "metadata": metadata(name, json!({"location": "DE"})),
        "spec": {"metrics": [{"name": "load", "weight": 1.0}]}, "status": {"state": "ONLINE"},
    })
}

fn metrics(raw: f64) -> Arc<MetricsObserved> {
    let at = datetime!(2026-01-01 0:00 UTC);
    let state = MetricState {
        metric_revision: 1,
        provider_revision: 1,
        value: Some(Value { raw, normalized: raw, at }),
        reason: None,
        undefined: false,
        note: None,
        trust: Trust { since: at, range: None, turns: 0 },
    };
    let key = MetricKey { namespace: None, name: "load".into() };
    Arc::new(MetricsObserved { revision: 1, at, metrics: [(key, state)].into() })
}

/// A valid binding, from which each test spoils one part.
struct Case {
    before: Arc<Stored>,
    after: serde_json::Value,
    evidence: Vec<BindingEvidence>,
    conditions: Vec<Condition>,
    others: Vec<Arc<Stored>>,
}

impl Case {
    fn good() -> Self {
        let before = stored(Kind::Application, &application(None), 7);
        let evidence = BindingEvidence {
            application: Arc::clone(&before),
            cluster: stored(Kind::Cluster, &cluster("c"), 5),
            cloud: None,
            metrics: Some(metrics(1.0)),
            compared: ComparedMetrics::Value,
        };
        let key = before.key.etcd_key();
        let conditions = vec![Condition::Unchanged { key, revision: 7 }];
        let (after, evidence) = (application(Some("c")), vec![evidence]);
        Self { before, after, evidence, conditions, others: vec![] }
    }

    fn spoil_cluster(&mut self, spoil: impl FnOnce(&mut Cluster)) {
        let mut value = stored(Kind::Cluster, &cluster("c"), 5).object.clone();
        spoil(Cluster::from_object_mut(&mut value).unwrap());
        let wire = Bytes::from(value.to_json());
        let key = value.key();
        self.evidence[0].cluster =
            Arc::new(Stored { key, create_revision: 1, mod_revision: 5, object: value, wire });
    }

    fn judge(&self) -> BindingCheck {
        let value = Bytes::from(self.after.to_string());
        let writes = [
            Write::Put { key: self.before.key.etcd_key(), value, lease: 0 },
            Write::Put {
                key: "/cke/madako/placement/moves".into(),
                value: Bytes::from_static(b"[]"),
                lease: 0,
            },
            Write::Delete { key: "/kubernetes/applications/n/gone".into() },
        ];
        let stored = |key: &ObjectKey| {
            let mut all = self.others.iter().chain([&self.before]);
            all.find(|stored| stored.key == *key).cloned()
        };
        check_allowed_bindings(&PlacementChange {
            conditions: &self.conditions,
            writes: &writes,
            evidence: &self.evidence,
            stored: &stored,
        })
    }

    /// The violation after `spoil` modified the valid case.
    fn spoilt(spoil: impl FnOnce(&mut Self)) -> String {
        let mut case = Self::good();
        spoil(&mut case);
        let BindingCheck { violations, changed } = case.judge();
        assert!(violations.iter().all(|violation| violation.invariant == Id::I11));
        let violations = violations.iter().map(ToString::to_string);
        violations
            .chain(changed.into_iter().map(|key| format!("changed {key}")))
            .collect::<Vec<_>>()
            .join("; ")
    }
}

type Spoil = fn(&mut Case);

#[test]
fn a_valid_binding_is_allowed_and_each_spoiled_one_is_refused() {
    assert_eq!(Case::good().judge(), BindingCheck::default());
    let table: [(&str, Spoil); 10] = [
        ("its state is OFFLINE", |case| case.spoil_cluster(|c| c.status.state = ClusterState::Offline)),
        ("it is being deleted", |case| {
            case.spoil_cluster(|c| c.metadata.deleted = Some(c.metadata.created.clone()));
        }),
        ("the label is SK", |case| case.spoil_cluster(|c| c.metadata.labels.insert("location", "SK".into()))),
        ("the metric is 9", |case| case.evidence[0].metrics = Some(metrics(9.0))),
        ("never fetched", |case| case.evidence[0].metrics = None),
        ("without evidence", |case| case.evidence.clear()),
        ("does not bind it to the evaluated cluster", |case| case.after = application(Some("d"))),
        ("the change writes no binding", |case| case.after = application(None)),
        ("the written value is not an application", |case| case.after = json!({"metadata": 1})),
        ("its revision is not compared", |case| {
            case.evidence.clear();
            case.conditions.clear();
        }),
    ];
    for (expected, spoil) in table {
        let found = Case::spoilt(spoil);
        assert!(
            found.contains(expected) && found.starts_with("I11: Application n/a"),
            "{found}: not {expected}"
        );
    }
}

#[test]
fn a_binding_that_stays_needs_no_evidence_and_its_revision_must_be_the_one_that_is_known() {
    let stays = |case: &mut Case| {
        case.before = stored(Kind::Application, &application(Some("c")), 7);
        case.evidence.clear();
    };
    assert_eq!(Case::spoilt(stays), "");
    let moved = Case::spoilt(|case| {
        stays(case);
        case.after = application(Some("d"));
    });
    assert!(moved.contains("bound to Cluster d without evidence"), "{moved}");
    let changed = Case::spoilt(|case| {
        stays(case);
        case.conditions = vec![Condition::Unchanged { key: case.before.key.etcd_key(), revision: 8 }];
    });
    assert_eq!(changed, "changed /kubernetes/applications/n/a");
    let created = Case::spoilt(|case| {
        case.evidence.clear();
        case.conditions = vec![Condition::Unchanged { key: case.before.key.etcd_key(), revision: 0 }];
    });
    assert!(created.contains("without evidence"), "{created}");
    assert_eq!(
        Case::spoilt(|case| {
            stays(case);
            case.after = application(None);
        }),
        "",
        "an application that is bound nowhere breaks nothing"
    );
}

#[test]
fn a_cluster_is_judged_with_the_cloud_that_it_is_bound_to() {
    let mut value = metadata("o", json!({"location": "SK"}));
    value["namespace"] = json!(null);
    let cloud = stored(
        Kind::GlobalCloud,
        &json!({
            "metadata": value,
            "spec": {"type": "openstack", "openstack": {
                "url": "http://localhost", "infrastructure_provider": {"name": "im"},
                "auth": {"type": "password", "password": {
                    "user": {"username": "u", "password": "p"}, "project": {"name": "p"}}}}},
        }),
        4,
    );
    let inherits = |case: &mut Case| {
        let to = ResourceRef::from_key(&ObjectKey::new(Kind::GlobalCloud, None, "o"));
        case.spoil_cluster(|cluster| {
            cluster.metadata.inherit_labels = true;
            cluster.status.scheduled_to = Some(to);
        });
    };
    let found = Case::spoilt(|case| {
        inherits(case);
        case.evidence[0].cloud = Some(Arc::clone(&cloud));
        let conditions: Vec<_> = evidence_conditions(&case.evidence).collect();
        assert_eq!(conditions.len(), 3);
        assert_eq!(
            conditions[2],
            Condition::Unchanged { key: "/infrastructure/globalclouds/o".into(), revision: 4 }
        );
    });
    assert!(found.contains("the label is SK"), "{found}");
    let found = Case::spoilt(|case| {
        inherits(case);
        case.others.push(Arc::clone(&cloud));
    });
    assert!(found.contains("evaluated without its cloud"), "{found}");
    assert_eq!(Case::spoilt(inherits), "", "the cloud is gone, and with it what it gave");
    let found = Case::spoilt(|case| case.evidence[0].cloud = Some(Arc::clone(&cloud)));
    assert!(found.contains("is not bound to the evaluated cloud"), "{found}");
}
