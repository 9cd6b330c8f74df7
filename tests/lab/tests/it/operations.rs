//! Operations on real machines: rivers and etcd from nothing, and changes of their members.

use crate::eventually;
use crate::fleet::Fleet;

#[tokio::test]
async fn three_members_are_bootstrapped_and_serve_their_users() {
    let Some(fleet) = Fleet::start(3).await else { return };
    fleet.set_cluster(&[0, 1, 2], &[]).await;
    fleet.settled(&[0, 1, 2]).await;
    // The API server's user has its own keys and no others.
    let put = fleet.etcdctl_as("kube-apiserver", &["put", "/registry/a", "b"]).await;
    assert_eq!(put.unwrap().trim(), "OK", "{}", fleet.log());
    let denied = fleet.etcdctl_as("kube-apiserver", &["put", "/other/a", "b"]).await.unwrap_err();
    assert!(denied.contains("permission denied"), "{denied}");
    let stranger = fleet.etcdctl_as("stranger", &["get", "/registry/a"]).await.unwrap_err();
    assert!(!stranger.is_empty());
    // The proxies reach the members.
    for machine in fleet.lab.machines() {
        let names = machine.docker(&["ps", "--format", "{{.Names}}"]).await.unwrap();
        let mut names: Vec<&str> = names.lines().collect();
        names.sort_unstable();
        assert_eq!(names, ["etcd", "etcd-rivers", "rivers"]);
    }
    let history = fleet.madako(&["history"]).await.unwrap();
    assert!(history.contains("etcd-bootstrap"), "{history}");
    assert!(!history.contains("PRIVATE KEY") && !fleet.log().contains("PRIVATE KEY"));
}

#[tokio::test]
async fn a_member_whose_machine_is_installed_anew_returns_with_the_data() {
    let Some(fleet) = Fleet::start(3).await else { return };
    fleet.set_cluster(&[0, 1, 2], &[]).await;
    fleet.settled(&[0, 1, 2]).await;
    fleet.etcdctl(&["put", "/registry/kept", "value"]).await.unwrap();
    let machine = fleet.lab.machine(2);
    machine.reimage().await.unwrap();
    // Its host key is another one, and nothing tells the service that this is intended.
    let refused = eventually("the new host key is refused", async || {
        let page = fleet.ops().await?;
        let error = page["nodes"][machine.address()]["error"].as_str()?.to_owned();
        error.contains("madako ssh forget").then_some(error)
    });
    assert!(refused.await.contains("SHA256:"));
    fleet.madako(&["ssh", "forget", &machine.address()]).await.unwrap();
    fleet.settled(&[0, 1, 2]).await;
    let value = fleet.etcdctl(&["get", "--print-value-only", "/registry/kept"]).await.unwrap();
    assert_eq!(value.trim(), "value");
}

#[tokio::test]
async fn a_killed_leader_leaves_a_bootstrap_that_the_next_one_finishes() {
    let Some(mut fleet) = Fleet::start(3).await else { return };
    fleet.set_cluster(&[0, 1, 2], &[]).await;
    let bootstraps = async || {
        let page = fleet.ops().await?;
        (page["running"]["operation"] == "etcd-bootstrap").then_some(())
    };
    eventually("the bootstrap runs", bootstraps).await;
    fleet.kill().await;
    fleet.serve().await;
    fleet.settled(&[0, 1, 2]).await;
    let history = fleet.madako(&["history"]).await.unwrap();
    assert!(history.contains("cancelled"), "{history}");
}

#[tokio::test]
async fn the_control_plane_grows_and_shrinks() {
    let Some(fleet) = Fleet::start(4).await else { return };
    fleet.set_cluster(&[0], &[1, 2, 3]).await;
    fleet.settled(&[0]).await;
    fleet.etcdctl(&["put", "/registry/kept", "value"]).await.unwrap();
    fleet.set_cluster(&[0, 1, 2], &[3]).await;
    fleet.settled(&[0, 1, 2]).await;
    // A machine takes the place of another one.
    fleet.set_cluster(&[0, 1, 3], &[2]).await;
    fleet.settled(&[0, 1, 3]).await;
    let value = fleet.etcdctl(&["get", "--print-value-only", "/registry/kept"]).await.unwrap();
    assert_eq!(value.trim(), "value");
}
