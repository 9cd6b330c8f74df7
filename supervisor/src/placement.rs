//! Placement's half of the service: its API and what its actors need, on the real adapters.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use madako_app_scheduler::{Candidates, ClusterCreation, MaxMoves, SchedulerConfig};
use madako_domain::keys;
use madako_domain::placement::decision::{Decision, Explanation, WhatIf};
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::ownership;
use madako_domain::settings::PlacementSettings;
use madako_domain::store::{StoreError, StoreErrorKind};
use madako_http::placement::{
    Authenticator, ByCertificate, Keycloak, Keystone, PlacementApi, StaticUser, Uids, router,
};
use madako_http::tls::{Tls, TlsError};
use madako_http::{BindError, Limits, Router};
use madako_metrics_providers::Providers;
use madako_protocol::actors::SchedulerMessage;
use madako_protocol::feed::Task;
use madako_protocol::mailbox::Letter;
use madako_protocol::placement::explainer::{Explainer, NoExplanation};
use madako_protocol::placement::objects::Objects;
use madako_protocol::ports::{Clock, HttpTransport};
use madako_protocol::store::Store;
use madako_store::{EtcdStore, Sealing};
use ractor::rpc::CallResult;
use ractor::{ActorRef, registry};

use crate::config::{Api, Metrics, Placement, Strategy};
use crate::http::{Bound, Served};
use crate::instance::{PlacementPorts, SCHEDULER};
use crate::limits::{EXPLAIN_DEADLINE, LOOK_AGAIN};
use crate::tree::actor_name;

/// Why placement was not started.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// The listener of its own.
    #[error("the placement API cannot be served")]
    Bind(#[source] BindError),
    /// Its certificates.
    #[error("the placement API cannot be served with TLS")]
    Tls(#[source] TlsError),
    /// Others could use it without a login.
    #[error("{0}")]
    Exposed(String),
}

/// The API, ready to be served.
pub(crate) struct ReadyApi {
    /// What is served on the service's port.
    pub(crate) shared: Option<Router>,
    /// Certificates of the service's port, if the API is there and has some.
    pub(crate) shared_tls: Option<Tls>,
    /// What is served on a port of its own.
    pub(crate) own: Option<Served>,
}

/// What deciding about placement needs.
pub(crate) fn ports(
    placement: &Placement,
    store: &EtcdStore,
    objects: &Arc<dyn Objects>,
    transport: &Arc<dyn HttpTransport>,
) -> PlacementPorts {
    PlacementPorts {
        root: Arc::new(store.at_root()),
        prefix: store.prefix().to_owned(),
        objects: Arc::clone(objects),
        providers: Arc::new(Providers::new(Arc::clone(transport))),
        metrics: placement.metrics,
        scheduler: Arc::new(placement.scheduler.clone()),
    }
}

/// Says with which key secrets are encrypted, if they are.
pub(crate) fn say_how_secrets_are_kept(sealing: &Sealing) {
    let mut ids = sealing.ids();
    if let Some(key) = ids.next() {
        let former = ids.collect::<Vec<_>>().join(", ");
        tracing::info!(key, former, "secrets of placement's resources are encrypted in the store");
    }
}

/// Says once if the store's user may not do what placement needs: everything else would fail with it later, and
/// somewhere else.
pub(crate) fn say_what_is_denied(objects: Arc<dyn Objects>) -> Task {
    Task::start(async move {
        loop {
            match objects.fresh().await {
                Ok(_) => return,
                Err(error) if error.kind == StoreErrorKind::Denied => {
                    tracing::error!(
                        %error,
                        "placement needs the whole key space of the store, and its user may not read it"
                    );
                    return;
                }
                // Whoever needs the store tells that it does not answer.
                Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    })
}

/// Builds the API; `service` is where the service listens.
pub(crate) async fn api(
    placement: &Placement,
    ports: ApiPorts,
    version: &str,
    service: SocketAddr,
    seed: u64,
) -> Result<ReadyApi, PlacementError> {
    let api = &placement.api;
    let tls = match &api.tls {
        None => None,
        Some(tls) => Some(
            Tls::new(&tls.certificate, tls.key.reveal(), tls.client_ca.as_deref())
                .map_err(PlacementError::Tls)?,
        ),
    };
    let router = router(PlacementApi {
        authenticators: authenticators(api, tls.is_some(), &ports.transport),
        objects: ports.objects,
        clock: ports.clock,
        uids: Uids::seeded(seed_of_uids(seed)),
        explainer: ports.explainer,
        settings: madako_http::placement::Settings { version: version.to_owned(), ..api.settings.clone() },
    });
    let Some(listen) = &api.listen else {
        refuse_exposed(api, service)?;
        return Ok(ReadyApi { shared: Some(router), shared_tls: tls, own: None });
    };
    let bound = Bound::new(listen).await.map_err(PlacementError::Bind)?;
    refuse_exposed(api, bound.address())?;
    let own = Served { bound, router, limits: Limits::PLACEMENT, tls };
    Ok(ReadyApi { shared: None, shared_tls: None, own: Some(own) })
}

/// What the API needs from outside.
pub(crate) struct ApiPorts {
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) transport: Arc<dyn HttpTransport>,
    pub(crate) explainer: Option<Arc<dyn Explainer>>,
}

/// Asks the scheduler of an instance of this process, while it has one; of others it knows what they kept.
pub(crate) struct AskScheduler {
    /// Registered name of the scheduler.
    name: String,
    /// The store at its root.
    root: Arc<dyn Store>,
    prefix: String,
}

impl AskScheduler {
    /// The scheduler of an instance, whose prefix in the store it is.
    pub(crate) fn of(instance: &str, root: Arc<dyn Store>, prefix: &str) -> Self {
        Self { name: actor_name(instance, SCHEDULER), root, prefix: prefix.to_owned() }
    }

    /// Who decides, and what was kept of the last decision.
    async fn elsewhere(&self, application: &ObjectKey) -> Result<NoExplanation, StoreError> {
        let owner = self.root.list(ownership::KEY).await?;
        let owner = owner.entries.get(ownership::KEY).map(|entry| String::from_utf8_lossy(&entry.value));
        let prefix = owner.as_deref().unwrap_or(&self.prefix);
        let leaders = match &owner {
            Some(_) => self.root.list(&format!("{prefix}{}", keys::LEADER)).await?.entries,
            // Who leads has not claimed placement: it decides nothing.
            None => BTreeMap::new(),
        };
        // The candidate that came first leads.
        let leader = leaders.values().min_by_key(|entry| entry.create_revision);
        let leader = leader.map(|entry| String::from_utf8_lossy(&entry.value).into_owned());
        let last = match &application.namespace {
            None => None,
            Some(namespace) => {
                let key = format!("{prefix}{}{namespace}/{}", keys::PLACEMENT_DECISIONS, application.name);
                self.root.list(&key).await?.entries.remove(&key).and_then(|entry| last(&key, &entry.value))
            }
        };
        Ok(NoExplanation::Elsewhere { leader, last })
    }
}

/// A decision as it was kept.
fn last(key: &str, value: &[u8]) -> Option<Box<Decision>> {
    let read = serde_json::from_slice(value);
    read.map_err(|error| tracing::warn!(key, %error, "what was kept of placement cannot be read")).ok()
}

#[async_trait]
impl Explainer for AskScheduler {
    async fn explain(
        &self,
        application: ObjectKey,
        what_if: WhatIf,
    ) -> Result<Box<Explanation>, NoExplanation> {
        let Some(scheduler) = registry::where_is(&self.name) else {
            return Err(self.elsewhere(&application).await?);
        };
        let scheduler = ActorRef::<Letter<SchedulerMessage>>::from(scheduler);
        let asked = application.clone();
        let letter = |reply| SchedulerMessage::Explain { application: asked, what_if, reply }.into();
        match scheduler.call(letter, Some(EXPLAIN_DEADLINE)).await {
            Ok(CallResult::Success(answer)) => Ok(answer?),
            Ok(CallResult::Timeout) => Err(NoExplanation::Unanswered),
            Ok(CallResult::SenderError) | Err(_) => Err(self.elsewhere(&application).await?),
        }
    }
}

fn refuse_exposed(api: &Api, address: SocketAddr) -> Result<(), PlacementError> {
    api.refused_on(address).map_or(Ok(()), |why| Err(PlacementError::Exposed(why)))
}

/// As in Krake: the strategy that counts, then certificates.
fn authenticators(api: &Api, tls: bool, transport: &Arc<dyn HttpTransport>) -> Vec<Arc<dyn Authenticator>> {
    let mut all: Vec<Arc<dyn Authenticator>> = Vec::new();
    match api.authentication.strategy() {
        None => {}
        Some(Strategy::Static(name)) => all.push(Arc::new(StaticUser(name.to_owned()))),
        Some(Strategy::Keystone(endpoint)) => {
            all.push(Arc::new(Keystone { transport: Arc::clone(transport), endpoint: endpoint.to_owned() }))
        }
        Some(Strategy::Keycloak(endpoint, realm)) => all.push(Arc::new(Keycloak {
            transport: Arc::clone(transport),
            endpoint: endpoint.to_owned(),
            realm: realm.to_owned(),
        })),
    }
    if tls {
        all.push(Arc::new(ByCertificate));
    }
    all
}

/// A generator of its own, so that identities do not depend on what else is drawn.
fn seed_of_uids(seed: u64) -> [u8; 32] {
    const PURPOSE: &[u8; 24] = b"identities of resources.";
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..].copy_from_slice(PURPOSE);
    bytes
}

/// What the leader keeps of its settings in the store.
pub(crate) fn kept(metrics: &Metrics, scheduler: &SchedulerConfig) -> PlacementSettings {
    PlacementSettings {
        metrics_interval: metrics.interval,
        metric_max_age: metrics.max_age,
        reschedule_after: scheduler.reschedule_after,
        stickiness: scheduler.stickiness,
        debounce: scheduler.debounce,
        metric_constraints: scheduler.metric_constraints,
        max_moves_percent: scheduler.max_moves.percent,
        max_moves_at_least: scheduler.max_moves.at_least,
        deletion_retention: scheduler.cluster_creation.deletion_retention,
        own_namespace_only: scheduler.candidates == Candidates::Namespace,
    }
}

/// The settings that a leader keeps in the store, in place of those of a configuration file. What it does not keep stays.
#[must_use]
pub fn as_kept(kept: &PlacementSettings, file: SchedulerConfig) -> (Metrics, SchedulerConfig) {
    let metrics = Metrics { interval: kept.metrics_interval, max_age: kept.metric_max_age };
    let scheduler = SchedulerConfig {
        reschedule_after: kept.reschedule_after,
        stickiness: kept.stickiness,
        debounce: kept.debounce,
        metric_constraints: kept.metric_constraints,
        max_moves: MaxMoves { percent: kept.max_moves_percent, at_least: kept.max_moves_at_least },
        cluster_creation: ClusterCreation {
            deletion_retention: kept.deletion_retention,
            ..file.cluster_creation
        },
        metric_wait: file.metric_wait,
        candidates: if kept.own_namespace_only { Candidates::Namespace } else { Candidates::All },
    };
    (metrics, scheduler)
}
