//! Tests of operations on real machines: rivers and etcd from nothing, changes of their parameters, and changes of the
//! members.

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use tokio::time::Instant;

use crate::contract::{Role, arguments, label};
use crate::fleet::Fleet;
use crate::{eventually, measured};

/// The value of an environment variable that marks the rivers of a new configuration.
const MARK: &str = "MARK=1";

/// The environment of a running container.
async fn environment(fleet: &Fleet, machine: usize, container: &str) -> Option<String> {
    let words = ["inspect", "--format={{json .Config.Env}}", container];
    fleet.machine(machine).docker(&words).await.ok()
}

/// The arguments of a container, if it runs.
async fn running_arguments(fleet: &Fleet, machine: usize, container: &str) -> Option<String> {
    let words = ["inspect", "--format={{.State.Running}} {{json .Args}}", container];
    let found = fleet.machine(machine).docker(&words).await.ok()?;
    found.strip_prefix("true ").map(str::to_owned)
}

#[tokio::test]
async fn three_members_serve_their_users_and_survive_restarts() {
    let Some(fleet) = Fleet::start(4).await else { return };
    let began = Instant::now();
    fleet.set_cluster(&[0, 1, 2], &[3]).await;
    fleet.settled(&[0, 1, 2]).await;
    measured(
        "three members bootstrapped, from the stored cluster until no operation is due",
        began.elapsed(),
    );

    users_have_their_own_keys(&fleet).await;
    containers_have_the_form_of_cke(&fleet).await;
    unreachable_node_blocks_only_the_operations_that_need_it(&fleet).await;
    members_restart_one_after_another(&fleet).await;
    stopped_containers_start_again(&fleet).await;
    renewed_certificates_are_served_without_a_restart(&fleet).await;

    assert!(fleet.history().await.iter().any(|record| record["operation"] == "etcd-bootstrap"));
    fleet.shows_no_key(&[0, 1, 2], Vec::new()).await;
}

async fn users_have_their_own_keys(fleet: &Fleet) {
    let put = fleet.etcdctl_as("kube-apiserver", &["put", "/registry/a", "b"]).await;
    assert_eq!(put.unwrap().trim(), "OK");
    let read = fleet.etcdctl_as("kube-apiserver", &["get", "--print-value-only", "/registry/a"]).await;
    assert_eq!(read.unwrap().trim(), "b");
    let denied = fleet.etcdctl_as("kube-apiserver", &["put", "/other/a", "b"]).await.unwrap_err();
    assert!(denied.contains("permission denied"), "{denied}");
    for words in [&["get", "/registry/a"][..], &["put", "/registry/a", "c"]] {
        let stranger = fleet.etcdctl_as("stranger", words).await.unwrap_err();
        assert!(stranger.contains("permission denied"), "{stranger}");
    }
}

/// CKE finds the containers by their names, and reads their labels.
async fn containers_have_the_form_of_cke(fleet: &Fleet) {
    let control_plane: Vec<String> = (0..3).map(|machine| fleet.address(machine)).collect();
    for machine in 0..3 {
        assert_eq!(fleet.running(machine).await, ["etcd", "etcd-rivers", "rivers"]);
        for role in Role::ALL {
            let words = ["inspect", "--format={{index .Config.Labels \"com.cybozu.cke\"}}", role.name()];
            let found = fleet.machine(machine).docker(&words).await.unwrap();
            let wanted = label(role, &arguments(role, &fleet.address(machine), &control_plane));
            assert_eq!(found.trim_end(), wanted, "{}", role.name());
        }
    }
    assert_eq!(fleet.running(3).await, ["rivers"]);
}

/// Rivers of the other nodes restart; etcd waits until all control plane nodes answer.
async fn unreachable_node_blocks_only_the_operations_that_need_it(fleet: &Fleet) {
    fleet.machine(2).cut().await.unwrap();
    fleet.unreachable(2, "").await;
    let ((), writes) = fleet
        .while_writing(async {
            let options = "{rivers: {extra_env: {MARK: '1'}}, etcd: {extra_args: [--snapshot-count=5000]}}";
            fleet.set_options(&[0, 1, 2], &[3], options).await;
            for machine in [0, 1, 3] {
                let is_new = async || {
                    environment(fleet, machine, "rivers").await.filter(|env| env.contains(MARK)).map(drop)
                };
                eventually("the rivers of a reachable node restart", is_new).await;
            }
            let (targets, _) = fleet.held("etcd-restart", "unreachable").await;
            assert_eq!(targets, [fleet.address(2)]);
        })
        .await;
    fleet.has(&writes).await;
    for machine in 0..3 {
        let arguments = running_arguments(fleet, machine, "etcd").await.unwrap();
        assert!(!arguments.contains("snapshot-count"), "etcd of machine {machine} restarts only later");
    }
    let cut = environment(fleet, 2, "rivers").await.unwrap();
    assert!(!cut.contains(MARK), "nothing reaches the node");
}

/// The change that waited for the node.
async fn members_restart_one_after_another(fleet: &Fleet) {
    fleet.machine(2).heal().await.unwrap();
    let began = Instant::now();
    let ((), writes) = fleet
        .while_writing(async {
            for machine in 0..3 {
                let is_new = async || {
                    let arguments = running_arguments(fleet, machine, "etcd").await?;
                    arguments.contains("--snapshot-count=5000").then_some(())
                };
                eventually("etcd restarts with its new argument", is_new).await;
            }
            fleet.settled(&[0, 1, 2]).await;
        })
        .await;
    measured(
        "a rolling restart of three members, from the end of a cut until no operation is due",
        began.elapsed(),
    );
    measured("the longest time between two acknowledged writes meanwhile", writes.longest_gap);
    fleet.has(&writes).await;
    let restarts = fleet.history().await;
    let restarts = restarts.iter().filter(|record| record["operation"] == "etcd-restart");
    let restarts: Vec<_> = restarts.filter(|record| record["status"] == "completed").collect();
    assert_eq!(restarts.len(), 3, "{restarts:?}");
    assert!(restarts.iter().all(|record| record["targets"].as_array().unwrap().len() == 1));
}

async fn stopped_containers_start_again(fleet: &Fleet) {
    fleet.etcdctl(&["put", "/registry/kept", "value"]).await.unwrap();
    fleet.lab().each(async |machine| machine.sh("docker stop $(docker ps -q)").await.unwrap()).await;
    for machine in 0..4 {
        let all: &[&str] = if machine < 3 { &["etcd", "etcd-rivers", "rivers"] } else { &["rivers"] };
        let runs = async || (fleet.running(machine).await == all).then_some(());
        eventually("the service starts the containers", runs).await;
    }
    fleet.settled(&[0, 1, 2]).await;
    let value = fleet.etcdctl(&["get", "--print-value-only", "/registry/kept"]).await.unwrap();
    assert_eq!(value.trim(), "value");
}

/// etcd reads its files anew for each connection.
async fn renewed_certificates_are_served_without_a_restart(fleet: &Fleet) {
    let machine = fleet.machine(1);
    let script = format!("import ssl; print(ssl.get_server_certificate(('{}', 2379)))", machine.address());
    let served = async || fleet.program("python3", &["-c", &script]).await.unwrap();
    let started =
        async || machine.docker(&["inspect", "--format={{.State.StartedAt}}", "etcd"]).await.unwrap();
    let (first, since) = (served().await, started().await);

    let mut ended = CertificateParams::new(vec![machine.address()]).unwrap();
    (ended.not_before, ended.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let key = KeyPair::generate().unwrap();
    let old = ended.self_signed(&key).unwrap().pem();
    let write = format!(
        "cd /etc/etcd/pki && echo '{}' >server.key && echo '{}' >server.crt",
        key.serialize_pem(),
        old.trim_end()
    );
    machine.sh(&write).await.unwrap();

    let is_renewed = async || {
        let history = fleet.history().await;
        let newest = history.iter().find(|record| record["operation"] == "etcd-renew-certificates")?;
        (newest["status"] == "completed").then(|| newest["targets"].clone())
    };
    let targets = eventually("the certificate is renewed", is_renewed).await;
    assert_eq!(targets, serde_json::json!([machine.address()]));
    let renewed = served().await;
    assert!(renewed != first && renewed.trim() != old.trim(), "a new certificate is served: {renewed}");
    assert_eq!(started().await, since, "etcd did not restart");
    fleet.settled(&[0, 1, 2]).await;
}

#[tokio::test]
async fn one_member_becomes_five_and_then_three() {
    let Some(fleet) = Fleet::start(5).await else { return };
    fleet.set_cluster(&[0], &[1, 2, 3, 4]).await;
    fleet.settled(&[0]).await;
    fleet.etcdctl(&["put", "/registry/kept", "value"]).await.unwrap();
    let ((), writes) = fleet
        .while_writing(async {
            fleet.set_cluster(&[0, 1, 2], &[3, 4]).await;
            fleet.settled(&[0, 1, 2]).await;
            fleet.set_cluster(&[0, 1, 2, 3, 4], &[]).await;
            fleet.settled(&[0, 1, 2, 3, 4]).await;
            // Two of the first members leave.
            fleet.set_cluster(&[2, 3, 4], &[0, 1]).await;
            fleet.settled(&[2, 3, 4]).await;
        })
        .await;
    fleet.has(&writes).await;
    for machine in [0, 1] {
        assert_eq!(fleet.running(machine).await, ["rivers"]);
        let volumes = fleet.machine(machine).docker(&["volume", "ls", "--quiet"]).await.unwrap();
        assert_eq!(volumes, "", "the data of a former member are gone");
    }
    let value = fleet.etcdctl(&["get", "--print-value-only", "/registry/kept"]).await.unwrap();
    assert_eq!(value.trim(), "value");
    fleet.shows_no_key(&[0, 1, 2, 3, 4], Vec::new()).await;
}

#[tokio::test]
#[ignore = "minutes: the waits for a silent etcd take most of the time (make test-long)"]
async fn lost_members_are_replaced_only_while_a_majority_lives() {
    let Some(fleet) = Fleet::start(4).await else { return };
    fleet.set_cluster(&[0, 1, 2], &[3]).await;
    fleet.settled(&[0, 1, 2]).await;
    fleet.etcdctl(&["put", "/registry/kept", "value"]).await.unwrap();
    an_installed_machine_returns_with_the_data(&fleet).await;
    without_a_majority_nothing_is_removed(&fleet).await;
    a_dead_member_is_replaced(&fleet).await;
    let value = fleet.etcdctl(&["get", "--print-value-only", "/registry/kept"]).await.unwrap();
    assert_eq!(value.trim(), "value");
    fleet.shows_no_key(&[0, 1, 3], Vec::new()).await;
}

async fn an_installed_machine_returns_with_the_data(fleet: &Fleet) {
    fleet.machine(2).reimage().await.unwrap();
    // Its host key is another one, and the service has no sign that this is intended.
    let refused = fleet.unreachable(2, "madako ssh forget").await;
    assert_eq!(refused.matches("SHA256:").count(), 2, "both fingerprints: {refused}");
    fleet.madako(&["ssh", "forget", &fleet.address(2)]).await.unwrap();
    let returned = async || (fleet.running(2).await == ["etcd", "etcd-rivers", "rivers"]).then_some(());
    eventually("the machine gets its containers", returned).await;
    fleet.settled(&[0, 1, 2]).await;
}

async fn without_a_majority_nothing_is_removed(fleet: &Fleet) {
    let list = async || fleet.etcdctl(&["member", "list"]).await.unwrap();
    let before = list().await;
    let newest = fleet.history().await.len();
    for machine in [1, 2] {
        fleet.machine(machine).power_off().await.unwrap();
    }
    let (targets, why) = fleet.held("etcd-remove-member", "quorum").await;
    let lost = [fleet.address(1), fleet.address(2)];
    assert_eq!(targets, lost);
    assert!(lost.iter().all(|address| why.contains(address)), "the message names the lost members: {why}");
    let said = fleet.madako(&["ops"]).await.unwrap();
    assert!(said.contains(&why), "`madako ops` shows it: {said}");
    for machine in [1, 2] {
        fleet.machine(machine).power_on().await.unwrap();
    }
    for machine in [1, 2] {
        let runs = async || (fleet.running(machine).await == ["etcd", "etcd-rivers", "rivers"]).then_some(());
        eventually("the service starts the returned members", runs).await;
    }
    fleet.settled(&[0, 1, 2]).await;
    assert_eq!(list().await, before, "the members are the same");
    nothing_was_removed(fleet, newest).await;
}

/// No operation removed a member since this number of records.
async fn nothing_was_removed(fleet: &Fleet, newest: usize) {
    let since = fleet.history().await;
    let since = since.iter().take(since.len() - newest);
    let removals: Vec<_> =
        since.filter(|record| record["operation"].as_str().unwrap().contains("remove")).collect();
    assert!(removals.is_empty(), "{removals:?}");
}

async fn a_dead_member_is_replaced(fleet: &Fleet) {
    fleet.machine(2).power_off().await.unwrap();
    fleet.unreachable(2, "").await;
    let began = Instant::now();
    let ((), writes) = fleet
        .while_writing(async {
            fleet.set_cluster(&[0, 1, 3], &[]).await;
            fleet.settled(&[0, 1, 3]).await;
        })
        .await;
    measured("a dead member replaced, from the stored cluster until no operation is due", began.elapsed());
    fleet.has(&writes).await;
}

/// Nothing can bring them back but a backup; the service must not make it worse.
#[tokio::test]
#[ignore = "minutes: the waits for a silent etcd take most of the time (make test-long)"]
async fn two_members_without_data_are_not_removed() {
    const LOST: [usize; 2] = [1, 2];
    let Some(fleet) = Fleet::start(3).await else { return };
    fleet.set_cluster(&[0, 1, 2], &[]).await;
    fleet.settled(&[0, 1, 2]).await;
    let newest = fleet.history().await.len();
    for machine in LOST {
        fleet.machine(machine).reimage().await.unwrap();
    }
    for machine in LOST {
        fleet.unreachable(machine, "madako ssh forget").await;
    }
    for machine in LOST {
        fleet.madako(&["ssh", "forget", &fleet.address(machine)]).await.unwrap();
    }
    for machine in LOST {
        let runs = async || (fleet.running(machine).await == ["etcd-rivers", "rivers"]).then_some(());
        eventually("the service starts all but etcd", runs).await;
    }
    let (targets, why) = fleet.held("etcd-remove-member", "quorum").await;
    let lost = LOST.map(|machine| fleet.address(machine));
    assert_eq!(targets, lost);
    assert!(lost.iter().all(|address| why.contains(address)), "the message names the lost members: {why}");
    let volumes = fleet.machine(0).docker(&["volume", "ls", "--quiet"]).await.unwrap();
    assert!(volumes.contains("etcd-cke"), "{volumes}");
    nothing_was_removed(&fleet, newest).await;
}
