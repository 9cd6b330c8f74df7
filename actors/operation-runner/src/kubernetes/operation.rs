//! The operations on Kubernetes' containers as data: their names, targets and commands.

use madako_domain::canary::{Canary, is_planted};
use madako_json::named;
use serde::Serialize;

use super::command::KubernetesCommand as Command;
use super::files::{FileContext, FileSet, planned_files};
use super::paths::{
    CNI_CONFIG, CNI_PROGRAMS, CNI_STATE, CONTAINER_LOGS, ENCRYPTION_DIRECTORY, POD_LOGS, VOLUME_PLUGINS,
};
use madako_domain::component::Component;

/// The name of an operation in records, which is CKE's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
#[derive(Serialize, strum::Display, strum::IntoStaticStr, strum::EnumString)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum KubernetesOperationName {
    /// The first start, too.
    #[default]
    KubeApiserverRestart,
    KubeControllerManagerBootstrap,
    KubeControllerManagerRestart,
    KubeSchedulerBootstrap,
    KubeSchedulerRestart,
    KubeletBootstrap,
    KubeletRestart,
    KubeProxyBootstrap,
    KubeProxyRestart,
    StopKubeApiserver,
    StopKubeControllerManager,
    StopKubeScheduler,
    StopKubeProxy,
}

named!(KubernetesOperationName);

impl KubernetesOperationName {
    /// The component that the operation starts or stops.
    #[must_use]
    pub fn component(self) -> Component {
        match self {
            Self::KubeApiserverRestart | Self::StopKubeApiserver => Component::ApiServer,
            Self::KubeControllerManagerBootstrap
            | Self::KubeControllerManagerRestart
            | Self::StopKubeControllerManager => Component::ControllerManager,
            Self::KubeSchedulerBootstrap | Self::KubeSchedulerRestart | Self::StopKubeScheduler => {
                Component::Scheduler
            }
            Self::KubeletBootstrap | Self::KubeletRestart => Component::Kubelet,
            Self::KubeProxyBootstrap | Self::KubeProxyRestart | Self::StopKubeProxy => Component::Proxy,
        }
    }
}

/// The commands of an operation. `about` is one of its nodes: the paths are the same on each. `registered` are the
/// targets with a Node object.
///
/// # Errors
/// As of [`planned_files`].
pub fn commands(
    name: KubernetesOperationName,
    image: &str,
    about: &FileContext<'_>,
    registered: &[String],
) -> Result<Vec<Command>, serde_json::Error> {
    let make_files = |set| {
        let paths = planned_files(set, about)?.into_iter().map(|file| file.path).collect();
        Ok::<Command, serde_json::Error>(Command::MakeFiles { paths })
    };
    let run = |restart| Command::RunContainer { component: name.component(), restart };
    let mut commands = vec![Command::ImagePull { image: image.to_owned() }];
    match name {
        KubernetesOperationName::KubeApiserverRestart => commands.extend([
            Command::MakeDirs { directories: vec![ENCRYPTION_DIRECTORY.to_owned()], mode: 0o700 },
            Command::PrepareApiserverFiles,
            make_files(FileSet::ApiServer)?,
            Command::StopContainer(Component::ApiServer),
            run(false),
        ]),
        KubernetesOperationName::KubeControllerManagerBootstrap => commands.extend([
            Command::PrepareControllerManagerFiles,
            make_files(FileSet::ControllerManager)?,
            run(false),
        ]),
        KubernetesOperationName::KubeControllerManagerRestart => commands.push(run(true)),
        KubernetesOperationName::KubeSchedulerBootstrap | KubernetesOperationName::KubeSchedulerRestart => {
            let restart = name == KubernetesOperationName::KubeSchedulerRestart;
            commands.extend([Command::PrepareSchedulerFiles, make_files(FileSet::Scheduler)?, run(restart)]);
        }
        KubernetesOperationName::KubeletBootstrap => {
            if about.options.cni_file.is_some() {
                commands.push(Command::EmptyDir { directory: CNI_CONFIG.to_owned() });
            }
            let directories = [CNI_PROGRAMS, CNI_CONFIG, CNI_STATE, POD_LOGS, CONTAINER_LOGS, VOLUME_PLUGINS];
            commands.extend([
                Command::MakeDirs { directories: directories.map(str::to_owned).to_vec(), mode: 0o755 },
                Command::PrepareKubeletFiles,
                make_files(FileSet::KubeletBoot)?,
                Command::InstallCni,
            ]);
            let taint = (!registered.is_empty() && !about.options.boot_taints.is_empty())
                .then(|| Command::RetaintBeforeKubeletBoot { nodes: registered.to_vec() });
            if is_planted(Canary::BootTaintsLate) {
                commands.push(run(false));
                commands.extend(taint);
            } else {
                commands.extend(taint);
                commands.push(run(false));
            }
        }
        KubernetesOperationName::KubeletRestart => {
            commands.extend([Command::PrepareKubeletConfig, make_files(FileSet::KubeletRestart)?, run(true)])
        }
        KubernetesOperationName::KubeProxyBootstrap | KubernetesOperationName::KubeProxyRestart => {
            let restart = name == KubernetesOperationName::KubeProxyRestart;
            commands.extend([Command::PrepareProxyFiles, make_files(FileSet::Proxy)?, run(restart)]);
        }
        KubernetesOperationName::StopKubeApiserver
        | KubernetesOperationName::StopKubeControllerManager
        | KubernetesOperationName::StopKubeScheduler
        | KubernetesOperationName::StopKubeProxy => {
            commands = vec![Command::KillContainers(name.component())]
        }
    }
    Ok(commands)
}
