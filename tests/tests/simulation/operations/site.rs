//! Test support: the whole service on simulated nodes, with the checks of the promises about operations.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::{Client, EventType};
use madako_datacenter_sim::nodes::{NodeFault, NodePlace, SimulatedBackups, SimulatedNodes};
use madako_datacenter_sim::vault::SimulatedVault;
use madako_datacenter_sim::{Datacenter, DatacenterConfig, SimulatedRegistry};
use madako_domain::backup::{BackupRecord, BackupSchedule};
use madako_domain::component::Component;
use madako_domain::containers::Container;
use madako_domain::images::ImageName;
use madako_domain::keys;
use madako_domain::node_status::EtcdMember;
use madako_domain::record::Record;
use madako_domain::rollout::Rollout;
use madako_operation_runner::MinorUpgrade;
use madako_protocol::ports::Clock;
use madako_simulation::checker::Checker;
use madako_simulation::clock::SimulatedClock;
use madako_simulation::facts::Facts;
use madako_simulation::history::History;
use madako_simulation::link::Mode;
use madako_simulation::network::Endpoint;
use madako_simulation::nodes::node_ports;
use madako_simulation::placement::PlacementChecker;
use madako_simulation::planted::MessageCounter;
use madako_simulation::revisions::follow_revisions;
use madako_simulation::run::terms_of_settings;
use madako_simulation::store_process::StoreProcess;
use madako_simulation::world::{RunningInstance, World};
use madako_supervisor::nodes::{BackupPorts, KubernetesMode, OperationsMode, OperationsPorts, RUNNER};
use madako_supervisor::tree::ChildState;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep_until};

/// Time between passes of the runner.
pub const INTERVAL: Duration = Duration::from_secs(30);
const SESSION_TTL: Duration = Duration::from_secs(20);
/// Delay of the store's watch, which has no latency here.
const TOLERANCE: Duration = Duration::from_millis(100);
/// Long enough for an epoch to end, for back-offs, and for an operation after them.
pub const PATIENCE: Duration = Duration::from_secs(3 * 3600);
/// Life of certificates: longer than a story without the renewal takes.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Time for which a fault of a node lasts.
pub const OUTAGE: Duration = Duration::from_secs(300);
/// Time between backups: longer than the pauses after some failures.
const BACKUP_EVERY: Duration = Duration::from_secs(1800);
pub const NODES: usize = 6;

/// A disturbance at one moment of a story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disturbance {
    /// The leader's process ends, and another one starts.
    Killed,
    /// The leader loses the store for longer than its lease.
    Paused,
    /// The operation runner fails in its next message.
    Failed,
    /// All links of the leader stand still for longer than its lease, while a standby leads.
    Overtaken,
    /// The node of this number has no power for a while.
    Dead(usize),
    /// The node of this number stands still for a while.
    Stuck(usize),
}

/// A part of a disturbance.
#[derive(Debug, Clone, Copy)]
enum Act {
    Kill,
    Link(Mode),
    Silence,
    Hear,
    Fail,
    Begin(usize, NodeFault),
    End(usize, NodeFault),
}

impl Disturbance {
    fn acts(self, at: Duration) -> Vec<(Duration, Act)> {
        let fault =
            |number, fault| vec![(at, Act::Begin(number, fault)), (at + OUTAGE, Act::End(number, fault))];
        match self {
            Self::Killed => vec![(at, Act::Kill)],
            Self::Paused => {
                vec![(at, Act::Link(Mode::Stalled)), (at + SESSION_TTL * 2, Act::Link(Mode::Open))]
            }
            Self::Overtaken => vec![(at, Act::Silence), (at + SESSION_TTL * 4, Act::Hear)],
            Self::Failed => vec![(at, Act::Fail)],
            Self::Dead(number) => fault(number, NodeFault::Kill),
            Self::Stuck(number) => fault(number, NodeFault::Pause),
        }
    }
}

/// A change of a record, as it is observed.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub at: Duration,
    pub record: Record,
}

/// The end of a story that does not go on: the judges know why, or it is not calm in time.
#[derive(Debug)]
pub struct Stopped;

pub struct Site {
    pub nodes: SimulatedNodes,
    pub world: World,
    pub running: Option<RunningInstance>,
    /// Another instance, where there is one.
    standby: Option<RunningInstance>,
    has_standby: bool,
    /// The instance whose links stand still.
    silent: Option<Endpoint>,
    pub client: Client,
    pub records: Arc<Mutex<Vec<Recorded>>>,
    pub certificate_life: Duration,
    /// Issues the certificates; without it, the authorities are the built-in ones.
    pub vault: Option<SimulatedVault>,
    /// The image of Kubernetes; `None`: its components are left to CKE.
    pub kubernetes: Option<String>,
    /// The field `options` of the cluster.
    pub options: Value,
    /// Nodes on which one operation starts or restarts a component; `None`: the default.
    pub max_concurrent_updates: Option<usize>,
    /// The treatment of kubelets that get another minor version. Most stories have no pods that a drain would move.
    pub minor_upgrade: MinorUpgrade,
    /// The field `reboot` of the cluster.
    pub reboot: Value,
    /// `None`: the leader makes no backups.
    pub backups: Option<SimulatedBackups>,
    /// Recorded proofs without a comparison.
    pub unproved: Vec<String>,
    /// The reason why the world was not calm in time.
    pub restless: Option<String>,
    pub began: Instant,
    /// A disturbance happens at some time.
    pub is_disturbed: bool,
    acts: VecDeque<(Duration, Act)>,
    /// The last wanted members.
    wanted: Vec<usize>,
    workers: Vec<String>,
}

/// Begin of the simulated time.
pub fn start() -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

pub fn address(number: usize) -> String {
    format!("10.0.{}.{}", number / 250, number % 250 + 1)
}

pub fn addresses(numbers: &[usize]) -> Vec<String> {
    numbers.iter().map(|number| address(*number)).collect()
}

impl Site {
    pub async fn new(
        disturbances: &[(Duration, Disturbance)],
        has_standby: bool,
        handling: &MessageCounter,
    ) -> Self {
        let start = start();
        let clock: Arc<dyn Clock> = Arc::new(SimulatedClock::new(start));
        let config = DatacenterConfig::new(1, start, 1, &[("compute", 4)]);
        let registry = SimulatedRegistry::new(Datacenter::new(config).unwrap(), Arc::clone(&clock));
        let history = History::new();
        let store = StoreProcess::start_in_memory(1);
        let client = store.connect_client().await.unwrap();
        let observed =
            (history.clone(), Checker::new(history.clone()), PlacementChecker::new(history, start));
        let nodes = SimulatedNodes::new(1);
        nodes.set_clock(start);
        for number in 0..NODES {
            nodes.add(&address(number), u32::try_from(number % 3).unwrap());
        }
        let mut world = World::new((1, false), store, registry, clock, observed, None);
        world.handling = handling.clone();
        world.working.interval = INTERVAL;
        world.working.session_ttl = SESSION_TTL;
        let mut terms = terms_of_settings(&world.working);
        terms.tolerance = TOLERANCE;
        world.facts = Facts::for_terms(terms, world.history.clone());
        tokio::spawn(world.facts.clone().watch(world.store.clone()));
        let mut acts: Vec<(Duration, Act)> =
            disturbances.iter().flat_map(|(at, disturbance)| disturbance.acts(*at)).collect();
        acts.sort_by_key(|(at, _)| *at);
        let mut site = Self {
            nodes,
            world,
            running: None,
            standby: None,
            has_standby,
            silent: None,
            client,
            records: Arc::default(),
            certificate_life: CERTIFICATE_LIFE,
            vault: None,
            kubernetes: None,
            options: json!({}),
            max_concurrent_updates: None,
            minor_upgrade: MinorUpgrade::InPlace,
            reboot: json!({}),
            backups: None,
            unproved: Vec::new(),
            restless: None,
            began: Instant::now(),
            is_disturbed: !acts.is_empty(),
            acts: acts.into(),
            wanted: Vec::new(),
            workers: Vec::new(),
        };
        tokio::spawn(watch_records(site.world.store.clone(), site.began, Arc::clone(&site.records)));
        site.put("sabakan/disabled", "true").await;
        site.images("etcd:1").await;
        site
    }

    /// Starts an instance with this image of etcd, in place of the present one.
    pub async fn images(&mut self, etcd: &str) {
        self.start(etcd, OperationsMode::Act).await;
    }

    pub async fn start(&mut self, etcd: &str, mode: OperationsMode) {
        let backups = self.backups.clone().map(|backups| BackupPorts {
            schedule: BackupSchedule { every: BACKUP_EVERY, dir: "/b".to_owned(), keep: 2, prove: true },
            backups: Arc::new(backups),
        });
        // Other stories have the moments of operations alone.
        let mut ports = node_ports(&self.nodes, self.authorities(), etcd);
        if let Some(image) = &self.kubernetes {
            ports.settings.kubernetes = KubernetesMode::Act;
            image.clone_into(ports.settings.configured_images.image_mut(ImageName::Kubernetes));
        }
        ports.settings.minor_upgrade = self.minor_upgrade;
        if let Some(most) = self.max_concurrent_updates {
            ports.settings.max_concurrent_updates = most;
        }
        self.world.operations = Some(OperationsPorts { mode, backups, ..ports });
        self.stop().await;
        self.running = Some(self.world.start("alpha").await);
        if self.has_standby {
            self.standby = Some(self.world.start("beta").await);
        }
    }

    /// Stops all instances, the leader last.
    pub async fn stop(&mut self) {
        let is_leader = |running: &RunningInstance| running.instance.view().reign.borrow().is_some();
        let mut instances: Vec<RunningInstance> =
            self.running.take().into_iter().chain(self.standby.take()).collect();
        instances.sort_by_key(is_leader);
        for running in instances {
            running.instance.stop().await;
        }
    }

    /// Actors that failed without a disturbance, and commits that a leader refused because they break an
    /// invariant.
    pub fn unplanned_failures(&self) -> Vec<String> {
        let refused = self.world.checker.known_violations();
        let failed = self.world.unplanted.lock().unwrap().clone();
        failed.into_iter().chain(refused.iter().map(ToString::to_string)).collect()
    }

    pub async fn put(&mut self, key: &str, value: &str) {
        self.client.put(format!("/cke/{key}"), value, None).await.unwrap();
    }

    pub async fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        let found = self.client.get(format!("/cke/{key}"), None).await.unwrap();
        found.kvs().first().map(|kv| kv.value().to_vec())
    }

    /// Stores a cluster whose control plane nodes and workers have these numbers.
    pub async fn cluster(&mut self, control_plane: &[usize], workers: &[usize]) {
        self.workers = addresses(workers);
        let node = |number: &usize, control_plane: bool| json!({"address": address(*number), "user": "cke", "control_plane": control_plane});
        let nodes = control_plane.iter().map(|number| node(number, true));
        let nodes: Vec<Value> = nodes.chain(workers.iter().map(|number| node(number, false))).collect();
        let cluster = json!({"name": "c", "nodes": nodes, "service_subnet": "10.1.0.0/16", "options": self.options, "reboot": self.reboot});
        self.put("cluster", &cluster.to_string()).await;
    }

    /// Lets time pass, with the disturbances that are due.
    pub async fn pass(&mut self, step: Duration) {
        let until = Instant::now() + step;
        while let Some((at, act)) = self.acts.front().copied() {
            if self.began + at > until {
                break;
            }
            self.acts.pop_front();
            sleep_until(self.began + at).await;
            self.act(act).await;
        }
        sleep_until(until).await;
        self.world.facts.read_nodes(&self.nodes);
    }

    async fn act(&mut self, act: Act) {
        match act {
            Act::Kill => self.kill_leader().await,
            Act::Link(mode) => {
                if let Some(running) = &self.running {
                    running.link.set(mode);
                }
            }
            Act::Silence => {
                let leads = |running: &RunningInstance| running.instance.view().reign.borrow().is_some();
                let place = Endpoint::Instance(if self.standby.as_ref().is_some_and(leads) { 2 } else { 1 });
                self.world.network.change(place, |condition| condition.silent += 1);
                self.silent = Some(place);
            }
            Act::Hear => {
                if let Some(place) = self.silent.take() {
                    self.world.network.change(place, |condition| condition.silent -= 1);
                }
            }
            Act::Fail => self.world.handling.plant_panic(1, RUNNER),
            Act::Begin(number, fault) => self.nodes.begin(&NodePlace::Address(address(number)), fault),
            Act::End(number, fault) => self.nodes.end(&NodePlace::Address(address(number)), fault),
        }
    }

    /// Ends the leader's process, and starts another one, which leads when the lease of the ended process is over.
    pub async fn kill_leader(&mut self) {
        if let Some(running) = self.running.take() {
            let place = Endpoint::Instance(1);
            // A process that is killed sends nothing more: it does not revoke its lease.
            self.world.network.change(place, |condition| condition.down += 1);
            self.world.network.forget(place);
            running.instance.kill().await;
            self.world.network.change(place, |condition| condition.down -= 1);
        }
        self.running = Some(self.world.start("alpha").await);
    }

    /// Waits until the leader's phase is `completed`, all control plane nodes are members in sync, and nothing else
    /// runs; then writes as the API server.
    pub async fn settled(&mut self, control_plane: &[usize]) -> Result<(), Stopped> {
        self.wanted = control_plane.to_vec();
        let wanted = addresses(control_plane);
        let patience = Instant::now() + PATIENCE;
        loop {
            self.pass(Duration::from_secs(5)).await;
            if self.world.facts.has_findings() {
                return Err(Stopped);
            }
            let unmet = match self.find_unmet(&wanted).await {
                None if self.nodes.write(&wanted).await.is_ok() => return Ok(()),
                None => "a write to etcd".to_owned(),
                Some(unmet) => unmet,
            };
            if Instant::now() > patience {
                let status = self.nodes.etcd_port().status(&wanted).await;
                let history = self.world.history.last_lines(40);
                self.restless = Some(format!(
                    "with the control plane {wanted:?}, not in time: {unmet}\n{status:?}\n{history}"
                ));
                return Err(Stopped);
            }
        }
    }

    /// The record of the last backup that counts. Notes it if it has a proof without a comparison.
    pub async fn backup(&mut self) -> Option<BackupRecord> {
        let stored = self.client.get("/cke/madako/etcd/backup", None).await.unwrap();
        let record: BackupRecord = serde_json::from_slice(stored.kvs().first()?.value()).unwrap();
        let name = record.file.strip_prefix("/b/").unwrap();
        let is_proved = self.backups.as_ref().is_some_and(|backups| backups.is_proved(name));
        if record.proved_at.is_some() && !is_proved {
            self.unproved.push(format!("no proof of {}", record.file));
        }
        Some(record)
    }

    /// Addresses of the nodes with an actor that runs.
    pub async fn node_actors(&self) -> BTreeSet<String> {
        let status = self.running.as_ref().unwrap().instance.root().read_status().await.unwrap();
        let mut trees = vec![status];
        let mut found = BTreeSet::new();
        while let Some(tree) = trees.pop() {
            for child in tree.children {
                let address = child.id.strip_prefix("node/").filter(|_| child.state == ChildState::Running);
                found.extend(address.map(str::to_owned));
                trees.extend(child.below);
            }
        }
        found
    }

    /// Waits until the site is as wanted.
    pub async fn until(&mut self, is_so: impl Fn(&Self) -> bool) -> Result<(), Stopped> {
        let patience = Instant::now() + PATIENCE;
        while !is_so(self) {
            self.pass(INTERVAL).await;
            if Instant::now() > patience {
                self.restless = Some(self.world.history.last_lines(40));
                return Err(Stopped);
            }
        }
        Ok(())
    }

    /// The targets of the next operation with a name whose record comes after the first `known` ones.
    pub async fn wait_begun(&mut self, operation: &str, known: usize) -> Result<Vec<String>, Stopped> {
        let patience = Instant::now() + PATIENCE;
        loop {
            let targets = self.records.lock().unwrap().iter().skip(known).find_map(|recorded| {
                (recorded.record.operation == operation).then(|| recorded.record.targets.clone())
            });
            if let Some(targets) = targets {
                return Ok(targets);
            }
            if Instant::now() > patience {
                self.restless =
                    Some(format!("{operation} did not begin\n{}", self.world.history.last_lines(40)));
                return Err(Stopped);
            }
            self.pass(Duration::from_millis(50)).await;
        }
    }

    /// The state of the roll of kubelets and proxies.
    pub async fn rollout(&mut self) -> Rollout {
        let stored = self.get(keys::ROLLOUT).await;
        stored.map(|text| serde_json::from_slice(&text).unwrap()).unwrap_or_default()
    }

    /// Waits until too many nodes of the roll failed.
    pub async fn halted(&mut self) -> Result<Rollout, Stopped> {
        let patience = Instant::now() + PATIENCE;
        loop {
            let rollout = self.rollout().await;
            if rollout.halted {
                return Ok(rollout);
            }
            self.pass(Duration::from_secs(5)).await;
            if self.world.facts.has_findings() {
                return Err(Stopped);
            }
            if Instant::now() > patience {
                let history = self.world.history.last_lines(40);
                self.restless = Some(format!("the roll is not halted, but {rollout:?}\n{history}"));
                return Err(Stopped);
            }
        }
    }

    /// Waits until a key is gone.
    pub async fn until_deleted(&mut self, key: &str) -> Result<(), Stopped> {
        let patience = Instant::now() + PATIENCE;
        while self.get(key).await.is_some() {
            self.pass(INTERVAL).await;
            if Instant::now() > patience {
                self.restless = Some(format!("{key} is not deleted\n{}", self.world.history.last_lines(40)));
                return Err(Stopped);
            }
        }
        Ok(())
    }

    /// Waits for the last disturbance, and for the end of its effects.
    pub async fn calm(&mut self) -> Result<(), Stopped> {
        while let Some((at, _)) = self.acts.back() {
            let until = self.began + *at;
            self.pass(until.saturating_duration_since(Instant::now()) + Duration::from_secs(1)).await;
        }
        let wanted = self.wanted.clone();
        self.settled(&wanted).await?;
        let options = etcd_client::GetOptions::new().with_prefix();
        let records = self.client.get("/cke/records/", Some(options)).await.unwrap();
        let records = records.kvs().iter().map(|kv| serde_json::from_slice::<Record>(kv.value()).unwrap());
        let unfinished: Vec<i64> = records.filter(Record::is_unfinished).map(|record| record.id).collect();
        if !unfinished.is_empty() {
            self.restless = Some(format!("the records {unfinished:?} are unfinished"));
            return Err(Stopped);
        }
        Ok(())
    }

    /// The first condition of a settled site that is not met.
    async fn find_unmet(&mut self, wanted: &[String]) -> Option<String> {
        let stored = self.client.get("/cke/status", None).await.unwrap();
        if !stored.kvs().first().is_some_and(|kv| kv.value_str().unwrap().contains("completed")) {
            return Some("the phase `completed`".to_owned());
        }
        let etcd = match self.nodes.etcd_port().status(wanted).await {
            Ok(etcd) => etcd,
            Err(error) => return Some(format!("an answer of etcd: {error}")),
        };
        let in_sync = |member: &EtcdMember| member.is_in_sync() && !member.learner;
        let members: BTreeSet<String> =
            etcd.members.iter().filter(|member| in_sync(member)).map(|member| member.name.clone()).collect();
        if !etcd.healthy || members.len() != etcd.members.len() || members != wanted.iter().cloned().collect()
        {
            return Some("members of etcd in sync".to_owned());
        }
        for address in wanted {
            let view = self.nodes.view_node(address).unwrap();
            let stopped =
                Container::ALL.iter().find(|it| view.containers.get(it.name()).is_none_or(|it| !it.running));
            if let Some(stopped) = stopped {
                return Some(format!("{} on {address}", stopped.name()));
            }
        }
        if let Some(unmet) = self.find_unmet_component(wanted) {
            return Some(unmet);
        }
        (!self.is_clean()).then(|| "no data of former members".to_owned())
    }

    /// The first component that does not run with the wanted image and arguments, or runs where it is not wanted, if Kubernetes
    /// is acted on.
    fn find_unmet_component(&self, control_plane: &[String]) -> Option<String> {
        let image = self.kubernetes.as_ref()?;
        let registered = self.nodes.registered_taints();
        for address in control_plane.iter().chain(&self.workers) {
            let view = self.nodes.view_node(address).unwrap();
            for component in Component::ALL {
                let key = if component == Component::ApiServer { "kube-api" } else { component.name() };
                let args: Vec<&str> = self.options[key]["extra_args"]
                    .as_array()
                    .map(|args| args.iter().filter_map(Value::as_str).collect())
                    .unwrap_or_default();
                let container = view.containers.get(component.name());
                let is_met = match control_plane.contains(address) || !component.is_of_control_plane() {
                    true => {
                        container.is_some_and(|it| it.running && it.image == *image && it.extra.args == args)
                    }
                    // A node that died had its container ended by that; CKE leaves such a container, too.
                    false => container.is_none_or(|it| !it.running),
                };
                if !is_met {
                    return Some(format!("{} on {address}: {container:?}", component.name()));
                }
            }
            if !registered.contains_key(address) {
                return Some(format!("the Node object of {address}"));
            }
        }
        None
    }

    /// The data of a former member are gone from a worker, if its removal began there.
    fn is_clean(&self) -> bool {
        let records = self.records.lock().unwrap();
        let removals = records.iter().filter(|it| it.record.operation == "etcd-destroy-member");
        let removed: BTreeSet<&String> = removals.flat_map(|it| &it.record.targets).collect();
        let mut former = self.workers.iter().filter(|worker| removed.contains(worker));
        former.all(|address| self.nodes.view_node(address).unwrap().volumes.is_empty())
    }
}

/// Notes each change of a record with its time.
async fn watch_records(store: StoreProcess, began: Instant, records: Arc<Mutex<Vec<Recorded>>>) {
    let read = |event: &etcd_client::Event| {
        let put = event.kv().filter(|_| event.event_type() == EventType::Put);
        put.and_then(|kv| serde_json::from_slice::<Record>(kv.value()).ok())
    };
    follow_revisions(store, "/cke/records/", read, |_, changes| {
        let changes = changes.into_iter().flatten();
        let recorded = changes.map(|record| Recorded { at: began.elapsed(), record });
        records.lock().unwrap().extend(recorded);
    })
    .await;
}
