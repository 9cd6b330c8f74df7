//! Operations on simulated nodes by the whole service: a story of a cluster, in which leaders end and nodes fail at each
//! point of each command. Every run ends in the same state, and etcd loses no acknowledged write.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client;
use madako_datacenter_sim::nodes::{NodeFault, NodePlace, Observed, PaperAuthorities, SimulatedNodes};
use madako_datacenter_sim::{Datacenter, DatacenterConfig, SimulatedRegistry};
use madako_domain::containers::Container;
use madako_protocol::node::FileContent;
use madako_protocol::ports::Clock;
use madako_simulation::checker::Checker;
use madako_simulation::clock::SimulatedClock;
use madako_simulation::facts::Facts;
use madako_simulation::history::History;
use madako_simulation::nodes::ports;
use madako_simulation::placement::PlacementChecker;
use madako_simulation::run::terms;
use madako_simulation::store_process::StoreProcess;
use madako_simulation::world::{Running, World};
use madako_supervisor::nodes::{OperationsMode, OperationsPorts};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Time between rounds of the runner.
const INTERVAL: Duration = Duration::from_secs(30);
const SESSION_TTL: Duration = Duration::from_secs(20);
/// Long enough for an epoch to end, for back-offs, and for an operation after them.
const PATIENCE: Duration = Duration::from_secs(3 * 3600);
/// Life of certificates: longer than a story without the renewal takes.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Time for which a fault of a node lasts.
const OUTAGE: Duration = Duration::from_secs(300);

/// A disturbance at one moment of a story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disturbance {
    /// The leader's process ends, and another one starts.
    Killed,
    /// The leader loses the store for longer than its lease.
    Paused,
    /// The node of this number has no power for a while.
    Dead(usize),
}

struct Site {
    nodes: SimulatedNodes,
    world: World,
    running: Option<Running>,
    client: Client,
    began: Instant,
    disturbances: Vec<(Duration, Disturbance)>,
    certificate_life: Duration,
}

/// Begin of the simulated time.
fn start() -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn address(number: usize) -> String {
    format!("10.0.0.{}", number + 1)
}

fn addresses(numbers: &[usize]) -> Vec<String> {
    numbers.iter().map(|number| address(*number)).collect()
}

impl Site {
    async fn new(disturbances: Vec<(Duration, Disturbance)>) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SimulatedClock::new(start()));
        let config = DatacenterConfig::new(1, start(), 1, &[("compute", 4)]);
        let registry = SimulatedRegistry::new(Datacenter::new(config).unwrap(), Arc::clone(&clock));
        let history = History::new();
        let store = StoreProcess::in_memory(1);
        let client = store.client().await.unwrap();
        let seen = (history.clone(), Checker::new(history.clone()), PlacementChecker::new(history, start()));
        let nodes = SimulatedNodes::new(1);
        for number in 0..6 {
            nodes.add(&address(number), u32::try_from(number % 3).unwrap());
        }
        let mut world = World::new((1, false), store, registry, clock, seen, None);
        world.working.interval = INTERVAL;
        world.working.session_ttl = SESSION_TTL;
        world.facts = Facts::of(terms(&world.working), world.history.clone());
        tokio::spawn(world.facts.clone().watch(world.store.clone()));
        let began = Instant::now();
        let certificate_life = CERTIFICATE_LIFE;
        let mut site = Self { nodes, world, running: None, client, began, disturbances, certificate_life };
        site.put("sabakan/disabled", "true").await;
        site.images("etcd:1").await;
        site
    }

    /// Starts an instance with this image of etcd, in place of the present one.
    async fn images(&mut self, etcd: &str) {
        self.start(etcd, OperationsMode::Act).await;
    }

    async fn start(&mut self, etcd: &str, mode: OperationsMode) {
        let clock = Arc::clone(&self.world.clock);
        let authorities = PaperAuthorities::new(clock, self.certificate_life);
        self.world.operations = Some(OperationsPorts { mode, ..ports(&self.nodes, authorities, etcd) });
        if let Some(running) = self.running.take() {
            running.instance.stop().await;
        }
        self.running = Some(self.world.start("alpha").await);
    }

    async fn put(&mut self, key: &str, value: &str) {
        self.client.put(format!("/cke/{key}"), value, None).await.unwrap();
    }

    /// Stores a cluster whose control plane nodes and workers have these numbers.
    async fn cluster(&mut self, control_plane: &[usize], workers: &[usize]) {
        let node = |number: &usize, control_plane: bool| json!({"address": address(*number), "user": "cke", "control_plane": control_plane});
        let nodes = control_plane.iter().map(|number| node(number, true));
        let nodes: Vec<Value> = nodes.chain(workers.iter().map(|number| node(number, false))).collect();
        let cluster = json!({"name": "c", "nodes": nodes, "service_subnet": "10.1.0.0/16"});
        self.put("cluster", &cluster.to_string()).await;
    }

    /// Lets time pass, with the disturbances that are due.
    async fn pass(&mut self, step: Duration) {
        let until = Instant::now() + step;
        while let Some((at, disturbance)) = self.disturbances.first().copied() {
            if self.began + at > until {
                break;
            }
            self.disturbances.remove(0);
            sleep_until(self.began + at).await;
            self.disturb(disturbance).await;
        }
        sleep_until(until).await;
    }

    async fn disturb(&mut self, disturbance: Disturbance) {
        match disturbance {
            Disturbance::Killed => {
                if let Some(running) = self.running.take() {
                    running.instance.kill().await;
                }
                self.running = Some(self.world.start("alpha").await);
            }
            Disturbance::Paused => {
                if let Some(running) = &self.running {
                    running.link.set(madako_simulation::link::Mode::Stalled);
                    sleep(SESSION_TTL * 2).await;
                    running.link.set(madako_simulation::link::Mode::Open);
                }
            }
            Disturbance::Dead(number) => {
                let place = NodePlace::Address(address(number));
                self.nodes.begin(&place, NodeFault::Kill);
                sleep(OUTAGE).await;
                self.nodes.end(&place, NodeFault::Kill);
            }
        }
    }

    /// Waits until the leader's phase is `completed`, all control plane nodes are members in sync, and nothing else
    /// runs; then writes as the API server.
    async fn settled(&mut self, control_plane: &[usize]) {
        let wanted = addresses(control_plane);
        let settled = async {
            loop {
                self.pass(Duration::from_secs(5)).await;
                if self.is_settled(&wanted).await {
                    return;
                }
            }
        };
        if timeout(PATIENCE, settled).await.is_err() {
            let status = self.nodes.etcd().status(&wanted).await;
            panic!("{wanted:?} are not the members in time: {status:?}\n{}", self.world.history.last(40));
        }
        self.nodes.write(&wanted).await.unwrap();
    }

    async fn is_settled(&mut self, wanted: &[String]) -> bool {
        let stored = self.client.get("/cke/status", None).await.unwrap();
        let phase = stored.kvs().first().is_some_and(|kv| kv.value_str().unwrap().contains("completed"));
        let Ok(etcd) = self.nodes.etcd().status(wanted).await else { return false };
        let in_sync =
            |member: &madako_domain::node_status::EtcdMember| member.is_in_sync() && !member.learner;
        let members: BTreeSet<String> =
            etcd.members.iter().filter(|member| in_sync(member)).map(|member| member.name.clone()).collect();
        let runs = |address: &String| {
            let view = self.nodes.view(address).unwrap();
            Container::ALL.iter().all(|it| view.containers.get(it.name()).is_some_and(|it| it.running))
        };
        phase
            && members.len() == etcd.members.len()
            && members == wanted.iter().cloned().collect()
            && wanted.iter().all(runs)
            && etcd.healthy
    }

    /// The certificates of all members.
    fn certificates(&self) -> Vec<String> {
        let files = (0..6).flat_map(|number| self.nodes.view(&address(number)).unwrap().files);
        let certificate = |(path, content): (String, FileContent)| match content {
            FileContent::Public(text) if !path.contains("/ca-") => Some(text),
            _ => None,
        };
        files.filter_map(certificate).collect()
    }

    /// The moments of all records and effects so far.
    fn moments(&self) -> BTreeSet<Duration> {
        let facts = self.nodes.facts_since(0).into_iter();
        facts.filter(|fact| !matches!(fact.what, Observed::Etcd(_))).map(|fact| fact.at).collect()
    }

    /// Every promise was kept, each promise about nodes was tested, and no record is unfinished.
    async fn judge(&mut self) {
        let facts = &self.world.facts;
        facts.read_nodes(&self.nodes);
        for (promise, verdict) in facts.verdicts().iter().filter(|(promise, _)| promise.needs_nodes()) {
            assert_eq!(verdict.violations, [""; 0], "{}", promise.name());
        }
        let options = etcd_client::GetOptions::new().with_prefix();
        let records = self.client.get("/cke/records/", Some(options)).await.unwrap();
        let unfinished = records.kvs().iter().filter(|kv| {
            let record: Value = serde_json::from_slice(kv.value()).unwrap();
            record["status"] == "running" || record["status"] == "new"
        });
        assert_eq!(unfinished.count(), 0);
    }

    async fn end(mut self) {
        self.judge().await;
        if let Some(running) = self.running.take() {
            running.instance.stop().await;
        }
    }
}

/// Three members from nothing.
async fn bootstrap(site: &mut Site) {
    site.cluster(&[0, 1, 2], &[3]).await;
    site.settled(&[0, 1, 2]).await;
}

/// A story with all operations on members.
async fn life(site: &mut Site) {
    site.cluster(&[0], &[1, 2, 3, 4]).await;
    site.settled(&[0]).await;
    site.cluster(&[0, 1, 2], &[3, 4]).await;
    site.settled(&[0, 1, 2]).await;
    // A node takes the place of another one, which becomes a worker.
    site.cluster(&[0, 1, 3], &[2, 4]).await;
    site.settled(&[0, 1, 3]).await;
    // A node loses its disk.
    site.nodes.reinstall(&address(1));
    site.client.delete(format!("/cke/madako/ssh/host-keys/{}", address(1)), None).await.unwrap();
    site.settled(&[0, 1, 3]).await;
    // A container ends.
    site.nodes.end_container(&address(3), Container::Etcd);
    site.settled(&[0, 1, 3]).await;
    // All members restart with another image.
    site.images("etcd:2").await;
    site.settled(&[0, 1, 3]).await;
    // A node leaves the cluster.
    site.cluster(&[0, 1, 2], &[4]).await;
    site.settled(&[0, 1, 2]).await;
}

/// Three members whose certificates are renewed.
async fn renewal(site: &mut Site) {
    site.certificate_life = Duration::from_secs(3600);
    site.images("etcd:1").await;
    bootstrap(site).await;
    let (first, known) = (site.certificates(), site.nodes.facts_since(0).len());
    assert_eq!(first.len(), 6);
    let renewed = async {
        while site.certificates().iter().any(|certificate| first.contains(certificate)) {
            site.pass(INTERVAL).await;
        }
    };
    timeout(PATIENCE, renewed).await.unwrap();
    site.settled(&[0, 1, 2]).await;
    assert!(site.world.clock.now() < start() + site.certificate_life, "before the first ones end");
    let facts = site.nodes.facts_since(0).split_off(known);
    for fact in facts {
        // A bootstrap whose record was lost may be repeated, which ends no container either.
        if let Observed::Applied { effect, .. } = fact.what {
            let ends = ["stop of", "kill of"].iter().any(|what| effect.what.starts_with(what));
            assert!(!ends, "{} during renewals", effect.what);
        }
    }
}

/// A single member restarts with another image when an operator asks for it.
async fn asked_restart(site: &mut Site) {
    site.cluster(&[0], &[1]).await;
    site.settled(&[0]).await;
    site.images("etcd:2").await;
    site.pass(OUTAGE).await;
    let image = |site: &Site| site.nodes.view(&address(0)).unwrap().containers["etcd"].image.clone();
    assert_eq!(image(site), "etcd:1", "the service does not stop etcd by itself");
    let now = site.world.clock.now().format(&Rfc3339).unwrap();
    let key = format!("madako/etcd-restarts/{}", address(0));
    site.put(&key, &json!({"requested_at": now}).to_string()).await;
    // The request for a worker asks for nothing.
    site.put(&format!("madako/etcd-restarts/{}", address(1)), &json!({"requested_at": now}).to_string())
        .await;
    let restarted = async {
        while image(site) != "etcd:2" {
            site.pass(INTERVAL).await;
        }
    };
    timeout(PATIENCE, restarted).await.unwrap();
    site.settled(&[0]).await;
    let options = etcd_client::GetOptions::new().with_prefix();
    let left = site.client.get("/cke/madako/etcd-restarts/", Some(options)).await.unwrap();
    assert_eq!(left.count(), 0, "the requests are gone");
}

/// An older image is found before a member stops or starts.
async fn older_image(site: &mut Site) {
    site.images("etcd:2").await;
    bootstrap(site).await;
    site.images("etcd:1").await;
    site.pass(OUTAGE).await;
    let held = |site: &Site| {
        let page = site.running.as_ref().unwrap().instance.view().operations.newest().unwrap();
        assert!(page.backing_off.is_empty(), "{page:?}");
        page.held
            .iter()
            .map(|held| format!("{} {}", held.held.what, held.held.reason.name()))
            .collect::<Vec<_>>()
    };
    assert_eq!(held(site), ["etcd-restart older-image"]);
    site.nodes.end_container(&address(1), Container::Etcd);
    site.pass(OUTAGE).await;
    assert!(held(site).contains(&"etcd-start older-image".to_owned()), "{:?}", held(site));
    for number in 0..3 {
        assert_eq!(site.nodes.view(&address(number)).unwrap().containers["etcd"].image, "etcd:2");
    }
    site.images("etcd:2").await;
    site.settled(&[0, 1, 2]).await;
}

/// Plays a story on paused time. Returns the moments of its effects.
fn play(story: impl AsyncFn(&mut Site), disturbances: Vec<(Duration, Disturbance)>) -> BTreeSet<Duration> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut site = Site::new(disturbances).await;
        story(&mut site).await;
        let moments = site.moments();
        site.end().await;
        moments
    })
}

#[test]
fn a_cluster_lives_through_all_operations_on_members() {
    let moments = play(life, Vec::new());
    assert!(moments.len() > 50, "{moments:?}");
}

#[test]
fn leaders_that_end_during_a_bootstrap_change_nothing_of_its_result() {
    let moments = play(bootstrap, Vec::new());
    for moment in moments {
        for disturbance in [Disturbance::Killed, Disturbance::Paused] {
            play(bootstrap, vec![(moment, disturbance)]);
        }
    }
}

#[test]
fn nodes_that_fail_during_a_bootstrap_change_nothing_of_its_result() {
    for moment in play(bootstrap, Vec::new()) {
        play(bootstrap, vec![(moment, Disturbance::Dead(1))]);
    }
}

#[test]
fn certificates_are_renewed_whenever_the_leader_ends() {
    for moment in play(renewal, Vec::new()) {
        for disturbance in [Disturbance::Killed, Disturbance::Paused] {
            play(renewal, vec![(moment, disturbance)]);
        }
    }
}

#[test]
fn an_older_image_stops_no_member_and_leaves_out_no_node() {
    play(older_image, Vec::new());
}

/// The only member stops, which invariant I2 forbids unless an operator asks for it: it is not judged here.
#[test]
fn a_single_member_restarts_when_an_operator_asks_for_it() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut site = Site::new(Vec::new()).await;
        asked_restart(&mut site).await;
        if let Some(running) = site.running.take() {
            running.instance.stop().await;
        }
    });
}

#[test]
fn leaders_that_end_during_changes_of_members_change_nothing_of_their_result() {
    for moment in play(life, Vec::new()) {
        play(life, vec![(moment, Disturbance::Killed)]);
    }
}

#[test]
fn an_instance_that_observes_decides_and_changes_nothing() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut site = Site::new(Vec::new()).await;
        site.start("etcd:1", OperationsMode::Observe).await;
        site.cluster(&[0, 1, 2], &[3]).await;
        let written = site.client.get("/cke/cluster", None).await.unwrap().header().unwrap().revision();
        site.pass(OUTAGE).await;
        let page = site.running.as_ref().unwrap().instance.view().operations.newest().unwrap();
        let due: Vec<String> = page.next.iter().map(|operation| operation.name.to_string()).collect();
        assert_eq!(due, ["upgrade"]);
        assert!(page.nodes.values().all(|node| node.reachable), "{:?}", page.nodes);
        let now = site.client.get("/cke/cluster", None).await.unwrap().header().unwrap().revision();
        assert_eq!(now, written, "no lease, no key");
        assert!(site.moments().is_empty(), "no action");
        // An instance that acts takes over.
        site.images("etcd:1").await;
        site.settled(&[0, 1, 2]).await;
        site.end().await;
    });
}
