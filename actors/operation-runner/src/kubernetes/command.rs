//! The commands of operations on Kubernetes' containers, in the words of CKE's records.

use madako_domain::component::Component;
use madako_domain::images::ImageName;
use madako_json::named;

use super::certificates::CertificateSubject;
use super::files::FileSet;

/// A command, which runs on all targets of its operation at the same time.
#[derive(Debug, Clone, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum KubernetesCommand {
    ImagePull {
        image: String,
    },
    EmptyDir {
        directory: String,
    },
    MakeDirs {
        directories: Vec<String>,
        mode: u32,
    },
    PrepareApiserverFiles,
    PrepareControllerManagerFiles,
    PrepareSchedulerFiles,
    PrepareKubeletFiles,
    PrepareKubeletConfig,
    PrepareProxyFiles,
    /// Issues these certificates for [`Self::MakeFiles`].
    PrepareCertificates {
        subjects: Vec<CertificateSubject>,
    },
    /// Writes the files that the command before it prepared.
    MakeFiles {
        paths: Vec<String>,
    },
    /// Ends and removes a container.
    StopContainer(Component),
    /// Kills and removes a container.
    KillContainers(Component),
    RunContainer {
        component: Component,
        restart: bool,
    },
    /// Copies the CNI plugins of the tools image.
    InstallCni,
    /// Adds the boot taints to nodes that are registered.
    RetaintBeforeKubeletBoot {
        nodes: Vec<String>,
    },
    /// Waits until the proxies of the nodes have read the endpoints.
    WaitForProxies,
    /// Makes the encryption key of this name, with which API servers only decrypt.
    AddEncryptionKey {
        key: String,
    },
    /// Lets API servers encrypt with the key of this name once they restart.
    PutEncryptionKeyFirst {
        key: String,
    },
    /// Lets an API server encrypt each Secret with the key of this name.
    RewriteSecrets {
        key: String,
    },
    /// Removes all other encryption keys.
    DropEncryptionKeys {
        key: String,
    },
    /// Ends the rotation: each API server has the key of this name alone.
    CompleteEncryptionRotation {
        key: String,
    },
}

named!(KubernetesCommand);

impl KubernetesCommand {
    /// The files that the command prepares for [`Self::MakeFiles`].
    #[must_use]
    pub fn file_set(&self) -> Option<FileSet> {
        match self {
            Self::PrepareApiserverFiles => Some(FileSet::ApiServer),
            Self::PrepareControllerManagerFiles => Some(FileSet::ControllerManager),
            Self::PrepareSchedulerFiles => Some(FileSet::Scheduler),
            Self::PrepareKubeletFiles => Some(FileSet::KubeletBoot),
            Self::PrepareKubeletConfig => Some(FileSet::KubeletRestart),
            Self::PrepareProxyFiles => Some(FileSet::Proxy),
            _ => None,
        }
    }

    /// True if the authorities must issue certificates for it.
    #[must_use]
    pub fn needs_certificates(&self) -> bool {
        self.file_set().is_some() || matches!(self, Self::PrepareCertificates { .. })
    }

    /// True if it starts a container of this image.
    #[must_use]
    pub fn needs_image(&self, image: ImageName) -> bool {
        match self {
            Self::RunContainer { .. } => image == ImageName::Kubernetes,
            Self::EmptyDir { .. } | Self::MakeDirs { .. } | Self::MakeFiles { .. } | Self::InstallCni => {
                image == ImageName::Tools
            }
            _ => false,
        }
    }

    /// The target in records.
    #[must_use]
    pub fn target(&self) -> String {
        match self {
            Self::ImagePull { image } => image.clone(),
            Self::EmptyDir { directory } => directory.clone(),
            Self::MakeDirs { directories, .. } => directories.join(" "),
            Self::MakeFiles { paths } => paths.join(","),
            Self::PrepareCertificates { subjects } => {
                subjects.iter().map(|subject| subject.path()).collect::<Vec<_>>().join(",")
            }
            Self::StopContainer(component)
            | Self::KillContainers(component)
            | Self::RunContainer { component, .. } => component.to_string(),
            Self::AddEncryptionKey { key }
            | Self::PutEncryptionKeyFirst { key }
            | Self::RewriteSecrets { key }
            | Self::DropEncryptionKeys { key }
            | Self::CompleteEncryptionRotation { key } => key.clone(),
            Self::PrepareApiserverFiles
            | Self::PrepareControllerManagerFiles
            | Self::PrepareSchedulerFiles
            | Self::PrepareKubeletFiles
            | Self::PrepareKubeletConfig
            | Self::PrepareProxyFiles
            | Self::InstallCni
            | Self::RetaintBeforeKubeletBoot { .. }
            | Self::WaitForProxies => String::new(),
        }
    }
}
