use async_trait::async_trait;
use madako_domain::authority::Authority;
use madako_domain::certificate::Validity;
use madako_domain::cluster::{Node, Taint};
use madako_domain::component::Component;
use madako_domain::containers::Container;
use madako_domain::deprecated_api::DeprecatedApi;
use madako_domain::images::ImageName;
use madako_domain::node_status::{EtcdMember, EtcdStatus};
use madako_domain::objects::{
    Annotations, Content, FoundObject, Manifest, NodeChange, NodeObject, ObjectName, SecretVersion,
};
use madako_domain::rollout::WatchEnd;
use madako_json::go::RawJson;
use madako_protocol::authorities::{AuthorityError, CertificateRequest, IssuedCertificate, RenewalReason};
use madako_protocol::etcd::EtcdError;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::kubernetes_secrets::{EncryptionKeyChange, KubernetesSecretError};
use madako_protocol::objects::Objects;
use madako_protocol::permit::Permit;
use madako_protocol::secret::Secret;
use time::OffsetDateTime;

use super::execute::Basis;
use super::*;
use crate::command::{Command, Volume};
use crate::kubernetes::command::KubernetesCommand;
use crate::kubernetes::operation::KubernetesOperationName;
use crate::kubernetes::versions::{PresentImages, UnseenComponents};
use crate::operation::{Operation, OperationName, single_command_operation};

mod resources;

/// An etcd that is only asked for its members, and authorities that are not asked.
pub(super) struct Members(pub(super) Option<EtcdStatus>);

#[async_trait]
impl EtcdCluster for Members {
    async fn status(&self, _: &[String]) -> Result<EtcdStatus, EtcdError> {
        self.0.clone().ok_or(EtcdError::Unavailable { what: "status", why: "no route".to_owned() })
    }

    async fn revisions(&self, _: &[String]) -> BTreeMap<String, i64> {
        panic!("no revision is read")
    }

    async fn add_learner(&self, _: &Permit, _: &[String], _: &str) -> Result<Vec<EtcdMember>, EtcdError> {
        panic!("no member is added")
    }

    async fn promote(&self, _: &Permit, _: &[String], _: u64) -> Result<(), EtcdError> {
        panic!("no member is promoted")
    }

    async fn remove(&self, _: &Permit, _: &[String], _: u64) -> Result<(), EtcdError> {
        panic!("no member is removed")
    }

    async fn move_leader(&self, _: &Permit, _: &[String], _: &str) -> Result<(), EtcdError> {
        panic!("the leadership stays")
    }

    async fn set_up_auth(&self, _: &Permit, _: &[String]) -> Result<(), EtcdError> {
        panic!("no user is created")
    }
}

#[async_trait]
impl Authorities for Members {
    async fn certificate(&self, _: Authority) -> Result<String, AuthorityError> {
        panic!("no certificate is read")
    }

    async fn issue(&self, _: &CertificateRequest) -> Result<IssuedCertificate, AuthorityError> {
        panic!("no certificate is issued")
    }

    fn validity(&self, _: &str) -> Option<Validity> {
        panic!("no certificate is read")
    }

    fn due(&self, _: Option<&str>, _: &str, _: &CertificateRequest) -> Option<RenewalReason> {
        panic!("no certificate is read")
    }
}

#[async_trait]
impl KubernetesSecrets for Members {
    async fn service_account(&self, _: &Permit) -> Result<IssuedCertificate, KubernetesSecretError> {
        panic!("no pair is read")
    }

    async fn encryption_keys(&self, _: &Permit) -> Result<Secret, KubernetesSecretError> {
        panic!("no key is read")
    }

    async fn change_encryption_keys(
        &self,
        _: &Permit,
        _: &EncryptionKeyChange,
    ) -> Result<(), KubernetesSecretError> {
        panic!("no key is changed")
    }
}

/// The begin of the names of resources whose reads are never answered.
pub(super) const HANGING: &str = "hanging-";

/// API servers.
pub(super) struct Servers {
    /// Addresses of the healthy ones. Each answers with version 1.29.
    pub(super) healthy: &'static [&'static str],
    /// Keys of the taints of all Node objects; `None`: no node is registered.
    pub(super) taints: Option<&'static [&'static str]>,
}

#[async_trait]
impl Objects for Servers {
    async fn read_server_version(&self, address: &str) -> Result<String, KubernetesError> {
        let silent = KubernetesError::Unavailable { what: address.to_owned(), why: "silence".to_owned() };
        if self.healthy.contains(&address) { Ok("1.29".to_owned()) } else { Err(silent) }
    }

    async fn read_node_objects(&self, _: &[String]) -> Result<Vec<NodeObject>, KubernetesError> {
        Ok(Vec::new())
    }

    async fn read_annotations(&self, _: &[String], object: &ObjectName) -> FoundObject<Annotations> {
        if object.key.name.starts_with(HANGING) {
            std::future::pending().await
        } else {
            FoundObject::Exists(Annotations::new())
        }
    }

    async fn read_object(&self, _: &[String], _: &ObjectName) -> FoundObject<Content> {
        FoundObject::Exists(Content::Null)
    }

    async fn apply_object(&self, _: &Permit, _: &[String], _: &Manifest) -> Result<(), KubernetesError> {
        panic!("no object is applied")
    }

    async fn dry_run_apply(&self, _: &[String], _: &Manifest) -> Result<Content, KubernetesError> {
        panic!("no object is applied")
    }

    async fn change_node(&self, _: &Permit, _: &[String], _: &NodeChange) -> Result<(), KubernetesError> {
        panic!("no node is changed")
    }

    async fn remove_node(&self, _: &Permit, _: &[String], _: &str) -> Result<(), KubernetesError> {
        panic!("no node is removed")
    }

    async fn list_secrets(&self, _: &[String]) -> Result<Vec<SecretVersion>, KubernetesError> {
        panic!("no Secret is read")
    }

    async fn rewrite_secret(
        &self,
        _: &Permit,
        _: &[String],
        _: &SecretVersion,
    ) -> Result<(), KubernetesError> {
        panic!("no Secret is written")
    }
}

#[async_trait]
impl Components for Servers {
    async fn check(&self, component: Component, address: &str) -> Result<(), KubernetesError> {
        assert_eq!(component, Component::ApiServer);
        let silent = KubernetesError::Unavailable { what: address.to_owned(), why: "silence".to_owned() };
        if self.healthy.contains(&address) { Ok(()) } else { Err(silent) }
    }

    async fn time_list(&self, _: &str) -> Result<Duration, KubernetesError> {
        panic!("no server is measured")
    }

    async fn deprecated_apis(&self, _: &str) -> Result<BTreeSet<DeprecatedApi>, KubernetesError> {
        panic!("no metrics are read")
    }

    async fn leader(&self, _: Component, _: &[String]) -> Result<Option<String>, KubernetesError> {
        panic!("no lease is read")
    }

    async fn restarted_containers(
        &self,
        _: &[String],
        _: &str,
        _: OffsetDateTime,
    ) -> Result<Vec<String>, KubernetesError> {
        panic!("no pod is read")
    }

    async fn read_taints(&self, _: &[String], _: &str) -> Result<Option<Vec<Taint>>, KubernetesError> {
        let taint = |key: &&str| Taint {
            key: (*key).to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        Ok(self.taints.map(|keys| keys.iter().map(taint).collect()))
    }

    async fn add_taints(
        &self,
        _: &Permit,
        _: &[String],
        _: &str,
        _: &[Taint],
    ) -> Result<(), KubernetesError> {
        panic!("no taint is added")
    }
}

/// The failure of the only command of an operation on the node `a`, none of whose actors runs.
async fn failure_of(command: Command, etcd: Option<EtcdStatus>) -> String {
    failure(single_command_operation(OperationName::EtcdRestart, vec!["a".to_owned()], command), etcd).await
}

async fn failure(operation: Operation, etcd: Option<EtcdStatus>) -> String {
    failure_beside(operation, etcd, &[]).await
}

/// The failure while these API servers of a control plane of `a`, `b` and `c` are healthy.
async fn failure_beside(
    operation: Operation,
    etcd: Option<EtcdStatus>,
    healthy: &'static [&'static str],
) -> String {
    let basis = ImagesOfNodes { images: PresentImages::new(), versions: &[], emptied: None };
    failure_with_images(operation, etcd, healthy, basis).await
}

/// The images of components and the known versions of images.
struct ImagesOfNodes<'a> {
    images: PresentImages,
    versions: &'a [(&'a str, &'a str)],
    /// Drained nodes; `None`: all are.
    emptied: Option<&'a [&'a str]>,
}

/// As [`failure_beside`], with the images of components.
async fn failure_with_images(
    operation: Operation,
    etcd: Option<EtcdStatus>,
    healthy: &'static [&'static str],
    ImagesOfNodes { images, versions, emptied }: ImagesOfNodes<'_>,
) -> String {
    let servers = Servers { healthy, taints: None };
    let mut basis = basis("{}");
    basis.component_images = Arc::new(images);
    basis.emptied = emptied.map(|nodes| nodes.iter().map(|node| (*node).to_owned()).collect());
    end_of(operation, &executor(etcd, servers, versions), &basis).await
}

fn executor(etcd: Option<EtcdStatus>, servers: Servers, versions: &[(&str, &str)]) -> Executor {
    let known = |(image, version): &(&str, &str)| ((*image).to_owned(), version.parse().unwrap());
    let versions = versions.iter().map(known).collect();
    let permits = Permits { leader: "no such leader".to_owned(), epoch: 1 };
    Executor {
        nodes: "no such node/".to_owned(),
        etcd: Arc::new(Members(etcd)),
        authorities: Arc::new(Members(None)),
        components: Arc::new(servers),
        secrets: Arc::new(Members(None)),
        permits,
        images: crate::Images::default(),
        prepared: Arc::default(),
        versions: Arc::default(),
        kubernetes_versions: Arc::new(Mutex::new(versions)),
        rewritten: Arc::default(),
    }
}

/// A control plane of `a`, `b` and `c` with these options of Kubernetes.
fn basis(kubernetes: &str) -> Basis {
    let kubernetes = RawJson::from_text(kubernetes.to_owned()).unwrap();
    let options = ContainerOptions::read(&RawJson::from_text("null".to_owned()).unwrap()).unwrap();
    let node = |address: &str| Node { address: address.to_owned(), control_plane: true, ..Node::default() };
    let nodes = ["a", "b", "c"].map(node).into();
    Basis {
        cluster: Arc::new(Cluster { nodes, ..Cluster::default() }),
        options: Arc::new(options),
        askable_nodes: Vec::new(),
        certificates: Arc::default(),
        kubernetes: Some(Arc::new(KubernetesOptions::read(&kubernetes).unwrap())),
        kubelets: Arc::default(),
        component_images: Arc::default(),
        unseen: Arc::default(),
        emptied: None,
        servers: Vec::new(),
    }
}

async fn end_of(operation: Operation, executor: &Executor, basis: &Basis) -> String {
    // Without a leader no permit comes, and no action begins.
    match tokio::time::timeout(Duration::from_secs(60), executor.execute(&operation, 0, basis)).await {
        Ok(OperationEnd::Failed { why, .. }) => why,
        Ok(OperationEnd::Held { why }) => format!("held: {why}"),
        Ok(OperationEnd::Succeeded) => "nothing".to_owned(),
        Err(_) => "it waits for a permit".to_owned(),
    }
}

fn member(name: &str, in_sync: Option<bool>) -> EtcdMember {
    let id = u64::from(name.as_bytes()[0]);
    EtcdMember { id, name: name.to_owned(), in_sync, ..EtcdMember::default() }
}

fn members(in_sync: [Option<bool>; 3]) -> Option<EtcdStatus> {
    let members = ["a", "b", "c"].into_iter().zip(in_sync).map(|(name, state)| member(name, state));
    Some(EtcdStatus { healthy: true, members: members.collect() })
}

#[tokio::test(start_paused = true)]
async fn no_member_is_lost_unless_a_majority_is_known_to_stay_in_sync() {
    let losses = [
        Command::StopContainer(Container::Etcd),
        Command::KillContainers(Container::Etcd),
        Command::VolumeRemove(Volume::Data("v".to_owned())),
    ];
    for command in losses {
        let why = failure_of(command.clone(), members([Some(true); 3])).await;
        assert_eq!(why, "it waits for a permit", "{command}");
        for (other, another) in [(Some(false), Some(true)), (None, Some(true)), (None, None)] {
            let why = failure_of(command.clone(), members([Some(true), other, another])).await;
            assert!(why.contains("I2"), "{command}: {why}");
        }
        let why = failure_of(command.clone(), None).await;
        assert!(why.contains("no member of etcd answered"), "{command}: {why}");
    }
}

#[tokio::test(start_paused = true)]
async fn commands_that_lose_no_member_need_no_answer_of_etcd() {
    for command in [Command::StopContainer(Container::Rivers), Command::VolumeRemove(Volume::Mark)] {
        assert_eq!(failure_of(command, None).await, "it waits for a permit");
    }
}

#[tokio::test(start_paused = true)]
async fn an_asked_restart_is_exempt_from_the_invariant() {
    let stop = Command::StopContainer(Container::Etcd);
    let operation = single_command_operation(OperationName::EtcdRestart, vec!["a".to_owned()], stop);
    let requested = Operation { is_requested: true, ..operation };
    let out_of_sync = members([Some(true), Some(false), Some(false)]);
    assert_eq!(failure(requested, out_of_sync).await, "it waits for a permit");
}

#[tokio::test(start_paused = true)]
async fn a_restore_is_refused_as_long_as_a_majority_answers() {
    let confirm = || Command::ConfirmEtcdLoss { members: vec!["a".to_owned()] };
    let why = failure_of(confirm(), members([Some(true); 3])).await;
    assert!(why.starts_with("held: a majority of the members of etcd answers"), "{why}");
    let minority = Some(EtcdStatus { healthy: false, members: Vec::new() });
    for etcd in [minority, None] {
        assert_eq!(failure_of(confirm(), etcd).await, "nothing");
    }
}

#[tokio::test(start_paused = true)]
async fn a_healthy_api_server_ends_only_while_all_others_are_healthy() {
    let end = |component| {
        let command = Command::Kubernetes(KubernetesCommand::StopContainer(component));
        let name = OperationName::Kubernetes(KubernetesOperationName::KubeApiserverRestart);
        let mut operation = single_command_operation(name, vec!["a".to_owned()], command);
        operation.commands.push(Command::Kubernetes(KubernetesCommand::WaitForProxies));
        operation
    };
    for (healthy, may_end) in
        [(["a", "b", "c"].as_slice(), true), (&["a", "b"], false), (&["b", "c"], true), (&[], true)]
    {
        let healthy: &'static [&'static str] = healthy;
        let why = failure_beside(end(Component::ApiServer), None, healthy).await;
        assert_eq!(why == "it waits for a permit", may_end, "{why}");
        assert!(may_end || why.starts_with("held: I13: "), "{why}");
        // Other components take no API server away.
        let why = failure_beside(end(Component::Scheduler), None, healthy).await;
        assert_eq!(why, "it waits for a permit");
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_serves_again_since_the_decision_does_not_end_in_its_endpoints() {
    let command = Command::Kubernetes(KubernetesCommand::StopContainer(Component::ApiServer));
    let name = OperationName::Kubernetes(KubernetesOperationName::KubeApiserverRestart);
    let restart = || single_command_operation(name, vec!["a".to_owned()], command.clone());
    for (healthy, is_held) in
        [(["a", "b", "c"].as_slice(), true), (&["b", "c"], false), (&["a"], true), (&[], false)]
    {
        let why = failure_beside(restart(), None, healthy).await;
        assert_eq!(why.starts_with("held: "), is_held, "{healthy:?}: {why}");
        let serves = why.starts_with("held: the API server of a serves again");
        assert_eq!(serves, healthy.len() == 3, "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_boots_on_a_registered_node_only_behind_its_boot_taints() {
    let start = |restart| {
        let command = KubernetesCommand::RunContainer { component: Component::Kubelet, restart };
        let name = OperationName::Kubernetes(KubernetesOperationName::KubeletBootstrap);
        single_command_operation(name, vec!["a".to_owned()], Command::Kubernetes(command))
    };
    let boot = basis(r#"{"kubelet": {"boot_taints": [{"key": "boot", "effect": "NoSchedule"}]}}"#);
    let end = async |restart, basis: &Basis, taints| {
        let servers = Servers { healthy: &["a"], taints };
        end_of(start(restart), &executor(None, servers, &[]), basis).await
    };
    let starts = "it waits for a permit";
    for (taints, is_refused) in
        [(Some(["other"].as_slice()), true), (Some(&["other", "boot"]), false), (None, false)]
    {
        let why = end(false, &boot, taints).await;
        assert_eq!(why.starts_with("I18: the kubelet of a "), is_refused, "{why}");
        assert!(is_refused || why == starts, "{why}");
    }
    assert_eq!(end(true, &boot, Some(&[])).await, starts, "a restart is no boot");
    assert_eq!(end(false, &basis("{}"), Some(&[])).await, starts, "no boot taints are configured");
}

#[tokio::test(start_paused = true)]
async fn a_component_starts_only_at_a_version_that_the_policy_allows() {
    let start_by = |name| {
        let command = KubernetesCommand::RunContainer { component: Component::Kubelet, restart: true };
        single_command_operation(name, vec!["a".to_owned()], Command::Kubernetes(command))
    };
    let start = || start_by(OperationName::Kubernetes(KubernetesOperationName::KubeletRestart));
    let on = |image: &str| ["a", "b"].map(|node| (node.to_owned(), image.to_owned())).into();
    let beside = |servers: &str, kubelets: &str| {
        PresentImages::from([(Component::ApiServer, on(servers)), (Component::Kubelet, on(kubelets))])
    };
    let wanted = ImageName::Kubernetes.default_image();
    for (servers, held) in [("1.29.0", true), ("1.30.1", false), ("1.31.0", false)] {
        let versions = [("old", "1.29.0"), ("servers", servers), (wanted, "1.30.5")];
        let nodes = ImagesOfNodes { images: beside("servers", "old"), versions: &versions, emptied: None };
        let why = failure_with_images(start(), None, &[], nodes).await;
        assert_eq!(why.starts_with("held: I14: newer-than-api-server"), held, "{servers}: {why}");
        assert!(held || why == "it waits for a permit", "{servers}: {why}");
    }
    let renewal = start_by(OperationName::KubernetesRenewCertificates);
    let versions = [("old", "1.29.0"), (wanted, "1.30.5")];
    let nodes = ImagesOfNodes { images: beside("old", "old"), versions: &versions, emptied: None };
    let why = failure_with_images(renewal, None, &[], nodes).await;
    assert!(why.starts_with("held: I14: newer-than-api-server"), "{why}");
    // Components of one image are not asked for versions, which would need a permit as well.
    let one = ImagesOfNodes { images: beside(wanted, wanted), versions: &[], emptied: None };
    let one = failure_with_images(start(), None, &[], one).await;
    assert_eq!(one, "it waits for a permit");
}

#[tokio::test(start_paused = true)]
async fn no_component_starts_newer_than_an_api_server_that_serves_on_an_unseen_node() {
    let command = KubernetesCommand::RunContainer { component: Component::Kubelet, restart: true };
    let name = OperationName::Kubernetes(KubernetesOperationName::KubeletRestart);
    let start = || single_command_operation(name, vec!["a".to_owned()], Command::Kubernetes(command.clone()));
    let wanted = ImageName::Kubernetes.default_image();
    let on_seen = ["a", "b"].map(|node| (node.to_owned(), wanted.to_owned())).into();
    let mut seen = basis("{}");
    seen.component_images = Arc::new(PresentImages::from([(Component::ApiServer, on_seen)]));
    seen.unseen =
        Arc::new(UnseenComponents { servers: ["c".to_owned()].into(), ..UnseenComponents::default() });
    for (answering, is_held) in [(["c"].as_slice(), true), (&[], false)] {
        let servers = Servers { healthy: answering, taints: None };
        let why = end_of(start(), &executor(None, servers, &[(wanted, "1.30.5")]), &seen).await;
        assert_eq!(why.starts_with("held: I14: newer-than-api-server"), is_held, "{why}");
        assert!(is_held || why == "it waits for a permit", "a dead node holds nothing: {why}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_gets_another_minor_version_only_on_a_drained_node() {
    let restart = || {
        let command = KubernetesCommand::RunContainer { component: Component::Kubelet, restart: true };
        let name = OperationName::Kubernetes(KubernetesOperationName::KubeletRestart);
        single_command_operation(name, vec!["a".to_owned()], Command::Kubernetes(command))
    };
    let wanted = ImageName::Kubernetes.default_image();
    let on = |image: &str| ["a", "b"].map(|node| (node.to_owned(), image.to_owned())).into();
    let kubelets =
        || PresentImages::from([(Component::ApiServer, on(wanted)), (Component::Kubelet, on("old"))]);
    let drained: &[&str] = &["a"];
    for (old, emptied, held) in [
        ("1.29.0", Some(drained), false),
        ("1.29.0", Some(&["b"]), true),
        ("1.29.0", None, false),
        ("1.30.1", Some(&[]), false),
    ] {
        let versions = [("old", old), (wanted, "1.30.5")];
        let nodes = ImagesOfNodes { images: kubelets(), versions: &versions, emptied };
        let why = failure_with_images(restart(), None, &[], nodes).await;
        let expected = if held {
            "held: the kubelet on a would go from 1.29.0 to 1.30.5, and the node is not drained"
        } else {
            "it waits for a permit"
        };
        assert_eq!(why, expected, "{old}, {emptied:?}");
    }
}

#[test]
fn a_renewal_is_a_wave_only_if_a_kubelet_or_proxy_restarts() {
    for (component, is_wave) in [
        (Some(Component::Proxy), true),
        (Some(Component::Kubelet), true),
        (Some(Component::Scheduler), false),
        (None, false),
    ] {
        let write = KubernetesCommand::MakeFiles { paths: Vec::new() };
        let run = component.map(|component| KubernetesCommand::RunContainer { component, restart: false });
        let commands = std::iter::once(write).chain(run).map(Command::Kubernetes).collect();
        let name = OperationName::KubernetesRenewCertificates;
        let renewal = Operation::new(name, vec!["a".to_owned()], commands);
        assert_eq!(workflow::component_of_wave(&renewal), component.filter(|_| is_wave));
    }
}

#[test]
fn only_the_nodes_on_which_a_wave_failed_leave_the_watch_as_failed() {
    let targets = ["a".to_owned(), "b".to_owned()].to_vec();
    let command =
        Command::Kubernetes(KubernetesCommand::RunContainer { component: Component::Kubelet, restart: true });
    let name = OperationName::Kubernetes(KubernetesOperationName::KubeletRestart);
    let operation = single_command_operation(name, targets, command);
    let ends = |nodes: Option<&[&str]>| {
        let nodes = nodes.map(|nodes| nodes.iter().map(|node| (*node).to_owned()).collect());
        workflow::failed_watches(&operation, &(nodes, "x".to_owned()))
    };
    let failed = WatchEnd::Failed("x".to_owned());
    assert_eq!(ends(Some(&["b", "c"])), BTreeMap::from([("b".to_owned(), failed)]));
    assert_eq!(ends(Some(&[])), BTreeMap::new(), "no node is the cause");
    assert!(ends(None).into_values().all(|end| end == WatchEnd::Dropped), "the wave was held");
}

#[test]
fn an_operation_that_is_held_twice_for_the_same_reason_is_noticed() {
    let mut last = None;
    let mut note = |operation, failure: Option<(Option<Vec<String>>, &str)>| {
        let failure = failure.map(|(nodes, why)| (nodes, why.to_owned()));
        workflow::note_hold(&mut last, (operation, true), failure.as_ref())
    };
    assert!(!note("a", Some((None, "x"))));
    assert!(!note("a", None), "its first command succeeds again");
    assert!(note("a", Some((None, "x"))));
    assert!(!note("a", Some((None, "y"))), "another reason");
    assert!(!note("b", Some((None, "y"))), "another operation");
    assert!(!note("b", Some((Some(Vec::new()), "y"))), "a failure backs off by itself");
    assert!(!note("b", Some((None, "y"))));
    assert!(!workflow::note_hold(&mut last, ("b", false), None), "it is complete");
    assert_eq!(last, None);
}
