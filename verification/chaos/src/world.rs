//! The processes of a chaos run, the links between them, and the data that an operator stores.

mod clock;
mod config;
mod disk;
mod etcd;
mod operator;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use madako_faults::{Act, Scenario, Store, TargetKind, World as ExpectedSize};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::datacenter::{self, metric_of};
use crate::helper;
use crate::network::{Link, NamespaceError, Network, NetworkChoice, Node};
use crate::process::{Ports, Process, ProcessError, ProcessSpec};
use crate::web::{self, RequestError, WebRequest};

pub(crate) use self::clock::OwnClock;
pub(crate) use self::config::{
    COMMAND_TIMEOUT, NAMESPACE, POLL, VALUE, ZONES, application_resource, longest_calm_wait,
    longest_repairs_wait, terms_of_settings,
};
pub(crate) use self::disk::Disk;

/// The metrics provider of every world.
pub(crate) const PROVIDER: &str = "prometheus";
/// Time for the first answer of a process: seconds on a busy machine.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// Time limit of one request to a process of the run.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// Interval of checks of an awaited state.
const GLANCE: Duration = Duration::from_millis(50);

#[derive(Debug, Clone)]
pub struct Programs {
    pub madako: PathBuf,
    /// Only for a store of real etcd members.
    pub etcd: PathBuf,
    /// The program that calls [`crate::hidden_command_main`].
    pub own: PathBuf,
}

/// Reasons why the world cannot be built or has ended.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// A file, a port or a directory.
    #[error("{what}")]
    Io { what: String, source: io::Error },
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The requested network is not available.
    #[error("cannot put each process into a network namespace of its own")]
    Network(#[from] NamespaceError),
    /// An awaited state was not reached.
    #[error("the system did not start: {what} within {within:?}; see the logs in the report directory")]
    Late { what: String, within: Duration },
    /// An operator's command failed.
    #[error("the command `madako {args}` failed: {output}")]
    Command { args: String, output: String },
    /// A request was refused; with the status.
    #[error("the request {0} was refused with status {1}: {2}")]
    Refused(String, u16, String),
    /// A request got no answer.
    #[error("the request {0} got no usable answer")]
    Unanswered(String, #[source] RequestError),
}

pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> WorldError {
    let what = what.into();
    move |source| WorldError::Io { what, source }
}

pub(crate) struct Instance {
    pub(crate) process: Process,
    /// Address for observers, past the network.
    pub(crate) http: SocketAddr,
    /// The clients' link to it.
    pub(crate) endpoint: Link,
    /// Its own clock, or the reason why there is none; `None`: no fault needs it.
    pub(crate) clock: Option<Result<OwnClock, String>>,
}

pub(crate) struct Member {
    pub(crate) process: Process,
    /// Address past the network.
    pub(crate) client: SocketAddr,
    /// Its own disk, or the reason why there is none; `None`: no fault needs it.
    pub(crate) disk: Option<Result<Disk, String>>,
}

pub(crate) struct Server {
    pub(crate) process: Process,
    address: SocketAddr,
    pub(crate) control: SocketAddr,
    pub(crate) journal: PathBuf,
}

/// See the module. Its drop ends everything.
pub(crate) struct World {
    pub(crate) network: Network,
    pub(crate) members: BTreeMap<u32, Member>,
    pub(crate) instances: BTreeMap<u32, Instance>,
    pub(crate) registry: Server,
    pub(crate) provider: Option<Server>,
    /// The clients' addresses of the store's members and of the registry, through the network.
    pub(crate) ways: Vec<SocketAddr>,
    pub(crate) registry_way: SocketAddr,
    links: Vec<Link>,
}

pub(crate) struct Plan<'a> {
    pub(crate) programs: &'a Programs,
    pub(crate) scenario: &'a Scenario,
    pub(crate) seed: u64,
    pub(crate) network: NetworkChoice,
    pub(crate) data: &'a Path,
    /// Directory of logs and journals.
    pub(crate) logs: &'a Path,
}

impl Plan<'_> {
    fn wanted(&self) -> &ExpectedSize {
        &self.scenario.world
    }

    /// True if a fault does this to a target of this kind.
    fn has_fault(&self, act: Act, kind: TargetKind) -> bool {
        self.scenario.faults.iter().any(|fault| fault.act == act && fault.target.kind() == kind)
    }

    /// A small disk mounted on the directory, if a fault needs it.
    async fn mount_disk(&self, at: &Path) -> Option<Result<Disk, String>> {
        match self.has_fault(Act::DiskFull, TargetKind::Store) {
            true => Some(Disk::mount(at).await),
            false => None,
        }
    }

    pub(crate) fn network_nodes(&self) -> Vec<Node> {
        let wanted = self.wanted();
        let members = (1..=wanted.store.members()).map(Node::Store);
        let provider = wanted.places_applications().then(|| Node::Provider(PROVIDER.to_owned()));
        members
            .chain((1..=wanted.instances).map(Node::Instance))
            .chain([Node::Registry])
            .chain(provider)
            .collect()
    }

    /// Starts the process of a node in its namespace.
    fn start(
        &self,
        network: &Network,
        node: &Node,
        (program, args): (&Path, Vec<String>),
        environment: Vec<(String, String)>,
    ) -> Result<Process, ProcessError> {
        let name = process_name(node);
        let (program, args) = network.enter(node, program, args);
        let log = self.logs.join(format!("{name}.log"));
        let process =
            Process::start(&self.programs.own, ProcessSpec { name, program, args, environment, log })?;
        network.register_process(node, process.id());
        Ok(process)
    }
}

pub(crate) fn cluster_names(wanted: &ExpectedSize) -> Vec<String> {
    (1..=wanted.clusters).map(|number| format!("cluster-{number}")).collect()
}

/// Name of a node's process and of its files.
fn process_name(node: &Node) -> String {
    match node {
        Node::Instance(number) => format!("instance-{number}"),
        Node::Store(number) => format!("store-{number}"),
        Node::Provider(name) => name.clone(),
        Node::Registry | Node::Client => node.to_string(),
    }
}

fn served_address(network: &Network, ports: &mut Ports, node: &Node) -> Result<SocketAddr, WorldError> {
    ports
        .next(network.faultless_address(node))
        .map_err(io_error(format!("cannot find a free port for {node}")))
}

async fn wait_for_answer(process: &mut Process, at: SocketAddr, path: &str) -> Result<(), WorldError> {
    let began = Instant::now();
    loop {
        process.check()?;
        let answer = web::send_request(at, WebRequest::get(path, ANSWERS_WITHIN)).await;
        if answer.is_ok_and(|answer| answer.status.is_success()) {
            return Ok(());
        }
        if began.elapsed() > STARTS_WITHIN {
            let what = format!("{} did not answer {path}", process.name());
            return Err(WorldError::Late { what, within: STARTS_WITHIN });
        }
        sleep(GLANCE).await;
    }
}

async fn start_embedded(plan: &Plan<'_>, network: &Network, ports: &mut Ports) -> Result<Member, WorldError> {
    let node = Node::Store(1);
    let client = served_address(network, ports, &node)?;
    let data = plan.data.join(process_name(&node));
    fs::create_dir_all(&data).map_err(io_error("cannot create the directory of the store"))?;
    let disk = plan.mount_disk(&data).await;
    let args = vec![crate::STORE_WORD.to_owned(), data.display().to_string(), client.to_string()];
    let mut process = plan.start(network, &node, (&plan.programs.own, args), Vec::new())?;
    // It speaks gRPC only: an accepted connection means that it serves.
    let began = Instant::now();
    while TcpStream::connect(client).await.is_err() {
        process.check()?;
        if began.elapsed() > STARTS_WITHIN {
            let what = "the embedded store took no connection".to_owned();
            return Err(WorldError::Late { what, within: STARTS_WITHIN });
        }
        sleep(GLANCE).await;
    }
    Ok(Member { process, client, disk })
}

async fn start_server(
    plan: &Plan<'_>,
    network: &Network,
    ports: &mut Ports,
    node: Node,
) -> Result<Server, WorldError> {
    let (address, control) = (served_address(network, ports, &node)?, served_address(network, ports, &node)?);
    let flag = if node == Node::Registry { "--registry" } else { "--prometheus" };
    let journal = plan.logs.join(format!("{}.jsonl", process_name(&node)));
    let wanted = plan.wanted();
    let metrics =
        cluster_names(wanted).iter().map(|cluster| metric_of(cluster)).collect::<Vec<_>>().join(",");
    let args = [
        "datacenter".to_owned(),
        format!("{flag}={address}"),
        format!("--control={control}"),
        format!("--machines={}", wanted.machines),
        format!("--racks={}", wanted.racks),
        format!("--metrics={metrics}"),
        format!("--seed={}", plan.seed),
        format!("--journal={}", journal.display()),
    ];
    let mut process = plan.start(network, &node, (&plan.programs.own, args.to_vec()), Vec::new())?;
    wait_for_answer(&mut process, control, "/health").await?;
    Ok(Server { process, address, control, journal })
}

impl World {
    /// Starts all processes and stores the operator's data; the service then elects a leader and commits a cluster.
    pub(crate) async fn build(plan: &Plan<'_>) -> Result<Self, WorldError> {
        let network = Network::open(plan.network, &plan.network_nodes()).await?;
        let mut ports = Ports::default();
        let mut chance = ChaCha8Rng::seed_from_u64(plan.seed);
        chance.set_stream(LINKS);
        let (members, links) = match plan.wanted().store {
            Store::Etcd => etcd::start(plan, &network, &mut ports, &mut chance).await?,
            Store::Embedded => {
                (BTreeMap::from([(1, start_embedded(plan, &network, &mut ports).await?)]), Vec::new())
            }
        };
        let registry = start_server(plan, &network, &mut ports, Node::Registry).await?;
        let provider = match plan.wanted().places_applications() {
            true => {
                Some(start_server(plan, &network, &mut ports, Node::Provider(PROVIDER.to_owned())).await?)
            }
            false => None,
        };
        let mut world = Self {
            network,
            members,
            instances: BTreeMap::new(),
            registry_way: registry.address,
            registry,
            provider,
            ways: Vec::new(),
            links,
        };
        let members: Vec<(u32, SocketAddr)> =
            world.members.iter().map(|(number, member)| (*number, member.client)).collect();
        for (number, client) in members {
            let way = world.connect_nodes(Node::Store(number), client, &mut chance).await?;
            world.ways.push(way);
        }
        world.registry_way = world.connect_nodes(Node::Registry, world.registry.address, &mut chance).await?;
        world.write_operator_config(plan).await?;
        let endpoints: Vec<String> = world.ways.iter().map(|way| format!("http://{way}")).collect();
        for number in 1..=plan.wanted().instances {
            let node = Node::Instance(number);
            let http = served_address(&world.network, &mut ports, &node)?;
            let config = world.write_instance_config(plan, number, &endpoints)?;
            let args = config::serve(&config.display().to_string(), &http.to_string());
            let mut environment = vec![(helper::INSTANCE.to_owned(), number.to_string())];
            let clock = plan
                .has_fault(Act::ClockJump, TargetKind::Instance)
                .then(|| OwnClock::make(plan.data, &process_name(&node)));
            if let Some(Ok(clock)) = &clock {
                environment.extend(clock.environment_variables());
            }
            let process = plan.start(&world.network, &node, (&plan.programs.madako, args), environment)?;
            let endpoint = world.open(Some(Node::Client), node, http, &mut chance).await?;
            world.instances.insert(number, Instance { process, http, endpoint, clock });
        }
        for instance in world.instances.values_mut() {
            wait_for_answer(&mut instance.process, instance.http, "/version").await?;
        }
        Ok(world)
    }

    /// Writes the files of an instance. Returns its configuration, with the registry's address and the instance's own
    /// path of the API server.
    fn write_instance_config(
        &self,
        plan: &Plan<'_>,
        number: u32,
        endpoints: &[String],
    ) -> Result<PathBuf, WorldError> {
        let kubeconfig = plan.data.join(format!("kubeconfig-{number}"));
        let server = format!("http://{}{}", self.registry_way, datacenter::base_path_of_instance(number));
        fs::write(&kubeconfig, config::kubeconfig_value("chaos", &server).to_string())
            .map_err(io_error("cannot write the kubeconfig"))?;
        let config = plan.data.join(format!("madako-{number}.yml"));
        fs::write(
            &config,
            config::configuration_file(endpoints, plan.wanted().places_applications(), Some(&kubeconfig)),
        )
        .map_err(io_error("cannot write the configuration file"))?;
        Ok(config)
    }

    /// A link to a node for all clients that use one address.
    async fn connect_nodes(
        &mut self,
        to: Node,
        upstream: SocketAddr,
        chance: &mut ChaCha8Rng,
    ) -> Result<SocketAddr, WorldError> {
        let link = self.open(None, to, upstream, chance).await?;
        let address = link.address();
        self.links.push(link);
        Ok(address)
    }

    async fn open(
        &self,
        from: Option<Node>,
        to: Node,
        upstream: SocketAddr,
        chance: &mut ChaCha8Rng,
    ) -> Result<Link, WorldError> {
        let opened =
            Link::open(&self.network, from, to.clone(), upstream, ChaCha8Rng::from_rng(chance)).await;
        opened.map_err(io_error(format!("cannot open a link to {to}")))
    }

    /// Addresses of the members, past the network.
    pub(crate) fn member_endpoints(&self) -> BTreeMap<u32, String> {
        self.members.iter().map(|(number, member)| (*number, format!("http://{}", member.client))).collect()
    }

    pub(crate) fn process_mut(&mut self, node: &Node) -> Option<&mut Process> {
        match node {
            Node::Instance(number) => self.instances.get_mut(number).map(|instance| &mut instance.process),
            Node::Store(number) => self.members.get_mut(number).map(|member| &mut member.process),
            Node::Registry => Some(&mut self.registry.process),
            Node::Provider(_) => self.provider.as_mut().map(|server| &mut server.process),
            Node::Client => None,
        }
    }
}

/// Number of the generator for links.
const LINKS: u64 = 1;
