//! Certificates of Kubernetes' components that have ended, on a real machine: the API server reads the renewed file anew, and
//! the scheduler restarts for the certificate in its kubeconfig.
//!
//! The certificate of the kubelet stays: a kubelet looks at it every five minutes, and its node might be lost meanwhile.
//!
//! A certificate that ends in a day is renewed before a client notices.

use std::collections::BTreeMap;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use tokio::time::Instant;

use crate::adoption::Authority;
use crate::components::runs_all_components;
use crate::fleet::Fleet;
use crate::{eventually, measured};

/// The components of a control plane node, and whether the renewal restarts them.
const COMPONENTS: [(&str, bool); 5] = [
    ("kube-apiserver", false),
    ("kube-controller-manager", false),
    ("kube-proxy", false),
    ("kube-scheduler", true),
    ("kubelet", false),
];
/// The port of the API server.
const PORT: u16 = 6443;
/// The address of the service `kubernetes`.
const SERVICE: &str = "10.68.0.1";
/// The machine whose certificates end.
const MACHINE: usize = 1;

/// A certificate that has ended, and its key, in PEM.
fn ended_pair(address: String) -> [String; 2] {
    let mut ended = CertificateParams::new(vec![address]).unwrap();
    (ended.not_before, ended.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let key = KeyPair::generate().unwrap();
    let certificate = ended.self_signed(&key).unwrap().pem();
    [certificate.trim_end().to_owned(), key.serialize_pem().trim_end().to_owned()]
}

/// The times at which the components were started.
async fn starts(fleet: &Fleet) -> BTreeMap<&'static str, String> {
    let mut found = BTreeMap::new();
    for (name, _) in COMPONENTS {
        let words = ["inspect", "--format={{.State.StartedAt}}", name];
        // A component that restarts has for a moment no container, or one that has not started.
        let started = fleet.machine(MACHINE).docker(&words).await.unwrap_or_default();
        let has_started = !started.starts_with("0001-01-01");
        found.insert(name, if has_started { started } else { String::new() });
    }
    found
}

/// Names of an API server.
pub(crate) const API_SERVER_NAMES: [&str; 5] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// The certificate that the API server of the machine serves.
async fn served(fleet: &Fleet) -> Option<String> {
    let address = fleet.address(MACHINE);
    let script = format!("import ssl; print(ssl.get_server_certificate(('{address}', {PORT})))");
    Some(fleet.program("python3", &["-c", &script]).await.ok()?.trim().to_owned())
}

/// The API server reads a certificate that ends in a day, and then the renewed one. Nothing restarts.
pub(crate) async fn a_certificate_that_ends_soon_is_renewed(fleet: &Fleet, kubernetes: &Authority) {
    let (machine, before) = (fleet.machine(MACHINE), starts(fleet).await);
    let addresses = [&*machine.address(), "127.0.0.1", SERVICE];
    let (certificate, key) =
        kubernetes.issue_for_a_day(fleet, "kubernetes", &addresses, &API_SERVER_NAMES).await;
    let began = Instant::now();
    // While no leader sees it, the API server reads the certificate.
    fleet.service.kill().await.unwrap();
    for (name, text) in [("key", &key), ("crt", &certificate)] {
        machine.write(&format!("/etc/kubernetes/pki/apiserver.{name}"), text).await.unwrap();
    }
    let is_planted = |served: &String| served.split_whitespace().eq(certificate.split_whitespace());
    let is_read = async || served(fleet).await.filter(is_planted).map(drop);
    eventually("the certificate that ends soon is served", is_read).await;
    fleet.serve().await;
    let is_renewed = async || served(fleet).await.filter(|served| !is_planted(served)).map(drop);
    eventually("a renewed certificate is served", is_renewed).await;
    measured("a certificate of an API server that ends soon is renewed and read", began.elapsed());
    assert_eq!(starts(fleet).await, before, "nothing restarts");
}

pub(crate) async fn ended_certificates_are_renewed(fleet: &Fleet) {
    let machine = fleet.machine(MACHINE);
    let [certificate, key] = ended_pair(machine.address());
    let (before, first) = (starts(fleet).await, served(fleet).await.unwrap());
    let began = Instant::now();
    let write = format!(
        "cd /etc/kubernetes
         echo '{key}' >pki/apiserver.key
         echo '{certificate}' >pki/apiserver.crt
         data=$(echo '{certificate}' | base64 | tr -d '\\n')
         sed -i \"s|client-certificate-data: .*|client-certificate-data: $data|\" scheduler/kubeconfig"
    );
    machine.sh(&write).await.unwrap();

    let scheduler = "kube-scheduler";
    let restarted = async || {
        let now = starts(fleet).await;
        (now[scheduler] != before[scheduler] && !now[scheduler].is_empty()).then_some(now)
    };
    let after = eventually("the scheduler has restarted", restarted).await;
    for (name, restarts) in COMPONENTS {
        assert_eq!(after[name] != before[name], restarts, "{name}");
    }
    let is_renewed =
        async || served(fleet).await.filter(|served| *served != first && *served != certificate).map(drop);
    eventually("a renewed certificate is served", is_renewed).await;
    runs_all_components(fleet).await;
    measured("ended certificates of a machine are renewed and read", began.elapsed());
    let history = fleet.history().await;
    let renewals = history.iter().filter(|record| record["operation"] == "kubernetes-renew-certificates");
    let targets: Vec<_> = renewals.map(|record| &record["targets"]).collect();
    let here = serde_json::json!([machine.address()]);
    assert!(targets.len() >= 2 && targets.iter().all(|targets| **targets == here), "{targets:?}");
    let kept = starts(fleet).await;
    assert_eq!(kept, after, "nothing else restarts");
}
