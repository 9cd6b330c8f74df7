//! Promises about the components of Kubernetes on the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::cluster::Cluster;
use serde_json::Value;

use crate::exemptions::Exemption;
use crate::fact::{ComponentFact, Fact, FactTime, NodeEffect};
use crate::operations::Checks;
use crate::oracle::{Context, FactJudgement, Predicate};

/// Invariant I13.
#[derive(Default)]
pub(crate) struct ApiKept {
    checks: Checks,
    /// Last end of a healthy API server by an effect, by address.
    ended: BTreeMap<String, FactTime>,
}

impl Predicate for ApiKept {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        self.checks.observe(*at, fact, written);
        let Fact::Component(ComponentFact::ApiServerEnded { effect, healthy_for, others, .. }) = fact else {
            return;
        };
        let checked = self.checks.age_of_effect(effect, *at) + terms.tolerance;
        let configured = now.cluster.iter().flat_map(Cluster::control_plane);
        let mut failed_since = Duration::ZERO;
        let mut down = Vec::new();
        for node in configured.filter(|node| node.address != effect.address) {
            let age = match others.get(&node.address) {
                Some(None) => continue,
                Some(Some(age)) => Some(*age),
                None => None,
            };
            // A server that failed after the check, except by an effect.
            let ours =
                |age| self.ended.get(&node.address).is_some_and(|ended| at.saturating_sub(*ended) <= age);
            match age.filter(|age| *age <= checked && !ours(*age)) {
                Some(age) => failed_since = failed_since.max(age),
                None => down.push(node.address.as_str()),
            }
        }
        self.ended.insert(effect.address.clone(), *at);
        // Failures and recoveries after the check do not count.
        let after_check = match (down.is_empty(), *healthy_for <= checked) {
            (true, _) => failed_since,
            (false, true) => *healthy_for,
            (false, false) => Duration::ZERO,
        };
        if !after_check.is_zero() {
            ruling.count_test();
            ruling.exemptions.record_use(Exemption::UnderWay, after_check);
            return;
        }
        ruling.require(down.is_empty(), || {
            let NodeEffect { what, address, .. } = effect;
            format!(
                "{what} on {address} ended its API server while those on {} were not healthy",
                down.join(", ")
            )
        });
    }
}

/// Time for which an API server was healthy, so that the decision on its operation found it healthy: the commands before its end
/// take half a minute.
const HEALTHY_AT_DECISION: Duration = Duration::from_secs(60);

/// An API server is out of its endpoints before it ends. Without another one, they stay as they are.
pub(crate) struct EndpointsWithdrawn;

impl Predicate for EndpointsWithdrawn {
    fn observe(&mut self, Context { fact, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let Fact::Component(ComponentFact::ApiServerEnded { effect, healthy_for, others, is_ready }) = fact
        else {
            return;
        };
        let has_other = others.values().any(Option::is_none);
        if has_other && *healthy_for > HEALTHY_AT_DECISION {
            ruling.require(!is_ready, || {
                let NodeEffect { what, address, .. } = effect;
                format!(
                    "{what} on {address} ended its API server while its address was ready in the endpoints"
                )
            });
        }
    }
}

/// Clients of the service `kubernetes` have an API server. Assumes: a server is known to be healthy after a minute.
pub(crate) struct EndpointsKept;

impl Predicate for EndpointsKept {
    fn observe(&mut self, Context { fact, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let Fact::Component(ComponentFact::EndpointsChanged { is_ready, healthy_for }) = fact else { return };
        let is_served = healthy_for.is_some_and(|time| time > HEALTHY_AT_DECISION);
        ruling.require(*is_ready || !is_served, || {
            "no address is ready in the endpoints although an API server is healthy".to_owned()
        });
    }
}

/// An API server has completed its requests before the reboot of its node.
pub(crate) struct EndedBeforeReboot;

impl Predicate for EndedBeforeReboot {
    fn observe(&mut self, Context { fact, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let Fact::Component(ComponentFact::Rebooted { address, has_server }) = fact else { return };
        ruling.require(!has_server, || format!("{address} rebooted with a healthy API server"));
    }
}

/// Assumes: a server that ended since its check is excused by the reporter of the fact.
pub(crate) struct ServedBeforeReady;

impl Predicate for ServedBeforeReady {
    fn observe(&mut self, Context { fact, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let Fact::Component(ComponentFact::ServerReady { address, has_served }) = fact else { return };
        ruling.require(*has_served, || {
            format!("the API server {address} became ready in the endpoints before it served")
        });
    }
}

/// Invariant I18.
pub(crate) struct BootTaintsFirst;

impl Predicate for BootTaintsFirst {
    fn observe(&mut self, Context { fact, now, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let Fact::Component(ComponentFact::KubeletStarted { effect, node, taints: Some(taints) }) = fact
        else {
            return;
        };
        let wanted = now.cluster.iter().flat_map(boot_taints);
        let missing: Vec<String> = wanted.filter(|taint| !taints.contains(taint)).collect();
        ruling.require(missing.is_empty(), || {
            format!("the kubelet of {node} started on {} without {}", effect.address, missing.join(", "))
        });
    }
}

/// Time between the look at the fleet before an operation and the start of a component in it.
const COLLECTED_BEFORE: Duration = Duration::from_secs(30);

/// Invariant I14. A server that became healthy after the look at the fleet is not counted.
#[derive(Default)]
pub(crate) struct VersionsAllowed {
    checks: Checks,
}

impl Predicate for VersionsAllowed {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        self.checks.observe(*at, fact, written);
        let Fact::Component(ComponentFact::ImageChanged {
            effect,
            component,
            minor,
            servers,
            oldest_on_nodes,
        }) = fact
        else {
            return;
        };
        let checked = self.checks.age_of_effect(effect, *at) + terms.tolerance + COLLECTED_BEFORE;
        let configured: BTreeSet<&str> =
            now.cluster.iter().flat_map(Cluster::control_plane).map(|node| node.address.as_str()).collect();
        let counted = servers.iter().filter(|(address, (_, healthy_for))| {
            configured.contains(address.as_str()) && *healthy_for > checked
        });
        let minors: BTreeSet<u64> = counted.map(|(_, (minor, _))| *minor).collect();
        let (Some(oldest), Some(newest)) = (minors.first(), minors.last()) else { return };
        let is_allowed = match *component {
            "kube-apiserver" => {
                newest <= minor
                    && *minor <= oldest + 1
                    && oldest_on_nodes.is_none_or(|on_nodes| *minor <= on_nodes + 3)
            }
            "kubelet" | "kube-proxy" => minor <= oldest && *newest <= minor + 3,
            _ => minor <= oldest,
        };
        ruling.require(is_allowed, || {
            format!(
                "{component} started on {} at minor version {minor} beside API servers of {oldest} to {newest}, and nodes of \
                 {oldest_on_nodes:?} and newer",
                effect.address
            )
        });
    }
}

/// `KEY=VALUE:EFFECT` of each boot taint of a cluster.
fn boot_taints(cluster: &Cluster) -> BTreeSet<String> {
    // The oracle reads the text itself: the service's reader of options may be at fault.
    let options: Value =
        cluster.options.text().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let taints = options["kubelet"]["boot_taints"].as_array().cloned().unwrap_or_default();
    let text = |taint: &Value, field: &str| taint[field].as_str().unwrap_or_default().to_owned();
    let taint =
        |taint: &Value| format!("{}={}:{}", text(taint, "key"), text(taint, "value"), text(taint, "effect"));
    taints.iter().map(taint).collect()
}
