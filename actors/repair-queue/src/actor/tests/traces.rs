//! Tests of the spans of a repair, from the report to the last effect.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use madako_domain::constraints::Constraints;
use madako_domain::keys;
use madako_domain::machine::Machine;
use madako_domain::repair::report::Reports;
use madako_domain::repair::{RepairStatus, RepairStepStatus};
use tokio::time::Instant;
use tracing::span::{Attributes, Id};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Metadata, Subscriber, info_span};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use super::world::{World, pod};
use crate::machines::{machine, now};
use crate::testing::{REPAIR, Store, processing};

/// Each span of this system, as its path of names from the root.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<BTreeSet<String>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let is_ours = |metadata: &Metadata<'_>| metadata.target().starts_with("madako");
        if is_ours(attributes.metadata()) {
            let scope = context.span_scope(id).unwrap().from_root();
            let path: Vec<&str> =
                scope.filter(|span| is_ours(span.metadata())).map(|span| span.name()).collect();
            self.0.lock().unwrap().insert(path.join("/"));
        }
    }
}

impl Spans {
    /// Records the spans of this thread: all tasks of a test run on it.
    fn hear() -> (Self, DefaultGuard) {
        let spans = Self::default();
        let guard = set_default(Registry::default().with(spans.clone()));
        (spans, guard)
    }

    fn paths(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().cloned().collect()
    }
}

/// A worker with one pod, which is drained and then repaired by a command.
async fn world(prepare: impl FnOnce(&mut Store)) -> (World, Machine) {
    let machine = machine(1, 1, 50.0);
    let address = machine.address().unwrap();
    let repair = REPAIR.replace(r#"["t"]"#, &format!("[\"t\", {:?}]", machine.spec.bmc.bmc_type));
    let mut store = Store::default();
    store.configure(&["10.0.0.250"], &[address], &repair);
    store.text(keys::SABAKAN_URL, "http://registry");
    let constraints = Constraints { maximum_repair_queue_entries: 1, ..Constraints::default() };
    store.put(keys::CONSTRAINTS, &constraints);
    prepare(&mut store);
    let world = World::new(store).await;
    let pods = vec![pod("web", "ReplicaSet")];
    world.kubernetes.0.lock().unwrap().pods.insert(format!("node-{address}"), pods);
    world.host.0.lock().unwrap().cured.insert(address.to_owned());
    (world, machine)
}

/// Waits until the node is uncordoned, which is the last effect.
async fn uncordoned(world: &World) {
    let observed = async {
        while !world.calls().iter().any(|call| call.starts_with("uncordon ")) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(1_000), observed)
        .await
        .unwrap_or_else(|_| panic!("{:?}", world.calls()));
}

#[tokio::test(start_paused = true)]
async fn spans_of_repairs_are_children_of_their_reports_and_effects_of_their_decisions() {
    let (spans, _guard) = Spans::hear();
    let (mut world, machine) = world(|_| {}).await;
    world.begin().await;
    let state = world.leader_state.lock().unwrap().store.state();
    info_span!("report").in_scope(|| {
        world.reported.publish(Arc::new(Reports {
            machines: Arc::new(vec![machine]),
            at: now(),
            received: Instant::now(),
            query: state.reports_query().unwrap(),
            revision: state.revision,
        }));
    });
    world.until_status(0, RepairStatus::Succeeded).await;
    uncordoned(&world).await;
    // The entry is added below the report, and decisions on it are below that.
    let expected = [
        "report",
        "report/repair",
        "report/repair/repair",
        "report/repair/repair/command",
        "report/repair/repair/drain",
        "report/repair/repair/drain/cordon",
        "report/repair/repair/drain/evict",
        "report/repair/repair/drain/uncordon",
    ];
    assert_eq!(spans.paths(), expected);
}

#[tokio::test(start_paused = true)]
async fn repair_begun_by_an_earlier_leader_has_its_own_trace() {
    let (spans, _guard) = Spans::hear();
    let begun = |store: &mut Store| {
        store.entry(&processing(0, "10.0.0.1", 0, RepairStepStatus::Draining, 5));
    };
    let (mut world, _) = world(begun).await;
    world.begin().await;
    world.until_status(0, RepairStatus::Succeeded).await;
    uncordoned(&world).await;
    let expected = [
        "drain",
        "drain/cordon",
        "drain/evict",
        "drain/uncordon",
        "repair",
        "repair/command",
        "repair/repair",
    ];
    assert_eq!(spans.paths(), expected);
}
