//! The containers of Kubernetes, and the options of the container engine for each.

use madako_json::named;

/// A container of Kubernetes. Its name is that of its program.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::Display,
    strum::IntoStaticStr,
    strum::EnumString,
)]
pub enum Component {
    #[strum(serialize = "kube-apiserver")]
    ApiServer,
    #[strum(serialize = "kube-controller-manager")]
    ControllerManager,
    #[strum(serialize = "kube-scheduler")]
    Scheduler,
    #[strum(serialize = "kubelet")]
    Kubelet,
    #[strum(serialize = "kube-proxy")]
    Proxy,
}

named!(Component);

impl Component {
    /// All components, in the order of their start.
    pub const ALL: [Self; 5] =
        [Self::ApiServer, Self::ControllerManager, Self::Scheduler, Self::Kubelet, Self::Proxy];

    /// True for a component of control plane nodes; the others run on every node.
    #[must_use]
    pub fn is_of_control_plane(self) -> bool {
        matches!(self, Self::ApiServer | Self::ControllerManager | Self::Scheduler)
    }

    /// Options of the container engine, after those of every container.
    #[must_use]
    pub fn engine_options(self) -> &'static [&'static str] {
        match self {
            Self::ApiServer => &["--mount", "type=tmpfs,dst=/run/kubernetes"],
            Self::ControllerManager | Self::Scheduler => &[],
            Self::Kubelet => &["--pid=host", "--privileged", "--tmpfs=/tmp"],
            Self::Proxy => &["--tmpfs=/run", "--privileged"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_that_nodes_report() {
        let names = Component::ALL.map(|component| component.name());
        assert_eq!(names, madako_domain::containers::KUBERNETES);
        for name in names {
            assert_eq!(name.parse::<Component>().unwrap().name(), name);
        }
    }
}
