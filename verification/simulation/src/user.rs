//! Simulated users of placement: they make, change and delete applications and clusters through the API of any
//! instance, and sometimes delete everything through the store and begin anew.

mod acts;

use std::collections::BTreeMap;
use std::time::Duration;

use madako_domain::invariants::Id;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_judges::Fact;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::api::{Answer, Request, send_request};
use crate::facts::Facts;
use crate::history::History;
use crate::placement::PlacementChecker;
use crate::prometheus::Prometheus;
use crate::serving::LinkedDialers;
use crate::store_process::StoreProcess;

use self::acts::metric_of;

/// Longer than the maximum outage of the store, several faults at once included.
const STORE_IS_AWAY: Duration = Duration::from_secs(20 * 60);

/// Metric of the static provider.
const TABLED: &str = "cost";

/// Two metrics with constant values, both so low that no other application moves to a cluster with them; the second
/// is far better than the first.
const STEADY: [(&str, f64); 2] = [("frugal", 2.0), ("thrift", 20.0)];

/// Zone of clusters for the drill's application only, and the metric that has no value for a while there.
const DRILL: &str = "drill";
const FAILS: &str = "heat_b";

const NAMESPACE: &str = "testing";

const SIZE: PlacementSize = PlacementSize { applications: (8, 26), clusters: (4, 7) };

/// Numbers of applications and clusters, each at the start and at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementSize {
    pub applications: (usize, usize),
    pub clusters: (usize, usize),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UserResults {
    pub requests: u64,
    /// Writes with a 2xx answer.
    pub acknowledged: u64,
    /// Requests with a 4xx answer.
    pub refused: u64,
    /// Requests with a 5xx answer, or without a complete one.
    pub failed: u64,
}

pub struct User {
    pub done: UserResults,
    store: StoreProcess,
    dialers: LinkedDialers,
    checker: PlacementChecker,
    history: History,
    prometheus: Prometheus,
    chance: ChaCha8Rng,
    named: u64,
    size: PlacementSize,
    /// Last acknowledged version of each path.
    answered_tags: BTreeMap<String, i64>,
    facts: Facts,
}

impl User {
    pub fn new(
        store: StoreProcess,
        dialers: LinkedDialers,
        checker: PlacementChecker,
        prometheus: Prometheus,
        history: History,
        chance: ChaCha8Rng,
    ) -> Self {
        let (done, named, answered_tags, size) = (UserResults::default(), 0, BTreeMap::new(), SIZE);
        let facts = Facts::default();
        Self { done, store, dialers, checker, history, prometheus, chance, named, size, answered_tags, facts }
    }

    #[must_use]
    pub fn with_facts(self, facts: Facts) -> Self {
        Self { facts, ..self }
    }

    /// A drill of three cases: a cluster whose only metric has no value for a while, an application for which another
    /// cluster becomes better, and a change of an outdated version.
    pub async fn provoke_promises(&mut self) {
        self.define_resource().await;
        let metric = |name: &str| json!([{"name": name, "weight": 1.0}]);
        self.named += 1;
        let number = self.named;
        let [poor, other, fails] = ["poor", "other", "fails"].map(|name| format!("drill-{name}-{number}"));
        let [(frugal, little), (thrift, more)] = STEADY;
        let table = json!({"type": "static", "static": {"metrics": {frugal: little, thrift: more}}});
        self.create(Kind::GlobalMetricsProvider, DRILL, table, json!({})).await;
        for name in [frugal, thrift] {
            self.create(Kind::GlobalMetric, name, metric_of(DRILL, name), json!({})).await;
        }
        for (name, of, zone) in [(&poor, frugal, DRILL), (&other, frugal, DRILL), (&fails, FAILS, FAILS)] {
            self.define_cluster(name, metric(of), json!({"zone": zone})).await;
        }
        let name = format!("drill-{number}");
        let application = ObjectKey::new(Kind::Application, Some(NAMESPACE), &name);
        let constraints = json!({"cluster": {"labels": [format!("zone is {DRILL}")]}, "migration": true});
        let spec = json!({
            "manifest": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}],
            "constraints": constraints,
            "backoff_delay": 20,
        });
        self.create(Kind::Application, &name, spec, json!({})).await;
        tokio::time::sleep(Duration::from_secs(90)).await;
        self.prometheus.hide_series(FAILS, true);
        if let Some((version, mut value)) = self.read(&application).await {
            let to = value["status"]["scheduled_to"]["name"].as_str().map(str::to_owned);
            let better = if to.as_ref() == Some(&poor) { other } else { poor };
            let key = ObjectKey::new(Kind::Cluster, Some(NAMESPACE), &better);
            self.change(&key, "", |cluster| cluster["spec"]["metrics"] = metric(thrift)).await;
            let improved = Fact::Improved { application: application.etcd_key(), cluster: better };
            self.facts.report(&improved);
            for label in ["first", "second"] {
                value["metadata"]["labels"]["drill"] = json!(label);
                let path = api_path_of(&application);
                self.write("PUT", &application, &path, Some(version), Some(&value)).await;
            }
        }
        tokio::time::sleep(Duration::from_secs(180)).await;
        self.prometheus.hide_series(FAILS, false);
        tokio::time::sleep(Duration::from_secs(120)).await;
    }

    #[must_use]
    pub fn with_size(self, size: PlacementSize) -> Self {
        Self { size, ..self }
    }

    /// Makes resources until the initial number exists or `stop` is true.
    pub async fn create_initial_resources(&mut self, stop: &watch::Receiver<bool>) {
        let wanted = [(Kind::Cluster, self.size.clusters.0), (Kind::Application, self.size.applications.0)];
        for (kind, count) in wanted {
            while !*stop.borrow() {
                self.define_resource().await;
                let there = self.count(kind).await;
                if there >= count {
                    break;
                }
                for _ in there..count {
                    match kind {
                        Kind::Cluster => self.make_cluster().await,
                        _ => self.make_application().await,
                    };
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// Fills the store, then sends `rate` requests a second on average through the API until `stop` is true.
    pub async fn run_until_stopped(mut self, rate: Option<f64>, mut stop: watch::Receiver<bool>) -> Self {
        self.create_initial_resources(&stop).await;
        let Some(rate) = rate else { return self };
        let mut wipes = 0;
        while !*stop.borrow() {
            let wiped = self.checker.read_counts().wipes;
            if std::mem::replace(&mut wipes, wiped) != wiped {
                self.create_initial_resources(&stop).await;
            }
            let before = self.done.requests;
            let what = self.send_random_request().await;
            self.history.note("user", what);
            let requests = u32::try_from(self.done.requests - before).unwrap_or(u32::MAX).max(1);
            let pause = Duration::from_secs_f64(f64::from(requests) / rate)
                .mul_f64(self.chance.random_range(0.5..1.5));
            // The loop reads `stop` after both outcomes.
            let _ = tokio::time::timeout(pause, stop.changed()).await;
        }
        self
    }

    async fn send_random_request(&mut self) -> String {
        match self.chance.random_range(0..60_u32) {
            0..10 => self.make_application().await,
            10..18 => self.change_application().await,
            18..22 => self.delete(Kind::Application).await,
            22..25 => self.make_cluster().await,
            25..31 => self.set_state().await,
            31..35 => self.change_cluster().await,
            35 => self.delete(Kind::Cluster).await,
            36..38 => self.create_static_provider().await,
            38..40 => self.define_anew().await,
            40..42 => self.read_list(Kind::Application).await,
            42..50 => format!("lists {} clusters", self.list(Kind::Cluster).await.len()),
            _ => format!("lists {} applications", self.list(Kind::Application).await.len()),
        }
    }

    /// Leaves a state that can become quiet: everything is defined, and all clusters are online.
    pub async fn prepare_quiet_state(&mut self) {
        self.define_resource().await;
        for key in self.list(Kind::Cluster).await {
            self.change(&key, "/status", |cluster| {
                let state = &mut cluster["status"]["state"];
                // The service's own findings about metrics stay.
                if *state != json!("FAILING_METRICS") {
                    *state = json!("ONLINE");
                }
            })
            .await;
        }
        self.history.note("user", "rests");
    }

    /// Sends a request to a random instance; `None` if no instance runs or the outcome is unknown.
    async fn ask(
        &mut self,
        method: &str,
        path: &str,
        version: Option<i64>,
        body: Option<&Value>,
    ) -> Option<Answer> {
        let dialer = {
            let dialers = self.dialers.lock().unwrap();
            let at = self.chance.random_range(0..dialers.len().max(1));
            dialers.iter().nth(at).map(|(name, dialer)| (*name, dialer.clone()))
        };
        let (name, dialer) = dialer?;
        self.done.requests += 1;
        let answer = send_request(&dialer, &Request { method, path, version, body }).await;
        let text = match &answer {
            Ok(answer) => format!("{} {:?}", answer.status, answer.tag),
            Err(error) => error.kind().to_string(),
        };
        self.history.note("user", format_args!("{method} {path} of {name}: {text}"));
        let Ok(answer) = answer else {
            self.done.failed += 1;
            return None;
        };
        match answer.status {
            200..300 if method != "GET" => self.done.acknowledged += 1,
            200..300 => {}
            400..500 => self.done.refused += 1,
            _ => self.done.failed += 1,
        }
        if answer.status == 500 || answer.status == 422 || answer.status == 415 {
            let what = format!("{method} {path} is answered by {}: {}", answer.status, answer.body);
            self.checker.record_violation(Id::I9, what);
        }
        Some(answer)
    }

    /// Sends a write, and records its acknowledgement.
    async fn write(
        &mut self,
        method: &str,
        key: &ObjectKey,
        path: &str,
        version: Option<i64>,
        body: Option<&Value>,
    ) -> Option<Answer> {
        let answer = self.ask(method, path, version, body).await?;
        if let Some(version) = version {
            let (key, status, after) = (key.etcd_key(), answer.status, answer.tag);
            self.facts.report(&Fact::Conditional { key, version, status, after });
        }
        if (200..300).contains(&answer.status)
            && let Some(tag) = answer.tag
        {
            self.checker.note_acknowledged(key, tag);
            self.answered_tags.insert(api_path_of(key), tag);
        }
        Some(answer)
    }

    /// Waits until the checker has observed the store's current revision, at most for [`STORE_IS_AWAY`].
    async fn wait_until_observed(&mut self) {
        let caught_up = async {
            loop {
                // Retries while the store does not answer.
                let mut client = self.store.next_client().await;
                if let Ok(answer) = client.get("none", None).await {
                    let revision = answer.header().unwrap().revision();
                    if self.checker.last_revision() >= revision {
                        return;
                    }
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // The code that restarts the store reports a store that never returns; the run must end nevertheless.
        let _ = tokio::time::timeout(STORE_IS_AWAY, caught_up).await;
    }

    /// Resources in the store, by the checker's observations.
    async fn stored_revisions(&mut self) -> BTreeMap<ObjectKey, i64> {
        self.wait_until_observed().await;
        self.checker.stored_revisions()
    }

    async fn count(&mut self, kind: Kind) -> usize {
        self.stored_revisions().await.keys().filter(|key| key.kind == kind).count()
    }

    /// Reads a resource. An older version than the acknowledged one is a violation.
    async fn read(&mut self, key: &ObjectKey) -> Option<(i64, Value)> {
        let before = self.checker.stored_revisions();
        let answered_tag = self.answered_tags.get(&api_path_of(key)).copied();
        let answer = self.ask("GET", &api_path_of(key), None, None).await?;
        let after = self.stored_revisions().await;
        if answer.status == 404 && before.contains_key(key) && before.get(key) == after.get(key) {
            self.checker
                .record_violation(Id::I9, format!("{key} is not found, though it was there all the time"));
        }
        let tag = answer.tag.filter(|_| answer.status == 200)?;
        if answered_tag.is_some_and(|answered| answered > tag) {
            self.checker.record_violation(
                Id::I9,
                format!("{key} is read at {tag}, though an answer had {answered_tag:?}"),
            );
        }
        Some((tag, answer.body))
    }

    /// Lists the names of a kind. A missing resource that existed all the time is a violation.
    async fn list(&mut self, kind: Kind) -> Vec<ObjectKey> {
        let before = self.checker.stored_revisions();
        let Some(answer) = self.ask("GET", &collection_path(kind), None, None).await else {
            return Vec::new();
        };
        let after = self.stored_revisions().await;
        if answer.status != 200 {
            return Vec::new();
        }
        let items = answer.body["items"].as_array().cloned().unwrap_or_default();
        let listed: Vec<ObjectKey> = items
            .iter()
            .filter_map(|item| item["metadata"]["name"].as_str())
            .map(|name| ObjectKey::new(kind, Some(NAMESPACE), name))
            .collect();
        for (key, created) in before.iter().filter(|(key, _)| key.kind == kind) {
            if after.get(key) == Some(created) && !listed.contains(key) {
                self.checker.record_violation(
                    Id::I9,
                    format!("{key} is not listed, though it was there all the time"),
                );
            }
        }
        listed
    }

    async fn read_list(&mut self, kind: Kind) -> String {
        let all = self.list(kind).await;
        for key in &all {
            self.read(key).await;
        }
        format!("looks at {} of {kind}", all.len())
    }

    async fn pick_resource(&mut self, kind: Kind) -> Option<ObjectKey> {
        let all = self.list(kind).await;
        if all.is_empty() {
            return None;
        }
        Some(all[self.chance.random_range(0..all.len())].clone())
    }
}

fn collection_path(kind: Kind) -> String {
    let (api, plural) = (kind.api().name(), kind.plural());
    if kind.namespaced() {
        format!("/{api}/namespaces/{NAMESPACE}/{plural}")
    } else {
        format!("/{api}/{plural}")
    }
}

pub(crate) fn api_path_of(key: &ObjectKey) -> String {
    format!("{}/{}", collection_path(key.kind), key.name)
}
