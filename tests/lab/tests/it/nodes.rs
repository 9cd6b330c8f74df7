//! Tests of faults of single nodes: only these nodes are affected, and `madako ops` shows the reasons.

use tokio::time::Instant;

use crate::fleet::Fleet;
use crate::{eventually, measured};

/// Members of etcd.
const CONTROL_PLANE: [usize; 5] = [0, 1, 2, 3, 4];
const WORKERS: [usize; 4] = [5, 6, 7, 8];

#[tokio::test]
async fn only_the_node_with_a_fault_suffers() {
    let Some(fleet) = Fleet::start(9).await else { return };
    let began = Instant::now();
    fleet.set_cluster(&CONTROL_PLANE, &WORKERS).await;
    fleet.settled(&CONTROL_PLANE).await;
    measured(
        "five members and four workers, from the stored cluster until no operation is due",
        began.elapsed(),
    );
    six_nodes_without_a_state(&fleet).await;
    fleet.shows_no_key(&CONTROL_PLANE, Vec::new()).await;
}

#[tokio::test]
async fn only_the_operation_that_needs_a_full_disk_or_a_taken_name_waits() {
    let Some(fleet) = Fleet::start(6).await else { return };
    fleet.set_cluster(&[0, 1, 2], &[3, 4, 5]).await;
    fleet.settled(&[0, 1, 2]).await;
    nodes_that_answer_with_faults(&fleet).await;
    fleet.shows_no_key(&[0, 1, 3], Vec::new()).await;
}

/// Ends the rivers of a healthy node, and waits until the service has started them again.
async fn the_rest_goes_on(fleet: &Fleet, machine: usize) {
    fleet.machine(machine).docker(&["rm", "--force", "rivers"]).await.unwrap();
    let runs = async || fleet.running(machine).await.contains(&"rivers".to_owned()).then_some(());
    eventually("the rivers of a healthy node run again", runs).await;
}

async fn six_nodes_without_a_state(fleet: &Fleet) {
    let machine = |index| fleet.machine(index);
    machine(3).new_host_key().await.unwrap();
    machine(4).stop_docker().await.unwrap();
    machine(5).change_login().await.unwrap();
    // The connection of the service logged in before.
    machine(5).stop_sshd().await.unwrap();
    machine(5).start_sshd().await.unwrap();
    machine(6).hang_sshd().await.unwrap();
    machine(7).force_command("yes").await.unwrap();
    // Each command loses its server while it runs.
    machine(8)
        .force_command("(sleep 0.05; kill -KILL $PPID) & eval \"$SSH_ORIGINAL_COMMAND\"")
        .await
        .unwrap();

    let host_key = fleet.unreachable(3, "madako ssh forget").await;
    assert_eq!(host_key.matches("SHA256:").count(), 2, "both fingerprints: {host_key}");
    for (index, word) in [(4, "container engine"), (5, "does not accept the key"), (6, ""), (7, ""), (8, "")]
    {
        fleet.unreachable(index, word).await;
    }
    the_rest_goes_on(fleet, 0).await;
    let page = fleet.ops().await.unwrap();
    for healthy in [0, 1, 2] {
        assert_eq!(page["nodes"][fleet.address(healthy)]["reachable"], true, "{page}");
    }
    let table = fleet.madako(&["ops"]).await.unwrap();
    for index in 3..9 {
        assert!(table.contains(&fleet.address(index)), "`madako ops` names each of them: {table}");
    }

    fleet.madako(&["ssh", "forget", &fleet.address(3)]).await.unwrap();
    machine(4).start_docker().await.unwrap();
    machine(5).restore_login().await.unwrap();
    machine(6).resume_sshd().await.unwrap();
    machine(7).free_command().await.unwrap();
    machine(8).free_command().await.unwrap();
    let etcd = async || fleet.running(4).await.contains(&"etcd".to_owned()).then_some(());
    eventually("the member whose engine stopped runs again", etcd).await;
    fleet.settled(&CONTROL_PLANE).await;
}

async fn nodes_that_answer_with_faults(fleet: &Fleet) {
    const TAKEN: usize = 3;
    const UNREAD: usize = 4;
    const FULL: usize = 5;
    // A container of another program has the name of a member's, and another one has a label that is not JSON.
    let sleeper = ["--network=none", "--entrypoint=/rivers", madako_lab::TOOLS_IMAGE, "--listen=127.0.0.1:1"];
    let upstreams = "--upstreams=127.0.0.1:2";
    let words =
        [&["run", "-d", "--log-driver=json-file", "--name=etcd"][..], &sleeper, &[upstreams]].concat();
    let foreign = fleet.machine(TAKEN).docker(&words).await.unwrap();
    // Nothing that the service sends comes between.
    fleet.machine(UNREAD).hang_sshd().await.unwrap();
    fleet.machine(UNREAD).docker(&["rm", "--force", "rivers"]).await.unwrap();
    let label = "--label=com.cybozu.cke=not JSON";
    let words =
        [&["run", "-d", "--log-driver=json-file", "--name=rivers", label][..], &sleeper, &[upstreams]]
            .concat();
    let unread = fleet.machine(UNREAD).docker(&words).await.unwrap();
    fleet.machine(UNREAD).resume_sshd().await.unwrap();
    // A removed container would leave free bytes for the next one.
    fleet.machine(FULL).hang_sshd().await.unwrap();
    fleet.machine(FULL).docker(&["rm", "--force", "rivers"]).await.unwrap();
    fleet.machine(FULL).fill_disk().await.unwrap();
    fleet.machine(FULL).resume_sshd().await.unwrap();
    fleet.set_cluster(&[0, 1, TAKEN], &[2, UNREAD, FULL]).await;

    let full = async || {
        let page = fleet.ops().await?;
        page["backing_off"][fleet.address(FULL)].as_u64()
    };
    eventually("the node whose disk is full is left out", full).await;
    let records = fleet.history().await;
    let errors: Vec<&str> = records.iter().filter_map(|record| record["error"].as_str()).collect();
    let is_full = |error: &&str| error.contains("no space left") && error.contains(&fleet.address(FULL));
    assert!(errors.iter().any(is_full), "{errors:?}");
    let (targets, why) = fleet.held("etcd-add-member", "foreign-container").await;
    assert_eq!(targets, [fleet.address(TAKEN)]);
    assert!(why.contains("etcd"), "{why}");
    the_rest_goes_on(fleet, 1).await;

    for (machine, name, id) in [(TAKEN, "etcd", &foreign), (UNREAD, "rivers", &unread)] {
        let found = fleet.machine(machine).docker(&["inspect", "--format={{.Id}}", name]).await.unwrap();
        assert_eq!(found.trim(), id.trim(), "the service does not touch the container");
        fleet.machine(machine).docker(&["rm", "--force", name]).await.unwrap();
    }
    fleet.machine(FULL).free_disk().await.unwrap();
    for machine in [UNREAD, FULL] {
        let runs = async || fleet.running(machine).await.contains(&"rivers".to_owned()).then_some(());
        eventually("the rivers run after the fault", runs).await;
    }
    fleet.settled(&[0, 1, TAKEN]).await;
}
