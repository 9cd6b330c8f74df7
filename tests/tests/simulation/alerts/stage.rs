//! A simulated deployment of one instance, and the actions that the words of a scripted scenario have on it.
//!
//! All instances of a process count in one recorder. Therefore alerts on several instances use several worlds.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmType, Client, GetOptions};
use madako_datacenter_sim::host::{CommandBehaviour, SimulatedHost};
use madako_datacenter_sim::{Datacenter, DatacenterConfig, FaultSwitch, Rates, SimulatedRegistry};
use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_domain::machine::MachineState;
use madako_domain::repair::RepairQueueEntry;
use madako_protocol::feed::Task;
use madako_protocol::ports::Clock;
use madako_simulation::api::{Answer, Request, send_request};
use madako_simulation::checker::Checker;
use madako_simulation::clock::SimulatedClock;
use madako_simulation::disk::ForgetfulDisk;
use madako_simulation::drains::Drains;
use madako_simulation::history::History;
use madako_simulation::network::{Condition, Endpoint};
use madako_simulation::operator::{ExpectedSize, Operator};
use madako_simulation::placement::PlacementChecker;
use madako_simulation::prometheus::PrometheusFault;
use madako_simulation::repair::RepairJudge;
use madako_simulation::store_process::StoreProcess;
use madako_simulation::world::{CommandHosts, PREFIX, RunningInstance, World};
use madako_store::{EtcdStore, StoreConfig};
use madako_supervisor::store_failure::StoreFailures;
use madako_supervisor::tree::SupervisorRef;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep, sleep_until};

use super::clients::{reads, rewrites, watches};
use super::failing::{fail, set_fault};
use super::gathered::{EVERY, Gathered, Process};
use super::hanging::hang;
use super::nodes::{Nodes, forget_bootstrap};
use super::nonsense::propose_nonsense;
use super::objects::{application, cluster_of, named};
use super::script::{Scenario, Step, time};
use super::slow::{Slow, SlowPasses};

pub(super) const NAME: &str = "alpha";
const PLACE: Endpoint = Endpoint::Instance(1);
const MACHINES: u32 = 20;
const RACKS: u32 = 5;
/// Number of applications at the start.
const APPLICATIONS: u32 = 6;
/// Path of all applications in placement's API.
pub(super) const APPLICATIONS_AT: &str = "/kubernetes/namespaces/alerts/applications";
const CLUSTERS_AT: &str = "/kubernetes/namespaces/alerts/clusters";
/// Time during which a request is repeated until it succeeds.
const SETTLES_WITHIN: Duration = Duration::from_secs(120);

/// Plays a scenario from `after` on, and gathers its samples.
pub fn play(scenario: &Scenario, gathered: &Gathered, after: Duration) {
    let process = Process::new();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let slow = Slow::default();
    let _slowed = tracing::subscriber::set_default(SlowPasses(Arc::clone(&slow)));
    metrics::with_local_recorder(&process.clone(), || {
        runtime.block_on(async {
            let began = Instant::now();
            let mut stage = AlertTest::new(process, OffsetDateTime::UNIX_EPOCH + after, slow).await;
            if scenario.has_nodes {
                stage.add_nodes();
            }
            let dialers = Arc::clone(&stage.world.pages);
            let scraping = Task::start(gathered.clone().scrape(dialers, NAME, began));
            stage.begin().await;
            for step in &scenario.steps {
                sleep_until(began + step.at).await;
                Box::pin(stage.act(step, began)).await;
            }
            drop(scraping);
            stage.end().await;
        });
    });
}

struct AlertTest {
    world: World,
    running: Option<RunningInstance>,
    process: Process,
    disk: ForgetfulDisk,
    /// Holds the note on the last failure of the store.
    data_dir: tempfile::TempDir,
    kubernetes: FaultSwitch,
    operator: Operator,
    slow: Slow,
    /// `None`: operations on nodes are off.
    nodes: Option<Nodes>,
    /// Clients beside the script.
    busy: Vec<Task>,
    _nodes: Task,
}

fn chance(stream: u64) -> ChaCha8Rng {
    let mut chance = ChaCha8Rng::seed_from_u64(1);
    chance.set_stream(stream);
    chance
}

fn datacenter(start: OffsetDateTime) -> Datacenter {
    let minutes = |minutes: u64| Some(Duration::from_secs(60 * minutes));
    // Setups and updates of machines end; no machine breaks without a fault.
    let rates = Rates { initialize_takes: minutes(1), update_takes: minutes(2), ..Rates::no_events() };
    let roles = [("compute", MACHINES - 6), ("storage", 4), ("gpu", 2)];
    let config = DatacenterConfig::new(1, start, RACKS, &roles);
    Datacenter::new(DatacenterConfig { rates, boot: false, ..config }).unwrap()
}

impl AlertTest {
    async fn new(process: Process, start: OffsetDateTime, slow: Slow) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SimulatedClock::new(start));
        let registry = SimulatedRegistry::new(datacenter(start), Arc::clone(&clock));
        let history = History::new();
        let disk = ForgetfulDisk::new(chance(7));
        let store = StoreProcess::on_disk(disk.clone(), 1);
        store.start().unwrap();
        let checker = Checker::new(history.clone());
        let placement = PlacementChecker::new(history.clone(), start);
        let drains = Drains::new(1, Arc::clone(&clock));
        let repairs = RepairJudge::new(history.clone(), drains.clone());
        // This judge keeps the simulated nodes equal to the cluster's. No other judge watches: scripts bypass the API.
        let nodes = Task::start(repairs.clone().watch(store.clone()));
        let mut operator = Operator::new(store.clone(), chance(1));
        operator.enable_repairs(repairs.clone());
        operator.install_cluster(ExpectedSize::for_machines(MACHINES)).await.unwrap();
        let kubernetes = drains.kubernetes.faults().clone();
        let behaviour = CommandBehaviour { heals_percent: 0, ..CommandBehaviour::demo() };
        let hosts = CommandHosts {
            host: SimulatedHost::new(registry.clone(), behaviour),
            kubernetes: drains.kubernetes.clone(),
            judge: repairs,
        };
        let observed = (history, checker, placement);
        let world = World::new((1, true), store, registry, clock, observed, Some(hosts));
        Self {
            world,
            running: None,
            process,
            disk,
            data_dir: tempfile::tempdir().unwrap(),
            kubernetes,
            operator,
            slow,
            nodes: None,
            busy: Vec::new(),
            _nodes: nodes,
        }
    }

    /// Turns operations on nodes on, for instances that start from now on.
    fn add_nodes(&mut self) {
        let nodes = Nodes::of(&self.world.registry, &self.world.clock);
        self.world.operations = Some(nodes.ports(None));
        self.nodes = Some(nodes);
    }

    /// Starts the instance, and creates metrics, clusters and applications.
    async fn begin(&mut self) {
        self.start().await;
        let provider =
            json!({"type": "prometheus", "prometheus": {"url": "http://prometheus-one.invalid:9090"}});
        self.settle("POST", "/core/globalmetricsproviders", &named("one", &provider)).await;
        for (cluster, metric) in [("a", "load_a"), ("b", "load_b")] {
            let provider = json!({"name": "one", "metric": metric});
            let spec = json!({"min": 0.0, "max": 100.0, "allowed_values": [], "provider": provider});
            self.settle("POST", "/core/globalmetrics", &named(metric, &spec)).await;
            self.settle("POST", CLUSTERS_AT, &cluster_of(cluster, metric)).await;
            self.online(cluster).await;
        }
        for number in 1..=APPLICATIONS {
            let application = application(&format!("app-{number}"), &json!([]));
            self.settle("POST", APPLICATIONS_AT, &application).await;
        }
    }

    async fn online(&self, cluster: &str) {
        let mut made = self.read(&format!("/kubernetes/clusters/alerts/{cluster}")).await;
        made["status"]["state"] = "ONLINE".into();
        self.settle("PUT", &format!("{CLUSTERS_AT}/{cluster}/status"), &made).await;
    }

    /// Creates a cluster and an application in the state that the scheduler leaves while it creates the cluster for the
    /// application.
    async fn create_for(&self, cluster: &str, name: &str, waits: &Value) {
        self.settle("POST", CLUSTERS_AT, &cluster_of(cluster, "load_a")).await;
        let labels = json!([format!("zone is {cluster}")]);
        self.settle("POST", APPLICATIONS_AT, &application(name, &labels)).await;
        let key = format!("/kubernetes/applications/alerts/{name}");
        let mut waiting = self.read(&key).await;
        waiting["status"]["state"] = "PENDING".into();
        for (field, value) in waits.as_object().unwrap() {
            waiting["status"][field] = value.clone();
        }
        self.put(&key, waiting.to_string()).await;
    }

    async fn end(mut self) {
        self.busy.clear();
        if let Some(running) = self.running.take() {
            running.instance.kill().await;
        }
    }

    async fn start(&mut self) {
        self.world.metrics = self.process.starts();
        StoreFailures::in_directory(self.data_dir.path()).show_noted();
        self.running = Some(self.world.start(NAME).await);
    }

    /// Like `kill -9`.
    async fn kill(&mut self) {
        let running = self.running.take().unwrap();
        self.world.network.change(PLACE, |condition| condition.down += 1);
        self.world.pages.lock().unwrap().remove(NAME);
        self.world.dialers.lock().unwrap().remove(NAME);
        self.world.network.forget(PLACE);
        running.instance.kill().await;
        self.world.network.change(PLACE, |condition| condition.down -= 1);
    }

    /// Like a process with the embedded store on a failing disk: it notes the reason and ends. Tests of the real
    /// program show both.
    async fn fail_store(&mut self) {
        let failures = StoreFailures::in_directory(self.data_dir.path());
        failures.note(self.world.clock.now(), "the disk gives an error at each sync").unwrap();
        self.kill().await;
        self.disk.crash();
        self.world.store.kill();
    }

    /// Repeats a request until it succeeds.
    async fn settle(&self, method: &str, path: &str, body: &Value) -> Answer {
        let began = Instant::now();
        let mut last = None;
        while began.elapsed() < SETTLES_WITHIN {
            let dialer = self.world.dialers.lock().unwrap().get(NAME).cloned();
            if let Some(dialer) = dialer {
                let request = Request { method, path, version: None, body: Some(body) };
                match send_request(&dialer, &request).await {
                    Ok(answer) if (200..300).contains(&answer.status) => return answer,
                    answer => last = Some(answer),
                }
            }
            sleep(Duration::from_secs(1)).await;
        }
        panic!("{method} {path}: {last:?}");
    }

    async fn client(&self) -> Client {
        self.world.store.connect_client().await.unwrap()
    }

    async fn put(&self, key: &str, value: impl Into<Vec<u8>>) {
        self.client().await.put(absolute(key), value, None).await.unwrap();
    }

    /// Like `etcdctl compact` with the newest revision.
    async fn compact(&self) {
        let mut client = self.client().await;
        let newest = client.get("/", None).await.unwrap().header().unwrap().revision();
        client.compact(newest, None).await.unwrap();
    }

    /// Carries out a step. The arms are the vocabulary of scripts.
    #[allow(clippy::too_many_lines, reason = "the whole vocabulary, one word after the other")]
    async fn act(&mut self, step: &Step, began: Instant) {
        let words: Vec<&str> = step.words.iter().map(String::as_str).collect();
        match words[..] {
            ["end"] => {}
            ["registry", ref how @ ..] => set_fault(self.world.registry.faults(), how),
            ["kubernetes", ref how @ ..] => set_fault(&self.kubernetes, how),
            ["providers", "well"] => self.world.prometheus.end_fault(),
            ["providers", "refuse"] => self.world.prometheus.break_all(PrometheusFault::Refuses),
            ["metric", name, value] => self.world.prometheus.set(name, value.parse().unwrap()),
            ["metrics", "swing", "every", pause, "until", end] => {
                let (end, pause) = (began + time(end), time(pause));
                for high in [("load_a", "load_b"), ("load_b", "load_a")].into_iter().cycle() {
                    if Instant::now() >= end {
                        break;
                    }
                    self.world.prometheus.set(high.0, 95.0);
                    self.world.prometheus.set(high.1, 5.0);
                    sleep(pause).await;
                }
            }
            ["network", place, how] => self.network(place, how),
            ["latency", late] => self.running.as_ref().unwrap().link.slow_down(time(late), 0),
            // Like etcd when its database exceeds its quota.
            ["space", how] => {
                let action = if how == "exceeded" { AlarmAction::Activate } else { AlarmAction::Deactivate };
                self.client().await.alarm(action, AlarmType::Nospace, None).await.unwrap();
            }
            ["disk", how] => self.disk.set_full(how == "full"),
            // At the newest revision, so that a broken watch cannot resume.
            ["store", "compact"] => self.compact().await,
            ["store", "kill"] => drop(self.world.store.kill()),
            ["store", "start"] => self.world.store.start().unwrap(),
            ["store", "fails"] => self.fail_store().await,
            ["store", "comes", "back"] => {
                self.world.store.start().unwrap();
                self.start().await;
            }
            ["instance", "kill"] => self.kill().await,
            ["instance", "start"] => self.start().await,
            ["instance", "dies", "every", pause, "until", end] => {
                while Instant::now() < began + time(end) {
                    self.kill().await;
                    self.start().await;
                    sleep(time(pause)).await;
                }
            }
            ["rack", rack, "dark"] => self.world.registry.kill_rack(rack.parse().unwrap()).unwrap(),
            ["rack", rack, "lit"] => self.world.registry.power_on(rack.parse().unwrap()).unwrap(),
            ["machine", number, state] => {
                let machine = &self.world.registry.list_machines()[number.parse::<usize>().unwrap()];
                let state: MachineState = serde_json::from_value(json!(state.to_uppercase())).unwrap();
                self.world.registry.set_state(&machine.spec.serial, state).unwrap();
            }
            ["put", key, ref value @ ..] => self.put(key, value.join(" ")).await,
            ["delete", key] => drop(self.client().await.delete(absolute(key), None).await.unwrap()),
            ["workers", least] => {
                self.operator.write_constraints(3, least.parse().unwrap(), 0).await.unwrap();
            }
            // Restores the inputs of the start.
            ["operator", "settles"] => self.operator.write_final_inputs().await.unwrap(),
            ["constraint", name, value] => {
                let mut constraints = self.read(keys::CONSTRAINTS).await;
                constraints[name] = value.parse::<i64>().unwrap().into();
                self.put(keys::CONSTRAINTS, constraints.to_string()).await;
            }
            // The registry does not know this machine, so that its health is unknown.
            ["queue", "add", "10.255.0.1", operation] => {
                self.enter("10.255.0.1", "IPMI-2.0", operation).await
            }
            ["queue", "add", number, operation] => self.add(number.parse().unwrap(), operation).await,
            ["queue", "clear"] => self.clear().await,
            ["reboot", how] => self.reboot(how == "queued").await,
            ["application", name, "where", ref label @ ..] => {
                let labels = json!([label.join(" ")]);
                self.settle("POST", APPLICATIONS_AT, &application(name, &labels)).await;
            }
            ["application", name] => {
                self.settle("POST", APPLICATIONS_AT, &application(name, &json!([]))).await;
            }
            // An application with `kib` KiB in its manifest.
            ["great-application", name, kib] => {
                let mut application = application(name, &json!([]));
                application["spec"]["manifest"][0]["data"] =
                    json!({"text": "x".repeat(kib.parse::<usize>().unwrap() * 1024)});
                self.settle("POST", APPLICATIONS_AT, &application).await;
            }
            ["delete-application", name] => {
                self.settle("DELETE", &format!("{APPLICATIONS_AT}/{name}"), &Value::Null).await;
            }
            // An application that waits for its cluster's creation.
            ["creates", cluster, "for", application] => {
                let waits = json!({"auto_cluster_create_started": cluster});
                self.create_for(cluster, application, &waits).await;
            }
            ["online", cluster] => self.online(cluster).await,
            ["circle", how] => self.circle(how == "closed").await,
            // Watches without reads during the pause.
            ["watches", count, "stall", pause] => {
                for _ in 0..count.parse::<u32>().unwrap() {
                    let dialer = self.world.dialers.lock().unwrap()[NAME].clone();
                    self.busy.push(Task::start(watches(dialer, time(pause))));
                }
            }
            ["values-count-for", age] => {
                self.world.working.metrics.max_age = time(age);
                self.kill().await;
                self.start().await;
            }
            ["reads", "every", pause, "until", end] => {
                let (end, pause, dialers) = (began + time(end), time(pause), Arc::clone(&self.world.dialers));
                self.busy.push(Task::start(reads(dialers, pause, end)));
            }
            ["rewrites", key, "every", pause, "until", end] => {
                let (end, pause) = (began + time(end), time(pause));
                let rewriting = rewrites(self.world.store.clone(), absolute(key), pause, end);
                self.busy.push(Task::start(rewriting));
            }
            ["actor", name, "fails", "every", pause, "until", end] => {
                fail(self.root(), name, time(pause), began + time(end)).await;
            }
            ["passes", "take", long, "until", end] => {
                *self.slow.lock().unwrap() = Some((time(long), began + time(end)));
            }
            ["node", name, ref how @ ..] => self.act_on_node(name, how, began).await,
            ["nodes", "answer", "after", late] => {
                *self.nodes.as_ref().unwrap().late.lock().unwrap() = time(late);
            }
            ["certificates", "last", life] => {
                *self.nodes.as_ref().unwrap().life.lock().unwrap() = time(life);
            }
            ["components", "act"] => {
                self.world.operations = Some(self.nodes.as_ref().unwrap().ports_with_components());
                self.kill().await;
                self.start().await;
            }
            ["components", "end"] => self.nodes.as_ref().unwrap().end_components(),
            ["vault", ref how @ ..] => self.act_on_vault(how).await,
            ["backups", "lack", "a", "write"] => self.spoil_backups().await,
            ["backups", "well"] => self.nodes.as_ref().unwrap().backups.set_spoiling(false),
            ["etcd-image", image] => {
                let image = Some(image).filter(|image| *image != "default");
                self.world.operations = Some(self.nodes.as_ref().unwrap().ports(image));
                self.kill().await;
                self.start().await;
            }
            ["forget-bootstrap"] => forget_bootstrap(self.client().await).await,
            ["nonsense"] => {
                let cluster = serde_json::from_value(self.read(keys::CLUSTER).await).unwrap();
                propose_nonsense(&self.running.as_ref().unwrap().instance, cluster).await;
            }
            ["hang", until] => hang(self.root(), &self.world.clock, began + time(until)).await,
            _ => panic!("unknown words: {words:?}"),
        }
    }

    async fn act_on_vault(&mut self, how: &[&str]) {
        match how {
            ["issues"] => {
                let mut client = self.client().await;
                let config = StoreConfig { prefix: PREFIX.to_owned(), ..StoreConfig::default() };
                let store = Arc::new(EtcdStore::from_client(client.clone(), &config, 1).unwrap());
                let nodes = self.nodes.as_mut().unwrap();
                let access = nodes.use_vault(store).await;
                self.world.operations = Some(nodes.ports(None));
                client.put(format!("{PREFIX}{}", keys::VAULT), access, None).await.unwrap();
                self.kill().await;
                self.start().await;
            }
            ["sealed"] => self.nodes.as_ref().unwrap().vault().seal(true),
            ["unsealed"] => self.nodes.as_ref().unwrap().vault().seal(false),
            ["answers", "after", late] => self.nodes.as_ref().unwrap().vault().set_delay(time(late)),
            _ => panic!("unknown words: {how:?}"),
        }
    }

    /// Writes to the cluster's etcd, and lets each later backup lack its last write.
    async fn spoil_backups(&self) {
        let cluster: Cluster = serde_json::from_value(self.read(keys::CLUSTER).await).unwrap();
        let addresses: Vec<String> = cluster.control_plane().map(|node| node.address.clone()).collect();
        let nodes = self.nodes.as_ref().unwrap();
        nodes.world.write(&addresses).await.unwrap();
        nodes.backups.set_spoiling(true);
    }

    fn root(&self) -> &SupervisorRef {
        self.running.as_ref().unwrap().instance.root()
    }

    fn network(&self, place: &str, how: &str) {
        let place = match place {
            "instance" => PLACE,
            "store" => Endpoint::Store,
            "registry" => Endpoint::Registry,
            "provider" => Endpoint::Provider,
            _ => panic!("no such place: {place}"),
        };
        self.world.network.change(place, |condition| match how {
            "down" => condition.down = 1,
            "silent" => condition.silent = 1,
            "slow" => condition.slow = 1,
            "lossy" => condition.lossy = 1,
            "well" => *condition = Condition::default(),
            _ => panic!("nothing is so: {how}"),
        });
    }

    async fn read(&self, key: &str) -> Value {
        let answer = self.client().await.get(absolute(key), None).await.unwrap();
        let stored = answer.kvs().first().unwrap_or_else(|| panic!("{key} is not there"));
        serde_json::from_slice(stored.value()).unwrap()
    }

    /// Like `madako repair-queue add`.
    async fn add(&self, machine: usize, operation: &str) {
        let machine = &self.world.registry.list_machines()[machine];
        self.enter(machine.address().unwrap(), &machine.spec.bmc.bmc_type, operation).await;
    }

    async fn enter(&self, address: &str, machine_type: &str, operation: &str) {
        let counter = self.client().await.get(absolute(keys::REPAIRS_WRITE_INDEX), None).await.unwrap();
        let index: i64 = counter.kvs().first().map_or(0, |kv| kv.value_str().unwrap().parse().unwrap());
        let entry = RepairQueueEntry { index, ..RepairQueueEntry::new(operation, machine_type, address) };
        self.put(keys::REPAIRS_WRITE_INDEX, (index + 1).to_string()).await;
        self.put(&keys::repair(index), serde_json::to_vec(&entry).unwrap()).await;
    }

    /// Like `madako repair-queue delete` for every entry.
    async fn clear(&self) {
        let options = GetOptions::new().with_prefix();
        let answer = self.client().await.get(absolute(keys::REPAIRS), Some(options)).await.unwrap();
        for kv in answer.kvs() {
            let mut entry: RepairQueueEntry = serde_json::from_slice(kv.value()).unwrap();
            entry.deleted = true;
            self.put(kv.key_str().unwrap(), serde_json::to_vec(&entry).unwrap()).await;
        }
    }

    /// Like `ckecli reboot-queue add` for one worker and CKE's start of the reboot, or like the end of that reboot.
    async fn reboot(&self, queued: bool) {
        let cluster: Cluster = serde_json::from_value(self.read(keys::CLUSTER).await).unwrap();
        let entry = format!("{}{:016x}", keys::REBOOTS, 0);
        self.put(keys::REBOOTS_RUNNING, queued.to_string()).await;
        if queued {
            let node = &cluster.workers().next().unwrap().address;
            self.put(&entry, json!({"index": "0", "node": node, "status": "draining"}).to_string()).await;
        } else {
            self.client().await.delete(absolute(&entry), None).await.unwrap();
        }
    }

    /// Closes a circle: two clusters own each other, and a client deletes one. Opened again, one no longer has an
    /// owner, so that both can go.
    async fn circle(&self, closed: bool) {
        let reference =
            |name: &str| json!({"api": "kubernetes", "kind": "Cluster", "name": name, "namespace": "alerts"});
        if !closed {
            return self.owned_by("one", &json!([])).await;
        }
        for name in ["one", "two"] {
            self.settle("POST", CLUSTERS_AT, &cluster_of(name, "load_a")).await;
        }
        self.owned_by("one", &json!([reference("two")])).await;
        self.owned_by("two", &json!([reference("one")])).await;
        self.settle("DELETE", &format!("{CLUSTERS_AT}/one"), &Value::Null).await;
    }

    async fn owned_by(&self, cluster: &str, owners: &Value) {
        let mut made = self.read(&format!("/kubernetes/clusters/alerts/{cluster}")).await;
        made["metadata"]["owners"] = owners.clone();
        self.settle("PUT", &format!("{CLUSTERS_AT}/{cluster}"), &made).await;
    }

    async fn act_on_node(&mut self, name: &str, how: &[&str], began: Instant) {
        let cluster = serde_json::from_value(self.read(keys::CLUSTER).await).unwrap();
        let nodes = self.nodes.as_mut().unwrap();
        let address = nodes.address(name, &cluster);
        match how {
            // Like `madako ssh forget`.
            ["forgotten"] => {
                drop(self.client().await.delete(absolute(&keys::host_key(&address)), None).await.unwrap());
            }
            ["actor", "fails", "until", end] => {
                let actor = format!("node/{address}");
                fail(self.root(), &actor, Duration::from_millis(50), began + time(end)).await;
            }
            how => nodes.act(&address, how),
        }
    }
}

/// Adds the prefix to a key, unless the key begins with a slash.
fn absolute(key: &str) -> String {
    if key.starts_with('/') { key.to_owned() } else { format!("{PREFIX}{key}") }
}

/// Number of scrapes before a time.
pub fn scrapes_until(at: Duration) -> usize {
    usize::try_from(at.as_secs() / EVERY.as_secs()).unwrap()
}
