//! The options of a cluster for its components (the field `options`; CKE's `docs/cluster.md`), as CKE stores them. The
//! declarations are the schema of typed configurations, too.
//!
//! Reading is lenient, as in Go: `null` means empty. Typed configurations were checked strictly before they were stored.

use std::collections::BTreeMap;

use madako_json::go::{RawJson, add_field_to_error, go_object};
use madako_json::strict::Kind::{self, OmitEmpty};
use serde::de::DeserializeOwned;

use crate::cluster::Taint;

go_object! {
    /// The options of all components. Each is read for itself: a wrong shape of one does not hinder the others.
    #[derive(Debug, Clone, Default)]
    pub struct StoredOptions {
        /// [`EtcdOptions`].
        pub etcd: RawJson = "etcd", is Kind::Object(EtcdOptions::SCHEMA);
        /// [`ServiceParams`] of the proxy to the API servers.
        pub rivers: RawJson = "rivers", is Kind::Object(ServiceParams::SCHEMA);
        /// [`ServiceParams`] of the proxy to the members of etcd.
        pub etcd_rivers: RawJson = "etcd-rivers", is Kind::Object(ServiceParams::SCHEMA);
        /// [`ApiServerOptions`].
        pub api_server: RawJson = "kube-api", is Kind::Object(ApiServerOptions::SCHEMA);
        /// [`ServiceParams`].
        pub controller_manager: RawJson = "kube-controller-manager", is Kind::Object(ServiceParams::SCHEMA);
        /// [`SchedulerOptions`].
        pub scheduler: RawJson = "kube-scheduler", is Kind::Object(SchedulerOptions::SCHEMA);
        /// [`ProxyOptions`].
        pub proxy: RawJson = "kube-proxy", is Kind::Object(ProxyOptions::SCHEMA);
        /// [`KubeletOptions`].
        pub kubelet: RawJson = "kubelet", is Kind::Object(KubeletOptions::SCHEMA);
        ..drop typed
    }
}

/// Reads the options of the component `name`.
///
/// # Errors
/// The options have another shape.
pub fn read_component<T: DeserializeOwned + Default>(
    name: &str,
    options: &RawJson,
) -> Result<T, serde_json::Error> {
    options.parse().map_err(|error| add_field_to_error(name, error))
}

go_object! {
    /// A directory or file of the node in a container.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Mount {
        /// Path on the node.
        pub source: String = "source";
        /// Path in the container.
        pub destination: String = "destination";
        /// True if the container cannot write.
        pub read_only: bool = "read_only";
        /// Mount propagation, as docker takes it; empty for docker's default.
        pub propagation: String = "propagation";
        /// `z` or `Z`, which counts only where SELinux enforces; empty for none.
        pub selinux_label: String = "selinux_label";
        ..drop typed
    }
}

/// Declares the parameters of a component's container, and the options of the component after them.
macro_rules! component_options {
    ($(#[$meta:meta])* $name:ident $(into $params:ident)? { $($own:tt)* }) => {
        go_object! {
            $(#[$meta])*
            #[derive(Debug, Clone, Default, PartialEq, Eq)]
            pub struct $name {
                /// Arguments, in order. They may hold secrets.
                pub args: Vec<String> = "extra_args", is Kind::List(&Kind::Secret);
                /// Mounts from the node, in the order of the container's arguments.
                pub binds: Vec<Mount> = "extra_binds";
                /// Environment variables. They may hold secrets.
                pub env: BTreeMap<String, String> = "extra_env", is Kind::Map(&Kind::Secret);
                $($own)*
                ..drop typed
            }
        }

        $(impl From<$name> for $params {
            fn from($name { args, binds, env, .. }: $name) -> Self {
                Self { args, binds, env }
            }
        })?
    };
}

component_options! {
    /// Parameters of a container: those that are built in, or those that an operator adds.
    ServiceParams {}
}

component_options! {
    /// Options of etcd.
    EtcdOptions into ServiceParams {
        /// Volume with the data of a member; empty for [`DEFAULT_ETCD_VOLUME`](crate::containers::DEFAULT_ETCD_VOLUME).
        pub volume_name: String = "volume_name";
    }
}

component_options! {
    /// Options of the API server.
    ApiServerOptions into ServiceParams {
        /// True if the API server writes an audit log.
        pub audit_log_enabled: bool = "audit_log_enabled";
        /// Policy of the audit log, as a document.
        pub audit_log_policy: String = "audit_log_policy";
        /// Path of the audit log; empty for standard output.
        pub audit_log_path: String = "audit_log_path";
    }
}

component_options! {
    /// Options of the scheduler.
    SchedulerOptions into ServiceParams {
        /// The operator's part of the configuration file.
        pub config: RawJson = "config", is OmitEmpty(&Kind::FreeForm);
    }
}

component_options! {
    /// Options of kube-proxy.
    ProxyOptions into ServiceParams {
        /// True if no kube-proxy may run.
        pub disable: bool = "disable", is OmitEmpty(&Kind::Bool);
        /// The operator's part of the configuration file.
        pub config: RawJson = "config", is OmitEmpty(&Kind::FreeForm);
    }
}

component_options! {
    /// Options of the kubelet.
    KubeletOptions into ServiceParams {
        /// Taints of a node that registers or boots.
        pub boot_taints: Vec<Taint> = "boot_taints";
        /// The CNI configuration that a booting node gets.
        pub cni_conf_file: CniFile = "cni_conf_file";
        /// The operator's part of the configuration file.
        pub config: RawJson = "config", is OmitEmpty(&Kind::FreeForm);
        /// The socket of the container runtime. An empty text leaves the choice to the kubelet.
        pub cri_endpoint: Option<String> = "cri_endpoint";
    }
}

go_object! {
    /// A file below `/etc/cni/net.d` of a node.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct CniFile {
        /// Name of the file; empty for no file.
        pub name: String = "name";
        /// Text of the file, in the JSON of CNI.
        pub content: String = "content";
        ..drop typed
    }
}
