//! CKE's metrics of the reboot queue and of the repair queue, compared with CKE's output for the same keys.

use std::time::Duration;

use madako_domain::keys;
use madako_domain::reboot::RebootStatus::{self, Cancelled, Draining, Queued, Rebooting};
use madako_domain::repair::{RepairQueueEntry, RepairStatus};

use super::gauges::Gauges;
use super::world::World;
use crate::testing::{REPAIR, Store, queued};

/// Input: whether the queue is disabled, CKE's marker of a running reboot, nodes and statuses of entries. Output:
/// enabled, running, counts of cancelled, draining, queued and rebooting entries, and the nodes' gauges.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, RebootStatus)], Shown, &'a [&'a str]);
type Shown = ([f64; 1], [f64; 1], [f64; 4]);

fn values(gauges: &Gauges, name: &str) -> Vec<f64> {
    gauges.all(&format!("{name}{{")).into_iter().map(|(_, value)| value).collect()
}

/// Node gauges that are not 0, as `node,status`.
fn nodes(gauges: &Gauges) -> Vec<String> {
    let shown = gauges.shown("cke_node_reboot_status{").into_iter();
    let labels = |key: String| key.split(['{', '}']).with_number(1).unwrap().to_owned();
    shown.map(|(key, _)| labels(key)).collect()
}

#[tokio::test(start_paused = true)]
async fn the_reboot_queue_is_shown_as_cke_shows_it() {
    let gauges = Gauges::default();
    // All tasks of this test run on this thread.
    let _guard = metrics::set_default_local_recorder(&gauges);
    let mut world = World::new(Store::new(&["a"], &["w", "x"])).await;
    world.begin().await;
    let two = [("w", Queued), ("x", Rebooting)];
    let three = [("w", Draining), ("w", Cancelled), ("gone", Queued)];
    let cases: [Case<'_>; 6] = [
        ("", "", &[], ([1.0], [0.0], [0.0, 0.0, 0.0, 0.0]), &[]),
        ("false", "true", &[("w", Queued)], ([1.0], [1.0], [0.0, 0.0, 1.0, 0.0]), &["node-w,queued"]),
        // Disabled but still running, and disabled and stopped.
        ("true", "true", &two, ([0.0], [1.0], [0.0, 0.0, 1.0, 1.0]), &["node-w,queued", "node-x,rebooting"]),
        ("true", "false", &two, ([0.0], [0.0], [0.0, 0.0, 1.0, 1.0]), &["node-w,queued", "node-x,rebooting"]),
        // One node twice; and a node outside the cluster, whose entry counts nevertheless.
        ("True", "1", &three, ([1.0], [0.0], [1.0, 1.0, 1.0, 0.0]), &["node-w,cancelled", "node-w,draining"]),
        ("", "", &[], ([1.0], [0.0], [0.0, 0.0, 0.0, 0.0]), &[]),
    ];
    for (disabled, running, entries, (enabled, runs, items), of_nodes) in cases {
        world.change(|store| {
            store.entries.retain(|key, _| !key.starts_with("reboots/"));
            for (index, (node, status)) in (0..).zip(entries) {
                store.reboot(index, node, status.clone());
            }
            for (key, value) in [(keys::REBOOTS_DISABLED, disabled), (keys::REBOOTS_RUNNING, running)] {
                if !value.is_empty() {
                    store.text(key, value);
                }
            }
            // Removals show with the next revision.
            store.text("seen", "");
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(values(&gauges, "cke_reboot_queue_enabled"), enabled, "{disabled:?}");
        assert_eq!(values(&gauges, "cke_reboot_queue_running"), runs, "{running:?}");
        #[allow(clippy::cast_precision_loss, reason = "a few")]
        let count = entries.len() as f64;
        assert_eq!(values(&gauges, "cke_reboot_queue_entries"), [count], "{entries:?}");
        assert_eq!(values(&gauges, "cke_reboot_queue_items"), items, "{entries:?}");
        assert_eq!(nodes(&gauges), of_nodes, "{entries:?}");
    }
    // Each node of the cluster has each status.
    let all = gauges.all("cke_node_reboot_status{");
    let expected = ["node-a", "node-w", "node-x"].map(|node| {
        ["cancelled", "draining", "queued", "rebooting"]
            .map(|status| format!("cke_node_reboot_status{{{node},{status}}}"))
    });
    assert_eq!(all.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), expected.as_flattened());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_leaves_the_cluster_shows_0_and_nothing_is_shown_without_a_cluster() {
    let gauges = Gauges::default();
    let _guard = metrics::set_default_local_recorder(&gauges);
    let mut store = Store::default();
    store.reboot(0, "w", Queued);
    let mut world = World::new(store).await;
    world.begin().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(gauges.all("cke_reboot"), []);
    world.change(|store| store.configure(&["a"], &["w"], REPAIR));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(nodes(&gauges), ["node-w,queued"]);
    world.change(|store| store.configure(&["a"], &[], REPAIR));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(nodes(&gauges), [""; 0]);
    assert_eq!(values(&gauges, "cke_reboot_queue_entries"), [1.0], "it is in the queue still");
}

#[tokio::test(start_paused = true)]
async fn the_repair_queue_is_shown_with_each_change() {
    let gauges = Gauges::default();
    let _guard = metrics::set_default_local_recorder(&gauges);
    let failed = |index, address| RepairQueueEntry {
        status: RepairStatus::Failed,
        ..queued(index, address, "unreachable")
    };
    let mut store = Store::new(&["a"], &["w"]);
    store.text(keys::REPAIRS_DISABLED, "true");
    store.entry(&failed(0, "w"));
    store.entry(&queued(1, "x", "unreachable"));
    let mut world = World::new(store).await;
    world.begin().await;
    let machines = || -> Vec<String> {
        gauges.shown("cke_machine_repair_status{").into_iter().map(|(key, _)| key).collect()
    };
    let (of_w, of_x) = ("cke_machine_repair_status{w,failed}", "cke_machine_repair_status{x,");
    // Failed, processing, queued, succeeded.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(values(&gauges, "cke_repair_queue_items"), [1.0, 0.0, 1.0, 0.0]);
    assert_eq!(machines(), [of_w.to_owned(), format!("{of_x}queued}}")]);
    world.change(|store| store.entry(&failed(1, "x")));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(values(&gauges, "cke_repair_queue_items"), [2.0, 0.0, 0.0, 0.0]);
    assert_eq!(machines(), [of_w.to_owned(), format!("{of_x}failed}}")]);
    world.change(|store| {
        store.entries.remove(&keys::repair(1));
        store.text("seen", "");
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(values(&gauges, "cke_repair_queue_items"), [1.0, 0.0, 0.0, 0.0]);
    assert_eq!(machines(), [of_w.to_owned()]);
}
