//! Operations on simulated nodes by the whole service: scripted histories of a cluster, in which leaders end and nodes
//! fail at each point of each command. Every run ends in the same state, and every promise about operations is kept.

mod failing_components;
mod kubernetes;
mod large;
mod minor_upgrade;
mod objects;
#[cfg(debug_assertions)]
mod planted;
mod reboots;
mod renewal;
mod rotation;
mod site;
mod stories;
mod survey;
mod vault;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use etcd_client::{Txn, TxnOp};
use madako_simulation::planted::{MessageCounter, keep_quiet};
use madako_supervisor::nodes::OperationsMode;
use serde_json::json;

use self::site::{Disturbance, INTERVAL, OUTAGE, Site, addresses};
use self::stories::{Played, Point, Stage, Story};

/// Commands of the stories with an effect on nodes or on etcd.
const WITH_EFFECT: [&str; 34] = [
    "etcd-add-member: add-etcd-member",
    "etcd-add-member: image-pull",
    "etcd-add-member: make-files",
    "etcd-add-member: promote-etcd-member",
    "etcd-add-member: stop-container",
    "etcd-add-member: volume-create etcd-added-member",
    "etcd-add-member: volume-create etcd-cke",
    "etcd-add-member: volume-remove etcd-added-member",
    "etcd-add-member: volume-remove etcd-cke",
    "etcd-bootstrap: image-pull",
    "etcd-bootstrap: make-files",
    "etcd-bootstrap: run-container",
    "etcd-bootstrap: setup-etcd-auth",
    "etcd-bootstrap: volume-create etcd-added-member",
    "etcd-bootstrap: volume-create etcd-cke",
    "etcd-destroy-member: kill-containers",
    "etcd-destroy-member: remove-etcd-member",
    "etcd-destroy-member: volume-remove etcd-added-member",
    "etcd-destroy-member: volume-remove etcd-cke",
    "etcd-remove-member: remove-etcd-member",
    "etcd-renew-certificates: make-files",
    "etcd-restart: image-pull",
    "etcd-restart: run-container",
    "etcd-restart: stop-container",
    "etcd-rivers-bootstrap: image-pull",
    "etcd-rivers-bootstrap: run-container",
    "etcd-rivers-restart: image-pull",
    "etcd-rivers-restart: run-container",
    "etcd-start: run-container",
    "rivers-bootstrap: image-pull",
    "rivers-bootstrap: run-container",
    "rivers-restart: image-pull",
    "rivers-restart: run-container",
    "stop-etcd-rivers: kill-containers",
];

/// Commands that change neither nodes nor etcd, or nothing in these stories: a restarted member keeps its files.
const WITHOUT_EFFECT: [&str; 11] = [
    "etcd-add-member: prepare-etcd-certificates",
    "etcd-add-member: wait-etcd-sync",
    "etcd-bootstrap: prepare-etcd-certificates",
    "etcd-bootstrap: wait-etcd-sync",
    "etcd-destroy-member: wait-etcd-sync",
    "etcd-renew-certificates: prepare-etcd-certificates",
    "etcd-restart: wait-etcd-sync",
    "etcd-start: make-files",
    "etcd-start: prepare-etcd-certificates",
    "etcd-start: wait-etcd-sync",
    "upgrade: upgrade-version-from-1-to-2",
];

/// Commands of a restore, and whether they have an effect on nodes: a restored member keeps its files.
const RESTORE: [(&str, bool); 10] = [
    ("confirm-etcd-loss", false),
    ("image-pull", true),
    ("make-files", false),
    ("prepare-etcd-certificates", false),
    ("run-container", true),
    ("stage-snapshot", true),
    ("stop-etcd-members", true),
    ("use-snapshot", true),
    ("volume-create etcd-added-member", true),
    ("wait-etcd-sync", false),
];

/// Plays a story, whose end is always the same.
fn play(story: Story, disturbances: &[(Duration, Disturbance)]) -> Played {
    let played = story.play(disturbances);
    assert_eq!(played.wrong, [""; 0], "{disturbances:?}: {}", played.why);
    played
}

/// Plays a story with a disturbance at each of its points.
fn disturb(story: Story, disturbance: impl Fn(&Point) -> Disturbance) {
    keep_quiet();
    for point in play(story, &[]).points {
        let played = story.play(&[(point.at, disturbance(&point))]);
        assert_eq!(played.wrong, [""; 0], "{point:?}: {}", played.why);
    }
}

#[test]
fn stories_are_disturbed_before_during_and_after_each_command() {
    let mut stages: BTreeMap<String, BTreeSet<Stage>> = BTreeMap::new();
    for story in [Story::Bootstrap, Story::Life, Story::Renewal] {
        for point in play(story, &[]).points {
            let (operation, command, stage) = point.of;
            stages.entry(format!("{operation}: {command}")).or_default().insert(stage);
        }
    }
    let quiet = [Stage::Announced, Stage::Answered];
    let without_effect: Vec<String> =
        stages.iter().filter(|(_, stages)| stages.iter().eq(&quiet)).map(|(of, _)| of.clone()).collect();
    stages.retain(|_, found| !found.iter().eq(&quiet));
    let all = BTreeSet::from([Stage::Announced, Stage::Happened, Stage::Answered]);
    assert!(stages.values().all(|found| *found == all), "{stages:#?}");
    let with_effect: Vec<String> = stages.into_keys().collect();
    assert_eq!(with_effect, WITH_EFFECT, "{with_effect:#?}");
    assert_eq!(without_effect, WITHOUT_EFFECT, "{without_effect:#?}");
}

#[test]
fn leaders_killed_during_a_bootstrap_change_nothing_of_its_result() {
    disturb(Story::Bootstrap, |_| Disturbance::Killed);
}

#[test]
fn leaders_paused_during_a_bootstrap_change_nothing_of_its_result() {
    disturb(Story::Bootstrap, |_| Disturbance::Paused);
}

#[test]
fn leaders_that_stand_still_past_their_lease_change_nothing_of_the_work_of_their_successors() {
    keep_quiet();
    let undisturbed = Story::Bootstrap.play_beside_a_standby(&[]);
    assert_eq!(undisturbed.wrong, [""; 0], "{}", undisturbed.why);
    assert_eq!(undisturbed.epochs.len(), 1, "the first instance leads");
    let mut overtaken = 0;
    for point in undisturbed.points {
        let played = Story::Bootstrap.play_beside_a_standby(&[(point.at, Disturbance::Overtaken)]);
        assert_eq!(played.wrong, [""; 0], "{point:?}: {}", played.why);
        overtaken += usize::from(played.epochs.len() == 2);
    }
    assert!(overtaken > 10, "the second leader acts in {overtaken} runs");
}

#[test]
fn nodes_that_fail_during_a_bootstrap_change_nothing_of_its_result() {
    disturb(Story::Bootstrap, |point| Disturbance::Dead(point.node));
}

#[test]
fn certificates_are_renewed_whenever_the_leader_ends() {
    disturb(Story::Renewal, |_| Disturbance::Killed);
    disturb(Story::Renewal, |_| Disturbance::Paused);
}

#[test]
fn certificates_are_renewed_when_a_node_fails() {
    disturb(Story::Renewal, |point| Disturbance::Dead(point.node));
}

#[test]
fn an_older_image_stops_no_member_and_leaves_out_no_node() {
    play(Story::OlderImage, &[]);
}

#[test]
fn operations_wait_for_a_sealed_vault_and_go_on_after_lost_tokens_and_late_answers() {
    play(Story::Vault, &[]);
}

#[test]
fn leaders_killed_during_outages_of_vault_change_nothing_of_their_result() {
    disturb(Story::Vault, |_| Disturbance::Killed);
}

#[test]
fn a_single_member_restarts_when_an_operator_asks_for_it() {
    play(Story::AskedRestart, &[]);
}

#[test]
fn a_restore_is_refused_for_a_damaged_snapshot_and_while_a_majority_answers() {
    play(Story::RefusedRestore, &[]);
}

#[test]
fn a_restore_is_disturbed_before_during_and_after_each_of_its_commands() {
    let mut stages: BTreeMap<String, BTreeSet<Stage>> = BTreeMap::new();
    let restore = |point: &Point| point.of.0 == "etcd-restore";
    for point in play(Story::Restore, &[]).points.into_iter().filter(restore) {
        stages.entry(point.of.1).or_default().insert(point.of.2);
    }
    let quiet = BTreeSet::from([Stage::Announced, Stage::Answered]);
    let all = BTreeSet::from([Stage::Announced, Stage::Happened, Stage::Answered]);
    let expected =
        RESTORE.map(|(command, acts)| (command.to_owned(), if acts { all.clone() } else { quiet.clone() }));
    assert_eq!(stages, expected.into());
}

#[test]
fn etcd_is_restored_whenever_the_leader_ends() {
    disturb(Story::Restore, |_| Disturbance::Killed);
}

#[test]
fn etcd_is_restored_whenever_the_leader_is_paused_or_its_runner_fails() {
    disturb(Story::Restore, |_| Disturbance::Paused);
    disturb(Story::Restore, |_| Disturbance::Failed);
}

#[test]
fn etcd_is_restored_when_a_node_fails() {
    disturb(Story::Restore, |point| Disturbance::Dead(point.node));
    disturb(Story::Restore, |point| Disturbance::Stuck(point.node));
}

#[test]
fn leaders_killed_at_each_point_of_changes_of_members_change_nothing_of_their_result() {
    disturb(Story::Life, |_| Disturbance::Killed);
}

#[test]
fn leaders_paused_at_each_point_of_changes_of_members_change_nothing_of_their_result() {
    disturb(Story::Life, |_| Disturbance::Paused);
}

#[test]
fn nodes_that_fail_at_each_point_of_changes_of_members_change_nothing_of_their_result() {
    disturb(Story::Life, |point| Disturbance::Dead(point.node));
}

#[test]
fn runners_that_fail_at_each_point_of_changes_of_members_change_nothing_of_their_result() {
    disturb(Story::Life, |_| Disturbance::Failed);
}

#[test]
fn an_instance_that_observes_decides_and_changes_nothing() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut site = Site::new(&[], false, &MessageCounter::default()).await;
        site.start("etcd:1", OperationsMode::Observe).await;
        site.cluster(&[0, 1, 2], &[3]).await;
        let written = site.client.get("/cke/cluster", None).await.unwrap().header().unwrap().revision();
        site.pass(OUTAGE).await;
        let page = site.running.as_ref().unwrap().instance.view().operations.newest().unwrap();
        let due: Vec<String> = page.next.iter().map(|operation| operation.name.to_string()).collect();
        assert_eq!(due, ["upgrade"]);
        assert!(page.nodes.values().all(|node| node.reachable), "{:?}", page.nodes);
        let now = site.client.get("/cke/cluster", None).await.unwrap().header().unwrap().revision();
        assert_eq!(now, written, "no lease, no key");
        assert_eq!(site.nodes.facts_since(0), [], "no action");
        // An instance that acts takes over.
        site.images("etcd:1").await;
        site.settled(&[0, 1, 2]).await.unwrap();
        site.calm().await.unwrap();
        site.stop().await;
        assert_eq!(site.unplanned_failures(), [""; 0]);
    });
}

/// Lets a site work on paused time.
fn at_a_site(work: impl AsyncFnOnce(&mut Site)) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut site = Site::new(&[], false, &MessageCounter::default()).await;
        work(&mut site).await;
        site.stop().await;
        assert_eq!(site.unplanned_failures(), [""; 0]);
    });
}

#[test]
fn actors_of_nodes_follow_the_configuration_within_a_second() {
    at_a_site(async |site| {
        for (control_plane, workers) in
            [(&[0, 1, 2][..], &[3][..]), (&[0, 1, 4], &[2, 5]), (&[0], &[]), (&[0, 1, 2, 3], &[4, 5])]
        {
            site.cluster(control_plane, workers).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let wanted: BTreeSet<String> =
                addresses(&[control_plane, workers].concat()).into_iter().collect();
            assert_eq!(site.node_actors().await, wanted);
        }
    });
}

#[test]
fn a_leader_that_has_not_decided_yet_shows_no_phase() {
    at_a_site(async |site| {
        let record = json!({
            "id": "1", "status": "running", "operation": "etcd-restart", "command": {"name": "", "target": ""},
            "targets": [], "info": "", "error": "",
            "start-at": "2023-11-14T22:13:20Z", "end-at": "2023-11-14T22:13:20Z",
        });
        // A new leader closes such a record itself.
        site.pass(INTERVAL).await;
        let mut pages = site.running.as_ref().unwrap().instance.view().operations.clone();
        let cluster = json!({
            "name": "c", "service_subnet": "10.1.0.0/16",
            "nodes": [{"address": "10.0.0.1", "user": "cke", "control_plane": true}],
        });
        let (record, cluster) = (record.to_string(), cluster.to_string());
        // In one revision: the runner closes the record of the former leader before it decides.
        let stored = [("records", "2"), ("records/0000000000000001", &record), ("cluster", &cluster)];
        let puts = stored.map(|(key, value)| TxnOp::put(format!("/cke/{key}"), value, None));
        site.client.txn(Txn::new().and_then(puts)).await.unwrap();
        assert_eq!(pages.next().await.phase, None);
        let decided = async {
            loop {
                if let Some(phase) = pages.next().await.phase.clone() {
                    break phase;
                }
            }
        };
        let phase = tokio::time::timeout(OUTAGE, decided).await.unwrap();
        assert_eq!(phase.to_string(), "upgrade");
    });
}

#[test]
fn leaders_killed_during_a_backup_record_no_backup_without_its_proof() {
    keep_quiet();
    let backups = play(Story::Backups, &[]).backups;
    // Attempts before the bootstrap, two backups with their proofs, and a refuted one.
    assert!(backups.len() >= 6, "{backups:?}");
    for at in backups {
        let played = Story::Backups.play(&[(at + Duration::from_secs(1), Disturbance::Killed)]);
        assert_eq!(played.wrong, [""; 0], "{at:?}: {}", played.why);
    }
}
