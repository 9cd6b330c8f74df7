//! The containers, files and objects of Kubernetes that CKE makes on a cluster with one API server, written down
//! independently of the service's code.

use madako_lab::{COREDNS_IMAGE, KUBERNETES_IMAGE, UNBOUND_EXPORTER_IMAGE, UNBOUND_IMAGE};
use serde_json::{Value, json};

const PKI: &str = "/etc/kubernetes/pki";
const ETC: &str = "/etc/kubernetes:/etc/kubernetes:ro,z";
const MACHINE_ID: &str = "/etc/machine-id:/etc/machine-id:ro";
/// Address of the Service `cluster-dns`.
pub(crate) const DNS_ADDRESS: &str = "10.68.0.53";

/// A container of Kubernetes, by CKE's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    ApiServer,
    ControllerManager,
    Scheduler,
    Kubelet,
    Proxy,
}

impl Part {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
            Self::Proxy => "kube-proxy",
        }
    }

    fn arguments(self, address: &str) -> Vec<String> {
        let kubeconfig = |directory: &str| format!("/etc/kubernetes/{directory}/kubeconfig");
        let text = match self {
            Self::ApiServer => format!(
                "--allow-privileged --etcd-servers=https://127.0.0.1:12379 --etcd-cafile={PKI}/etcd-ca.crt \
                 --etcd-certfile={PKI}/apiserver-etcd-client.crt --etcd-keyfile={PKI}/apiserver-etcd-client.key \
                 --etcd-compaction-interval=0 --bind-address=0.0.0.0 --client-ca-file={PKI}/ca.crt \
                 --tls-cert-file={PKI}/apiserver.crt --tls-private-key-file={PKI}/apiserver.key \
                 --kubelet-certificate-authority={PKI}/ca.crt --kubelet-client-certificate={PKI}/apiserver.crt \
                 --kubelet-client-key={PKI}/apiserver.key \
                 --enable-admission-plugins=NodeRestriction,DenyServiceExternalIPs \
                 --service-account-issuer=https://kubernetes.default.svc.cluster.local \
                 --service-account-key-file={PKI}/service-account.crt \
                 --service-account-signing-key-file={PKI}/service-account.key --service-account-lookup \
                 --requestheader-client-ca-file={PKI}/aggregation-ca.crt \
                 --requestheader-allowed-names=front-proxy-client \
                 --requestheader-extra-headers-prefix=X-Remote-Extra- --requestheader-group-headers=X-Remote-Group \
                 --requestheader-username-headers=X-Remote-User --proxy-client-cert-file={PKI}/aggregation.crt \
                 --proxy-client-key-file={PKI}/aggregation.key --authorization-mode=Node,RBAC \
                 --advertise-address={address} --endpoint-reconciler-type=none \
                 --service-cluster-ip-range=10.68.0.0/16 \
                 --encryption-provider-config=/etc/kubernetes/apiserver/encryption.yml"
            ),
            Self::ControllerManager => format!(
                "--cluster-name=lab --service-cluster-ip-range=10.68.0.0/16 --kubeconfig={file} \
                 --authentication-kubeconfig={file} --authorization-kubeconfig={file} \
                 --tls-cert-file={PKI}/apiserver.crt --tls-private-key-file={PKI}/apiserver.key \
                 --root-ca-file={PKI}/ca.crt --service-account-private-key-file={PKI}/service-account.key \
                 --use-service-account-credentials=true",
                file = kubeconfig("controller-manager")
            ),
            Self::Scheduler => format!(
                "--config=/etc/kubernetes/scheduler/config.yml --authentication-kubeconfig={file} \
                 --authorization-kubeconfig={file} --tls-cert-file={PKI}/apiserver.crt \
                 --tls-private-key-file={PKI}/apiserver.key",
                file = kubeconfig("scheduler")
            ),
            Self::Kubelet => format!(
                "--config=/etc/kubernetes/kubelet/config.yml --kubeconfig={} --hostname-override={address} \
                 --container-runtime-endpoint=/run/containerd/containerd.sock",
                kubeconfig("kubelet")
            ),
            Self::Proxy => "--config=/etc/kubernetes/proxy/config.yml".to_owned(),
        };
        [self.name()].into_iter().chain(text.split_whitespace()).map(str::to_owned).collect()
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::ApiServer => &["--mount=type=tmpfs,dst=/run/kubernetes"],
            Self::ControllerManager | Self::Scheduler => &[],
            Self::Kubelet => &["--pid=host", "--privileged", "--tmpfs=/tmp"],
            Self::Proxy => &["--tmpfs=/run", "--privileged"],
        }
    }

    fn binds(self) -> &'static [&'static str] {
        match self {
            Self::ApiServer | Self::ControllerManager | Self::Scheduler => &[MACHINE_ID, ETC],
            Self::Kubelet => &[
                MACHINE_ID,
                "/etc/os-release:/etc/os-release:ro",
                ETC,
                "/var/lib/kubelet:/var/lib/kubelet:rw,rshared,z",
                "/var/lib/docker:/var/lib/docker:rw,Z",
                "/opt/volume/bin:/opt/volume/bin:rw,shared,z",
                "/var/log/pods:/var/log/pods:rw,z",
                "/var/log/containers:/var/log/containers:rw,z",
                "/run:/run:rw",
                "/sys:/sys:rw",
                "/dev:/dev:rw",
                "/opt/cni/bin:/opt/cni/bin:ro,z",
                "/etc/cni/net.d:/etc/cni/net.d:ro,z",
                "/var/lib/cni:/var/lib/cni:rw,z",
            ],
            Self::Proxy => &[MACHINE_ID, ETC, "/lib/modules:/lib/modules:ro"],
        }
    }

    /// The label of CKE in Go's JSON. Nothing in it needs an escape.
    fn label(self, arguments: &[String]) -> String {
        let words: Vec<String> = arguments.iter().map(|word| format!("\"{word}\"")).collect();
        let bind = |text: &&str| {
            let [source, destination, options] = text.split(':').collect::<Vec<_>>()[..] else {
                panic!("no bind: {text}")
            };
            let find = |known: &[&str]| {
                let found = options.split(',').find(|option| known.contains(option));
                found.unwrap_or_default().to_owned()
            };
            format!(
                r#"{{"source":"{source}","destination":"{destination}","read_only":{},"propagation":"{}","selinux_label":"{}"}}"#,
                options.starts_with("ro"),
                find(&["shared", "rshared"]),
                find(&["z", "Z"])
            )
        };
        let binds: Vec<String> = self.binds().iter().map(bind).collect();
        format!(
            r#"{{"builtin":{{"extra_args":[{}],"extra_binds":[{}],"extra_env":null}},"extra":{{"extra_args":null,"extra_binds":null,"extra_env":null}}}}"#,
            words.join(","),
            binds.join(",")
        )
    }

    /// Words of `docker` that start the container. Machines of the lab have no journald.
    pub(crate) fn docker_run(self, address: &str) -> Vec<String> {
        let arguments = self.arguments(address);
        let mut words: Vec<String> =
            ["run", "--log-driver=json-file", "-d", "--read-only", "--network=host", "--uts=host"]
                .map(str::to_owned)
                .into();
        words.push(format!("--name={}", self.name()));
        words.extend(self.options().iter().map(|option| (*option).to_owned()));
        words.extend(self.binds().iter().map(|bind| format!("--volume={bind}")));
        words.push(format!("--label=com.cybozu.cke={}", self.label(&arguments)));
        words.push(KUBERNETES_IMAGE.to_owned());
        words.extend(arguments);
        words
    }
}

/// The kubeconfig of a component whose credentials are files.
pub(crate) fn kubeconfig(user: &str, server: &str, [trusted, certificate, key]: [&str; 3]) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "default",
        "contexts": [{"name": "default", "context": {"cluster": "lab", "user": user}}],
        "clusters": [{"name": "lab", "cluster": {"server": server, "certificate-authority": trusted}}],
        "users": [{"name": user, "user": {"client-certificate": certificate, "client-key": key}}],
    })
    .to_string()
}

/// The options of the kubelet that a machine of the lab needs, as the cluster has them.
pub(crate) fn options() -> Value {
    json!({
        "kubelet": {"config": {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": false, "enforceNodeAllocatable": ["none"], "failSwapOn": false, "failCgroupV1": false,
            "localStorageCapacityIsolation": false, "resolvConf": "",
        }},
        "kube-proxy": {"config": {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
            "conntrack": {"maxPerCore": 0},
        }},
    })
}

/// The configuration files of a node.
pub(crate) fn configurations(address: &str) -> [(&'static str, Value); 3] {
    let mut kubelet = options()["kubelet"]["config"].take();
    let more = json!({
        "clusterDomain": "cluster.local", "runtimeRequestTimeout": "15m0s", "healthzBindAddress": "0.0.0.0",
        "volumePluginDir": "/opt/volume/bin", "tlsCertFile": format!("{PKI}/kubelet.crt"),
        "tlsPrivateKeyFile": format!("{PKI}/kubelet.key"), "clusterDNS": [address],
        "authentication": {"x509": {"clientCAFile": format!("{PKI}/ca.crt")}, "webhook": {"enabled": true}},
        "authorization": {"mode": "Webhook"},
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        kubelet[name] = value.clone();
    }
    let client = |directory: &str| json!({"kubeconfig": format!("/etc/kubernetes/{directory}/kubeconfig")});
    let proxy = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "hostnameOverride": address, "metricsBindAddress": "0.0.0.0",
        "conntrack": {"tcpEstablishedTimeout": "24h0m0s", "tcpCloseWaitTimeout": "1h0m0s", "maxPerCore": 0},
        "clientConnection": client("proxy"),
    });
    let scheduler = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": client("scheduler"), "leaderElection": {"leaderElect": true},
    });
    [("kubelet", kubelet), ("proxy", proxy), ("scheduler", scheduler)]
}

/// The encryption of Secrets, with a key of the lab alone.
pub(crate) fn encryption() -> Value {
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
        "resources": [{"resources": ["secrets"], "providers": [
            {"aescbc": {"keys": [{
                "name": "2026-01-02T03:04:05Z", "secret": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
            }]}},
            {"identity": {}},
        ]}],
    })
}

/// An object with CKE's revision, and its images.
fn marked(mut object: Value, revision: &str, images: &str) -> Value {
    object["metadata"]["annotations"]["cke.cybozu.com/revision"] = revision.into();
    if !images.is_empty() {
        object["metadata"]["annotations"]["cke.cybozu.com/image"] = images.into();
    }
    object
}

fn workload(kind: &str, name: &str, image: &str, spec: &Value) -> Value {
    let labels = json!({"cke.cybozu.com/appname": name});
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "kube-system"}, "spec": {
            "selector": {"matchLabels": labels}, "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "dns", "image": image, "imagePullPolicy": "Never"}]},
            },
        },
    });
    for (name, value) in spec.as_object().into_iter().flatten() {
        object["spec"][name] = value.clone();
    }
    object
}

/// The static resources, without pods: their revisions and images decide, not their contents.
fn static_resources() -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io/v1";
    let role = |name: &str| json!({"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": name}, "rules": []});
    let binding = |name: &str, role: &str| {
        json!({
            "apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": "kubernetes", "apiGroup": "rbac.authorization.k8s.io"}],
        })
    };
    let kubelet_rules = json!([{
        "apiGroups": [""], "resources": ["nodes/proxy", "nodes/stats", "nodes/log", "nodes/spec", "nodes/metrics"],
        "verbs": ["*"],
    }]);
    let mut kubelet_role = role("system:kube-apiserver-to-kubelet");
    kubelet_role["rules"] = kubelet_rules;
    let system = |version: &str, kind: &str, name: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "kube-system"}});
    let mut service = system("v1", "Service", "cluster-dns");
    let port = |name: &str, protocol: &str| json!({"name": name, "port": 53, "targetPort": 1053, "protocol": protocol});
    service["spec"] = json!({
        "clusterIP": DNS_ADDRESS, "selector": {"cke.cybozu.com/appname": "cluster-dns"},
        "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")],
    });
    let mut budget = system("policy/v1", "PodDisruptionBudget", "cluster-dns-pdb");
    budget["spec"] = json!({
        "maxUnavailable": 1, "selector": {"matchLabels": {"cke.cybozu.com/appname": "cluster-dns"}},
    });
    let nowhere = json!({"template": {
        "metadata": {"labels": {"cke.cybozu.com/appname": "node-dns"}},
        "spec": {
            "nodeSelector": {"lab": "no-node"},
            "containers": [{"name": "dns", "image": UNBOUND_IMAGE, "imagePullPolicy": "Never"}],
        },
    }});
    vec![
        marked(system("v1", "ServiceAccount", "cke-cluster-dns"), "1", ""),
        marked(role("system:cluster-dns"), "2", ""),
        marked(binding("system:cluster-dns", "system:cluster-dns"), "1", ""),
        marked(kubelet_role, "1", ""),
        marked(binding("system:kube-apiserver", "system:kube-apiserver-to-kubelet"), "1", ""),
        marked(service, "1", ""),
        marked(budget, "1", ""),
        marked(
            workload("Deployment", "cluster-dns", COREDNS_IMAGE, &json!({"replicas": 0})),
            "4",
            COREDNS_IMAGE,
        ),
        marked(
            workload("DaemonSet", "node-dns", UNBOUND_IMAGE, &nowhere),
            "4",
            &format!("{UNBOUND_IMAGE},{UNBOUND_EXPORTER_IMAGE}"),
        ),
    ]
}

fn corefile() -> String {
    ".:1053 {\n    errors\n    health\n    ready\n    log\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n      \
     pods verified\n    }\n    prometheus :9153\n    cache 30\n    reload\n    loadbalance\n}\n"
        .to_owned()
}

/// The configuration of unbound: the fields of each section in CKE's order.
fn unbound() -> String {
    let server = "do-daemonize: no|interface: 0.0.0.0|interface-automatic: yes|access-control: 0.0.0.0/0 allow|chroot: \"\"|\
        username: \"\"|directory: \"/etc/unbound\"|logfile: \"\"|use-syslog: no|log-time-ascii: yes|log-queries: yes|\
        log-replies: yes|log-local-actions: yes|log-servfail: yes|num-threads: 4|incoming-num-tcp: 1000|\
        outgoing-num-tcp: 1000|num-queries-per-thread: 4096|outgoing-range: 8192|rrset-roundrobin: yes|\
        extended-statistics: yes|rrset-cache-size: 256m|rrset-cache-slabs: 4|msg-cache-size: 256m|msg-cache-slabs: 4|\
        infra-cache-slabs: 4|key-cache-slabs: 4|so-rcvbuf: 4m|pidfile: \"/tmp/unbound.pid\"|infra-host-ttl: 60|\
        prefetch: yes|tcp-upstream: yes|so-reuseport: yes";
    let zones: Vec<String> = ["10.in-addr.arpa.".to_owned(), "168.192.in-addr.arpa.".to_owned()]
        .into_iter()
        .chain((16..=31).map(|number| format!("{number}.172.in-addr.arpa.")))
        .collect();
    let mut lines: Vec<String> = server.split('|').map(str::to_owned).collect();
    lines.extend(zones.iter().map(|zone| format!("local-zone: \"{zone}\" transparent")));
    lines.push("root-hints: \"/usr/local/unbound/etc/unbound/root.hints\"".to_owned());
    lines.push("trust-anchor-file: \"/usr/local/unbound/etc/unbound/root.key\"".to_owned());
    lines.push("domain-insecure: \"cluster.local\"".to_owned());
    lines.extend(zones.iter().map(|zone| format!("domain-insecure: \"{zone}\"")));
    let section = |name: &str, lines: &[String]| {
        let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
        format!("{name}:\n{lines}")
    };
    let texts = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    let control = texts(&[
        "control-enable: yes",
        "control-interface:  /var/run/unbound/unbound.sock ",
        "control-use-cert: no",
    ]);
    let address = format!("stub-addr: {DNS_ADDRESS}");
    let forward = |zone: &str| {
        section("forward-zone", &[format!("name: \"{zone}\""), format!("forward-addr: {DNS_ADDRESS}")])
    };
    format!(
        "\n{}{}{}{}{}",
        section("server", &lines),
        section("remote-control", &control),
        section("stub-zone", &texts(&["name: \"cluster.local\"", &address])),
        forward("in-addr.arpa."),
        forward("ip6.arpa.")
    )
}

/// Endpoints and EndpointSlice of one address.
fn endpoints(namespace: &str, name: &str, port: (&str, u16), address: &str) -> [Value; 2] {
    let mut named = json!({"port": port.1, "protocol": "TCP"});
    if !port.0.is_empty() {
        named["name"] = port.0.into();
    }
    [
        json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": {
                "name": name, "namespace": namespace, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
            },
            "subsets": [{"addresses": [{"ip": address}], "ports": [named]}],
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {
                "name": name, "namespace": namespace, "labels": {
                    "endpointslice.kubernetes.io/managed-by": "cke.cybozu.com", "kubernetes.io/service-name": name,
                },
            },
            "addressType": "IPv4", "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
            "ports": [{"name": port.0, "port": port.1, "protocol": "TCP"}],
        }),
    ]
}

/// All objects that CKE keeps, with a ConfigMap of an operator whose key has this revision. The order is that of their
/// creation.
pub(crate) fn objects(control_plane: &str, revision: u64) -> Vec<Value> {
    let config_map = |name: &str, file: &str, text: String| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "kube-system"},
            "data": {file: text},
        })
    };
    let mut objects = static_resources();
    objects.push(config_map("cluster-dns", "Corefile", corefile()));
    objects.push(config_map("node-dns", "unbound.conf", unbound()));
    objects.push(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "cke-etcd", "namespace": "kube-system"},
        "spec": {"clusterIP": "None", "ports": [{"port": 2379, "protocol": "TCP"}]},
    }));
    objects.extend(endpoints("default", "kubernetes", ("https", 6443), control_plane));
    objects.extend(endpoints("kube-system", "cke-etcd", ("", 2379), control_plane));
    objects.push(marked(user_resource(), &revision.to_string(), ""));
    objects
}

/// A resource that an operator defined with `ckecli resource set`.
pub(crate) fn user_resource() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept", "namespace": "default"},
        "data": {"by": "the operator"},
    })
}
