//! Real machines on one host, for tests of operations on nodes: each has a network, mounts, processes and a disk of its own,
//! with dockerd and sshd on their usual paths and ports.
//!
//! Guarantees: nothing of the host's network, mounts or files changes but a directory of the lab's name in the directory
//! for temporary files, and cgroups of that name. Both are gone after [`Lab`] is dropped or its process is killed. If its
//! keeper is killed too, all processes end, and the next lab removes the rest. Labs do not see each other.
//!
//! Assumes: root, and the programs of [`unavailable`].
//!
//! Does not: isolate like a virtual machine. The machines share the host's kernel, clock and /dev, and see the host's
//! files, of which they change only copies. Their disks are memory, so they survive [`Machine::power_off`] whole, with
//! writes that no fsync followed.

mod client;
mod images;
mod keeper;
pub mod limits;
mod machine;
mod service;
mod tool;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use futures::future::{join_all, try_join_all};
use rustix::process::geteuid;
use tokio::process::Command;

pub use self::client::{Client, Count, Failure, Report, Use};
use self::images::Archive;
pub use self::images::{
    COREDNS_IMAGE, ECHO_IMAGE, ETCD_IMAGE, KUBERNETES_IMAGE, NEXT_KUBERNETES_IMAGE, PAUSE_IMAGE,
    PREVIOUS_KUBERNETES_IMAGE, TOOLS_IMAGE, UNBOUND_EXPORTER_IMAGE, UNBOUND_IMAGE, built_program,
    tools_archive,
};
use self::keeper::Keeper;
pub use self::machine::Machine;
pub use self::service::{PAGES, PKI_KEY, STORE, Service, Store};
pub use self::tool::LabError;
use self::tool::{PATH, run};

/// The login without root's rights, which may use docker. `root` may log in too.
pub const LOGIN: &str = "cke";
/// The options of a cluster on the lab's machines, as YAML in flow form: kubelets share the host's cgroups, and a
/// network namespace cannot change the limit of tracked connections. An API server that ends waits for its watches as
/// long as for a request, by default for a minute.
pub const OPTIONS: &str = "{kube-api: {extra_args: ['--request-timeout=20s']}, kubelet: {config: {apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration, \
    cgroupDriver: cgroupfs, cgroupsPerQOS: false, enforceNodeAllocatable: [none], failSwapOn: false, failCgroupV1: false, \
    localStorageCapacityIsolation: false, resolvConf: ''}}, \
    kube-proxy: {config: {apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration, \
    conntrack: {maxPerCore: 0}}}}";

/// The required programs with their Debian packages.
const PROGRAMS: [(&str, &str); 14] = [
    ("dockerd", "docker.io"),
    ("docker", "docker.io"),
    ("docker-init", "docker.io"),
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("sshd", "openssh-server"),
    ("ssh", "openssh-client"),
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("pkill", "procps"),
];

/// The first requirement of a lab that the host does not meet.
#[must_use]
pub fn unavailable() -> Option<String> {
    let is_there = |program: &str| PATH.split(':').any(|place| Path::new(place).join(program).is_file());
    let missing = PROGRAMS.iter().find(|(program, _)| !is_there(program));
    if let Some((program, package)) = missing {
        return Some(format!("{program} is not installed in {PATH} (Debian: {package})"));
    }
    (!geteuid().is_root()).then(|| "it needs root".to_owned())
}

/// Some machines on a network of their own. All ends on drop.
#[derive(Debug)]
pub struct Lab {
    machines: Vec<Machine>,
    keeper: Arc<Keeper>,
    has_kubernetes: bool,
}

impl Lab {
    /// Starts machines that have Debian's etcd as [`ETCD_IMAGE`] and the images of these archives (`docker load`).
    ///
    /// # Errors
    /// The host lacks something, or a machine does not start.
    pub async fn start(machines: usize, images: &[PathBuf]) -> Result<Self, LabError> {
        Self::start_with(machines, images, ETCD_IMAGE).await
    }

    /// The same with another name of the etcd image.
    ///
    /// # Errors
    /// The host lacks something, or a machine does not start.
    pub async fn start_with(machines: usize, images: &[PathBuf], etcd: &str) -> Result<Self, LabError> {
        Self::start_machines(machines, images, etcd, false).await
    }

    /// The same with all that a cluster needs: docker has [`KUBERNETES_IMAGE`] too, and containerd the images of pods.
    ///
    /// # Errors
    /// The host lacks something, or a machine does not start.
    pub async fn start_kubernetes(machines: usize, images: &[PathBuf]) -> Result<Self, LabError> {
        Self::start_machines(machines, images, ETCD_IMAGE, true).await
    }

    async fn start_machines(
        machines: usize,
        images: &[PathBuf],
        etcd: &str,
        has_kubernetes: bool,
    ) -> Result<Self, LabError> {
        if !(1..=limits::MAX_MACHINES).contains(&machines) {
            return Err(LabError::Machines(machines));
        }
        if let Some(why) = unavailable() {
            return Err(LabError::Unavailable(why));
        }
        let unavailable = |error: LabError| LabError::Unavailable(error.to_string());
        let keeper = Arc::new(Keeper::open().await.map_err(unavailable)?);
        let mut archives = vec![images::make_etcd(&keeper, etcd).await?];
        archives.extend(images.iter().cloned().map(Archive::Docker));
        if has_kubernetes {
            archives.extend(images::make_kubernetes(&keeper).await?);
        }
        let images: Arc<[Archive]> = archives.into();
        let machines: Vec<Machine> =
            (1..=machines).map(|number| Machine::new(keeper.clone(), images.clone(), number)).collect();
        try_join_all(machines.iter().map(Machine::install)).await?;
        Ok(Self { machines, keeper, has_kubernetes })
    }

    /// A lab for a test, with [`ETCD_IMAGE`] and [`TOOLS_IMAGE`]. `None` if the host lacks something: the test is
    /// skipped.
    ///
    /// # Panics
    /// A machine does not start, or the host lacks something and `CI` is set.
    pub async fn for_test(machines: usize) -> Option<Self> {
        Self::start_for_test(machines, false).await
    }

    /// The same with [`KUBERNETES_IMAGE`] and the images of pods.
    ///
    /// # Panics
    /// A machine does not start, or the host lacks something and `CI` is set.
    pub async fn for_kubernetes(machines: usize) -> Option<Self> {
        Self::start_for_test(machines, true).await
    }

    async fn start_for_test(machines: usize, has_kubernetes: bool) -> Option<Self> {
        let no_tools = || LabError::Unavailable("there is no tools image: run make tools-image".to_owned());
        let lab = match tools_archive().ok_or_else(no_tools) {
            Ok(tools) => Self::start_machines(machines, &[tools], ETCD_IMAGE, has_kubernetes).await,
            Err(error) => Err(error),
        };
        match lab {
            Ok(lab) => Some(lab),
            Err(LabError::Unavailable(why)) => {
                assert!(std::env::var_os("CI").is_none(), "CI must have a lab: {why}");
                skipped(&why);
                None
            }
            Err(error) => panic!("the lab does not start: {error}"),
        }
    }

    /// A machine, counted from 0.
    ///
    /// # Panics
    /// The lab has fewer machines.
    #[must_use]
    pub fn machine(&self, index: usize) -> &Machine {
        self.machines.get(index).expect("the lab has this machine")
    }

    #[must_use]
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// True if the machines have the images of Kubernetes.
    #[must_use]
    pub fn has_kubernetes(&self) -> bool {
        self.has_kubernetes
    }

    /// The directory of the lab on the host: the operator's key, and logs of machines.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.keeper.directory()
    }

    /// The private key (OpenSSH, ed25519) of [`LOGIN`] and root on all machines.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        self.directory().join("id_ed25519")
    }

    /// The process that removes the lab.
    #[must_use]
    pub fn keeper(&self) -> u32 {
        self.keeper.process()
    }

    /// Words before a command that then runs in the lab's network, with the host's files and users. They become the
    /// command, with the same process id.
    #[must_use]
    pub fn enter(&self) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", self.keeper.pid())]
    }

    /// A program in the lab's network, such as the service under test. It ends with the lab, and with the thread that
    /// starts it.
    #[must_use]
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        // The keeper ends such programs. This is for the end of both the keeper and this process.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(self.enter()).arg("--");
        command.arg(program.as_ref()).kill_on_drop(true);
        command
    }

    /// Runs etcdctl (version 3 of the API) in the lab's network; returns its standard output.
    ///
    /// # Errors
    /// The exit status is not 0, or the time limit is exceeded.
    pub async fn etcdctl(&self, words: &[&str]) -> Result<String, LabError> {
        let mut command = self.command("/usr/bin/etcdctl");
        command.args(words).env("ETCDCTL_API", "3").stdin(Stdio::null());
        run(&format!("etcdctl {}", words.join(" ")), &mut command, limits::COMMAND_WITHIN).await
    }

    /// Runs a line of shell on a machine over SSH from the lab's network; returns its standard output. Host keys are
    /// not checked.
    ///
    /// # Errors
    /// The login fails, the exit status is not 0, or the time limit is exceeded.
    pub async fn ssh(&self, user: &str, machine: &Machine, line: &str) -> Result<String, LabError> {
        let at = format!("{user}@{}", machine.address());
        let mut command = self.command("/usr/bin/ssh");
        command.arg("-i").arg(self.key_file()).args(SSH_OPTIONS).args([&at, line]).stdin(Stdio::null());
        run(&format!("ssh {at} {line}"), &mut command, limits::COMMAND_WITHIN).await
    }

    /// Runs kubectl in the lab's network; returns its standard output.
    ///
    /// # Errors
    /// The exit status is not 0, or the time limit is exceeded.
    pub async fn kubectl(&self, kubeconfig: &Path, words: &[&str]) -> Result<String, LabError> {
        let mut command = self.command(built_program("kubernetes/kubectl")?);
        command.arg("--kubeconfig").arg(kubeconfig).args(words).stdin(Stdio::null());
        // Its cache of the API's kinds.
        command.env("HOME", self.directory());
        run(&format!("kubectl {}", words.join(" ")), &mut command, limits::COMMAND_WITHIN).await
    }

    /// Loads [`NEXT_KUBERNETES_IMAGE`] on all machines.
    ///
    /// # Errors
    /// The program is not built, or a machine is off.
    pub async fn load_next_kubernetes(&self) -> Result<(), LabError> {
        self.load(&images::make_next_kubernetes(&self.keeper).await?).await
    }

    /// Loads [`PREVIOUS_KUBERNETES_IMAGE`] on all machines.
    ///
    /// # Errors
    /// The program is not built, or a machine is off.
    pub async fn load_previous_kubernetes(&self) -> Result<(), LabError> {
        self.load(&images::make_previous_kubernetes(&self.keeper).await?).await
    }

    async fn load(&self, archive: &Path) -> Result<(), LabError> {
        try_join_all(self.machines.iter().map(|machine| machine.load(archive))).await.map(drop)
    }

    /// The answer of each machine to `look`, in order.
    pub async fn each<'a, T, F: Future<Output = T>>(&'a self, look: impl Fn(&'a Machine) -> F) -> Vec<T> {
        join_all(self.machines.iter().map(look)).await
    }
}

#[allow(clippy::print_stdout, reason = "the output of a test")]
fn skipped(why: &str) {
    println!("skipped: this host cannot run a lab of test machines: {why}");
}

/// Options of OpenSSH without questions and without files of the user.
pub const SSH_OPTIONS: [&str; 12] = [
    "-F",
    "/dev/null",
    "-o",
    "BatchMode=yes",
    "-o",
    "LogLevel=ERROR",
    "-o",
    "ConnectTimeout=5",
    "-o",
    "StrictHostKeyChecking=no",
    "-o",
    "UserKnownHostsFile=/dev/null",
];
