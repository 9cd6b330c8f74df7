//! The objects that CKE 1.30 applies to every cluster (its `static/*.yml`): the cluster's DNS, the DNS cache of the
//! nodes, and the access of API servers to kubelets.
//!
//! Each field of CKE's is kept: a later apply by the same field manager removes the fields that are missing. The
//! revision and the images decide whether an object is applied, not its content.

use madako_domain::images::ImageName;
use madako_domain::objects::Manifest;
use madako_domain::resource::{ANNOTATION_IMAGE, ANNOTATION_REVISION};
use serde_json::{Value, json};

use super::SYSTEM_NAMESPACE;
use super::apply::WantedResource;
use super::dns::{CLUSTER_DNS, NODE_DNS};

/// The images of the static resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsImages {
    pub coredns: String,
    pub unbound: String,
    pub unbound_exporter: String,
}

impl DnsImages {
    /// The images of CKE 1.30.
    #[must_use]
    pub fn default_images() -> Self {
        Self {
            coredns: ImageName::Coredns.default_image().to_owned(),
            unbound: ImageName::Unbound.default_image().to_owned(),
            unbound_exporter: ImageName::UnboundExporter.default_image().to_owned(),
        }
    }
}

const RBAC: &str = "rbac.authorization.k8s.io";
const SERVICE_ACCOUNT: &str = "cke-cluster-dns";
const DNS_ROLE: &str = "system:cluster-dns";
const KUBELET_ROLE: &str = "system:kube-apiserver-to-kubelet";
/// The label that the selectors of both DNS servers use.
const APP_NAME: &str = "cke.cybozu.com/appname";
const UNBOUND_RUN: &str = "/var/run/unbound";

/// The static resources, in the order of application.
#[must_use]
pub fn static_resources(images: &DnsImages) -> Vec<WantedResource> {
    let mut resources = [
        wanted_resource(1, None, service_account()),
        wanted_resource(2, None, dns_role()),
        wanted_resource(1, None, kubelet_role()),
        wanted_resource(1, None, role_binding(DNS_ROLE, DNS_ROLE, &dns_subject())),
        wanted_resource(
            1,
            None,
            role_binding(
                "system:kube-apiserver",
                KUBELET_ROLE,
                &json!({"kind": "User", "name": "kubernetes"}),
            ),
        ),
        wanted_resource(4, Some(format!("{},{}", images.unbound, images.unbound_exporter)), node_dns(images)),
        wanted_resource(4, Some(images.coredns.clone()), cluster_dns(&images.coredns)),
        wanted_resource(1, None, disruption_budget()),
        wanted_resource(1, None, dns_service()),
    ];
    resources.sort_by(|a, b| a.key.cmp(&b.key));
    resources.into()
}

fn wanted_resource(revision: i64, image: Option<String>, mut manifest: Value) -> WantedResource {
    let annotations = &mut manifest["metadata"]["annotations"];
    annotations[ANNOTATION_REVISION] = json!(revision.to_string());
    if let Some(image) = &image {
        annotations[ANNOTATION_IMAGE] = json!(image);
    }
    let manifest = Manifest::new(manifest).expect("the manifests here name their objects");
    WantedResource { key: manifest.name().key.clone(), revision, image, manifest }
}

/// Labels and annotations of Kubernetes' own roles: its API servers keep rules that the object lacks.
fn bootstrap_metadata(name: &str) -> Value {
    json!({
        "name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    })
}

fn service_account() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": SERVICE_ACCOUNT, "namespace": SYSTEM_NAMESPACE},
    })
}

fn dns_subject() -> Value {
    json!({"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": SYSTEM_NAMESPACE})
}

fn role(name: &str, rules: &Value) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRole",
        "metadata": bootstrap_metadata(name),
        "rules": rules,
    })
}

fn dns_role() -> Value {
    let rule = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": ["list", "watch"]});
    let rules =
        json!(
            [rule("", &["services", "pods", "namespaces"]), rule("discovery.k8s.io", &["endpointslices"]),]
        );
    role(DNS_ROLE, &rules)
}

fn kubelet_role() -> Value {
    let parts = ["proxy", "stats", "log", "spec", "metrics"].map(|part| format!("nodes/{part}"));
    role(KUBELET_ROLE, &json!([{"apiGroups": [""], "resources": parts, "verbs": ["*"]}]))
}

fn role_binding(name: &str, role: &str, subject: &Value) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": bootstrap_metadata(name),
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    })
}

fn pod_selector(app: &str) -> Value {
    json!({APP_NAME: app})
}

fn mount(name: &str, path: &str) -> Value {
    json!({"name": name, "mountPath": path})
}

/// The volume of a ConfigMap with one file.
fn config_volume(config_map: &str, file: &str) -> Value {
    json!({"name": "config-volume", "configMap": {"name": config_map, "items": [{"key": file, "path": file}]}})
}

/// A container without privileges, except for added capabilities.
fn restricted_security_context(capabilities: &[&str]) -> Value {
    let mut context = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["all"]},
        "readOnlyRootFilesystem": true,
    });
    if !capabilities.is_empty() {
        context["capabilities"]["add"] = json!(capabilities);
    }
    context
}

fn resource_requests() -> Value {
    json!({"requests": {"cpu": "50m", "memory": "250Mi"}})
}

fn cluster_dns(image: &str) -> Value {
    let http = |path: &str, port: u16| json!({"path": path, "port": port, "scheme": "HTTP"});
    let port = |name: &str, port: u16, protocol: &str| json!({"containerPort": port, "name": name, "protocol": protocol});
    let container = json!({
        "name": "coredns",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "resources": resource_requests(),
        "args": ["-conf", "/etc/coredns/Corefile"],
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "sleep 5"]}}},
        "volumeMounts": [{"name": "config-volume", "mountPath": "/etc/coredns", "readOnly": true}],
        "ports": [port("dns", 1053, "UDP"), port("dns-tcp", 1053, "TCP"), port("metrics", 9153, "TCP")],
        "securityContext": restricted_security_context(&[]),
        "readinessProbe": {"httpGet": http("/ready", 8181)},
        "livenessProbe": {
            "httpGet": http("/health", 8080),
            "initialDelaySeconds": 60,
            "timeoutSeconds": 5,
            "successThreshold": 1,
            "failureThreshold": 5,
        },
    });
    let tolerations = json!([
        {"key": "node-role.kubernetes.io/master", "effect": "NoSchedule"},
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        {"key": "kubernetes.io/e2e-evict-taint-key", "operator": "Exists"},
    ]);
    let apart = json!({"labelSelector": {"matchLabels": pod_selector(CLUSTER_DNS)}, "topologyKey": "kubernetes.io/hostname"});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": CLUSTER_DNS, "namespace": SYSTEM_NAMESPACE},
        "spec": {
            "replicas": 2,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
            "selector": {"matchLabels": pod_selector(CLUSTER_DNS)},
            "template": {
                "metadata": {
                    "labels": {APP_NAME: CLUSTER_DNS, "k8s-app": "coredns"},
                    "annotations": {"prometheus.io/port": "9153"},
                },
                "spec": {
                    "priorityClassName": "system-cluster-critical",
                    "serviceAccountName": SERVICE_ACCOUNT,
                    "tolerations": tolerations,
                    "containers": [container],
                    "dnsPolicy": "Default",
                    "volumes": [config_volume(CLUSTER_DNS, "Corefile")],
                    "affinity": {
                        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
                    },
                },
            },
        },
    })
}

fn dns_service() -> Value {
    let port = |name: &str, protocol: &str| json!({"name": name, "port": 53, "targetPort": 1053, "protocol": protocol});
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": CLUSTER_DNS, "namespace": SYSTEM_NAMESPACE, "labels": pod_selector(CLUSTER_DNS)},
        "spec": {
            "selector": pod_selector(CLUSTER_DNS),
            "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")],
        },
    })
}

fn disruption_budget() -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "cluster-dns-pdb", "namespace": SYSTEM_NAMESPACE},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": pod_selector(CLUSTER_DNS)}},
    })
}

fn node_dns(images: &DnsImages) -> Value {
    let (config, run) = (mount("config-volume", "/etc/unbound"), mount("var-run-unbound", UNBOUND_RUN));
    let probe = json!({"tcpSocket": {"port": 53, "host": "localhost"}, "periodSeconds": 1});
    let mut liveness = probe.clone();
    liveness["initialDelaySeconds"] = json!(1);
    liveness["failureThreshold"] = json!(6);
    let unbound = json!({
        "name": "unbound",
        "image": images.unbound,
        "args": ["-c", "/etc/unbound/unbound.conf"],
        "securityContext": restricted_security_context(&["NET_BIND_SERVICE"]),
        "readinessProbe": probe,
        "livenessProbe": liveness,
        "volumeMounts": [config, run],
        "resources": resource_requests(),
    });
    let reload = json!({
        "name": "reload",
        "image": images.unbound,
        "command": ["/usr/local/bin/reload-unbound"],
        "securityContext": restricted_security_context(&[]),
        "volumeMounts": [config, run],
    });
    let exporter = json!({
        "name": "exporter",
        "image": images.unbound_exporter,
        "args": [format!("--unbound.host=unix://{UNBOUND_RUN}/unbound.sock"), "--web.reuse-port=true"],
        "securityContext": restricted_security_context(&[]),
        "volumeMounts": [run],
    });
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NODE_DNS, "namespace": SYSTEM_NAMESPACE},
        "spec": {
            "selector": {"matchLabels": pod_selector(NODE_DNS)},
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": "35%", "maxUnavailable": 0},
            },
            "template": {
                "metadata": {"labels": pod_selector(NODE_DNS)},
                "spec": {
                    "priorityClassName": "system-node-critical",
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "hostNetwork": true,
                    "tolerations": [{"operator": "Exists"}],
                    "terminationGracePeriodSeconds": 1,
                    "containers": [unbound, reload, exporter],
                    "volumes": [
                        config_volume(NODE_DNS, "unbound.conf"),
                        {"name": "var-run-unbound", "emptyDir": {}},
                    ],
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MD5 of each manifest as JSON with sorted fields, of CKE's files at commit b3f803d4 with the images below.
    const OF_CKE: [(&str, &str); 9] = [
        ("ServiceAccount/kube-system/cke-cluster-dns", "7dccffd4052295fe545f12e13213de5a"),
        ("ClusterRole/system:cluster-dns", "678d2601cfbc692989a25f1e66a9ca4f"),
        ("ClusterRole/system:kube-apiserver-to-kubelet", "3317f52dcf4f8ee027427153ba1ca97c"),
        ("ClusterRoleBinding/system:cluster-dns", "1dba2d55c405438b3a505c9f082e1c44"),
        ("ClusterRoleBinding/system:kube-apiserver", "d994b15a34e21ecfae17dc5ca79f9526"),
        ("DaemonSet/kube-system/node-dns", "58c7ac54642dd43d612d90747f36db7b"),
        ("Deployment/kube-system/cluster-dns", "9d89860ce245e4bb1dddd02d6a71a7a0"),
        ("PodDisruptionBudget/kube-system/cluster-dns-pdb", "af528d66d41367eaf81b56c145612af9"),
        ("Service/kube-system/cluster-dns", "0d654b4acde161615f6e2d088e4277ef"),
    ];

    #[test]
    fn manifests_are_ckes_in_the_order_of_application() {
        let images =
            DnsImages { coredns: "c:1".into(), unbound: "u:2".into(), unbound_exporter: "e:3".into() };
        let resources = static_resources(&images);
        let found: Vec<_> = resources
            .iter()
            .map(|resource| {
                (
                    resource.key.to_string(),
                    format!("{:x}", md5::compute(resource.manifest.content().to_string())),
                )
            })
            .collect();
        let expected = OF_CKE.map(|(key, digest)| (key.to_owned(), digest.to_owned()));
        assert_eq!(found, expected);
        let images: Vec<_> = resources.iter().filter_map(|resource| resource.image.as_deref()).collect();
        assert_eq!(images, ["u:2,e:3", "c:1"]);
    }
}
