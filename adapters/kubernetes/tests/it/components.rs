//! The components of Kubernetes: health checks, and the facts and changes that the start of components needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::authority::Authority as AuthorityName;
use madako_domain::certificate::Validity;
use madako_domain::cluster::Taint;
use madako_domain::component::Component;
use madako_domain::keys;
use madako_domain::store::{Entry, Epoch, Outcome, Snapshot, StoreError, Transaction};
use madako_kubernetes::{ControlPlane, NodeComponents};
use madako_protocol::authorities::{
    Authorities, AuthorityError, CertificateRequest, IssuedCertificate, RenewalReason,
};
use madako_protocol::components::Components;
use madako_protocol::kubernetes::{Kubernetes as _, KubernetesError, KubernetesWorkloads as _};
use madako_protocol::secret::Secret;
use madako_protocol::store::{Campaign, CampaignOptions, Store, WatchEvent};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::contract::permit;
use crate::fake::{Fake, Reply};
use crate::objects;
use crate::pki::{Authority, Pair};
use crate::server::{ADMIN, Server};

pub(crate) const HERE: &str = "127.0.0.1";

/// The authority of a test.
struct Issuer(Arc<Authority>);

#[async_trait]
impl Authorities for Issuer {
    async fn certificate(&self, _: AuthorityName) -> Result<String, AuthorityError> {
        Ok(self.0.pem())
    }

    async fn issue(&self, request: &CertificateRequest) -> Result<IssuedCertificate, AuthorityError> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name.push(DnType::CommonName, &request.common_name);
        params.distinguished_name.push(DnType::OrganizationName, &request.organization);
        let Pair { certificate, key } = self.0.sign(params);
        Ok(IssuedCertificate { certificate, private_key: Secret::new(key) })
    }

    fn validity(&self, _: &str) -> Option<Validity> {
        panic!("no certificate is read")
    }

    fn due(&self, _: Option<&str>, _: &str, _: &CertificateRequest) -> Option<RenewalReason> {
        panic!("no certificate is read")
    }
}

/// Port of the server of this process. Each test is a process.
static PORT: AtomicU16 = AtomicU16::new(0);

pub(crate) fn components(authority: Arc<Authority>, url: &str) -> NodeComponents {
    PORT.store(url.rsplit_once(':').unwrap().1.parse().unwrap(), Ordering::Relaxed);
    NodeComponents::with_ports(Arc::new(Issuer(authority)), |_| PORT.load(Ordering::Relaxed), 1)
}

#[tokio::test]
async fn a_component_is_healthy_if_its_health_check_succeeds() {
    for (status, text, is_healthy) in
        [(200, "ok", true), (200, "ok\n", true), (200, "not yet", false), (500, "ok", false)]
    {
        let fake = Fake::start(move |_| Reply::Whole(status, text.to_owned())).await;
        let components = components(Arc::new(Authority::new()), &fake.url);
        let checked = components.check(Component::Kubelet, HERE).await;
        assert_eq!(checked.is_ok(), is_healthy, "{status} {text:?}: {checked:?}");
        assert_eq!(fake.asked()[0].target, "/healthz");
    }
    let hung = Fake::start(|_| Reply::Hang).await;
    let components = components(Arc::new(Authority::new()), &hung.url);
    let began = Instant::now();
    let error = components.check(Component::Proxy, HERE).await.unwrap_err();
    assert!(matches!(error, KubernetesError::Unavailable { .. }), "{error}");
    assert!(began.elapsed() >= Duration::from_secs(4), "a slow component has its time");
}

/// The kernel accepts connections to the silent one, and nothing answers.
#[tokio::test]
async fn taints_are_added_beside_an_api_server_that_does_not_answer() {
    let Some(server) = Server::start().await else { return };
    objects::node(&server.client(ADMIN), "10.0.0.1", &[]).await;
    let components = components(Arc::clone(&server.authority), &server.url);
    let silent = "127.0.0.2";
    let _listener = std::net::TcpListener::bind((silent, PORT.load(Ordering::Relaxed))).unwrap();
    let taint = Taint { key: "a".to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    let servers = [silent.to_owned(), HERE.to_owned()];
    components.add_taints(&permit(), &servers, "10.0.0.1", std::slice::from_ref(&taint)).await.unwrap();
    let read = components.read_taints(&[HERE.to_owned()], "10.0.0.1").await.unwrap();
    assert!(read.unwrap().contains(&taint));
}

/// A store with a cluster whose control plane has these addresses.
struct ClusterStore(Vec<&'static str>);

#[async_trait]
impl Store for ClusterStore {
    async fn list(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        assert_eq!(prefix, keys::CLUSTER);
        let node = |address: &&'static str| json!({"address": address, "control_plane": true});
        let nodes: Vec<Value> = self.0.iter().map(node).collect();
        let value = json!({"name": "c", "nodes": nodes}).to_string().into();
        let entry = Entry { value, create_revision: 1, mod_revision: 1, lease: 0 };
        Ok(Snapshot { revision: 1, entries: [(keys::CLUSTER.to_owned(), entry)].into() })
    }

    async fn commit(&self, _: Transaction) -> Result<Outcome, StoreError> {
        panic!("nothing is written")
    }

    fn watch(&self, _: &str) -> mpsc::Receiver<WatchEvent> {
        panic!("nothing is watched")
    }

    fn campaign(&self, _: CampaignOptions) -> Campaign {
        panic!("no leadership is needed")
    }

    fn holds_until(&self, _: &Epoch) -> Option<Instant> {
        panic!("no leadership is needed")
    }
}

#[tokio::test]
async fn a_control_plane_with_a_dead_api_server_is_reached_without_a_kubeconfig() {
    let Some(server) = Server::start().await else { return };
    let admin = server.client(ADMIN);
    objects::node(&admin, "10.0.0.1", &[]).await;
    let reach = |servers: &[&'static str]| {
        let components = components(Arc::clone(&server.authority), &server.url);
        ControlPlane::new(Arc::new(components), Arc::new(ClusterStore(servers.to_vec())))
    };
    let control_plane = reach(&["127.0.0.2", HERE]);
    let is_cordoned = async || {
        let nodes = control_plane.nodes().await.unwrap();
        nodes.iter().any(|node| node.name == "10.0.0.1" && node.unschedulable)
    };
    assert!(!is_cordoned().await);
    control_plane.cordon(&permit(), "10.0.0.1").await.unwrap();
    assert!(is_cordoned().await);
    control_plane.uncordon(&permit(), "10.0.0.1").await.unwrap();
    assert!(!is_cordoned().await);
    assert_eq!(control_plane.node("10.0.0.9").await.unwrap(), None, "an answer");
    assert_eq!(control_plane.pods_on("10.0.0.1").await.unwrap(), []);
    let workloads = control_plane.workloads().await.unwrap();
    assert_eq!((workloads.nodes.len(), workloads.pods), (1, Vec::new()), "a forecast needs no kubeconfig");
    for servers in [&["127.0.0.2"][..], &[]] {
        let error = reach(servers).nodes().await.unwrap_err();
        assert!(matches!(error, KubernetesError::Unavailable { .. }), "{error}");
    }
}
