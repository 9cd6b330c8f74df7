//! Writes the configuration files of a run's processes, and the data that an operator stores.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use madako_faults::{Span, World};
use madako_judges::PromiseTerms;
use serde_json::{Value, json};

use crate::datacenter::{PROTECTED, metric_of};
use crate::helper;

/// Time to live of a leader's lease: etcd counts whole seconds, and one election of its own takes up to two.
const SESSION_TTL: Duration = Duration::from_secs(5);
/// Time between polls of the registry.
pub(crate) const POLL: Duration = Duration::from_secs(2);
/// Time between metrics rounds.
const METRICS: Duration = Duration::from_secs(2);
/// Time that a cluster is not online before applications leave it.
const RESCHEDULE_AFTER: Duration = Duration::from_secs(10);
/// The longest back-off before a failed actor is restarted (the supervisor's default).
const LONGEST_BACK_OFF: Duration = Duration::from_secs(10);
/// Time limit of a request of the service to the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between a worker's retirement and its removal (the service's default).
const RETIRE_WAIT: Duration = Duration::from_secs(300);
/// Rounds for which a metric's last value counts (the service's default).
const METRIC_ROUNDS: u32 = 3;
/// Time limit of a repair command or a health check.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a repair watches the health of its machine after a command.
const WATCH: Duration = Duration::from_secs(4);
const EVICTION_TIMEOUT: Duration = Duration::from_secs(30);
/// A request to the store times out after 2 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Maximum delay of an observation: a request to the store times out and is repeated, on a busy machine.
const TOLERANCE: Duration = Duration::from_secs(10);
/// Control plane nodes of a cluster.
const CONTROL_PLANE: u32 = 3;

/// The namespace of all objects of placement.
pub(crate) const NAMESPACE: &str = "chaos";

/// Maximum time until all is calm: the lease, three polls, the wait before applications leave, and the longest
/// back-off.
pub(crate) fn longest_calm_wait() -> Span {
    let all = SESSION_TTL + POLL * 3 + RESCHEDULE_AFTER + LONGEST_BACK_OFF;
    Span::from_millis(u64::try_from(all.as_millis()).unwrap_or(u64::MAX))
}

/// Maximum time of the repairs that are left when all else is calm: control plane nodes are repaired one after another,
/// and each repair has two steps.
pub(crate) fn longest_repairs_wait() -> Duration {
    (COMMAND_TIMEOUT + WATCH + POLL) * 2 * CONTROL_PLANE
}

/// The promises that follow from these settings.
pub(crate) fn terms_of_settings() -> PromiseTerms {
    PromiseTerms {
        interval: POLL,
        session_ttl: SESSION_TTL,
        retire_wait: RETIRE_WAIT,
        metrics_interval: METRICS,
        metric_max_age: METRICS * METRIC_ROUNDS,
        reschedule_after: RESCHEDULE_AFTER,
        eviction_timeout: EVICTION_TIMEOUT,
        answer_within: ANSWER_WITHIN,
        tolerance: TOLERANCE,
        holds_back: true,
    }
}

/// The configuration file of an instance, with a kubeconfig, or of an operator's commands.
pub(super) fn configuration_file(endpoints: &[String], places: bool, kubeconfig: Option<&Path>) -> String {
    let mut text = format!("endpoints: {}\ntimeout: {}s\n", json!(endpoints), STORE_TIMEOUT.as_secs());
    if let Some(kubeconfig) = kubeconfig {
        // Writing to a string does not fail.
        let _ = writeln!(text, "kubernetes: {}", json!({ "kubeconfig": kubeconfig }));
    }
    if places {
        let placement = json!({
            "api": {
                "authorization": "always-allow",
                // The address in a namespace is not loopback, but only the run reaches it.
                "insecure": true,
                "authentication": {"strategy": {"static": {"enabled": true, "name": "admin"}}},
            },
            "scheduler": {"reschedule_after": RESCHEDULE_AFTER.as_secs()},
            "metrics_interval": format!("{}s", METRICS.as_secs()),
        });
        // Writing to a string does not fail.
        let _ = writeln!(text, "placement: {placement}");
    }
    text
}

pub(super) fn serve(config: &str, http: &str) -> Vec<String> {
    let seconds = |span: Duration| format!("{}s", span.as_secs());
    let words = ["serve", "--config", config, "--http", http, "--logformat", "json", "--session-ttl"];
    let mut words: Vec<String> = words.map(str::to_owned).to_vec();
    words.extend([seconds(SESSION_TTL), "--interval".to_owned(), seconds(POLL)]);
    words
}

/// The operator's constraints, which the machines of the world can meet, with some to spare.
pub(super) fn constraint_values(world: &World) -> [(&'static str, u32); 3] {
    let control_plane = if world.machines < 6 { 1 } else { CONTROL_PLANE };
    let minimum = (world.machines * 2 / 5).saturating_sub(control_plane).max(1);
    [
        ("control-plane-count", control_plane),
        ("minimum-workers", minimum),
        ("maximum-workers", (world.machines * 3 / 5).max(minimum + 1)),
    ]
}

/// The cluster template. Its repair commands are this program; some of them drain the node first.
pub(super) fn template_text(own: &str, control: &str) -> String {
    let command = |what: &str| json!([own, helper::WORD, what, control]);
    let step = |drains: bool| {
        json!({
            "repair_command": command(helper::RESET), "need_drain": drains,
            "command_timeout_seconds": COMMAND_TIMEOUT.as_secs(), "watch_seconds": WATCH.as_secs(),
        })
    };
    let operation = |name: &str, steps: [Value; 2]| {
        json!({
            "operation": name,
            "health_check_command": command(helper::HEALTHY),
            "command_timeout_seconds": COMMAND_TIMEOUT.as_secs(),
            "repair_steps": steps,
        })
    };
    let procedures = json!([{
        "machine_types": ["iDRAC-9", "IPMI-2.0"],
        "repair_operations": [
            operation("unreachable", [step(false), step(true)]),
            operation("unhealthy", [step(true), step(false)]),
        ],
    }]);
    let repair = json!({
        "max_concurrent_repairs": 3,
        "protected_namespaces": {"matchLabels": {"team": PROTECTED}},
        // Longer than a pod takes to begin elsewhere.
        "evict_retries": 5, "evict_interval": 2,
        "eviction_timeout_seconds": EVICTION_TIMEOUT.as_secs(),
        "repair_procedures": procedures,
    });
    format!("{NODES}repair: {repair}\n")
}

const NODES: &str = "\
name: chaos
nodes:
- user: cybozu
  control_plane: true
  labels:
    cke.cybozu.com/role: compute
- user: cybozu
  labels:
    cke.cybozu.com/role: compute
    cke.cybozu.com/weight: '6.0'
- user: cybozu
  labels:
    cke.cybozu.com/role: storage
    cke.cybozu.com/weight: '3.0'
service_subnet: 10.68.0.0/16
";

/// Zones of the clusters, in turn; applications demand one of them.
pub(crate) const ZONES: [&str; 3] = ["a", "b", "c"];

pub(super) fn cluster_resource(name: &str, number: usize) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"zone": ZONES[number % ZONES.len()]}},
        "spec": {
            // No client calls this server: a cluster with a kubeconfig counts as existing.
            "kubeconfig": kubeconfig_value(name, &format!("https://{name}.invalid:6443")),
            "constraints": {"cloud": {"labels": [], "metrics": []}},
            "metrics": [{"name": metric_of(name), "weight": 1.0, "namespaced": false}],
        },
    })
}

pub(super) fn kubeconfig_value(name: &str, server: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": "chaos"}}],
        "users": [{"name": "chaos", "user": {}}],
        "clusters": [{"name": name, "cluster": {"server": server}}],
    })
}

pub(super) fn provider_resource(name: &str, url: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": "prometheus", "prometheus": {"url": url}}})
}

pub(super) fn metric_resource(name: &str, provider: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "min": 0.0,
            "max": 100.0,
            "allowed_values": [],
            "provider": {"name": provider, "metric": name},
        },
    })
}

pub(crate) fn application_resource(name: &str, zone: Option<&str>, value: u64) -> Value {
    let labels: Vec<String> = zone.iter().map(|zone| format!("zone is {zone}")).collect();
    json!({
        "metadata": {"name": name, "labels": {VALUE: value.to_string()}},
        "spec": {
            "manifest": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}],
            "constraints": {"cluster": {"labels": labels}},
        },
    })
}

/// The label with the client's value.
pub(crate) const VALUE: &str = "value";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_can_be_met_by_small_and_large_worlds() {
        for machines in [4, 6, 20, 60, 10_000] {
            let world = World { machines, ..World::default() };
            let [(_, control_plane), (_, minimum), (_, maximum)] = constraint_values(&world);
            assert!(control_plane >= 1 && minimum >= 1 && maximum > minimum, "{machines}");
            assert!(control_plane + minimum <= machines, "{machines}: {control_plane} and {minimum}");
        }
    }
}
