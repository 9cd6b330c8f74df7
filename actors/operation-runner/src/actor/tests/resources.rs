//! Changes of user-defined resources during a collection.

use madako_domain::node_status::ConfigVersion;
use madako_domain::objects::UserResources;
use madako_domain::state::RevisedValue;
use madako_protocol::event::Event;
use madako_protocol::latest;

use super::*;

/// A clock that stands still, and a sink that takes no event.
struct Still;

impl Clock for Still {
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH
    }
}

impl EventSink for Still {
    fn emit(&self, _: Event) {}
}

/// A cluster whose user-defined resource was stored at this revision.
fn state(revision: i64) -> Arc<ClusterState> {
    let Basis { cluster, options, .. } = basis("{}");
    let stored = BTreeMap::from([("resource/Namespace/a".to_owned(), ("{}".into(), revision))]);
    Arc::new(ClusterState {
        revision,
        cluster: Some(RevisedValue { value: cluster, revision: 1 }),
        container_options: Some(options),
        config_version: Some(ConfigVersion::One),
        resources: Arc::new(UserResources(stored)),
        ..ClusterState::default()
    })
}

/// No actor of a node runs: a collection takes two seconds.
#[tokio::test(start_paused = true)]
async fn resources_that_change_again_and_again_delay_no_decision() {
    let (states, state_reader) = latest::channel();
    let ((page, pages), (operations, findings)) = (latest::channel(), latest::channel());
    let given = RunnerArguments {
        mode: Mode::Observe,
        epoch: 1,
        leader: "no such leader".to_owned(),
        nodes: "no such node/".to_owned(),
        interval: Duration::from_secs(60),
        settings: Settings::default(),
        ports: RunnerPorts {
            etcd: Arc::new(Members(None)),
            authorities: Arc::new(Members(None)),
            components: Arc::new(Servers { healthy: &[], taints: None }),
            secrets: Arc::new(Members(None)),
        },
        clock: Arc::new(Still),
        events: Arc::new(Still),
        state: state_reader,
        page,
        operations,
    };
    let (runner, _) = Actor::spawn(None, Runner, given).await.unwrap();
    for revision in 1..20 {
        states.publish(state(revision));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(pages.newest().is_some(), "a decision");
    let last_change = Instant::now();
    states.publish(state(20));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let read_at = findings.newest().unwrap().read_at;
    assert!(read_at >= last_change, "another collection follows the one that was under way");
    runner.stop(None);
}
