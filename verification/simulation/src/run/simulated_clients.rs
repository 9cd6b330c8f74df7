//! The simulated clients of a scenario, which use the service while faults happen, each kind at its rate.
//!
//! In every scenario, an operator sets the cluster up, changes its template and requests one repair, so that the
//! service has work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use madako_faults::{ClientKind, Scenario};
use madako_protocol::store::Store as _;
use madako_store::{EtcdStore, StoreConfig};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::contenders::ConcurrentWriters;
use super::reboots::RebootClients;
use super::registry_clients::RegistryClients;
use super::saboteurs::Saboteurs;
use super::seeded_generator;
use crate::history::History;
use crate::network::Endpoint;
use crate::operator::Operator;
use crate::queue_user::QueueUser;
use crate::user::{PlacementSize, User};
use crate::world::{PREFIX, World};

/// Times at which the operator changes the template and requests a repair: the first cluster exists by then.
const FIRST_WORK: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(20)];

/// Mean time between two acts of an operator, and between two of users of the repair queue, if clients of etcd send
/// requests often enough for it.
const BETWEEN_ACTS: Duration = Duration::from_secs(6 * 60);
const BETWEEN_REPAIRS: Duration = Duration::from_secs(2 * 60);

/// Numbers of requests, and of the failed ones among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CallCounts {
    pub(super) made: u64,
    pub(super) failed: u64,
}

pub(super) struct RunningClients {
    stop: watch::Sender<bool>,
    placement: Option<JoinHandle<User>>,
    etcd: JoinHandle<EtcdClients>,
    registry: Option<JoinHandle<RegistryClients>>,
    contenders: Option<JoinHandle<ConcurrentWriters>>,
    reboots: Option<JoinHandle<RebootClients>>,
    saboteurs: Option<JoinHandle<Saboteurs>>,
}

/// Results of the clients, after their cleanup.
#[derive(Default)]
pub(super) struct ClientResults {
    pub(super) calls: BTreeMap<&'static str, CallCounts>,
}

impl ClientResults {
    pub(super) fn failure_count(&self) -> u64 {
        self.calls.values().map(|calls| calls.failed).sum()
    }
}

impl RunningClients {
    pub(super) fn start(
        scenario: &Scenario,
        seed: u64,
        world: &World,
        operator: Operator,
        queue: QueueUser,
    ) -> Self {
        let (stop, stopped) = watch::channel(false);
        let rate = |kind: ClientKind| {
            scenario.clients.iter().find(|client| client.kind == kind).map(|client| client.rate.per_second())
        };
        let placement = places_applications(scenario).then(|| {
            let user = User::new(
                world.store.clone(),
                Arc::clone(&world.dialers),
                world.placement.clone(),
                world.prometheus.clone(),
                world.history.clone(),
                seeded_generator(seed, 3),
            );
            let (applications, clusters) =
                (scenario.world.applications as usize, scenario.world.clusters as usize);
            let size = PlacementSize {
                applications: (applications, applications + applications / 10),
                clusters: (clusters, clusters + 2),
            };
            tokio::spawn(
                user.with_facts(world.facts.clone())
                    .with_size(size)
                    .run_until_stopped(rate(ClientKind::Placement), stopped.clone()),
            )
        });
        let link = world.network.link(Endpoint::People, Endpoint::Store);
        let config = StoreConfig { prefix: PREFIX.to_owned(), ..StoreConfig::default() };
        let store = EtcdStore::with_connector(link.make_connector(world.store.clone()), &config, seed);
        let etcd = EtcdClients {
            store: store.expect("a prefix is all that was set"),
            operator,
            queue,
            history: world.history.clone(),
            chance: seeded_generator(seed, 9),
            calls: CallCounts::default(),
        };
        let etcd = tokio::spawn(etcd.run_until_stopped(rate(ClientKind::EtcdWatch), stopped.clone()));
        let registry = rate(ClientKind::Registry).map(|rate| {
            tokio::spawn(RegistryClients::new(world, seed).act_until_stopped(rate, stopped.clone()))
        });
        let contenders = rate(ClientKind::Rivals).and_then(|rate| {
            let contenders = ConcurrentWriters::new(scenario, seed, world)?;
            Some(tokio::spawn(contenders.write_until_stopped(rate, stopped.clone())))
        });
        let reboots = rate(ClientKind::Reboots).and_then(|rate| {
            Some(tokio::spawn(RebootClients::new(seed, world)?.run_until_stopped(rate, stopped.clone())))
        });
        let saboteurs = rate(ClientKind::Saboteurs).and_then(|rate| {
            Some(tokio::spawn(Saboteurs::new(seed, world, stopped)?.act_until_stopped(rate)))
        });
        Self { stop, placement, etcd, registry, contenders, reboots, saboteurs }
    }

    /// Stops all clients without a cleanup.
    pub(super) async fn stop(self) -> StoppedClients {
        self.stop.send_replace(true);
        let registry = join_clients(self.registry).await;
        let contenders = join_clients(self.contenders).await;
        let reboots = join_clients(self.reboots).await;
        let saboteurs = join_clients(self.saboteurs).await;
        let etcd = self.etcd.await.expect(NO_PANIC);
        let placement = join_clients(self.placement).await;
        let made = [
            ("registry", registry.as_ref().map(|clients| clients.calls)),
            ("rivals", contenders.map(|clients| clients.calls)),
            ("reboots", reboots.map(|clients| clients.calls)),
            ("saboteurs", saboteurs.map(|clients| clients.calls)),
            ("etcd-watch", Some(etcd.calls)),
        ];
        let mut calls: BTreeMap<_, _> =
            made.into_iter().filter_map(|(kind, calls)| Some((kind, calls?))).collect();
        if let Some(user) = &placement {
            calls.insert("placement", CallCounts { made: user.done.requests, failed: user.done.failed });
        }
        StoppedClients {
            registry,
            operator: etcd.operator,
            queue: etcd.queue,
            history: etcd.history,
            placement,
            calls,
        }
    }
}

/// Clients that no longer act by themselves.
pub(super) struct StoppedClients {
    pub(super) registry: Option<RegistryClients>,
    pub(super) operator: Operator,
    pub(super) queue: QueueUser,
    pub(super) placement: Option<User>,
    history: History,
    calls: BTreeMap<&'static str, CallCounts>,
}

impl StoppedClients {
    /// Cleans up after all clients, so that a quiet period can come. Returns false if the store refused writes for
    /// that.
    pub(super) async fn clean_up(mut self) -> (ClientResults, bool) {
        if let Some(registry) = &mut self.registry {
            registry.restore_machines();
        }
        let left = self.leave().await;
        if let Some(user) = &mut self.placement {
            user.prepare_quiet_state().await;
            // Requests of the cleanup count; their failures do not, because they are not failures of the service.
            self.calls.entry("placement").or_default().made = user.done.requests;
        }
        (ClientResults { calls: self.calls }, left)
    }

    /// Retries each second, up to 100 times. Returns true on success.
    async fn leave(&mut self) -> bool {
        // A store that was down until now takes writes as soon as it is up, because it has no other fault any more.
        for _ in 0..100 {
            if self.operator.write_final_inputs().await.is_ok() && self.queue.settle().await.is_ok() {
                self.history.note("etcd", "rests");
                return true;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        self.history.note("etcd", "could not clean up");
        false
    }
}

const NO_PANIC: &str = "a client does not panic";

/// Waits for clients that stop, and returns them.
async fn join_clients<T>(clients: Option<JoinHandle<T>>) -> Option<T> {
    match clients {
        Some(clients) => Some(clients.await.expect(NO_PANIC)),
        None => None,
    }
}

fn places_applications(scenario: &Scenario) -> bool {
    scenario.world.places_applications()
}

/// Share of `rate` requests a second that are acts with this mean pause between them; at most 0.3.
pub(super) fn period_of(rate: f64, pause: Duration) -> f64 {
    (1.0 / (rate * pause.as_secs_f64())).min(0.3)
}

/// Waits for the next of `rate` requests a second. Returns false when the run stops.
pub(super) async fn wait_for_next(
    rate: f64,
    chance: &mut ChaCha8Rng,
    stop: &mut watch::Receiver<bool>,
) -> bool {
    let pause = Duration::from_secs_f64(chance.random_range(0.5..1.5) / rate);
    // A wake-up and the time-out both lead to the check below.
    let _ = timeout(pause, stop.changed()).await;
    !*stop.borrow()
}

/// Clients of etcd, like `ckecli`.
struct EtcdClients {
    store: EtcdStore,
    operator: Operator,
    queue: QueueUser,
    history: History,
    chance: ChaCha8Rng,
    calls: CallCounts,
}

impl EtcdClients {
    async fn run_until_stopped(mut self, rate: Option<f64>, mut stop: watch::Receiver<bool>) -> Self {
        self.write_first_work(&mut stop).await;
        let Some(rate) = rate else { return self };
        let (acts, repairs) = (period_of(rate, BETWEEN_ACTS), period_of(rate, BETWEEN_REPAIRS));
        while wait_for_next(rate, &mut self.chance, &mut stop).await {
            self.calls.made += 1;
            let draw: f64 = self.chance.random();
            let done = if draw < acts {
                self.operator.act_randomly().await.map_err(|error| error.to_string())
            } else if draw < acts + repairs {
                self.queue.act_randomly().await.map_err(|error| error.to_string())
            } else {
                let prefixes = ["repairs/", "records/", "sabakan/", "cluster"];
                let prefix = prefixes[self.chance.random_range(0..prefixes.len())];
                match self.store.list(prefix).await {
                    Ok(_) => continue,
                    Err(error) => Err(format!("{:?}", error.kind)),
                }
            };
            self.calls.failed += u64::from(done.is_err());
            self.history.note("etcd", done.unwrap_or_else(|error| format!("in vain: {error}")));
        }
        self
    }

    /// Gives the service its first work at the times of [`FIRST_WORK`].
    async fn write_first_work(&mut self, stop: &mut watch::Receiver<bool>) {
        let began = Instant::now();
        for (nth, at) in FIRST_WORK.into_iter().enumerate() {
            // Continues at the time, and also at the end of the run.
            let _ = timeout_at(began + at, stop.wait_for(|stop| *stop)).await;
            let done = if nth == 0 {
                self.operator.write_final_inputs().await.map(|()| "changes the template".to_owned())
            } else {
                self.queue.add_one().await
            };
            self.calls.made += 1;
            self.calls.failed += u64::from(done.is_err());
            self.history.note("etcd", done.unwrap_or_else(|error| format!("in vain: {error}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use madako_datacenter_sim::{Datacenter, DatacenterConfig, SimulatedRegistry};
    use time::macros::datetime;

    use super::*;
    use crate::clock::SimulatedClock;
    use crate::disk::ForgetfulDisk;
    use crate::drains::Drains;
    use crate::repair::RepairJudge;
    use crate::run::LONGEST_REST;
    use crate::store_process::StoreProcess;

    #[tokio::test(start_paused = true)]
    async fn cleanup_of_clients_reports_its_failure() {
        for runs in [true, false] {
            let start = datetime!(2026-01-01 00:00 UTC);
            let clock = Arc::new(SimulatedClock::new(start));
            let history = History::new();
            let store = StoreProcess::on_disk(ForgetfulDisk::new(seeded_generator(1, 7)), 1);
            if runs {
                store.start().unwrap();
            }
            let datacenter = Datacenter::new(DatacenterConfig::for_demo(1, start)).unwrap();
            let registry = SimulatedRegistry::new(datacenter, clock.clone());
            let judge = RepairJudge::new(history.clone(), Drains::new(1, clock));
            let mut people = StoppedClients {
                registry: None,
                placement: None,
                operator: Operator::new(store.clone(), seeded_generator(1, 1)),
                queue: QueueUser::new(store, registry, judge, seeded_generator(1, 4)),
                history,
                calls: BTreeMap::new(),
            };
            // `leave` gives up before the limit of the cleanup.
            let left = timeout(LONGEST_REST, people.leave()).await;
            assert_eq!(left, Ok(runs), "with a store that runs: {runs}");
        }
    }
}
