//! The execution of commands on Kubernetes' containers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use madako_domain::canary::{Canary, is_planted};
use madako_domain::cluster::{Cluster, Node};
use madako_domain::component::Component;
use madako_domain::containers::ContainerName;
use madako_domain::invariants::api_available;
use madako_domain::limits::PROXIES_FOLLOW;
use madako_domain::skew::{KubernetesVersion, check_versions};
use madako_protocol::authorities::IssuedCertificate;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::kubernetes_secrets::{EncryptionKeyChange, KubernetesSecretError};
use madako_protocol::node::{ContainerSpec, FileContent, NodeAction, NodeFile, RUNNING};
use madako_protocol::secret::Secret;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::collect::read_server_versions;
use super::execute::{Basis, Executor, Failure};
use crate::command::Command as RunnerCommand;
use crate::kubernetes::certificates::{CertificateSubject, certificate_request};
use crate::kubernetes::command::KubernetesCommand as Command;
use crate::kubernetes::configuration::Configuration;
use crate::kubernetes::encryption;
use crate::kubernetes::files::{FileContext, PlannedFile, Source, planned_files, renewed_files};
use crate::kubernetes::kubeconfig::{self, Credentials, LOCAL_SERVER};
use crate::kubernetes::operation::KubernetesOperationName;
use crate::kubernetes::options::KubernetesOptions;
use crate::kubernetes::outdated::Wanted;
use crate::kubernetes::params::builtin_parameters;
use crate::kubernetes::versions::{all_images, distinct_images, known_versions};
use crate::limits::API_SERVER_GRACE;
use crate::operation::{Operation, OperationName};

/// Directory above all files of Kubernetes, apart from those of CNI.
const KUBERNETES: &str = "/etc/kubernetes";

impl From<KubernetesSecretError> for Failure {
    fn from(error: KubernetesSecretError) -> Self {
        error.to_string().into()
    }
}

impl From<KubernetesError> for Failure {
    fn from(error: KubernetesError) -> Self {
        error.to_string().into()
    }
}

/// True if clients leave the API server before an operation ends it.
fn withdraws_endpoints(operation: &Operation) -> bool {
    let waits = |command: &RunnerCommand| *command == RunnerCommand::Kubernetes(Command::WaitForProxies);
    operation.commands.iter().any(waits) || is_planted(Canary::EndpointsLeftReady)
}

impl Executor {
    /// I13, evaluated on the present API servers before each command that may end one.
    pub(super) async fn refuse_api_gap(
        &self,
        operation: &Operation,
        command: &Command,
        basis: &Basis,
    ) -> Result<(), Failure> {
        if !command.may_end_api_server() || skips_checks() {
            return Ok(());
        }
        let targets = &operation.targets;
        let servers = self.present_servers(&basis.cluster, targets).await;
        let violation = api_available(&servers, &targets.iter().map(String::as_str).collect());
        let serves = |address: &&String| servers.get(*address) == Some(&true);
        let served = targets.iter().find(serves).filter(|_| !withdraws_endpoints(operation));
        let has_other = servers.keys().filter(|address| !targets.contains(*address)).any(|it| serves(&it));
        let why = match (violation, served) {
            (Some(violation), _) => violation.to_string(),
            (None, Some(address)) if has_other => {
                format!(
                    "the API server of {address} serves again, so that clients must leave it before its end"
                )
            }
            _ => return Ok(()),
        };
        // A server has failed or recovered since the decision: the next pass decides anew.
        Err(Failure { nodes: BTreeSet::new(), why, is_hold: true })
    }

    /// The health of the configured API servers and of those on these nodes at present.
    pub(super) async fn present_servers(
        &self,
        cluster: &Cluster,
        nodes: &[String],
    ) -> BTreeMap<String, bool> {
        // One of the nodes may have left the control plane.
        let configured = cluster.control_plane().map(|node| node.address.clone());
        let servers: BTreeSet<String> = configured.chain(nodes.iter().cloned()).collect();
        let servers: Vec<String> = servers.into_iter().collect();
        let sick = self.find_unhealthy(Component::ApiServer, &servers).await;
        let healthy = servers.into_iter().map(|address| {
            let is_healthy = !sick.contains_key(&address);
            (address, is_healthy)
        });
        healthy.collect()
    }

    /// I14, evaluated before each command that starts a component.
    pub(super) async fn refuse_skew(
        &self,
        operation: &Operation,
        command: &Command,
        basis: &Basis,
    ) -> Result<(), Failure> {
        match command {
            Command::RunContainer { .. } => self.check_versions_of_starts(operation, basis).await,
            _ => Ok(()),
        }
    }

    /// I14 of the starts of an operation, whose targets have the wanted image. Asks for the versions of images that are not
    /// known yet, unless all components have one image and no component on a node without a known state tells a version.
    async fn check_versions_of_starts(&self, operation: &Operation, basis: &Basis) -> Result<(), Failure> {
        let Some(component) = operation.started_component() else { return Ok(()) };
        let wanted = self.images.kubernetes.as_str();
        let images = distinct_images(&basis.component_images);
        // A server that answered in the last collection counts, too.
        let answers = read_server_versions(&self.components, &basis.unseen.servers).await;
        let mut unseen = (*basis.unseen).clone();
        unseen.add_servers(&answers);
        let is_one = unseen.has_no_version() && images.keys().all(|image| *image == wanted);
        let Some(target) = operation.targets.first().filter(|_| !is_one) else { return Ok(()) };
        if is_planted(Canary::KubeletFirst) {
            return Ok(());
        }
        let version = self.version_of_kubernetes(target, wanted).await?;
        for (image, (address, is_of_api_server)) in images {
            let known = self.version_of_kubernetes(address, image).await;
            // Without the versions of the API servers, nothing can be judged.
            if let Err(Failure { why, .. }) = known
                && is_of_api_server
            {
                return Err(Failure {
                    nodes: operation.targets.iter().cloned().collect(),
                    why,
                    is_hold: false,
                });
            }
        }
        let mut versions = {
            let known = self.kubernetes_versions.lock().unwrap_or_else(PoisonError::into_inner);
            known_versions(all_images(&basis.component_images), &known)
        };
        versions.merge(unseen.versions);
        let targets = operation.targets.iter().map(String::as_str);
        match check_versions(&versions, component, targets, &version) {
            // The next decision knows the versions, and holds the operation.
            Some(violation) => {
                Err(Failure { nodes: BTreeSet::new(), why: violation.to_string(), is_hold: true })
            }
            None if operation.name == OperationName::Kubernetes(KubernetesOperationName::KubeletRestart) => {
                self.refuse_minor_upgrade(operation, basis, &version).await
            }
            None => Ok(()),
        }
    }

    /// Refuses to give a kubelet another minor version on a node that is not drained, where that is not wanted. A leader does
    /// not know the versions of images at once.
    async fn refuse_minor_upgrade(
        &self,
        operation: &Operation,
        basis: &Basis,
        wanted: &KubernetesVersion,
    ) -> Result<(), Failure> {
        let Some(emptied) = &basis.emptied else { return Ok(()) };
        let Some(images) = basis.component_images.get(&Component::Kubelet) else { return Ok(()) };
        for target in operation.targets.iter().filter(|target| !emptied.contains(*target)) {
            let Some(image) = images.get(target) else { continue };
            let running = self.version_of_kubernetes(target, image).await?;
            if !running.is_same_minor(wanted) {
                // The next decision knows the version, and drains the node or waits for its boot.
                let why = format!(
                    "the kubelet on {target} would go from {running} to {wanted}, and the node is not drained"
                );
                return Err(Failure { nodes: BTreeSet::new(), why, is_hold: true });
            }
        }
        Ok(())
    }

    /// The version of an image that a node has. It is read once.
    async fn version_of_kubernetes(&self, node: &str, image: &str) -> Result<KubernetesVersion, Failure> {
        let known = || self.kubernetes_versions.lock().unwrap_or_else(PoisonError::into_inner);
        let version = known().get(image).cloned();
        if let Some(version) = version {
            return Ok(version);
        }
        let failed = |why: String| Failure { nodes: BTreeSet::from([node.to_owned()]), why, is_hold: false };
        let output = self.act_on_node(node, version_question(image)).await;
        let output = output.map_err(|error| failed(error.to_string()))?;
        let version = KubernetesVersion::from_output(&output).ok_or_else(|| {
            failed(format!("the image {image} names no version of Kubernetes: {output:.100}"))
        })?;
        known().insert(image.to_owned(), version.clone());
        Ok(version)
    }

    pub(super) async fn run_kubernetes(
        &self,
        operation: &Operation,
        command: &Command,
        basis: &Basis,
    ) -> Result<(), Failure> {
        let targets = &operation.targets;
        let options = basis
            .kubernetes
            .as_ref()
            .ok_or_else(|| "the inputs of the operation lack the options of Kubernetes".to_owned())?;
        let tools = || self.images.tools.clone();
        match command {
            Command::ImagePull { image } => {
                self.run_on_all_targets(targets, |_| NodeAction::PullImage { image: image.clone() }).await?;
                // A forbidden version is refused before anything stops.
                self.check_versions_of_starts(operation, basis).await
            }
            Command::EmptyDir { directory } => {
                self.run_on_all_targets(targets, |_| NodeAction::EmptyDirectory {
                    tools: tools(),
                    directory: directory.clone(),
                })
                .await
            }
            Command::MakeDirs { directories, mode } => {
                self.run_on_all_targets(targets, |_| NodeAction::MakeDirectories {
                    tools: tools(),
                    directories: directories.clone(),
                    mode: *mode,
                })
                .await
            }
            Command::PrepareApiserverFiles
            | Command::PrepareControllerManagerFiles
            | Command::PrepareSchedulerFiles
            | Command::PrepareKubeletFiles
            | Command::PrepareKubeletConfig
            | Command::PrepareProxyFiles => match command.file_set() {
                Some(set) => {
                    self.prepare_files(targets, basis, options, |about| planned_files(set, about)).await
                }
                None => Ok(()),
            },
            Command::PrepareCertificates { subjects } => {
                self.prepare_files(targets, basis, options, |_| Ok(renewed_files(subjects))).await
            }
            Command::MakeFiles { .. } => self.make_kubernetes_files(targets).await,
            Command::StopContainer(Component::ApiServer) => self.end_api_servers(targets).await,
            Command::StopContainer(component) => {
                self.run_on_all_targets(targets, |_| NodeAction::StopContainer((*component).into())).await
            }
            Command::KillContainers(component) => {
                self.run_on_all_targets(targets, |_| NodeAction::KillContainer((*component).into())).await
            }
            Command::RunContainer { component, restart } => {
                let nodes: BTreeMap<&str, &Node> =
                    basis.cluster.nodes.iter().map(|node| (node.address.as_str(), node)).collect();
                let known: Vec<String> =
                    targets.iter().filter(|address| nodes.contains_key(address.as_str())).cloned().collect();
                self.run_on_all_targets(&known, |address| NodeAction::RunContainer {
                    spec: ContainerSpec {
                        container: (*component).into(),
                        image: self.images.kubernetes.clone(),
                        engine_options: component.engine_options(),
                        volumes: Vec::new(),
                        builtin: builtin_parameters(*component, &basis.cluster, options, nodes[address]),
                        extra: options.extra(*component).clone(),
                    },
                    restart: *restart,
                })
                .await
            }
            Command::InstallCni => {
                self.run_on_all_targets(targets, |_| NodeAction::InstallCni { tools: tools() }).await
            }
            Command::RetaintBeforeKubeletBoot { nodes } => {
                self.add_boot_taints(nodes, &options.boot_taints, basis).await
            }
            Command::AddEncryptionKey { key } => {
                self.change_encryption_keys(&EncryptionKeyChange::Add(key.clone())).await
            }
            Command::PutEncryptionKeyFirst { key } => {
                self.change_encryption_keys(&EncryptionKeyChange::PutFirst(key.clone())).await
            }
            Command::RewriteSecrets { key } => self.rewrite_secrets(key, basis).await,
            Command::DropEncryptionKeys { key } => {
                self.change_encryption_keys(&EncryptionKeyChange::KeepOnly(key.clone())).await
            }
            // Its record ends the rotation.
            Command::CompleteEncryptionRotation { .. } => Ok(()),
            Command::WaitForProxies => {
                tokio::time::sleep(PROXIES_FOLLOW).await;
                Ok(())
            }
        }
    }

    /// The components that are not healthy, with the reasons. All are asked at the same time.
    async fn find_unhealthy(&self, component: Component, addresses: &[String]) -> BTreeMap<String, String> {
        let mut running = JoinSet::new();
        for address in addresses {
            let (components, address) = (Arc::clone(&self.components), address.clone());
            running.spawn(async move {
                let checked = components.check(component, &address).await;
                (address, checked)
            });
        }
        // A check that ended early is not an answer: its component stays sick.
        let early = || "its check ended early".to_owned();
        let mut sick: BTreeMap<String, String> =
            addresses.iter().map(|address| (address.clone(), early())).collect();
        while let Some(joined) = running.join_next().await {
            match joined {
                Ok((address, Ok(()))) => drop(sick.remove(&address)),
                Ok((address, Err(error))) => drop(sick.insert(address, error.to_string())),
                Err(_) => {}
            }
        }
        sick
    }

    /// Prepares files for each target.
    async fn prepare_files(
        &self,
        targets: &[String],
        basis: &Basis,
        options: &KubernetesOptions,
        plan: impl Fn(&FileContext<'_>) -> Result<Vec<PlannedFile>, serde_json::Error>,
    ) -> Result<(), Failure> {
        let wanted = Wanted { cluster: &basis.cluster, options, image: &self.images.kubernetes };
        let mut prepared = BTreeMap::new();
        for node in basis.cluster.nodes.iter().filter(|node| targets.contains(&node.address)) {
            let unknown = wanted.unknown_fields();
            let running = basis.kubelets.get(&node.address);
            let running = running.and_then(|text| Configuration::read(Component::Kubelet, text, unknown));
            let about =
                FileContext { cluster: &basis.cluster, options, node, running: running.as_ref(), unknown };
            let planned = plan(&about)
                .map_err(|error| format!("the options of the cluster make no configuration: {error}"))?;
            prepared.insert(node.address.clone(), self.fill_files(planned, &about).await?);
        }
        *self.prepared.lock().unwrap_or_else(PoisonError::into_inner) = prepared;
        Ok(())
    }

    /// Ends API servers. Each completes its requests first, for at most [`API_SERVER_GRACE`]; no command outlives its permit.
    pub(super) async fn end_api_servers(&self, targets: &[String]) -> Result<(), Failure> {
        let container = ContainerName::from(Component::ApiServer);
        let end = Instant::now() + API_SERVER_GRACE;
        let mut ask = true;
        loop {
            let action = |_: &str| NodeAction::EndContainer { container, ask };
            let outputs = self.ask_all_targets(targets, action).await?;
            if outputs.values().all(|output| output.trim() != RUNNING) {
                return Ok(());
            }
            if Instant::now() >= end {
                return self.run_on_all_targets(targets, |_| NodeAction::KillContainer(container)).await;
            }
            ask = false;
        }
    }

    /// The files of a node with their contents. Each certificate is issued once.
    async fn fill_files(
        &self,
        planned: Vec<PlannedFile>,
        about: &FileContext<'_>,
    ) -> Result<Vec<NodeFile>, Failure> {
        let mut issued = BTreeMap::new();
        let mut ready = Vec::new();
        for PlannedFile { path, source } in planned {
            let content = match source {
                Source::Text(text) => FileContent::Public(text),
                Source::Authority(authority) => {
                    FileContent::Public(self.authorities.certificate(authority).await?)
                }
                Source::Certificate(subject) => {
                    FileContent::Public(self.issue_pair(subject, about, &mut issued).await?.certificate)
                }
                Source::Key(subject) => {
                    FileContent::Private(self.issue_pair(subject, about, &mut issued).await?.private_key)
                }
                Source::ServiceAccountCertificate => {
                    FileContent::Public(self.service_account().await?.certificate)
                }
                Source::ServiceAccountKey => FileContent::Private(self.service_account().await?.private_key),
                Source::Kubeconfig(subject) => {
                    let pair = self.issue_pair(subject, about, &mut issued).await?;
                    FileContent::Private(self.make_kubeconfig(subject, about, &pair).await?)
                }
                Source::Encryption => {
                    let permit = self.permits.get().await;
                    let stored = self.secrets.encryption_keys(&permit).await?;
                    let keys = encryption::read(stored.reveal()).map_err(|error| error.to_string())?;
                    FileContent::Private(encryption::encryption_configuration(&keys))
                }
            };
            ready.push(NodeFile { path, content });
        }
        Ok(ready)
    }

    async fn service_account(&self) -> Result<IssuedCertificate, Failure> {
        let permit = self.permits.get().await;
        Ok(self.secrets.service_account(&permit).await?)
    }

    async fn issue_pair(
        &self,
        subject: CertificateSubject,
        about: &FileContext<'_>,
        issued: &mut BTreeMap<CertificateSubject, IssuedCertificate>,
    ) -> Result<IssuedCertificate, Failure> {
        if let Some(known) = issued.get(&subject) {
            return Ok(known.clone());
        }
        let request = certificate_request(subject, about.cluster, about.options, about.node);
        let pair = self.authorities.issue(&request).await?;
        issued.insert(subject, pair.clone());
        Ok(pair)
    }

    async fn make_kubeconfig(
        &self,
        subject: CertificateSubject,
        about: &FileContext<'_>,
        pair: &IssuedCertificate,
    ) -> Result<Secret, Failure> {
        let request = certificate_request(subject, about.cluster, about.options, about.node);
        let trusted = self.authorities.certificate(request.authority).await?;
        let credentials =
            Credentials { trusted: &trusted, certificate: &pair.certificate, key: &pair.private_key };
        Ok(kubeconfig::kubeconfig_with_inline_credentials(
            &about.cluster.name,
            &request.common_name,
            LOCAL_SERVER,
            &credentials,
        ))
    }

    /// Writes the prepared files, directory by directory.
    async fn make_kubernetes_files(&self, targets: &[String]) -> Result<(), Failure> {
        let prepared = std::mem::take(&mut *self.prepared.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(missing) = targets.iter().find(|target| !prepared.contains_key(*target)) {
            return Err(format!("{missing} has no files: it is not a node of the cluster").into());
        }
        let mut directories: BTreeMap<String, BTreeMap<String, Vec<NodeFile>>> = BTreeMap::new();
        for (address, files) in prepared {
            for file in files {
                let of_directory = directories.entry(directory_of(&file.path)).or_default();
                of_directory.entry(address.clone()).or_default().push(file);
            }
        }
        for (directory, files) in directories {
            let targets: Vec<String> = files.keys().cloned().collect();
            self.run_on_all_targets(&targets, |address| NodeAction::WriteFiles {
                tools: self.images.tools.clone(),
                directory: directory.clone(),
                files: files.get(address).cloned().unwrap_or_default(),
            })
            .await?;
        }
        Ok(())
    }
}

/// Asks an image of Kubernetes for its version on a node that has it. All programs of the image have one version.
pub(crate) fn version_question(image: &str) -> NodeAction {
    NodeAction::ImageVersion { image: image.to_owned(), program: Some(Component::ApiServer), pull: false }
}

fn skips_checks() -> bool {
    is_planted(Canary::ApiGapUnchecked) || is_planted(Canary::ApiServersAtOnce)
}

/// The directory that the tools write a file below.
fn directory_of(path: &str) -> String {
    let below = path.strip_prefix(KUBERNETES).is_some_and(|rest| rest.starts_with('/'));
    let parent = || path.rsplit_once('/').map_or("/", |(parent, _)| parent);
    if below { KUBERNETES.to_owned() } else { parent().to_owned() }
}
