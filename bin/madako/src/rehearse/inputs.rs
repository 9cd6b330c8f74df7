//! Reads the running system once: its store at one revision, its registry, and the values of its metrics.
//!
//! Guarantees: the store is read through a read-only client, the registry gets one query, and each metric one request.
//! Each request has a deadline and a limit; a missing value of a provider is assumed, and reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::keys;
use madako_domain::machine::QueryVariables;
use madako_domain::placement::core::MetricsProviderKind;
use madako_domain::placement::kind::Kind;
use madako_domain::placement::ownership;
use madako_domain::settings::{PlacementSettings, RepairSettings, Settings};
use madako_domain::state::ClusterState;
use madako_domain::store::StoreError;
use madako_http_client::ReqwestTransport;
use madako_metrics_providers::Providers;
use madako_protocol::placement::providers::{MetricsProviders as _, PROVIDER_DEADLINE, Samples};
use madako_protocol::ports::{Clock, HttpTransport, Registry as _, RegistryMachines};
use madako_sabakan::SabakanRegistry;
use madako_simulation::run::rehearsal::{CopiedSystem, OWN_KEYS, Service, copied_providers};
use madako_simulation::walk::CopiedProvider;
use madako_simulation::world::ServiceSettings;
use madako_store::CopyReader;
use madako_supervisor::config::Config;
use madako_supervisor::placement::from_stored_settings;
use tokio::task::JoinSet;

use super::RehearseArgs;
use crate::failure::Failure;
use crate::limits::{FETCHES_AT_ONCE, PROVIDERS_TAKE};
use crate::output::print_note;
use crate::running_settings::{Setting, check_readable, effective_setting};

/// Seed of the jitter between connection attempts.
const SEED: u64 = 0;

/// Keys that must be readable for a rehearsal: otherwise the service could do nothing, or the checks could not check it.
const NEEDED: [&str; 6] = [
    keys::CLUSTER,
    keys::CLUSTER_REVISION,
    keys::CONSTRAINTS,
    keys::SABAKAN_TEMPLATE,
    keys::SABAKAN_URL,
    keys::SABAKAN_VARIABLES,
];

pub(super) struct RehearsalInputs {
    pub(super) copied: CopiedSystem,
    pub(super) service: Service,
    pub(super) settings: RehearsalSettings,
    pub(super) notes: Vec<String>,
}

pub(super) struct RehearsalSettings {
    pub(super) interval: Setting,
    pub(super) session_ttl: Setting,
    pub(super) retire_wait: Setting,
    /// Settings of holds of repairs; `None`: the configuration file has them.
    pub(super) repair: Option<RepairSettings>,
    /// Settings of placement; `None`: the configuration file has them.
    pub(super) placement: Option<PlacementSettings>,
}

impl RehearsalSettings {
    /// # Errors
    /// A needed setting of the leader cannot be read.
    fn from_state(args: &RehearseArgs, state: &ClusterState) -> Result<Self, Failure> {
        check_readable(state).map_err(store_not_ready)?;
        let chosen =
            |flag, of: fn(&Settings) -> Duration| effective_setting(flag, state, of).map_err(store_not_ready);
        let kept = state.settings.as_ref().map(|stored| stored.value.clone());
        Ok(Self {
            interval: chosen(args.interval, |settings| settings.interval)?,
            session_ttl: chosen(args.session_ttl, |settings| settings.session_ttl)?,
            retire_wait: chosen(None, |settings| settings.retire_wait)?,
            repair: kept.as_ref().and_then(|kept| kept.repair.clone()),
            placement: kept.and_then(|kept| kept.placement),
        })
    }
}

/// An input that cannot be read or used.
fn store_not_ready(message: impl std::fmt::Display) -> Failure {
    Failure::NotRehearsed(anyhow::anyhow!("{message}"))
}

fn unreadable_store(error: StoreError) -> Failure {
    match Failure::from(error) {
        Failure::Failed(error) => Failure::NotRehearsed(error),
        other => other,
    }
}

pub(super) async fn gather_inputs(
    args: &RehearseArgs,
    config: &Config,
    clock: &dyn Clock,
) -> Result<RehearsalInputs, Failure> {
    let mut notes = Vec::new();
    let decides = config.placement.as_ref().is_some_and(|placement| placement.controllers);
    let reader = CopyReader::open(&config.clients, SEED).map_err(|error| Failure::BadInput(error.into()))?;
    let skipped = [Kind::Role, Kind::RoleBinding];
    let kinds = Kind::ALL.iter().filter(|kind| decides && !skipped.contains(kind));
    let root: Vec<&str> = kinds.map(|kind| kind.prefix()).chain([ownership::KEY]).collect();
    let keyspace = reader.read(&OWN_KEYS, &root).await.map_err(unreadable_store)?;
    // The clock of the copy continues from here.
    let at = clock.now();
    let state = ClusterState::decode(keyspace.revision, &keyspace.own, None);
    for fault in &state.faults {
        let text = format!("the stored value of {} cannot be used: {}", fault.key, fault.why);
        if NEEDED.contains(&fault.key.as_str()) {
            return Err(store_not_ready(text));
        }
        notes.push(text);
    }
    let settings = RehearsalSettings::from_state(args, &state)?;
    let url = state.url.as_ref().ok_or_else(|| {
        store_not_ready(
            "no URL of the registry is stored (madako sabakan set-url stores one), so no machine is known",
        )
    })?;
    if state.disabled {
        notes.push("the integration with sabakan is off: nothing is planned".to_owned());
    }
    if let Some(why) = &state.repair_fault {
        notes
            .push(format!("the section repair of the cluster cannot be used, so nothing is repaired: {why}"));
    }

    let transport: Arc<dyn HttpTransport> =
        Arc::new(ReqwestTransport::new().map_err(|error| Failure::NotRehearsed(error.into()))?);
    // Without conditions: the service's own queries filter these machines, including those that match only later.
    let everything = QueryVariables::default();
    let registry = SabakanRegistry::new(Arc::clone(&transport));
    let fetched = registry.machines(&url.value, Some(&everything)).await;
    let RegistryMachines { mut machines, left_out } =
        fetched.map_err(|error| Failure::NotRehearsed(error.into()))?;
    machines.extend(left_out);
    machines.sort_by(|one, other| one.spec.serial.cmp(&other.spec.serial));

    let owner = keyspace.root.get(ownership::KEY).map(|entry| String::from_utf8_lossy(&entry.value));
    let places = match owner {
        Some(owner) if config.placement.is_none() => {
            notes.push(format!(
                "the prefix {owner} owns placement, and the configuration file has no section placement: \
                 nothing is placed here"
            ));
            false
        }
        Some(owner) if decides && owner != config.prefix => {
            notes.push(format!("the prefix {owner} owns placement: nothing is placed here"));
            false
        }
        _ => decides,
    };
    let encryption =
        config.placement.as_ref().map(|placement| placement.encryption.clone()).unwrap_or_default();
    let mut providers = Vec::new();
    if places {
        let (resources, wrong) = keyspace.decode_resources(&encryption);
        for (key, why) in wrong.into_iter().filter(|(key, _)| key != ownership::KEY) {
            notes.push(format!("{key} cannot be read and is ignored: {why}"));
        }
        let (found, undefined) = copied_providers(&resources);
        let without_source =
            |metric: &String| format!("the metric {metric} has no definition or no provider");
        notes.extend(undefined.iter().map(without_source));
        providers = read_values(found, &transport, &mut notes).await;
    }
    let working = working_settings(&settings, config);
    let service = Service { working, places, kubernetes: config.reaches_kubernetes() };
    if !config.reaches_kubernetes() && has_drains(&state) {
        notes.push("no API server is configured: steps that drain wait, as in the running system".to_owned());
    }
    for text in &notes {
        print_note(text);
    }
    let copied = CopiedSystem {
        at,
        revision: keyspace.revision,
        own: keyspace.own,
        root: if places { keyspace.root } else { BTreeMap::new() },
        machines,
        providers,
    };
    Ok(RehearsalInputs { copied, service, settings, notes })
}

fn has_drains(state: &ClusterState) -> bool {
    let procedures = state.repair_config.iter().flat_map(|config| &config.procedures);
    let mut steps = procedures.flat_map(|procedure| &procedure.operations).flat_map(|one| &one.steps);
    steps.any(|step| step.need_drain)
}

/// The service's settings, from the running service and the configuration file.
fn working_settings(settings: &RehearsalSettings, config: &Config) -> ServiceSettings {
    let usual = ServiceSettings::default();
    let placement = config.placement.as_ref();
    let file = placement.map(|placement| (placement.metrics, placement.scheduler.clone()));
    let (metrics, scheduler) = file.unwrap_or((usual.metrics, usual.scheduler));
    let (metrics, scheduler) = match &settings.placement {
        Some(kept) => from_stored_settings(kept, scheduler),
        None => (metrics, scheduler),
    };
    let hold = settings.repair.as_ref().map_or_else(|| config.repair.hold.clone(), |kept| kept.hold.clone());
    ServiceSettings {
        interval: settings.interval.value,
        // Whole seconds, as in cke; at least one.
        session_ttl: Duration::from_secs(settings.session_ttl.value.as_secs()),
        retire_wait: settings.retire_wait.value,
        hold,
        metrics,
        scheduler,
        encryption: placement.map_or(usual.encryption, |placement| placement.encryption.clone()),
    }
}

/// Sends one request for each metric, and takes in the values.
async fn read_values(
    mut copied: Vec<CopiedProvider>,
    transport: &Arc<dyn HttpTransport>,
    notes: &mut Vec<String>,
) -> Vec<CopiedProvider> {
    let providers = Arc::new(Providers::new(Arc::clone(transport)));
    let mut waiting: Vec<(usize, Arc<MetricsProviderKind>, BTreeSet<String>)> = copied
        .iter()
        .enumerate()
        .map(|(at, provider)| (at, Arc::clone(&provider.kind), provider.metrics.keys().cloned().collect()))
        .collect();
    let mut fetches: JoinSet<(usize, Samples)> = JoinSet::new();
    let asking = async {
        loop {
            while fetches.len() < FETCHES_AT_ONCE
                && let Some((at, kind, names)) = waiting.pop()
            {
                let providers = Arc::clone(&providers);
                fetches.spawn(async move { (at, providers.fetch(&kind, &names, PROVIDER_DEADLINE).await) });
            }
            let Some(answered) = fetches.join_next().await else { return };
            let Ok((at, samples)) = answered else { continue };
            for (name, sample) in samples {
                if let (Ok(sample), Some(metric)) = (sample, copied[at].metrics.get_mut(&name)) {
                    metric.value = Some(sample.value);
                }
            }
        }
    };
    // Values that arrived until then count.
    let _late = tokio::time::timeout(PROVIDERS_TAKE, asking).await;
    for provider in &copied {
        for (name, metric) in provider.metrics.iter().filter(|(_, metric)| metric.value.is_none()) {
            notes.push(format!(
                "the provider {} gave no value of {name}: {} is assumed, the middle of {} to {}",
                provider.name,
                metric.initial_value(),
                metric.least,
                metric.greatest
            ));
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use madako_domain::placement::fit::ComparedMetrics;

    use super::*;
    use crate::running_settings::Origin;

    fn chosen(kept: Option<PlacementSettings>, repair: Option<RepairSettings>) -> RehearsalSettings {
        let of = |value| Setting { value, origin: Origin::Default };
        RehearsalSettings {
            interval: of(Settings::DEFAULT.interval),
            session_ttl: of(Settings::DEFAULT.session_ttl),
            retire_wait: of(Settings::DEFAULT.retire_wait),
            repair,
            placement: kept,
        }
    }

    #[test]
    fn settings_of_the_running_system_count_before_those_of_the_configuration_file() {
        let text =
            "repair: {hold: {count: 7}}\nplacement: {metrics_interval: 20s, scheduler: {stickiness: 0.5}}";
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.yml");
        std::fs::write(&path, text).unwrap();
        let config = Config::load(Some(&path)).unwrap();
        let file = working_settings(&chosen(None, None), &config);
        assert_eq!(file.hold.as_ref().map(|hold| hold.count), Some(7));
        assert_eq!((file.metrics.interval.as_secs(), file.scheduler.stickiness), (20, 0.5));

        let second = Duration::from_secs(1);
        let kept = PlacementSettings {
            metrics_interval: 2 * second,
            metric_max_age: 6 * second,
            reschedule_after: 15 * second,
            stickiness: 0.25,
            debounce: second,
            metric_constraints: ComparedMetrics::Weighted,
            max_moves_percent: 5,
            max_moves_at_least: 1,
            deletion_retention: 30 * second,
            own_namespace_only: true,
        };
        let running =
            working_settings(&chosen(Some(kept.clone()), Some(RepairSettings { hold: None })), &config);
        assert_eq!(running.hold, None);
        assert_eq!((running.metrics.interval, running.metrics.max_age), (2 * second, 6 * second));
        let scheduler = running.scheduler;
        assert_eq!((scheduler.reschedule_after, scheduler.debounce), (15 * second, second));
        assert_eq!((scheduler.stickiness, scheduler.metric_constraints), (0.25, ComparedMetrics::Weighted));
        assert_eq!((scheduler.max_moves.percent, scheduler.max_moves.at_least), (5, 1));
        assert_eq!(scheduler.cluster_creation.deletion_retention, 30 * second);
        assert_eq!(scheduler.candidates, madako_app_scheduler::Candidates::Namespace);
    }
}
