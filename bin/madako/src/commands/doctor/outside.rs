//! Checks of the peers of the service: the store, the leader, the registry, the API server, providers of metrics, nodes and
//! Vault.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_console::Stopwatch;
use madako_domain::authority::Authority;
use madako_domain::keys;
use madako_domain::machine::QueryVariables;
use madako_domain::state::ClusterState;
use madako_domain::store::Entry;
use madako_http_client::ReqwestTransport;
use madako_kubernetes::{ApiServer, Limits};
use madako_protocol::kubernetes::Kubernetes as _;
use madako_protocol::ports::{HttpResponse, Registry as _};
use madako_protocol::store::Store;
use madako_sabakan::SabakanRegistry;
use madako_store::EtcdStore;
use madako_supervisor::config::{Config, StoreChoice};
use madako_supervisor::operations::vault_client;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use super::Check;
use super::local::check_certificate;
use crate::VERSION;
use crate::commands::ops::running::{get_body, get_page};
use crate::commands::status::samples::Samples;
use crate::failure::Failure;
use crate::limits::{CLOCK_SKEW, OPS_DEADLINE};

type Entries = BTreeMap<String, Entry>;

pub(super) async fn check_store(store: &EtcdStore, config: &Config) -> (Check, Option<Entries>) {
    const NAME: &str = "store";
    let watch = Stopwatch::start();
    match store.list("").await {
        Ok(list) => {
            let (endpoint, taken) = (store.endpoint(), watch.elapsed().as_millis());
            let found = format!(
                "{endpoint}, {} keys at revision {}, read in {taken} ms",
                list.entries.len(),
                list.revision
            );
            (Check::passed(NAME, found), Some(list.entries))
        }
        Err(error) => {
            let fix = match &config.store {
                StoreChoice::Embedded(_) => {
                    "start madako serve, whose process has the store (systemctl start madako)"
                }
                StoreChoice::External => {
                    "check endpoints, tls-* and username in the configuration file, and the members of etcd"
                }
            };
            (Check::failed(NAME, error.to_string(), fix), None)
        }
    }
}

/// Checks of the peers and values that the store names.
pub(super) async fn check_stored(entries: &Entries, config: &Config, now: OffsetDateTime) -> Vec<Check> {
    let state = ClusterState::decode(0, entries, None);
    let mut checks: Vec<Check> = state
        .faults
        .iter()
        .map(|fault| {
            let fix = format!("store a valid value of {}, or delete the key", fault.key);
            Check::failed("stored value", format!("{}: {}", fault.key, fault.why), fix)
        })
        .collect();
    let (leader, samples) = check_leader(entries, now).await;
    checks.extend(leader);
    checks.push(check_registry(&state).await);
    checks.push(check_template(&state));
    for authority in Authority::ALL {
        if let Some(entry) = entries.get(&keys::ca(authority)) {
            let name = format!("authority {authority}");
            let fix = "madako ca set stores another one";
            checks.push(check_certificate(&name, &String::from_utf8_lossy(&entry.value), now, fix));
        }
    }
    checks.push(check_api_server(config).await);
    checks.push(check_metrics(config, samples.as_ref()));
    checks.push(check_nodes(config, samples.as_ref()));
    checks
}

/// The leader, its pages, its version, and the difference of the clocks.
async fn check_leader(entries: &Entries, now: OffsetDateTime) -> (Vec<Check>, Option<Samples>) {
    const NAME: &str = "leader";
    let candidates =
        entries.range(keys::LEADER.to_owned()..).take_while(|(key, _)| key.starts_with(keys::LEADER));
    let Some((_, leader)) = candidates.min_by_key(|(_, entry)| entry.create_revision) else {
        let fix = "start madako serve; madako status and its log tell why it does not lead";
        return (vec![Check::failed(NAME, "no instance leads", fix)], None);
    };
    let host = String::from_utf8_lossy(&leader.value).into_owned();
    let Some(url) = entries.get(keys::LEADER_URL) else {
        let fix = "none, if CKE is to lead; otherwise stop cke";
        return (
            vec![Check::with_notice(
                NAME,
                format!("{host} leads without pages: it is an instance of CKE"),
                fix,
            )],
            None,
        );
    };
    let url = String::from_utf8_lossy(&url.value).trim_end_matches('/').to_owned();
    let mut checks = Vec::new();
    match get_page(&format!("{url}/version"), OPS_DEADLINE).await {
        Err(failure) => {
            let fix = "open the port of --http for this machine, or start the service again";
            let found = format!("{host}: {}", failure.message().unwrap_or_default());
            return (vec![Check::failed(NAME, found, fix)], None);
        }
        Ok(answer) => {
            let version = read_version(&answer);
            checks.push(match version.as_deref() {
                Some(version) if version == VERSION => {
                    Check::passed(NAME, format!("{host} at {url}, version {version}"))
                }
                version => {
                    let version = version.unwrap_or("unknown");
                    let found = format!("{host} at {url} has the version {version}, this command {VERSION}");
                    Check::with_notice(NAME, found, "use one version on all machines")
                }
            });
            checks.extend(check_clock(&answer, &host, now));
        }
    }
    match get_body(&format!("{url}/metrics"), OPS_DEADLINE).await {
        Ok(page) => (checks, Some(Samples::parse(&String::from_utf8_lossy(&page)))),
        Err(failure) => {
            let found = format!("{host}: {}", failure.message().unwrap_or_default());
            checks.push(Check::failed(NAME, found, "start the service again; its log has the cause"));
            (checks, None)
        }
    }
}

fn read_version(answer: &HttpResponse) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
    Some(value.get("version")?.as_str()?.to_owned())
}

/// Compares the time of an answer with this machine's.
fn check_clock(answer: &HttpResponse, host: &str, now: OffsetDateTime) -> Option<Check> {
    let (_, date) = answer.headers.iter().find(|(name, _)| name == "date")?;
    let theirs = OffsetDateTime::parse(date, &Rfc2822).ok()?;
    let skew = (now - theirs).abs();
    let found = format!("this machine and {host} differ by about {} s", skew.whole_seconds());
    Some(match skew > CLOCK_SKEW {
        true => Check::failed("clock", found, "synchronize the clocks, for example by chrony"),
        false => Check::passed("clock", found),
    })
}

async fn check_registry(state: &ClusterState) -> Check {
    const NAME: &str = "registry";
    let Some(url) = &state.url else {
        return Check::with_notice(
            NAME,
            "no URL is stored, so no machine is known",
            "madako sabakan set-url URL",
        );
    };
    if state.disabled {
        let found = format!("{}, but the integration is disabled: the service makes no plan", url.value);
        return Check::with_notice(NAME, found, "madako sabakan enable");
    }
    let transport = match ReqwestTransport::new() {
        Ok(transport) => transport,
        Err(error) => {
            return Check::failed(
                NAME,
                error.to_string(),
                "install the certificate authorities of this machine",
            );
        }
    };
    let registry = SabakanRegistry::new(Arc::new(transport));
    let variables: Option<&QueryVariables> = state.variables.as_ref().map(|variables| &*variables.value);
    match registry.machines(&url.value, variables).await {
        Ok(answer) if answer.machines.is_empty() => {
            let fix = "madako sabakan get-variables shows the conditions of the query";
            Check::with_notice(NAME, format!("{} lists no machine", url.value), fix)
        }
        Ok(answer) => Check::passed(NAME, format!("{} lists {} machines", url.value, answer.machines.len())),
        Err(error) => {
            let fix = "start sabakan, or madako sabakan set-url URL";
            Check::failed(NAME, error.to_string(), fix)
        }
    }
}

fn check_template(state: &ClusterState) -> Check {
    const NAME: &str = "template";
    match &state.template {
        None => Check::with_notice(
            NAME,
            "no template is stored, so no cluster is planned",
            "madako template example > template.yml; madako sabakan set-template template.yml",
        ),
        Some(template) => match template.value.warnings().as_slice() {
            [] => Check::passed(NAME, "stored and valid"),
            warnings => {
                let found: Vec<String> = warnings.iter().map(ToString::to_string).collect();
                Check::with_notice(NAME, found.join("\n"), "madako sabakan set-template FILE")
            }
        },
    }
}

async fn check_api_server(config: &Config) -> Check {
    const NAME: &str = "API server";
    let Some(access) = &config.kubernetes else {
        let why = if config.reaches_kubernetes() {
            "no kubeconfig: the service asks the API servers of the control plane, which madako kube status shows"
        } else {
            "no section kubernetes: nodes are not drained, and their taints are unknown"
        };
        return Check::not_applicable(NAME, why);
    };
    let fix = "check kubernetes.kubeconfig; madako kube issue makes a new one";
    let answer = match ApiServer::new(access, Limits::default()) {
        Ok(server) => server.nodes().await.map_err(|error| Failure::Failed(error.into())),
        Err(error) => Err(Failure::Failed(error.into())),
    };
    match answer {
        Ok(nodes) => Check::passed(NAME, format!("{} has {} nodes", access.server(), nodes.len())),
        Err(failure) => Check::failed(NAME, failure.message().unwrap_or_default(), fix),
    }
}

/// Metrics and their providers, as the leader last fetched them.
fn check_metrics(config: &Config, samples: Option<&Samples>) -> Check {
    const NAME: &str = "metrics";
    if config.placement.is_none() {
        return Check::not_applicable(NAME, "no section placement");
    }
    let Some(samples) = samples else { return Check::not_applicable(NAME, "no page /metrics of a leader") };
    let conditions = samples.counts_by_label("madako_metrics", "condition");
    let down = samples.counts_by_label("madako_metrics_providers_down", "kind");
    let bad: u64 = ["failed", "undefined"].iter().filter_map(|condition| conditions.get(*condition)).sum();
    if bad == 0 && down.is_empty() {
        return Check::passed(
            NAME,
            format!("{} metrics of clusters, all usable", conditions.values().sum::<u64>()),
        );
    }
    let kinds: Vec<String> = down.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let down = if kinds.is_empty() {
        String::new()
    } else {
        format!("; providers that do not answer: {}", kinds.join(", "))
    };
    let fix = "madako kube cluster get NAME shows each metric, its provider and the error; madako core globalmetricsprovider get NAME has the address";
    Check::failed(NAME, format!("{bad} without a usable value{down}"), fix)
}

/// The SSH connections of the leader to the nodes.
fn check_nodes(config: &Config, samples: Option<&Samples>) -> Check {
    const NAME: &str = "nodes";
    if config.operations.mode.is_none() {
        return Check::not_applicable(NAME, "operations.mode is off: no node is connected");
    }
    let Some(samples) = samples else { return Check::not_applicable(NAME, "no page /metrics of a leader") };
    let states = samples.counts_by_label("madako_nodes", "state");
    let all: u64 = states.values().sum();
    match states.get("unreachable") {
        None => Check::passed(NAME, format!("{all} of the cluster, all reachable by SSH")),
        Some(unreachable) => Check::failed(
            NAME,
            format!("{unreachable} of {all} are not reachable by SSH"),
            "madako node list has the reasons; madako ssh ADDRESS connects to one node",
        ),
    }
}

/// Logs in to Vault and reads the login keys, as the leader does.
pub(super) async fn check_vault(store: Arc<EtcdStore>, entries: &Entries) -> Check {
    const NAME: &str = "Vault";
    if !entries.contains_key(keys::VAULT) {
        return Check::not_applicable(NAME, "the store has no access to Vault");
    }
    let store: Arc<dyn Store> = store;
    let read = async {
        let Some(secrets) = vault_client(&store).open_secrets().await? else { return Ok(None) };
        secrets.login_keys().await.map(Some)
    };
    match read.await {
        Ok(Some(_)) => Check::passed(NAME, "the login succeeds, and the SSH keys can be read"),
        Ok(None) => Check::not_applicable(NAME, "the access to Vault was removed meanwhile"),
        Err(error) => {
            let fix = "unseal or start Vault; madako vault config FILE stores another access to it";
            Check::failed(NAME, Failure::from(error).message().unwrap_or_default(), fix)
        }
    }
}
