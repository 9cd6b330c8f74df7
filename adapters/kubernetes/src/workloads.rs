//! Implements the port `KubernetesWorkloads`: lists of the whole cluster, of which only the needed fields are kept.
//!
//! A pod has some 10 KiB, of which a forecast needs some hundred bytes: each page is reduced before the next one is
//! read. Owners are read as metadata alone.

use std::collections::BTreeMap;

use async_trait::async_trait;
use http::Request as HttpRequest;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod as KubePod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ListParams, Request, Resource};
use madako_domain::kubernetes::selector::LabelSelector;
use madako_domain::kubernetes::workload::{DisruptionBudget, OwnerReference, ScheduledPod, Workloads};
use madako_domain::kubernetes::{Pod, PodId};
use madako_protocol::kubernetes::{Kubernetes, KubernetesError, KubernetesWorkloads};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::api::ApiServer;
use crate::exchange::{self, Call, RequestDeadline};
use crate::limits::{MAX_BUDGETS, MAX_CLUSTER_PODS, MAX_OWNERS, WORKLOAD_DEADLINES};
use crate::{answer, convert};

#[derive(Deserialize)]
struct Page<T> {
    metadata: PageMetadata,
    items: Option<Vec<T>>,
}

#[derive(Deserialize)]
struct PageMetadata {
    #[serde(rename = "continue")]
    more: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<Annotations>,
    owner_references: Option<Vec<Owner>>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Owner {
    kind: String,
    name: String,
    uid: String,
    controller: Option<bool>,
}

#[derive(Deserialize)]
struct ListedPod {
    metadata: Metadata,
    spec: PodSpec,
    status: Option<PodStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    node_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    phase: Option<String>,
    start_time: Option<Time>,
}

#[derive(Deserialize)]
struct ListedOwner {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct ListedBudget {
    metadata: Metadata,
    spec: BudgetSpec,
    status: Option<BudgetStatus>,
}

#[derive(Deserialize)]
struct BudgetSpec {
    selector: Option<LabelSelector>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct BudgetStatus {
    disruptions_allowed: i64,
    current_healthy: i64,
    desired_healthy: i64,
}

fn controlling_owner(references: Option<Vec<Owner>>) -> Option<OwnerReference> {
    let found = references.into_iter().flatten().find(|owner| owner.controller == Some(true))?;
    Some(OwnerReference { kind: found.kind, name: found.name, uid: found.uid })
}

fn require_text(text: Option<String>, missing: &'static str) -> Result<String, &'static str> {
    text.filter(|text| !text.is_empty()).ok_or(missing)
}

fn convert_scheduled(listed: ListedPod) -> Result<ScheduledPod, &'static str> {
    let ListedPod { metadata, spec, status } = listed;
    let id = PodId {
        namespace: require_text(metadata.namespace, "a pod without a namespace")?,
        name: require_text(metadata.name, "a pod without a name")?,
        uid: require_text(metadata.uid, "a pod without a uid")?,
    };
    let deleted_at =
        convert::deletion_time(metadata.deletion_timestamp, metadata.deletion_grace_period_seconds)?;
    let (phase, started) = status.map_or((None, None), |status| (status.phase, status.start_time));
    let owner = controlling_owner(metadata.owner_references);
    Ok(ScheduledPod {
        pod: Pod {
            id,
            phase: phase.and_then(|phase| phase.parse().ok()).unwrap_or_default(),
            controller: owner.as_ref().map(|owner| owner.kind.clone()),
            mirror: metadata.annotations.is_some_and(|annotations| annotations.mirror.is_some()),
            deleted_at,
        },
        node: require_text(spec.node_name, "a pod without a node")?,
        labels: metadata.labels.unwrap_or_default(),
        owner,
        started_at: started
            .map(convert::to_time)
            .transpose()
            .map_err(|_| "a pod with an impossible start")?,
    })
}

fn convert_budget(listed: ListedBudget) -> Result<DisruptionBudget, &'static str> {
    let status = listed.status.unwrap_or_default();
    Ok(DisruptionBudget {
        namespace: require_text(listed.metadata.namespace, "a budget without a namespace")?,
        name: require_text(listed.metadata.name, "a budget without a name")?,
        selector: listed.spec.selector,
        allowed: status.disruptions_allowed,
        healthy: status.current_healthy,
        desired: status.desired_healthy,
    })
}

type ListRequest<'a> =
    &'a (dyn Fn(&ListParams) -> Result<HttpRequest<Vec<u8>>, kube::core::request::Error> + Send + Sync);

impl ApiServer {
    /// Reads all pages of a list, and hands each object on before it reads the next page.
    async fn read_list<T: DeserializeOwned + Send>(
        &self,
        name: &'static str,
        request: ListRequest<'_>,
        chosen: ListParams,
        most: usize,
        mut keep: impl FnMut(T) -> Result<(), &'static str> + Send,
    ) -> Result<(), KubernetesError> {
        let call = Call { name, what: name };
        let until = RequestDeadline::after(self.limits.read_deadline * WORKLOAD_DEADLINES);
        let mut params = chosen.limit(self.limits.page);
        let mut count = 0;
        loop {
            let text = exchange::send_request(&self.client, call, request(&params), until).await?;
            let page: Page<T> = exchange::parse(call, &text)?;
            let more = page.metadata.more.filter(|token| !token.is_empty());
            let items = page.items.unwrap_or_default();
            // Empty pages with a continue token could go on until the deadline.
            if more.is_some() && items.is_empty() {
                return Err(answer::malformed_answer(name, "an empty page with more to follow"));
            }
            count += items.len();
            if count > most {
                return Err(answer::malformed_answer(name, &format!("more than {most} objects")));
            }
            for item in items {
                keep(item).map_err(|why| answer::malformed_answer(name, why))?;
            }
            match more {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(()),
            }
        }
    }

    /// Adds the controllers of all objects of a kind.
    async fn read_owners<K: Resource<DynamicType = ()>>(
        &self,
        name: &'static str,
        owners: &mut BTreeMap<String, OwnerReference>,
    ) -> Result<(), KubernetesError> {
        let request = Request::new(K::url_path(&(), None));
        let keep = |listed: ListedOwner| {
            let uid = require_text(listed.metadata.uid, "an object without a uid")?;
            if let Some(owner) = controlling_owner(listed.metadata.owner_references) {
                owners.insert(uid, owner);
            }
            Ok(())
        };
        let list = |params: &ListParams| request.list_metadata(params);
        self.read_list(name, &list, ListParams::default(), MAX_OWNERS, keep).await
    }
}

#[async_trait]
impl KubernetesWorkloads for ApiServer {
    async fn workloads(&self) -> Result<Workloads, KubernetesError> {
        let nodes = self.nodes().await?;
        let mut found = Workloads { nodes, ..Workloads::default() };
        let pods = Request::new(KubePod::url_path(&(), None));
        let list = |params: &ListParams| pods.list(params);
        let bound = ListParams::default().fields("spec.nodeName!=");
        let keep = |listed| {
            found.pods.push(convert_scheduled(listed)?);
            Ok(())
        };
        self.read_list("pods", &list, bound, MAX_CLUSTER_PODS, keep).await?;
        self.read_owners::<ReplicaSet>("replicasets", &mut found.owners).await?;
        self.read_owners::<Deployment>("deployments", &mut found.owners).await?;
        self.read_owners::<StatefulSet>("statefulsets", &mut found.owners).await?;
        self.read_owners::<Job>("jobs", &mut found.owners).await?;
        let budgets = Request::new(PodDisruptionBudget::url_path(&(), None));
        let list = |params: &ListParams| budgets.list(params);
        let keep = |listed| {
            found.budgets.push(convert_budget(listed)?);
            Ok(())
        };
        self.read_list("poddisruptionbudgets", &list, ListParams::default(), MAX_BUDGETS, keep).await?;
        Ok(found)
    }
}
