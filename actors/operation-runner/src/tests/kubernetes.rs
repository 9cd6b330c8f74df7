//! Tests of the order of the rows of Kubernetes and of etcd in CKE's table of operations.

use madako_domain::component::Component;
use madako_domain::containers::Container;
use madako_domain::encryption_rotation::EncryptionRotation;
use madako_domain::node_status::{ContainerStatus, KubernetesAnswers};
use madako_domain::objects::{NodeObject, ObjectAnswers};
use madako_json::go::RawJson;

use super::fleet::{A, B, C, Fleet, X, Y, Z, check};
use crate::KubernetesMode;
use crate::kubernetes::operation::KubernetesOperationName;
use crate::kubernetes::options::KubernetesOptions;
use crate::kubernetes::params::builtin_parameters;
use crate::kubernetes::row;
use crate::operation::OperationName;

/// A fleet on which all components run and are healthy.
pub(super) fn running() -> Fleet {
    let mut fleet = Fleet::running();
    fleet.settings.kubernetes = KubernetesMode::Act;
    fleet.kubernetes = Some(KubernetesOptions::read(&RawJson::default()).unwrap());
    let registered = [A, B, C, X, Y, Z].map(str::to_owned).into();
    fleet.status.kubernetes =
        Some(KubernetesAnswers { registered: Some(registered), ..KubernetesAnswers::default() });
    for address in [A, B, C, X, Y, Z] {
        for component in Component::ALL {
            if !component.is_of_control_plane() || [A, B, C].contains(&address) {
                run(&mut fleet, address, component);
            }
        }
    }
    fleet
}

/// Runs a component that is as wanted and healthy.
fn run(fleet: &mut Fleet, address: &str, component: Component) {
    let node = fleet.cluster.nodes.iter().find(|node| node.address == address).unwrap();
    let container = ContainerStatus {
        running: true,
        image: fleet.settings.images.kubernetes.clone(),
        builtin: builtin_parameters(component, &fleet.cluster, fleet.kubernetes.as_ref().unwrap(), node),
        ..ContainerStatus::default()
    };
    fleet.node(address).containers.insert(component.name().to_owned(), container);
    answer(fleet, address, component, Ok(()));
}

fn answer(fleet: &mut Fleet, address: &str, component: Component, health: Result<(), String>) {
    let answers = fleet.status.kubernetes.as_mut().unwrap();
    answers.health.entry(address.to_owned()).or_default().insert(component, health);
}

#[test]
fn components_are_started_after_etcd_and_only_in_mode_act() {
    check(running(), |_| {}, "completed");
    let stop = |fleet: &mut Fleet| drop(fleet.node(X).containers.remove("kube-proxy"));
    check(running(), stop, "k8s-start; kube-proxy-bootstrap(.21)");
    check(
        running(),
        |fleet| {
            stop(fleet);
            fleet.settings.kubernetes = KubernetesMode::Observe;
        },
        "completed; held kube-proxy-bootstrap observed(.21)",
    );
}

#[test]
fn the_versions_include_those_of_components_on_unreachable_nodes() {
    let mut fleet = running();
    let image = fleet.settings.images.kubernetes.clone();
    fleet.node(C).reachable = false;
    fleet.status.nodes.remove(X);
    let answers = fleet.status.kubernetes.as_mut().unwrap();
    answers.image_versions.insert(image, "1.34.5".parse().unwrap());
    answers.server_versions =
        [(A, "1.34"), (C, "1.33")].map(|(it, text)| (it.to_owned(), text.to_owned())).into();
    let object = |name: &str| NodeObject {
        name: name.to_owned(),
        kubelet_version: Some("1.31.2".parse().unwrap()),
        ..NodeObject::default()
    };
    let nodes = Some([A, X].map(object).into());
    answers.objects = Some(ObjectAnswers { nodes, ..ObjectAnswers::default() });
    let versions = row::status(&fleet.input()).versions;
    let on = |component, address| versions.version_on(component, address).map(ToString::to_string);
    for (component, address, version) in [
        (Component::ApiServer, A, Some("1.34.5")),
        (Component::ApiServer, C, Some("1.33")),
        (Component::Kubelet, A, Some("1.34.5")),
        (Component::Kubelet, C, None),
        (Component::Kubelet, X, Some("1.31.2")),
        (Component::Proxy, X, None),
    ] {
        assert_eq!(on(component, address).as_deref(), version, "{component} on {address}");
    }
}

#[test]
fn the_endpoints_of_an_api_server_are_withdrawn_before_it_stops() {
    let commands = |change: &dyn Fn(&mut Fleet)| -> Vec<String> {
        let mut fleet = running();
        fleet.settings.images.kubernetes = "k:2".to_owned();
        change(&mut fleet);
        let decision = fleet.decide();
        let restart = decision.operations.first().unwrap();
        assert_eq!(restart.name, OperationName::Kubernetes(KubernetesOperationName::KubeApiserverRestart));
        let commands =
            restart.commands.iter().map(|command| format!("{} {}", command.name(), command.target()));
        commands.skip_while(|command| !command.starts_with("make-files")).skip(1).collect()
    };
    let stop = ["stop-container kube-apiserver", "run-container kube-apiserver"];
    let withdrawn = |rest: &str| {
        let [endpoints, slice] = [
            format!("updateEndpointsCommand {rest}"),
            "updateEndpointSliceCommand 10.0.0.11,10.0.0.12,10.0.0.13".to_owned(),
        ];
        [endpoints, slice, "wait-for-proxies ".to_owned()]
            .into_iter()
            .chain(stop.map(str::to_owned))
            .collect::<Vec<_>>()
    };
    assert_eq!(commands(&|_| {}), withdrawn("10.0.0.12,10.0.0.13"));
    assert_eq!(commands(&|fleet| answer(fleet, A, Component::ApiServer, Err("silence".to_owned()))), stop);
}

#[test]
fn components_of_a_former_control_plane_node_stop_while_all_api_servers_are_healthy() {
    let former = |fleet: &mut Fleet| {
        for component in Component::ALL {
            run(fleet, X, component);
        }
    };
    let stops = "stop-kube-controller-manager(.21); stop-kube-scheduler(.21)";
    check(running(), former, &format!("stop-control-plane; stop-kube-apiserver(.21); {stops}"));
    check(
        running(),
        |fleet| {
            former(fleet);
            answer(fleet, B, Component::ApiServer, Err("silence".to_owned()));
        },
        &format!("stop-control-plane; {stops}; held stop-kube-apiserver api-servers-unhealthy(.21)"),
    );
    check(
        running(),
        |fleet| {
            former(fleet);
            fleet.settings.kubernetes = KubernetesMode::Observe;
        },
        "completed; held stop-kube-apiserver observed(.21); held stop-kube-controller-manager observed(.21); held \
         stop-kube-scheduler observed(.21)",
    );
}

#[test]
fn api_servers_of_former_control_plane_nodes_stop_one_at_a_time() {
    let mut fleet = running();
    for node in [X, Y] {
        run(&mut fleet, node, Component::ApiServer);
    }
    let first = "stop-control-plane; stop-kube-apiserver(.21); held stop-kube-apiserver one-by-one(.22)";
    assert_eq!(fleet.short(), first);
    fleet.backing_off.insert("stop-kube-apiserver of 10.0.0.21".to_owned());
    let second = "stop-control-plane; stop-kube-apiserver(.22); held stop-kube-apiserver one-by-one(.21)";
    assert_eq!(fleet.short(), second);
    fleet.node(X).containers.remove("kube-apiserver");
    assert_eq!(fleet.short(), "stop-control-plane; stop-kube-apiserver(.22)");
}

#[test]
fn rivers_of_etcd_stay_beside_an_api_server() {
    let mut fleet = running();
    run(&mut fleet, X, Component::ApiServer);
    fleet.container(X, Container::EtcdRivers).running = true;
    assert_eq!(fleet.short(), "stop-control-plane; stop-kube-apiserver(.21)");
    answer(&mut fleet, B, Component::ApiServer, Err("silence".to_owned()));
    assert_eq!(fleet.short(), "completed; held stop-kube-apiserver api-servers-unhealthy(.21)");
    fleet.node(X).containers.remove("kube-apiserver");
    assert_eq!(fleet.short(), "stop-control-plane; stop-etcd-rivers(.21)");
}

#[test]
fn the_encryption_keys_change_after_all_other_operations_and_only_in_mode_act() {
    let nodes = "(.11 .12 .13)";
    let requested = |fleet: &mut Fleet| fleet.rotation = Ok(Some(EncryptionRotation::new("k")));
    check(running(), requested, &format!("k8s-maintain; kubernetes-rotate-encryption-key{nodes}"));
    let held = |reason: &str| format!("completed; held kubernetes-rotate-encryption-key {reason}{nodes}");
    check(
        running(),
        |fleet| {
            requested(fleet);
            fleet.settings.kubernetes = KubernetesMode::Observe;
        },
        &held("observed"),
    );
    check(
        running(),
        |fleet| {
            requested(fleet);
            answer(fleet, B, Component::ApiServer, Err("silence".to_owned()));
        },
        &held("earlier-encryption-keys"),
    );
    check(running(), |fleet| fleet.rotation = Err("x".to_owned()), &held("rotation-unreadable"));
    let added = EncryptionRotation::new("k").advance().and_then(|it| it.with_started(&[A.to_owned()]));
    check(
        running(),
        |fleet| fleet.rotation = Ok(added),
        "k8s-start; kube-apiserver-restart(.12); held kube-apiserver-restart one-by-one(.13)",
    );
}

#[test]
fn an_operation_is_known_by_its_name_in_records() {
    use KubernetesOperationName::{KubeApiserverRestart, KubeletBootstrap, StopKubeProxy};
    let kubernetes_certificate_request =
        [KubeApiserverRestart, KubeletBootstrap, StopKubeProxy].map(OperationName::Kubernetes);
    let others =
        [OperationName::Upgrade, OperationName::EtcdStart, OperationName::KubernetesRotateEncryptionKey];
    for name in others.into_iter().chain(kubernetes_certificate_request) {
        assert_eq!(OperationName::from_record_name(name.name()), Some(name));
    }
    for other in ["kubernetes", "repair-execute", ""] {
        assert_eq!(OperationName::from_record_name(other), None, "{other:?}");
    }
}
