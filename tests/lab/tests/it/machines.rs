//! Tests of a lab's life: it starts, and it leaves nothing behind, however it ends.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use madako_lab::{ETCD_IMAGE, LOGIN, Lab, Machine, TOOLS_IMAGE, limits, tools_archive, unavailable};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::fleet::program;
use crate::traces::Traces;
use crate::{PATIENCE, eventually};

/// Arguments of `docker run` of a member of etcd, as CKE runs it.
const MEMBER: [&str; 11] = [
    "run",
    "--log-driver=json-file",
    "-d",
    "--name=etcd",
    "--read-only",
    "--network=host",
    "--uts=host",
    "--mount",
    "type=volume,src=etcd-cke,dst=/var/lib/etcd",
    ETCD_IMAGE,
    "--experimental-initial-corrupt-check",
];

async fn run_etcd(machine: &Machine) {
    let url = format!("http://{}:2379", machine.address());
    let urls =
        [format!("--advertise-client-urls={url}"), "--listen-client-urls=http://0.0.0.0:2379".to_owned()];
    let words: Vec<&str> = MEMBER.into_iter().chain(urls.iter().map(String::as_str)).collect();
    machine.docker(&words).await.unwrap();
}

#[tokio::test]
async fn machines_are_reached_by_ssh_and_run_etcd_and_nothing_remains() {
    let Some(lab) = Lab::for_test(4).await else { return };
    let addresses =
        lab.each(async |machine| lab.ssh(LOGIN, machine, "hostname && docker ps -q").await.unwrap());
    assert_eq!(addresses.await, ["node1\n", "node2\n", "node3\n", "node4\n"]);
    assert_eq!(
        lab.ssh("root", lab.machine(3), "id -u; echo $PATH").await.unwrap(),
        "0\n/usr/sbin:/usr/bin:/sbin:/bin\n"
    );

    let etcd = lab.machine(0);
    run_etcd(etcd).await;
    let endpoint = format!("--endpoints=http://{}:2379", etcd.address());
    let put = ["--endpoints", &endpoint[12..], "put", "greeting", "from the network of the lab"];
    eventually("etcd answers in the lab's network", async || lab.etcdctl(&put).await.ok()).await;
    let get = format!("ETCDCTL_API=3 etcdctl {endpoint} get --print-value-only greeting");
    assert_eq!(lab.machine(1).sh(&get).await.unwrap(), "from the network of the lab\n");
    let owner = etcd.sh("stat --format=%u:%g /var/lib/docker/volumes/etcd-cke/_data/member").await.unwrap();
    assert_eq!(owner, "10000:10000\n");

    let files = format!(
        "mkdir /tmp/a && echo key >/tmp/a/file && tar -C /tmp/a -c file | docker run \
         --log-driver=json-file --rm -i --network=host --uts=host --read-only --volume=/etc/etcd/pki:/mnt/pki:rw \
         {TOOLS_IMAGE} write_files /mnt/pki"
    );
    lab.ssh(LOGIN, etcd, &files).await.unwrap();
    assert_eq!(etcd.sh("cat /etc/etcd/pki/file").await.unwrap(), "key\n");

    let mut service = lab.command("sleep").arg("infinity").spawn().unwrap();
    let traces = Traces::of(lab.directory());
    // Two of the lab, whose machines share its clock and users, and five of each machine.
    assert_eq!(traces.namespaces.len(), 3 + 4 * 5);
    assert!(
        !traces.in_use().is_empty() && !traces.cgroups().is_empty(),
        "the traces are the right ones: {traces:?}"
    );
    drop(lab);
    let ended = timeout(PATIENCE, service.wait()).await.expect("the service ends").unwrap();
    assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()));
    traces.vanish().await;
}

#[tokio::test]
async fn docker_loads_the_image_of_the_service_and_runs_it() {
    const IMAGE: &str = "registry.example.com/madako:1.0";
    let Some(lab) = Lab::for_test(1).await else { return };
    let [stripped, archive] = ["madako", "madako-image.tar"].map(|name| lab.directory().join(name));
    let done = async |command: &mut Command| {
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    done(Command::new("strip").arg("--output-file").arg(&stripped).arg(program())).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/service-image");
    done(Command::new(script).args([&stripped, &archive]).arg(IMAGE)).await;
    let machine = lab.machine(0);
    machine.load(&archive).await.unwrap();
    machine.docker(&["run", "--detach", "--network=host", "--name=madako", IMAGE]).await.unwrap();
    let leads = async || machine.docker(&["exec", "madako", "/usr/bin/madako", "leader"]).await.ok();
    let leader = eventually("the service in the container leads", leads).await;
    assert_eq!(leader.trim(), "node1");
    machine.docker(&["stop", "madako"]).await.unwrap();
    let ended = ["inspect", "--format={{.State.ExitCode}}", "madako"];
    assert_eq!(machine.docker(&ended).await.unwrap().trim(), "0", "it stops at the signal");
}

/// The program behind `make lab` with one machine and the service, its keeper, and the traces of its lab.
struct Owner {
    process: Child,
    keeper: u32,
    traces: Traces,
}

impl Owner {
    async fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_madako-lab"))
            .arg("1")
            .args(tools_archive())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let directory = loop {
            let line = lines.next_line().await.unwrap().expect("the lab starts");
            if let Some((directory, _)) =
                line.strip_prefix("The lab is in ").and_then(|rest| rest.split_once(' '))
            {
                break PathBuf::from(directory);
            }
        };
        let traces = Traces::of(&directory);
        let in_use = traces.in_use();
        assert!(in_use.iter().any(|trace| trace.contains("(madako)")), "the service runs: {in_use:?}");
        Self { process, keeper: keeper(&directory), traces }
    }

    async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }
}

/// The keeper's process, which the directory's name has: `madako-lab-PROCESS-START`.
fn keeper(directory: &Path) -> u32 {
    directory.to_str().unwrap().rsplit('-').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn nothing_remains_after_the_owner_is_killed() {
    if Lab::for_test(1).await.is_none() {
        return;
    }
    let mut owner = Owner::start().await;
    owner.kill().await;
    let keeper = PathBuf::from(format!("/proc/{}", owner.keeper));
    eventually("the keeper ends", async || (!keeper.exists()).then_some(())).await;
    owner.traces.vanish().await;
}

#[tokio::test]
async fn next_lab_removes_leftovers_of_a_killed_keeper() {
    if unavailable().is_some() {
        assert!(Lab::for_test(1).await.is_none());
        return;
    }
    let mut owner = Owner::start().await;
    kill_process(Pid::from_raw(owner.keeper.cast_signed()).unwrap(), Signal::KILL).unwrap();
    owner.kill().await;
    eventually("every process ends", async || owner.traces.in_use().is_empty().then_some(())).await;
    assert!(!owner.traces.left().is_empty(), "cgroups and the directory are there");
    drop(Lab::for_test(1).await.unwrap());
    owner.traces.vanish().await;
}

#[tokio::test]
async fn a_lab_has_at_least_one_machine_and_at_most_sixteen() {
    for wrong in [0, limits::MAX_MACHINES + 1] {
        let error = Lab::start(wrong, &[]).await.unwrap_err().to_string();
        assert_eq!(error, format!("a lab has 1 to 16 test machines, not {wrong}"));
    }
}
