//! The containers and keys that CKE makes, written down independently of the service's code, for comparison.

use serde_json::{Value, json};

/// A container with CKE's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Rivers,
    EtcdRivers,
    Etcd,
}

impl Role {
    pub(crate) const ALL: [Self; 3] = [Self::Rivers, Self::EtcdRivers, Self::Etcd];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rivers => "rivers",
            Self::EtcdRivers => "etcd-rivers",
            Self::Etcd => "etcd",
        }
    }
}

/// Built-in arguments of a container on this node. A member has those of the bootstrap.
pub(crate) fn arguments(role: Role, address: &str, control_plane: &[String]) -> Vec<String> {
    let upstreams = |port: u16| {
        let upstreams: Vec<String> = control_plane.iter().map(|node| format!("{node}:{port}")).collect();
        format!("--upstreams={}", upstreams.join(","))
    };
    let words: Vec<String> = match role {
        Role::Rivers => vec!["rivers".into(), upstreams(6443), "--listen=127.0.0.1:16443".into()],
        Role::EtcdRivers => vec!["rivers".into(), upstreams(2379), "--listen=127.0.0.1:12379".into()],
        Role::Etcd => {
            let members: Vec<String> =
                control_plane.iter().map(|node| format!("{node}=https://{node}:2380")).collect();
            let text = format!(
                "--name={address} --listen-peer-urls=https://0.0.0.0:2380 \
                 --listen-client-urls=https://0.0.0.0:2379 --advertise-client-urls=https://{address}:2379 \
                 --cert-file=/etc/etcd/pki/server.crt --key-file=/etc/etcd/pki/server.key --client-cert-auth=true \
                 --trusted-ca-file=/etc/etcd/pki/ca-client.crt --peer-cert-file=/etc/etcd/pki/peer.crt \
                 --peer-key-file=/etc/etcd/pki/peer.key --peer-client-cert-auth=true \
                 --peer-trusted-ca-file=/etc/etcd/pki/ca-peer.crt --enable-pprof=true \
                 --auto-compaction-mode=periodic --auto-compaction-retention=5m --experimental-initial-corrupt-check \
                 --initial-advertise-peer-urls=https://{address}:2380 --initial-cluster={} \
                 --initial-cluster-token=cke --initial-cluster-state=new",
                members.join(",")
            );
            text.split_whitespace().map(str::to_owned).collect()
        }
    };
    words
}

/// The label of a container in Go's JSON. Nothing in it needs an escape.
pub(crate) fn label(role: Role, arguments: &[String]) -> String {
    let words: Vec<String> = arguments.iter().map(|word| format!("\"{word}\"")).collect();
    let binds = match role {
        Role::Etcd => {
            r#"[{"source":"/etc/etcd/pki","destination":"/etc/etcd/pki","read_only":true,"propagation":"","selinux_label":"Z"}]"#
        }
        Role::Rivers | Role::EtcdRivers => "null",
    };
    format!(
        r#"{{"builtin":{{"extra_args":[{}],"extra_binds":{binds},"extra_env":null}},"extra":{{"extra_args":null,"extra_binds":null,"extra_env":null}}}}"#,
        words.join(",")
    )
}

/// Words of `docker` that start a container. Machines of the lab have no journald, so the log has another driver.
pub(crate) fn docker_run(role: Role, image: &str, arguments: &[String]) -> Vec<String> {
    let mut words: Vec<String> =
        ["run", "--log-driver=json-file", "-d", "--read-only", "--network=host", "--uts=host"]
            .map(str::to_owned)
            .into();
    words.push(format!("--name={}", role.name()));
    if role == Role::Etcd {
        words.push("--mount=type=volume,src=etcd-cke,dst=/var/lib/etcd".to_owned());
        words.push("--volume=/etc/etcd/pki:/etc/etcd/pki:ro".to_owned());
    }
    words.push(format!("--label=com.cybozu.cke={}", label(role, arguments)));
    words.push(image.to_owned());
    words.extend(arguments.iter().cloned());
    words
}

/// The key `cluster` as CKE stores it, with `null` for empty lists.
pub(crate) fn cluster(user: &str, control_plane: &[String], workers: &[String]) -> Value {
    let node = |address: &String, control_plane: bool| {
        json!({
            "address": address, "hostname": "", "user": user, "control_plane": control_plane,
            "annotations": null, "labels": null, "taints": null,
        })
    };
    let nodes = control_plane.iter().map(|address| node(address, true));
    let nodes: Vec<Value> = nodes.chain(workers.iter().map(|address| node(address, false))).collect();
    let nothing = json!({"extra_args": null, "extra_binds": null, "extra_env": null});
    let mut etcd = nothing.clone();
    etcd["volume_name"] = "".into();
    json!({
        "name": "lab", "nodes": nodes, "taint_control_plane": false, "control_plane_tolerations": null,
        "service_subnet": "10.68.0.0/16", "dns_servers": null, "dns_service": "",
        "options": {"etcd": etcd, "rivers": nothing, "etcd-rivers": nothing},
    })
}

/// A record of a completed bootstrap.
pub(crate) fn bootstrap_record(control_plane: &[String]) -> Value {
    json!({
        "id": "1", "status": "completed", "operation": "etcd-bootstrap",
        "command": {"name": "volume-create", "target": "etcd-added-member"},
        "targets": control_plane, "info": "", "error": "",
        "start-at": "2026-01-02T03:04:05.678901234Z", "end-at": "2026-01-02T03:05:06.789012345Z",
    })
}
