//! Tests of the simulated API server with the service's own client, and of its state after a restart.

use std::path::{Path, PathBuf};

use axum::response::IntoResponse as _;
use madako_datacenter_sim::{Datacenter, DatacenterConfig};
use madako_domain::kubernetes::{KubeNode, PodId, PodPhase};
use madako_kubernetes::{ApiServerAccess, Limits};
use madako_protocol::kubernetes::{Kubernetes as _, KubernetesError};
use madako_protocol::permit::Permit;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::*;
use crate::datacenter::journal::{Journal, read_journal};

/// A clock that the test sets.
#[derive(Clone)]
struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    fn turn(&self, seconds: i64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH + Duration::from_secs(self.0.load(Ordering::Relaxed).unsigned_abs())
    }
}

/// The API server of six machines, restored from a journal.
fn server(journal: &Path, hand: &ManualClock) -> ApiServer {
    let clock: Arc<dyn Clock> = Arc::new(hand.clone());
    let start = OffsetDateTime::UNIX_EPOCH;
    let config = DatacenterConfig { boot: false, ..DatacenterConfig::new(1, start, 2, &[("compute", 6)]) };
    let datacenter = Datacenter::new(config).unwrap();
    let registry = SimulatedRegistry::new(datacenter, Arc::clone(&clock));
    let before = read_journal(journal).unwrap();
    let tap = Arc::new(AnswerTap::new(Journal::open(journal, clock).unwrap()));
    ApiServer::new(1, registry, tap, start, &before)
}

/// The service's client, as instance 3.
async fn client(server: &ApiServer, files: &Path) -> madako_kubernetes::ApiServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{}", listener.local_addr().unwrap(), base_path_of_instance(3));
    let router = server.make_router();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let path = files.join("kubeconfig");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
    });
    std::fs::write(&path, text.to_string()).unwrap();
    madako_kubernetes::ApiServer::new(&ApiServerAccess::read(&path).unwrap(), Limits::default()).unwrap()
}

#[tokio::test]
async fn a_watch_of_the_services_own_client_has_the_changes_of_other_clients() {
    let files = tempfile::tempdir().unwrap();
    let (journal, hand) = (journal_in(files.path()), ManualClock(Arc::default()));
    let server = server(&journal, &hand);
    let (api, other) = (client(&server, files.path()).await, client(&server, files.path()).await);
    let permit = Permit::give(1, Instant::now() + Duration::from_secs(3600));
    let node = api.nodes().await.unwrap()[0].name.clone();
    for is_cordoned in [true, false, true] {
        match is_cordoned {
            true => other.cordon(&permit, &node).await.unwrap(),
            false => other.uncordon(&permit, &node).await.unwrap(),
        }
        // The kept nodes are an answer for ten seconds, so that only the watch can show the change.
        let begun = Instant::now();
        loop {
            let nodes = api.nodes().await.unwrap();
            if nodes.iter().any(|found| found.name == node && found.unschedulable == is_cordoned) {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(8), "the watch does not have it");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let (lines, newest) = server.with_history(|history| history.after(0)).unwrap();
    assert_eq!(lines.len(), 6 + 3, "six nodes and three changes");
    assert_eq!(server.with_history(|history| history.after(newest + 1)), None, "a version of the future");
    assert_eq!(
        server.watch_nodes("1000000").err().map(|failure| failure.into_response().status().as_u16()),
        Some(410)
    );
}

/// Nodes and pods with everything that the API shows of them.
fn state(server: &ApiServer) -> String {
    server.read_cluster(|cluster| format!("{:?}\n{:?}", cluster.nodes(), cluster.pods()))
}

fn journal_in(files: &Path) -> PathBuf {
    files.join("journal.jsonl")
}

#[tokio::test]
async fn a_node_is_drained_by_the_services_own_client_and_a_restart_forgets_nothing() {
    let files = tempfile::tempdir().unwrap();
    let (journal, hand) = (journal_in(files.path()), ManualClock(Arc::default()));
    let server = server(&journal, &hand);
    let api = client(&server, files.path()).await;
    let permit = Permit::give(1, Instant::now() + Duration::from_secs(3600));
    // After a minute all pods run.
    hand.turn(60);

    let nodes = api.nodes().await.unwrap();
    assert!(nodes.len() == 6 && nodes.iter().all(|node| node.ready == Some(true)), "{nodes:?}");
    let node = nodes[0].name.clone();
    assert_eq!(Vec::from_iter(api.namespaces("team=kept").await.unwrap()), [PROTECTED]);
    api.cordon(&permit, &node).await.unwrap();
    let cordoned = api.nodes().await.unwrap();
    let cordoned: Vec<&KubeNode> = cordoned.iter().filter(|node| node.is_cordoned_by_us()).collect();
    assert!(matches!(&cordoned[..], [one] if one.name == node && one.unschedulable), "{cordoned:?}");

    let pods = api.pods_on(&node).await.unwrap();
    assert!(pods.iter().all(|pod| pod.phase == PodPhase::Running), "{pods:?}");
    let of = |namespace: &str| -> Vec<PodId> {
        pods.iter().filter(|pod| pod.id.namespace == namespace).map(|pod| pod.id.clone()).collect()
    };
    let (kept, open) = (of(PROTECTED), of(OPEN));
    assert_eq!((kept.len(), open.len()), (3, 1));
    assert_eq!(api.evict(&permit, &kept[2], true).await.unwrap(), EvictionOutcome::Accepted);
    for pod in &kept[..2] {
        assert_eq!(api.evict(&permit, pod, false).await.unwrap(), EvictionOutcome::Accepted);
    }
    let refused = api.evict(&permit, &kept[2], false).await.unwrap();
    assert!(
        matches!(&refused, EvictionOutcome::Refused { why } if why.contains("disruption budget")),
        "{refused:?}"
    );
    assert!(api.pods_on(&node).await.unwrap().iter().any(|pod| pod.deleted_at == Some(server.time.now())));
    let refused = api.evict(&permit, &open[0], false).await.unwrap();
    assert!(matches!(refused, EvictionOutcome::Refused { .. }), "{refused:?}");
    api.delete(&permit, &open[0]).await.unwrap();
    // The replacements run elsewhere.
    hand.turn(30);
    let former = PodId { uid: "another".to_owned(), ..kept[2].clone() };
    assert_eq!(api.evict(&permit, &former, false).await.unwrap(), EvictionOutcome::Gone);
    assert_eq!(api.evict(&permit, &kept[2], false).await.unwrap(), EvictionOutcome::Accepted);
    let before = state(&server);
    let again = self::server(&journal, &hand);
    assert_eq!(state(&again), before, "it was killed in the middle of a drain");
    hand.turn(30);
    assert_eq!(api.pods_on(&node).await.unwrap(), []);
    assert_eq!(api.evict(&permit, &kept[0], false).await.unwrap(), EvictionOutcome::Gone);
    api.uncordon(&permit, &node).await.unwrap();
    let absent = api.cordon(&permit, "10.9.9.9").await;
    assert!(matches!(absent, Err(KubernetesError::NotFound { .. })), "{absent:?}");

    let reported = read_journal(&journal).unwrap();
    let reported = reported.iter().map(|line| match &line.what {
        LineContent::Kubernetes { instance: 3, action, node: of, refused, .. } if *of == node => {
            (*action, *refused)
        }
        what => panic!("{what:?}"),
    });
    let evict = |refused| (KubernetesRequest::Evict, refused);
    let expected = [
        (KubernetesRequest::Cordon, false),
        evict(false),
        evict(false),
        evict(true),
        evict(true),
        (KubernetesRequest::Delete, false),
        evict(false),
        (KubernetesRequest::Uncordon, false),
    ];
    assert_eq!(Vec::from_iter(reported), expected);
    let again = self::server(&journal, &hand);
    assert_eq!(state(&again), state(&server));
}
