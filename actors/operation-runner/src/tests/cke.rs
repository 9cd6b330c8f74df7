//! The wanted state of Kubernetes against answers of CKE itself: arguments, mounts, files, certificates, commands, and
//! which containers are outdated. `cke.jsonl` has answers for random clusters, one a line.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::cluster::{Cluster, Node};
use madako_domain::containers::ServiceParams;
use madako_domain::images::ImageName;
use madako_domain::node_status::ContainerStatus;
use madako_json::go::RawJson;
use madako_json::strict::yaml;
use madako_protocol::authorities::{CertificateRequest, Usage};
use madako_protocol::secret::Secret;
use serde::Deserialize;
use serde_json::Value;

use crate::kubernetes::certificates::{CertificateSubject, certificate_request};
use crate::kubernetes::configuration::{Configuration, Unknown};
use crate::kubernetes::encryption;
use crate::kubernetes::files::{FileContext, FileSet, Source, planned_files};
use crate::kubernetes::kubeconfig::{Credentials, LOCAL_SERVER, kubeconfig_with_inline_credentials};
use crate::kubernetes::operation::{KubernetesOperationName as Name, commands};
use crate::kubernetes::options::KubernetesOptions;
use crate::kubernetes::outdated::{ComponentComparison, FileOnNode, Wanted};
use crate::kubernetes::params::builtin_parameters;
use madako_domain::component::Component;

const ANSWERS: &str = include_str!("cke.jsonl");
/// CKE's data encryption keys in the answers.
const KEYS: &str = r#"{"keys":[{"name":"2024-01-01T00:00:00Z","secret":"a2V5"},{"name":"2023-01-01T00:00:00Z","secret":"b2xk"}]}"#;

#[derive(Deserialize)]
struct Answer {
    cluster: RawJson,
    status: BTreeMap<String, OnNode>,
    wanted: BTreeMap<String, OfNode>,
    outdated: BTreeMap<String, BTreeSet<String>>,
    #[serde(default)]
    operations: Vec<Operation>,
}

#[derive(Deserialize)]
struct OnNode {
    containers: BTreeMap<String, Running>,
    files: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Running {
    running: bool,
    image: String,
    builtin: ServiceParams,
    extra: ServiceParams,
}

#[derive(Deserialize)]
struct OfNode {
    params: BTreeMap<String, ServiceParams>,
    files: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Operation {
    name: String,
    commands: Vec<(String, String)>,
    runs: Option<Vec<Run>>,
    files: BTreeMap<String, BTreeMap<String, String>>,
    certificates: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct Run {
    name: String,
    options: Option<Vec<String>>,
}

struct Case {
    answer: Answer,
    cluster: Cluster,
    options: KubernetesOptions,
}

fn cases() -> Vec<Case> {
    let read = |line: &str| {
        let answer: Answer = serde_json::from_str(line).unwrap();
        let cluster: Cluster = serde_json::from_str(answer.cluster.text().unwrap()).unwrap();
        let options = KubernetesOptions::read(&cluster.options).unwrap();
        Case { answer, cluster, options }
    };
    ANSWERS.lines().map(read).collect()
}

/// A document without the fields whose zero value has no meaning.
fn tidied(component: Component, file: &str) -> Configuration {
    Configuration::read(component, file, Unknown::Drop).unwrap()
}

#[test]
fn arguments_mounts_and_environment_are_those_of_cke() {
    let mut compared = 0;
    for Case { answer, cluster, options } in &cases() {
        for node in &cluster.nodes {
            for component in Component::ALL {
                let ours = builtin_parameters(component, cluster, options, node);
                assert_eq!(ours, answer.wanted[&node.address].params[component.name()], "{component}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 10, "{compared}");
}

#[test]
fn configuration_files_say_the_same_as_those_of_cke() {
    let mut compared = 0;
    for Case { answer, cluster, options } in &cases() {
        for node in &cluster.nodes {
            let theirs = &answer.wanted[&node.address].files;
            let running = answer.status[&node.address]
                .files
                .get("kubelet")
                .map(|file| tidied(Component::Kubelet, file));
            for (name, running) in [
                ("kubelet", None),
                ("kubelet-kept", running.as_ref()),
                ("kube-proxy", None),
                ("kube-scheduler", None),
            ] {
                let component: Component = name.trim_end_matches("-kept").parse().unwrap();
                let ours =
                    Configuration::build_wanted(component, options, node, running, Unknown::Drop).unwrap();
                let theirs = tidied(component, &theirs[name]);
                assert_eq!(
                    ours.differing_fields(&theirs),
                    [""; 0],
                    "{}\n{}",
                    ours.to_yaml().unwrap(),
                    theirs.to_yaml().unwrap()
                );
                // The text means the same, too.
                assert_eq!(ours.differing_fields(&tidied(component, &ours.to_yaml().unwrap())), [""; 0]);
                compared += 1;
            }
        }
    }
    assert!(compared >= 8, "{compared}");
}

#[test]
fn the_same_containers_are_outdated_as_for_cke() {
    let mut verdicts = BTreeMap::new();
    for Case { answer, cluster, options } in &cases() {
        let wanted = Wanted { cluster, options, image: ImageName::Kubernetes.default_image() };
        for node in &cluster.nodes {
            for component in Component::ALL {
                let is_theirs = answer.outdated[component.name()].contains(&node.address);
                if !applies(component, node, options) {
                    assert!(!is_theirs);
                    continue;
                }
                let on_node = &answer.status[&node.address];
                let running = &on_node.containers[component.name()];
                if !running.running {
                    continue;
                }
                let status = ContainerStatus {
                    running: true,
                    image: running.image.clone(),
                    builtin: running.builtin.clone(),
                    extra: running.extra.clone(),
                    ..ContainerStatus::default()
                };
                let file = on_node.files.get(component.name());
                let file = file.map_or(FileOnNode::Missing, |text| FileOnNode::Text(text));
                let verdict = wanted.compare_running_container(component, node, &status, file);
                let is_ours = matches!(verdict, ComponentComparison::Outdated(_));
                assert_eq!(
                    is_ours, is_theirs,
                    "{component} on {}: {verdict:?}\n{:?}",
                    node.address, answer.cluster
                );
                *verdicts.entry(is_ours).or_insert(0) += 1;
            }
        }
    }
    assert!(verdicts[&true] >= 5 && verdicts[&false] >= 5, "{verdicts:?}");
}

fn applies(component: Component, node: &Node, options: &KubernetesOptions) -> bool {
    (node.control_plane || !component.is_of_control_plane())
        && (component != Component::Proxy || !options.is_proxy_disabled)
}

#[test]
fn operations_have_the_commands_files_and_certificates_of_cke() {
    let mut compared = 0;
    for Case { answer, cluster, options } in &cases() {
        let node = &cluster.nodes[0];
        let about = FileContext { cluster, options, node, running: None, unknown: Unknown::Drop };
        for theirs in &answer.operations {
            let name = [
                Name::KubeApiserverRestart,
                Name::KubeControllerManagerBootstrap,
                Name::KubeControllerManagerRestart,
                Name::KubeSchedulerBootstrap,
                Name::KubeSchedulerRestart,
                Name::KubeletBootstrap,
                Name::KubeletRestart,
                Name::KubeProxyBootstrap,
                Name::KubeProxyRestart,
            ]
            .into_iter()
            .find(|name| name.name() == theirs.name)
            .unwrap();
            let registered = [node.address.clone()];
            let ours = commands(name, ImageName::Kubernetes.default_image(), &about, &registered).unwrap();
            let ours: Vec<(String, String)> =
                ours.iter().map(|command| (command.name().to_owned(), command.target())).collect();
            // Madako leaves no record open while a kubelet starts: later passes see whether it is healthy.
            let theirs_kept: Vec<_> = theirs
                .commands
                .iter()
                .filter(|(name, _)| name != "wait-for-kubelet-ready")
                .cloned()
                .collect();
            assert_eq!(ours, theirs_kept, "{}", theirs.name);
            for run in theirs.runs.iter().flatten() {
                assert_eq!(run.name, name.component().name());
                assert_eq!(run.options.clone().unwrap_or_default(), name.component().engine_options());
            }
            let ours = set_of(name).map_or_else(Vec::new, |set| planned_files(set, &about).unwrap());
            let subjects: BTreeSet<CertificateSubject> =
                ours.iter().filter_map(|file| subject(&file.source)).collect();
            let mut requests: Vec<String> = subjects
                .iter()
                .map(|subject| vault_request(&certificate_request(*subject, cluster, options, node)))
                .collect();
            let mut requested: Vec<String> = theirs
                .certificates
                .iter()
                .flatten()
                .map(|requested| without_alike(requested.clone()))
                .collect();
            requests.sort();
            requested.sort();
            assert_eq!(requests, requested, "{}", theirs.name);
            let written = theirs.files.get(&node.address).cloned().unwrap_or_default();
            assert_eq!(ours.len(), written.len(), "{}", theirs.name);
            for file in &ours {
                same_content(&file.path, &file.source, &written[&file.path], cluster);
            }
            compared += 1;
        }
    }
    assert!(compared >= 9, "{compared}");
}

fn set_of(name: Name) -> Option<FileSet> {
    match name {
        Name::KubeApiserverRestart => Some(FileSet::ApiServer),
        Name::KubeControllerManagerBootstrap => Some(FileSet::ControllerManager),
        Name::KubeSchedulerBootstrap | Name::KubeSchedulerRestart => Some(FileSet::Scheduler),
        Name::KubeletBootstrap => Some(FileSet::KubeletBoot),
        Name::KubeletRestart => Some(FileSet::KubeletRestart),
        Name::KubeProxyBootstrap | Name::KubeProxyRestart => Some(FileSet::Proxy),
        _ => None,
    }
}

fn subject(source: &Source) -> Option<CertificateSubject> {
    match source {
        Source::Certificate(subject) | Source::Key(subject) | Source::Kubeconfig(subject) => Some(*subject),
        _ => None,
    }
}

/// A request in the words of CKE's requests to Vault.
fn vault_request(ours: &CertificateRequest) -> String {
    let or_null = |texts: &[String]| if texts.is_empty() { Value::Null } else { texts.join(",").into() };
    let uses = match ours.usage {
        Usage::Both => (true, true),
        Usage::Server => (true, false),
        Usage::Client => (false, true),
        Usage::Tokens => (false, false),
    };
    let organization = Some(&ours.organization).filter(|name| !name.is_empty());
    serde_json::json!({
        "ca": format!("cke/ca-{}", ours.authority), "common_name": ours.common_name, "alt_names": or_null(&ours.dns_names),
        "ip_sans": or_null(&ours.addresses), "organization": organization, "server": uses.0, "client": uses.1,
        "hours": format!("{}h", ours.validity.as_secs() / 3600),
    })
    .to_string()
}

fn without_alike(theirs: Value) -> String {
    let role = &theirs["role"];
    let is_on = |flag: &str| role[flag].as_str() != Some("false");
    let ca = theirs["ca_role"].as_str().unwrap().rsplit_once('/').unwrap().0;
    serde_json::json!({
        "ca": ca, "common_name": theirs["common_name"], "alt_names": theirs["alt_names"], "ip_sans": theirs["ip_sans"],
        "organization": role["organization"], "server": is_on("server_flag"), "client": is_on("client_flag"),
        "hours": role["ttl"],
    })
    .to_string()
}

/// Certificates in the answers are texts that name their issuer and subject.
fn same_content(path: &str, source: &Source, theirs: &str, cluster: &Cluster) {
    let component = Component::ALL.into_iter().find(|it| it.configuration_path() == Some(path));
    match (source, component) {
        (Source::Text(ours), Some(component)) => {
            assert_eq!(
                tidied(component, ours).differing_fields(&tidied(component, theirs)),
                [""; 0],
                "{path}"
            );
        }
        (Source::Text(ours), None) => assert_eq!(ours, theirs, "{path}"),
        (Source::Authority(authority), _) => assert_eq!(theirs, format!("<ca/{authority}>")),
        (Source::ServiceAccountCertificate, _) => assert_eq!(theirs, "<service-account/certificate>"),
        (Source::ServiceAccountKey, _) => assert_eq!(theirs, "<service-account/key>"),
        (Source::Certificate(_), _) => assert!(theirs.starts_with("crt:"), "{path}"),
        (Source::Key(_), _) => assert!(theirs.starts_with("key:"), "{path}"),
        (Source::Encryption, _) => {
            let ours = encryption::encryption_configuration(&encryption::read(KEYS).unwrap());
            let theirs = theirs.replace("typeMeta: {}\n", "");
            assert_eq!(
                yaml::read_yaml("ours", ours.reveal()).unwrap(),
                yaml::read_yaml("theirs", &theirs).unwrap()
            );
        }
        (Source::Kubeconfig(subject), _) => {
            let user = match subject {
                CertificateSubject::ControllerManager => "kube-controller-manager",
                CertificateSubject::Scheduler => "kube-scheduler",
                CertificateSubject::Proxy => "kube-proxy",
                other => panic!("{other:?} has no kubeconfig"),
            };
            let issued = format!("cke/ca-kubernetes/{user}:system:{user}");
            let (certificate, key) = (format!("crt:{issued}"), Secret::new(format!("key:{issued}")));
            let credentials =
                Credentials { trusted: "<ca/kubernetes>", certificate: &certificate, key: &key };
            let ours = kubeconfig_with_inline_credentials(
                &cluster.name,
                &format!("system:{user}"),
                LOCAL_SERVER,
                &credentials,
            );
            assert_eq!(ours.reveal(), theirs, "{path}");
        }
    }
}
