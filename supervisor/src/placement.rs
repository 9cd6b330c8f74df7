//! Connects placement's API and the ports of its actors to the real adapters.

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
    Authenticator, ByCertificate, Keycloak, Keystone, PlacementApi, StaticUser, UidSource, router,
};
use madako_http::tls::{Tls, TlsError};
use madako_http::{BindError, Limits, Router};
use madako_metrics_providers::Providers;
use madako_protocol::actors::SchedulerMessage;
use madako_protocol::feed::Task;
use madako_protocol::mailbox::Envelope;
use madako_protocol::placement::explainer::{Explainer, NoExplanation};
use madako_protocol::placement::objects::Objects;
use madako_protocol::ports::{Clock, HttpTransport};
use madako_protocol::store::Store;
use madako_store::{Encryption, EtcdStore};
use ractor::rpc::CallResult;
use ractor::{ActorRef, registry};

use crate::config::{Api, Metrics, Placement, Strategy};
use crate::http::{BoundListener, ServedRouter};
use crate::instance::{PlacementPorts, SCHEDULER};
use crate::limits::{EXPLAIN_DEADLINE, READ_AGAIN_AFTER};
use crate::tree::actor_name;

#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// Its own listener could not be bound.
    #[error("cannot serve the placement API on the address in `placement.api.listen`")]
    Bind(#[source] BindError),
    #[error("cannot serve the placement API with the certificates in `placement.api.tls`")]
    Tls(#[source] TlsError),
    /// Clients of other machines could use it without a login.
    #[error("{0}")]
    Exposed(String),
}

pub(crate) struct ReadyApi {
    /// Router for the service's port.
    pub(crate) shared: Option<Router>,
    /// Certificates of the service's port, if the API is served there with TLS.
    pub(crate) shared_tls: Option<Tls>,
    pub(crate) own: Option<ServedRouter>,
}

/// Ports for decisions about placement.
pub(crate) fn placement_ports(
    placement: &Placement,
    store: &EtcdStore,
    objects: &Arc<dyn Objects>,
    transport: &Arc<dyn HttpTransport>,
) -> PlacementPorts {
    PlacementPorts {
        root: Arc::new(store.with_absolute_keys()),
        prefix: store.prefix().to_owned(),
        objects: Arc::clone(objects),
        providers: Arc::new(Providers::new(Arc::clone(transport))),
        metrics: placement.metrics,
        scheduler: Arc::new(placement.scheduler.clone()),
    }
}

/// Logs the id of the active encryption key, if there is one.
pub(crate) fn log_encryption_key(encryption: &Encryption) {
    let mut ids = encryption.key_ids();
    if let Some(key) = ids.next() {
        let former = ids.collect::<Vec<_>>().join(", ");
        tracing::info!(key, former, "secrets of placement's resources are encrypted in the store");
    }
}

/// Reports once if the store denies its user a permission that placement needs; otherwise each use would fail later
/// and elsewhere.
pub(crate) fn log_denied_read(objects: Arc<dyn Objects>) -> Task {
    Task::start(async move {
        loop {
            match objects.refresh().await {
                Ok(_) => return,
                Err(error) if error.kind == StoreErrorKind::Denied => {
                    tracing::error!(
                        %error,
                        "the store user may not read the whole key space, as placement requires"
                    );
                    return;
                }
                // The users of the store report that it does not answer.
                Err(_) => tokio::time::sleep(READ_AGAIN_AFTER).await,
            }
        }
    })
}

/// Builds the API; `service` is the service's listen address.
pub(crate) async fn build_api(
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
        authenticators: build_authenticators(api, tls.is_some(), &ports.transport),
        objects: ports.objects,
        clock: ports.clock,
        uids: UidSource::from_seed(seed_of_uids(seed)),
        explainer: ports.explainer,
        settings: madako_http::placement::Settings { version: version.to_owned(), ..api.settings.clone() },
    });
    let Some(listen) = &api.listen else {
        refuse_exposed(api, service)?;
        return Ok(ReadyApi { shared: Some(router), shared_tls: tls, own: None });
    };
    let bound = BoundListener::new(listen).await.map_err(PlacementError::Bind)?;
    refuse_exposed(api, bound.address())?;
    let own = ServedRouter { bound, router, limits: Limits::PLACEMENT, tls };
    Ok(ReadyApi { shared: None, shared_tls: None, own: Some(own) })
}

pub(crate) struct ApiPorts {
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) transport: Arc<dyn HttpTransport>,
    pub(crate) explainer: Option<Arc<dyn Explainer>>,
}

/// Asks the local instance's scheduler while it runs; for other instances it reads their kept decisions.
pub(crate) struct SchedulerExplainer {
    name: String,
    /// The store without a prefix.
    root: Arc<dyn Store>,
    prefix: String,
}

impl SchedulerExplainer {
    /// `prefix` is the instance's key prefix.
    pub(crate) fn for_instance(instance: &str, root: Arc<dyn Store>, prefix: &str) -> Self {
        Self { name: actor_name(instance, SCHEDULER), root, prefix: prefix.to_owned() }
    }

    /// The deciding instance, and its kept last decision.
    async fn describe_deciding_instance(&self, application: &ObjectKey) -> Result<NoExplanation, StoreError> {
        let owner = self.root.list(ownership::KEY).await?;
        let owner = owner.entries.get(ownership::KEY).map(|entry| String::from_utf8_lossy(&entry.value));
        let prefix = owner.as_deref().unwrap_or(&self.prefix);
        let leaders = match &owner {
            Some(_) => self.root.list(&format!("{prefix}{}", keys::LEADER)).await?.entries,
            // The present leader has not claimed placement: it decides nothing.
            None => BTreeMap::new(),
        };
        // The candidate with the lowest create revision leads.
        let leader = leaders.values().min_by_key(|entry| entry.create_revision);
        let leader = leader.map(|entry| String::from_utf8_lossy(&entry.value).into_owned());
        let last = match &application.namespace {
            None => None,
            Some(namespace) => {
                let key = format!("{prefix}{}{namespace}/{}", keys::PLACEMENT_DECISIONS, application.name);
                self.root
                    .list(&key)
                    .await?
                    .entries
                    .remove(&key)
                    .and_then(|entry| last_decision(&key, &entry.value))
            }
        };
        Ok(NoExplanation::Elsewhere { leader, last })
    }
}

fn last_decision(key: &str, value: &[u8]) -> Option<Box<Decision>> {
    let read = serde_json::from_slice(value);
    read.map_err(|error| tracing::warn!(key, %error, "the stored placement decision cannot be read")).ok()
}

#[async_trait]
impl Explainer for SchedulerExplainer {
    async fn explain(
        &self,
        application: ObjectKey,
        what_if: WhatIf,
    ) -> Result<Box<Explanation>, NoExplanation> {
        let Some(scheduler) = registry::where_is(&self.name) else {
            return Err(self.describe_deciding_instance(&application).await?);
        };
        let scheduler = ActorRef::<Envelope<SchedulerMessage>>::from(scheduler);
        let application_key = application.clone();
        let envelope =
            |reply| SchedulerMessage::Explain { application: application_key, what_if, reply }.into();
        match scheduler.call(envelope, Some(EXPLAIN_DEADLINE)).await {
            Ok(CallResult::Success(answer)) => Ok(answer?),
            Ok(CallResult::Timeout) => Err(NoExplanation::Unanswered),
            Ok(CallResult::SenderError) | Err(_) => {
                Err(self.describe_deciding_instance(&application).await?)
            }
        }
    }
}

fn refuse_exposed(api: &Api, address: SocketAddr) -> Result<(), PlacementError> {
    api.reason_not_to_serve(address).map_or(Ok(()), |why| Err(PlacementError::Exposed(why)))
}

/// As in Krake: the effective strategy, then certificates.
fn build_authenticators(
    api: &Api,
    tls: bool,
    transport: &Arc<dyn HttpTransport>,
) -> Vec<Arc<dyn Authenticator>> {
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

/// A separate generator, so that identities do not depend on other draws.
fn seed_of_uids(seed: u64) -> [u8; 32] {
    const PURPOSE: &[u8; 24] = b"identities of resources.";
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..].copy_from_slice(PURPOSE);
    bytes
}

/// The settings that the leader keeps in the store.
pub(crate) fn placement_settings(metrics: &Metrics, scheduler: &SchedulerConfig) -> PlacementSettings {
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

/// Settings that a leader kept in the store, with those of a configuration file for the rest.
#[must_use]
pub fn from_stored_settings(kept: &PlacementSettings, file: SchedulerConfig) -> (Metrics, SchedulerConfig) {
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
