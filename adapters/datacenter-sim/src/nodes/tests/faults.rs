use tokio::time::timeout;

use super::*;
use crate::nodes::{NodeFault, NodePlace};

fn place(address: &str) -> NodePlace {
    NodePlace::Address(address.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_dead_node_loses_its_containers_and_keeps_its_disk() {
    let fleet = Fleet::bootstrapped(3).await;
    let address = fleet.all[0].as_str();
    let connection = fleet.connect(address).await.unwrap();
    fleet.nodes.begin(&place(address), NodeFault::Kill);
    fleet.nodes.begin(&NodePlace::Rack(0), NodeFault::Kill);
    let status = connection.status(VOLUME).await;
    assert!(matches!(status, Err(NodeError::Deadline { .. })), "{status:?}");
    connection.closed().await;
    assert!(matches!(fleet.connect(address).await, Err(NodeError::Unreachable { .. })));
    fleet.nodes.end(&place(address), NodeFault::Kill);
    sleep(Duration::from_secs(120)).await;
    assert!(!fleet.nodes.view_node(address).unwrap().is_on, "its rack has no power");
    fleet.nodes.end(&NodePlace::Rack(0), NodeFault::Kill);
    assert!(fleet.connect(address).await.is_err(), "it starts");
    sleep(Duration::from_secs(120)).await;
    let status = fleet.status(address).await;
    assert!(!status.containers["etcd"].running && status.has_data());
    assert!(matches!(connection.status(VOLUME).await, Err(NodeError::Unreachable { .. })));
}

#[tokio::test(start_paused = true)]
async fn silence_breaks_connections_after_a_time_and_a_reset_immediately() {
    let fleet = Fleet::new(2);
    let (one, two) = (fleet.all[0].as_str(), fleet.all[1].as_str());
    let began = Instant::now();
    let connection = fleet.connect(one).await.unwrap();
    let other = fleet.connect(two).await.unwrap();
    fleet.nodes.begin(&place(one), NodeFault::Cut);
    assert!(timeout(Duration::from_secs(10), connection.closed()).await.is_err());
    fleet.nodes.end(&place(one), NodeFault::Cut);
    assert!(connection.status(VOLUME).await.is_ok(), "a short silence breaks nothing");
    fleet.nodes.begin(&place(one), NodeFault::Pause);
    connection.closed().await;
    assert!(began.elapsed() > Duration::from_secs(25));
    fleet.nodes.end(&place(one), NodeFault::Pause);
    assert!(matches!(connection.status(VOLUME).await, Err(NodeError::Unreachable { .. })));
    assert!(other.status(VOLUME).await.is_ok(), "only one suffers");
    fleet.nodes.reset(&NodePlace::Rack(0));
    timeout(Duration::ZERO, other.closed()).await.unwrap();
    assert!(fleet.connect(two).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_fault_with_two_causes_ends_with_the_last() {
    let fleet = Fleet::new(1);
    let address = fleet.all[0].as_str();
    fleet.nodes.begin(&place(address), NodeFault::Cut);
    fleet.nodes.begin(&place(address), NodeFault::Cut);
    for is_reached in [false, true, true] {
        fleet.nodes.end(&place(address), NodeFault::Cut);
        assert_eq!(fleet.connect(address).await.is_ok(), is_reached);
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_node_answers_after_the_pause() {
    let fleet = Fleet::new(1);
    let address = fleet.all[0].as_str();
    let connection = fleet.connect(address).await.unwrap();
    fleet.nodes.begin(&place(address), NodeFault::Pause);
    let resume = async {
        sleep(Duration::from_secs(5)).await;
        fleet.nodes.end(&place(address), NodeFault::Pause);
    };
    let (status, ()) = tokio::join!(connection.status(VOLUME), resume);
    assert!(status.unwrap().reachable);
}

#[tokio::test(start_paused = true)]
async fn a_slow_network_delays_answers() {
    let fleet = Fleet::new(1);
    let address = fleet.all[0].as_str();
    let connection = fleet.connect(address).await.unwrap();
    let mut took = Vec::new();
    for slow in [false, true] {
        if slow {
            fleet.nodes.begin(&place(address), NodeFault::Delay);
        }
        let began = Instant::now();
        for _ in 0..5 {
            connection.status(VOLUME).await.unwrap();
        }
        took.push(began.elapsed());
    }
    assert!(took[1] > took[0] + Duration::from_millis(500), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_and_a_dead_engine_fail_actions_and_end_etcd() {
    let fleet = Fleet::bootstrapped(3).await;
    let (one, two) = (fleet.all[0].as_str(), fleet.all[1].as_str());
    fleet.nodes.begin(&place(one), NodeFault::DiskFull);
    assert!(!fleet.runs(one) && fleet.status(one).await.reachable);
    for action in [
        files(),
        NodeAction::PullImage { image: "new:1".to_owned() },
        NodeAction::CreateVolume { name: "new".to_owned() },
        NodeAction::RunContainer { spec: etcd(one, &Initial::None), restart: false },
    ] {
        let failed = fleet.act(one, &action).await;
        assert!(matches!(failed, Err(NodeError::Failed { .. })), "{action}: {failed:?}");
    }
    fleet.nodes.end(&place(one), NodeFault::DiskFull);
    fleet.start(one, &Initial::None).await.unwrap();
    sleep(A_WHILE).await;
    assert!(fleet.runs(one));
    fleet.nodes.begin(&place(two), NodeFault::EngineDown);
    let connection = fleet.connect(two).await.unwrap();
    assert!(matches!(connection.status(VOLUME).await, Err(NodeError::Engine { .. })));
    let refused = connection.act(&permit(), &files()).await;
    assert!(matches!(refused, Err(NodeError::Engine { .. })));
    fleet.nodes.end(&place(two), NodeFault::EngineDown);
    assert!(!fleet.status(two).await.containers["etcd"].running);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_engine_answers_nothing_while_its_containers_run_on() {
    let fleet = Fleet::bootstrapped(3).await;
    let address = fleet.all[0].as_str();
    let connection = fleet.connect(address).await.unwrap();
    fleet.nodes.begin(&place(address), NodeFault::EngineHangs);
    let status = connection.status(VOLUME).await;
    assert!(matches!(status, Err(NodeError::Deadline { .. })), "{status:?}");
    assert!(fleet.runs(address));
    fleet.nodes.end(&place(address), NodeFault::EngineHangs);
    assert!(connection.status(VOLUME).await.unwrap().containers["etcd"].running);
}

#[tokio::test(start_paused = true)]
async fn reinstalled_machine_has_another_key_and_no_data() {
    let fleet = Fleet::bootstrapped(1).await;
    let address = fleet.all[0].as_str();
    let connection = fleet.connect(address).await.unwrap();
    let pinned = Some(connection.host_key().clone());
    let target = NodeTarget { address: address.to_owned(), user: "u".to_owned(), pinned };
    assert!(fleet.nodes.driver_port().connect(&target).await.is_ok());
    fleet.nodes.reinstall_node(address);
    timeout(Duration::ZERO, connection.closed()).await.unwrap();
    let refused = fleet.nodes.driver_port().connect(&target).await.map(drop);
    assert!(matches!(refused, Err(NodeError::HostKey { .. })), "{refused:?}");
    let status = fleet.status(address).await;
    assert!(!status.etcd_data && status.containers.is_empty());
    assert!(fleet.nodes.view_node(address).unwrap().files.is_empty());
}
