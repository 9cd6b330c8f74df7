use madako_protocol::permit::PermitEnded;
use tokio::time::timeout;

use super::*;
use crate::nodes::{Content, NodeFact, NodeFault, NodePlace};

fn rivers() -> ContainerSpec {
    let (builtin, extra) = (ServiceParams::default(), ServiceParams::default());
    ContainerSpec {
        container: Container::Rivers.into(),
        image: TOOLS.to_owned(),
        engine_options: &[],
        volumes: vec![("v".to_owned(), "/v".to_owned())],
        builtin,
        extra,
    }
}

fn version_of(image: &str, pull: bool) -> NodeAction {
    NodeAction::ImageVersion { image: image.to_owned(), program: None, pull }
}

#[tokio::test(start_paused = true)]
async fn each_action_twice_has_the_effect_of_once() {
    let fleet = Fleet::new(1);
    let address = fleet.all[0].as_str();
    let name = VOLUME.to_owned();
    for action in [
        NodeAction::PullImage { image: IMAGE.to_owned() },
        NodeAction::CreateVolume { name: name.clone() },
        files(),
        NodeAction::RunContainer { spec: rivers(), restart: false },
        NodeAction::RunContainer { spec: rivers(), restart: true },
        NodeAction::StopContainer(Container::Rivers.into()),
        NodeAction::KillContainer(Container::Rivers.into()),
        NodeAction::RemoveVolume { name },
        version_of(IMAGE, true),
    ] {
        let before = fleet.nodes.view_node(address);
        let first = fleet.act(address, &action).await.unwrap();
        let once = fleet.nodes.view_node(address);
        assert_eq!(fleet.act(address, &action).await.unwrap(), first, "{action}");
        assert_eq!(fleet.nodes.view_node(address), once, "{action}");
        let changes = !matches!(
            action,
            NodeAction::ImageVersion { .. }
                | NodeAction::KillContainer(_)
                | NodeAction::RunContainer { restart: true, .. }
        );
        assert_eq!(before != once, changes, "{action}");
    }
    for pull in [true, false] {
        let version = fleet.act(address, &version_of(IMAGE, pull)).await;
        assert_eq!(version.unwrap().trim(), "etcd Version: 3.5.15");
    }
    let (image, program) = ("kubernetes:1.30.5.1".to_owned(), Some(Component::ApiServer));
    let of_kubernetes = NodeAction::ImageVersion { image, program, pull: true };
    assert_eq!(fleet.act(address, &of_kubernetes).await.unwrap(), "Kubernetes v1.30\n");
    let missing = fleet.act(address, &version_of("etcd:9", false)).await;
    assert!(missing.unwrap_err().to_string().contains("No such image"), "it is not pulled");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_does_not_run_does_not_restart() {
    let fleet = Fleet::new(1);
    let address = fleet.all[0].as_str();
    let run = |restart| {
        let spec = ContainerSpec { container: Component::Kubelet.into(), ..rivers() };
        NodeAction::RunContainer { spec, restart }
    };
    let refused = fleet.act(address, &run(true)).await.unwrap_err().to_string();
    assert!(refused.contains("the kubelet does not run"), "{refused}");
    fleet.act(address, &run(false)).await.unwrap();
    fleet.act(address, &run(true)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_running_container_stays_unless_it_is_restarted() {
    let fleet = Fleet::new(1);
    let address = fleet.all[0].as_str();
    let run = |image: &str, restart| {
        let spec = ContainerSpec { image: image.to_owned(), ..rivers() };
        NodeAction::RunContainer { spec, restart }
    };
    fleet.act(address, &run("a:1", false)).await.unwrap();
    fleet.act(address, &run("a:2", false)).await.unwrap();
    assert_eq!(fleet.status(address).await.containers["rivers"].image, "a:1");
    fleet.act(address, &run("a:3", true)).await.unwrap();
    assert_eq!(fleet.status(address).await.containers["rivers"].image, "a:3");
    fleet.nodes.end_container(address, Container::Rivers);
    assert!(!fleet.status(address).await.containers["rivers"].running);
    fleet.act(address, &run("a:4", false)).await.unwrap();
    let status = fleet.status(address).await.containers["rivers"].clone();
    assert!(status.running && status.image == "a:4" && !status.foreign);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_container_and_a_used_volume_refuse_actions() {
    let fleet = Fleet::new(1);
    let address = fleet.all[0].as_str();
    fleet.act(address, &NodeAction::RunContainer { spec: rivers(), restart: false }).await.unwrap();
    let remove = NodeAction::RemoveVolume { name: "v".to_owned() };
    assert!(matches!(fleet.act(address, &remove).await, Err(NodeError::Failed { .. })));
    fleet.nodes.run_foreign(address, Container::Rivers);
    for action in [
        NodeAction::RunContainer { spec: rivers(), restart: true },
        NodeAction::StopContainer(Container::Rivers.into()),
        NodeAction::KillContainer(Container::Rivers.into()),
    ] {
        let refused = fleet.act(address, &action).await;
        assert!(matches!(refused, Err(NodeError::Failed { code: 80, .. })), "{action}");
    }
    assert!(fleet.status(address).await.is_foreign(Container::Rivers));
}

#[tokio::test(start_paused = true)]
async fn status_distinguishes_an_empty_volume_from_data_and_from_another_volume() {
    let fleet = Fleet::bootstrapped(1).await;
    let address = fleet.all[0].as_str();
    let connection = fleet.connect(address).await.unwrap();
    let status = connection.status(VOLUME).await.unwrap();
    assert!(status.reachable && status.etcd_data && status.etcd_empty == Some(false));
    assert!(!status.etcd_other_volume && !status.etcd_mark);
    fleet.act(address, &NodeAction::CreateVolume { name: "other".to_owned() }).await.unwrap();
    let status = connection.status("other").await.unwrap();
    assert!(status.etcd_data && status.etcd_empty == Some(true) && status.etcd_other_volume);
    let status = connection.status("none").await.unwrap();
    assert!(!status.etcd_data && status.etcd_empty.is_none());
    let volumes = fleet.nodes.view_node(address).unwrap().volumes;
    assert!(matches!(volumes[VOLUME], Content::Member(_)) && volumes["other"] == Content::Empty);
}

#[tokio::test(start_paused = true)]
async fn status_has_the_certificates_of_kubernetes_but_no_key() {
    let fleet = Fleet::new(1);
    let address = fleet.all[0].as_str();
    let public = |path: &str| {
        let content = FileContent::Public("a certificate".to_owned());
        NodeFile { path: format!("/etc/kubernetes/{path}"), content }
    };
    let private = |path: &str, text: &str| NodeFile {
        path: format!("/etc/kubernetes/{path}"),
        content: FileContent::Private(Secret::new(text)),
    };
    // "a certificate"
    let kubeconfig = "client-certificate-data: YSBjZXJ0aWZpY2F0ZQ==\nclient-key-data: a2V5\n";
    let files = vec![
        public("pki/kubelet.crt"),
        private("pki/kubelet.key", "key"),
        // Without its key.
        public("pki/apiserver.crt"),
        private("proxy/kubeconfig", kubeconfig),
        private("scheduler/kubeconfig", "no kubeconfig"),
    ];
    let directory = "/etc/kubernetes".to_owned();
    fleet.act(address, &NodeAction::WriteFiles { tools: TOOLS.to_owned(), directory, files }).await.unwrap();
    let found = fleet.status(address).await.kubernetes_certificates;
    let texts: Vec<(&str, &str)> =
        found.iter().map(|(path, found)| (path.as_str(), found.text.as_str())).collect();
    let expected = ["/etc/kubernetes/pki/kubelet.crt", "/etc/kubernetes/proxy/kubeconfig"];
    assert_eq!(texts, expected.map(|path| (path, "a certificate")));
}

/// The last fact of an effect.
fn last(fleet: &Fleet) -> NodeFact {
    fleet.nodes.facts_since(0).pop().unwrap()
}

#[tokio::test(start_paused = true)]
async fn sent_action_happens_after_its_caller_has_left() {
    let fleet = Fleet::new(1);
    let address = fleet.all[0].as_str();
    let connection = fleet.connect(address).await.unwrap();
    let create = NodeAction::CreateVolume { name: "v".to_owned() };
    let sent = permit();
    let dropped = timeout(Duration::from_millis(1), connection.act(&sent, &create)).await;
    assert!(dropped.is_err());
    drop(connection);
    assert!(fleet.nodes.view_node(address).unwrap().volumes.is_empty());
    sleep(A_WHILE).await;
    assert!(fleet.nodes.view_node(address).unwrap().volumes.contains_key("v"));
    let facts = fleet.nodes.facts_since(0);
    let [begin, end] = facts.as_slice() else { panic!("{facts:?}") };
    assert!(matches!(&begin.what, Observed::Began(effect) if effect.epoch == 5 && effect.address == address));
    assert!(matches!(&end.what, Observed::Applied { failed: None, .. }));
    assert!(end.at > begin.at && end.at < begin.at + Duration::from_secs(1), "at its time: {end:?}");
}

#[tokio::test(start_paused = true)]
async fn an_action_ends_with_its_permit_and_a_pull_does_not() {
    let fleet = Fleet::new(1);
    let address = fleet.all[0].as_str();
    let connection = fleet.connect(address).await.unwrap();
    let short = || Permit::give(6, Instant::now() + Duration::from_millis(70));
    let create = NodeAction::CreateVolume { name: "v".to_owned() };
    let until = short();
    let ended = connection.act(&until, &create).await;
    assert!(matches!(ended, Err(NodeError::Deadline { .. })), "{ended:?}");
    sleep(A_WHILE).await;
    assert!(fleet.nodes.view_node(address).unwrap().volumes.is_empty());
    assert!(matches!(last(&fleet).what, Observed::Dropped { .. }));
    // The permit counts at the beginning.
    let refused = connection.act(&until, &create).await;
    assert_eq!(refused, Err(NodeError::Permit(PermitEnded { epoch: 6 })));
    let pulled = connection.act(&short(), &NodeAction::PullImage { image: IMAGE.to_owned() }).await;
    assert_eq!(pulled, Ok(String::new()));
    assert!(fleet.nodes.view_node(address).unwrap().images.contains(IMAGE));
}

#[tokio::test(start_paused = true)]
async fn an_effect_held_by_the_network_happens_late() {
    let fleet = Fleet::new(1);
    let address = fleet.all[0].as_str();
    let place = NodePlace::Address(address.to_owned());
    let connection = fleet.connect(address).await.unwrap();
    let create = NodeAction::CreateVolume { name: "v".to_owned() };
    let (nodes, sent) = (fleet.nodes.clone(), permit());
    let cut = async {
        sleep(Duration::from_millis(1)).await;
        nodes.begin(&place, NodeFault::Cut);
        sleep(A_WHILE).await;
        assert!(nodes.view_node(address).unwrap().volumes.is_empty());
        nodes.end(&place, NodeFault::Cut);
        sleep(A_WHILE).await;
    };
    let (acted, ()) = tokio::join!(connection.act(&sent, &create), cut);
    assert!(matches!(acted, Err(NodeError::Unreachable { .. })), "{acted:?}");
    assert!(fleet.nodes.view_node(address).unwrap().volumes.contains_key("v"));
    assert!(matches!(last(&fleet).what, Observed::Applied { failed: None, .. }));
}
