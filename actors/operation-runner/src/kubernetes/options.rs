//! The options of a cluster for the components of Kubernetes (its field `options`), in the form that operations use.

use madako_domain::cluster::{DEFAULT_CRI_ENDPOINT, Taint};
use madako_domain::options::{
    ApiServerOptions, CniFile, KubeletOptions, ProxyOptions, SchedulerOptions, ServiceParams, StoredOptions,
    read_component,
};
use madako_json::go::RawJson;
use madako_json::strict::Tree;

use super::configuration::{self, KnownComparisons};
use madako_domain::component::Component;

/// The options of the components.
#[derive(Debug, Clone, PartialEq)]
pub struct KubernetesOptions {
    extra: [ServiceParams; 5],
    /// `None`: the API server writes no audit log.
    pub audit: Option<AuditLog>,
    /// The operator's part of each configuration file; [`Tree::Null`] if there is none.
    pub scheduler: Tree,
    pub proxy: Tree,
    pub kubelet: Tree,
    /// True if no kube-proxy may run.
    pub is_proxy_disabled: bool,
    /// Taints of a node that registers or boots.
    pub boot_taints: Vec<Taint>,
    pub cni_file: Option<CniFile>,
    /// The socket of the container runtime. An empty text leaves the choice to the kubelet.
    pub cri_endpoint: String,
    pub(super) comparisons: KnownComparisons,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditLog {
    pub policy: String,
    /// Empty: standard output.
    pub path: String,
}

impl KubernetesOptions {
    /// Reads the field `options` of a cluster.
    ///
    /// # Errors
    /// The field has another shape.
    pub fn read(options: &RawJson) -> Result<Self, serde_json::Error> {
        let stored: StoredOptions = options.parse()?;
        let api_server: ApiServerOptions = read_component("kube-api", &stored.api_server)?;
        let scheduler: SchedulerOptions = read_component("kube-scheduler", &stored.scheduler)?;
        let kubelet: KubeletOptions = read_component("kubelet", &stored.kubelet)?;
        let proxy: ProxyOptions = read_component("kube-proxy", &stored.proxy)?;
        let config = |config: &RawJson| config.text().map_or(Ok(Tree::Null), Tree::from_stored);
        Ok(Self {
            audit: api_server.audit_log_enabled.then(|| AuditLog {
                policy: api_server.audit_log_policy.clone(),
                path: api_server.audit_log_path.clone(),
            }),
            scheduler: config(&scheduler.config)?,
            proxy: config(&proxy.config)?,
            kubelet: config(&kubelet.config)?,
            is_proxy_disabled: proxy.disable,
            boot_taints: kubelet.boot_taints.clone(),
            cni_file: Some(kubelet.cni_conf_file.clone()).filter(|file| !file.name.is_empty()),
            cri_endpoint: kubelet.cri_endpoint.clone().unwrap_or_else(|| DEFAULT_CRI_ENDPOINT.to_owned()),
            comparisons: KnownComparisons::default(),
            extra: [
                api_server.into(),
                read_component("kube-controller-manager", &stored.controller_manager)?,
                scheduler.into(),
                kubelet.into(),
                proxy.into(),
            ],
        })
    }

    /// The parameters that the operator adds to a component.
    #[must_use]
    pub fn extra(&self, component: Component) -> &ServiceParams {
        let [api_server, controller_manager, scheduler, kubelet, proxy] = &self.extra;
        match component {
            Component::ApiServer => api_server,
            Component::ControllerManager => controller_manager,
            Component::Scheduler => scheduler,
            Component::Kubelet => kubelet,
            Component::Proxy => proxy,
        }
    }

    /// The DNS domain of the cluster, which the kubelet's configuration sets.
    #[must_use]
    pub fn cluster_domain(&self) -> String {
        configuration::cluster_domain(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> KubernetesOptions {
        KubernetesOptions::read(&RawJson::from_text(text.to_owned()).unwrap()).unwrap()
    }

    #[test]
    fn absent_options_are_those_of_cke() {
        for text in ["null", "{}", r#"{"kubelet": {"cri_endpoint": null, "config": null}, "kube-api": null}"#]
        {
            let options = read(text);
            assert_eq!(options.cri_endpoint, "/run/containerd/containerd.sock", "{text}");
            assert_eq!(
                (options.audit, options.cni_file, options.kubelet),
                (None, None, Tree::Null),
                "{text}"
            );
        }
        assert_eq!(read(r#"{"kubelet": {"cri_endpoint": ""}}"#).cri_endpoint, "");
        assert_eq!(read("{}").cluster_domain(), "cluster.local");
    }

    #[test]
    fn each_component_has_its_own_parameters() {
        let options = read(
            r#"{"kube-api": {"extra_args": ["a"]}, "kube-controller-manager": {"extra_args": ["b"]},
                "kube-scheduler": {"extra_args": ["c"]}, "kubelet": {"extra_args": ["d"]},
                "kube-proxy": {"extra_args": ["e"]}}"#,
        );
        let found = Component::ALL.map(|component| options.extra(component).args.concat());
        assert_eq!(found, ["a", "b", "c", "d", "e"]);
    }

    #[test]
    fn options_of_another_shape_are_an_error() {
        for text in
            [r#"{"kubelet": []}"#, r#"{"kube-proxy": {"disable": 1}}"#, r#"{"kube-api": {"extra_args": 1}}"#]
        {
            assert!(
                KubernetesOptions::read(&RawJson::from_text(text.to_owned()).unwrap()).is_err(),
                "{text}"
            );
        }
    }
}
