//! Tests of the lab's faults: each has its effect on a machine, and ends.

use madako_lab::{ETCD_IMAGE, LOGIN, Lab, Machine};

use crate::eventually;

/// etcd reserves two files of 64 MB for its log: in docker's 64 MiB of shared memory the second one can take the last
/// page from the database, which ends etcd.
const SLEEPER: [&str; 9] = [
    "run",
    "-d",
    "--log-driver=json-file",
    "--name=etcd",
    "--network=host",
    "--read-only",
    "--shm-size=256m",
    ETCD_IMAGE,
    "--data-dir=/dev/shm/etcd",
];

async fn answers(lab: &Lab, machine: &Machine) -> bool {
    lab.ssh(LOGIN, machine, "true").await.is_ok()
}

async fn running(machine: &Machine) -> String {
    machine.docker(&["ps", "--format={{.Names}}"]).await.unwrap()
}

#[tokio::test]
async fn faults_of_network_and_login_have_their_effects() {
    let Some(lab) = Lab::for_test(2).await else { return };
    let [machine, other] = lab.machines() else { unreachable!("two machines") };

    machine.cut().await.unwrap();
    assert!(!answers(&lab, machine).await && answers(&lab, other).await);
    machine.heal().await.unwrap();
    assert!(answers(&lab, machine).await);

    machine.stop_sshd().await.unwrap();
    let refused = lab.ssh(LOGIN, machine, "true").await.unwrap_err().to_string();
    assert!(refused.contains("Connection refused"), "{refused}");
    machine.start_sshd().await.unwrap();
    machine.hang_sshd().await.unwrap();
    let silent = lab.ssh(LOGIN, machine, "true").await.unwrap_err().to_string();
    assert!(silent.contains("timed out"), "{silent}");
    machine.resume_sshd().await.unwrap();
    assert!(answers(&lab, machine).await);

    machine.force_command("kill -KILL $PPID; sleep infinity").await.unwrap();
    let closed = lab.ssh(LOGIN, machine, "true").await.unwrap_err().to_string();
    // The client reads the end of the connection, or it fails to write first.
    let ends = ["closed by", "reset by", "Broken pipe"];
    assert!(ends.iter().any(|end| closed.contains(end)), "{closed}");
    machine.force_command("head -c 1000000 /dev/zero | tr '\\0' y").await.unwrap();
    assert_eq!(lab.ssh(LOGIN, machine, "true").await.unwrap().len(), 1_000_000);
    machine.free_command().await.unwrap();
    assert_eq!(lab.ssh(LOGIN, machine, "echo yes").await.unwrap(), "yes\n");

    let key = host_key(&lab, machine).await;
    assert_eq!(key, host_key(&lab, machine).await);
    machine.new_host_key().await.unwrap();
    assert_ne!(key, host_key(&lab, machine).await);

    machine.change_login().await.unwrap();
    let denied = lab.ssh(LOGIN, machine, "true").await.unwrap_err().to_string();
    assert!(denied.contains("Permission denied"), "{denied}");
    machine.restore_login().await.unwrap();
    assert!(answers(&lab, machine).await);
}

/// The host key that the machine offers over the network.
async fn host_key(lab: &Lab, machine: &Machine) -> String {
    let output =
        lab.command("ssh-keyscan").args(["-t", "ed25519", &machine.address()]).output().await.unwrap();
    let key = String::from_utf8(output.stdout).unwrap();
    assert!(key.contains("ssh-ed25519"), "{key}");
    key
}

#[tokio::test]
async fn faults_of_engine_disk_and_power_have_their_effects() {
    let Some(lab) = Lab::for_test(1).await else { return };
    let machine = lab.machine(0);
    machine.docker(&SLEEPER).await.unwrap();
    assert_eq!(running(machine).await, "etcd\n");

    machine.kill_docker().await.unwrap();
    assert!(machine.docker(&["version"]).await.is_err());
    // The container counts as running a moment before its program is executed.
    eventually("the program runs", async || machine.sh("pgrep -x etcd").await.ok()).await;
    machine.start_docker().await.unwrap();
    machine.docker(&["restart", "etcd"]).await.unwrap();
    machine.stop_docker().await.unwrap();
    assert!(machine.sh("pgrep -x etcd").await.is_err());
    machine.start_docker().await.unwrap();
    assert_eq!(running(machine).await, "");

    machine.fill_disk().await.unwrap();
    let full = machine.sh("head -c 9999 /dev/zero >/etc/file").await.unwrap_err().to_string();
    assert!(full.contains("No space left"), "{full}");
    machine.free_disk().await.unwrap();
    machine.sh("echo one word >/etc/file").await.unwrap();
    assert!(!std::path::Path::new("/etc/file").exists(), "the host does not see the machine's files");

    machine.docker(&["start", "etcd"]).await.unwrap();
    machine.power_off().await.unwrap();
    assert!(!answers(&lab, machine).await && machine.sh("true").await.is_err());
    machine.power_on().await.unwrap();
    assert_eq!(machine.sh("cat /etc/file").await.unwrap(), "one word\n");
    assert_eq!(running(machine).await, "");
    assert_eq!(machine.docker(&["ps", "-a", "--format={{.Names}}"]).await.unwrap(), "etcd\n");

    let key = host_key(&lab, machine).await;
    machine.reimage().await.unwrap();
    assert!(machine.sh("cat /etc/file").await.is_err());
    assert_eq!(machine.docker(&["ps", "-a", "-q"]).await.unwrap(), "");
    assert_ne!(host_key(&lab, machine).await, key);
    let version = machine.docker(&["run", "--rm", "--network=host", ETCD_IMAGE, "--version"]).await.unwrap();
    assert!(version.starts_with("etcd Version: 3."), "{version}");
    eventually("the login works", async || answers(&lab, machine).await.then_some(())).await;
}
