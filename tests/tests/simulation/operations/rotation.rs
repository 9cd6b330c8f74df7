//! The scripted history of a rotation of the encryption key, during which clients write Secrets all the time.

use std::collections::BTreeSet;
use std::time::Duration;

use madako_domain::component::Component;
use madako_domain::encryption_rotation::EncryptionRotation;
use madako_domain::keys;
use madako_domain::objects::{FoundObject, Manifest, ObjectName};
use madako_domain::rollout::Rollout;
use madako_protocol::kubernetes_secrets::EncryptionKeyChange;
use madako_protocol::permit::Permit;
use madako_simulation::planted::keep_quiet;
use serde_json::json;
use tokio::time::Instant;

use super::kubernetes::{self, CONTROL_PLANE};
use super::site::{Disturbance, OUTAGE, PATIENCE, Site, Stopped, address};
use super::stories::{Played, Point, Stage, Story};
use super::{at_a_site, play};

/// The operation of each step.
const OPERATION: &str = "kubernetes-rotate-encryption-key";

/// Its commands, in their order.
const STEPS: [&str; 5] = [
    "add-encryption-key",
    "put-encryption-key-first",
    "rewrite-secrets",
    "drop-encryption-keys",
    "complete-encryption-rotation",
];

/// Time between two Secrets of clients: shorter than the start of an API server.
const STEP: Duration = Duration::from_secs(2);

/// Moments of a rotation at which a leader ends: one of so many, since a test has five minutes.
const EACH: usize = 8;

/// Clients write a Secret through each API server.
async fn write_secrets(site: &Site) {
    for number in CONTROL_PLANE {
        let metadata = json!({"name": format!("s{number}"), "namespace": "default"});
        let secret =
            Manifest::new(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})).unwrap();
        let permit = Permit::give(1, Instant::now() + STEP);
        let (nodes, server) = (site.nodes.components_port(), address(number));
        tokio::spawn(async move {
            // An API server that restarts gives no answer.
            let _ = nodes.apply_object(&permit, &[server], &secret).await;
        });
    }
}

/// Lets time pass while clients write Secrets, all of which each healthy API server reads.
async fn pass(site: &mut Site) {
    write_secrets(site).await;
    site.pass(STEP).await;
    assert_eq!(site.nodes.unreadable_secrets(), BTreeSet::new(), "{}", site.world.history.last_lines(40));
}

async fn ask_for_rotation(site: &mut Site) {
    let rotation = serde_json::to_string(&EncryptionRotation::new("new")).unwrap();
    site.put(keys::ENCRYPTION_ROTATION, &rotation).await;
}

/// Waits until the rotation is over.
async fn until_over(site: &mut Site) -> Result<(), Stopped> {
    let patience = Instant::now() + PATIENCE;
    while let Some(rotation) = site.get(keys::ENCRYPTION_ROTATION).await {
        pass(site).await;
        if site.world.facts.has_findings() {
            return Err(Stopped);
        }
        if Instant::now() > patience {
            let (rotation, history) = (String::from_utf8_lossy(&rotation), site.world.history.last_lines(40));
            site.restless = Some(format!("the rotation is not over, but {rotation}\n{history}"));
            return Err(Stopped);
        }
    }
    Ok(())
}

/// The cluster after its bootstrap gets another encryption key.
pub async fn tell(site: &mut Site) -> Result<(), Stopped> {
    kubernetes::bootstrap(site).await?;
    for _ in 0..5 {
        pass(site).await;
    }
    let before = site.nodes.keys_of_secrets();
    assert_eq!(before.len(), 1, "{before:?}");
    ask_for_rotation(site).await;
    until_over(site).await?;
    let new = BTreeSet::from(["key of new".to_owned()]);
    assert_eq!(site.nodes.keys_of_secrets(), new);
    for number in CONTROL_PLANE {
        assert_eq!(site.nodes.keys_of_server(&address(number)), ["key of new"], "{number}");
    }
    site.settled(&CONTROL_PLANE).await
}

#[test]
fn an_api_server_without_the_key_of_a_secret_refuses_it() {
    at_a_site(async |site| {
        kubernetes::bootstrap(site).await.unwrap();
        for _ in 0..5 {
            pass(site).await;
        }
        // Keys that change without regard to the API servers.
        let secrets = site.nodes.secrets_port();
        let permit = Permit::give(1, Instant::now() + OUTAGE);
        let name = || "new".to_owned();
        for change in [
            EncryptionKeyChange::Add(name()),
            EncryptionKeyChange::PutFirst(name()),
            EncryptionKeyChange::KeepOnly(name()),
        ] {
            secrets.change_encryption_keys(&permit, &change).await.unwrap();
        }
        assert_eq!(site.nodes.unreadable_secrets(), BTreeSet::new(), "no API server has the new key");
        site.nodes.end_container(&address(1), Component::ApiServer);
        site.settled(&CONTROL_PLANE).await.unwrap();
        site.pass(OUTAGE).await;
        let unreadable = site.nodes.unreadable_secrets();
        for expected in ["Secret/default/s0 at 10.0.0.2", "a new Secret of 10.0.0.2 at 10.0.0.1"] {
            assert!(unreadable.contains(expected), "{unreadable:?}");
        }
        let secret = ObjectName::new("v1", "Secret", "default", "s0");
        for (number, is_readable) in [(0, true), (1, false)] {
            let found = site.nodes.components_port().read_object(&[address(number)], &secret).await;
            assert_eq!(matches!(found, FoundObject::Exists(_)), is_readable, "{number}: {found:?}");
        }
    });
}

fn is_of_rotation(point: &Point) -> bool {
    point.of.0 == OPERATION
}

#[test]
fn secrets_are_readable_in_each_step_of_a_rotation() {
    let mut points: Vec<Point> =
        play(Story::EncryptionRotation, &[]).points.into_iter().filter(is_of_rotation).collect();
    points.sort_by_key(|point| point.at);
    let announced = points.iter().filter(|point| point.of.2 == Stage::Announced);
    let steps: Vec<&str> = announced.map(|point| point.of.1.as_str()).collect();
    assert_eq!(steps, STEPS);
}

/// Plays the story with a disturbance before and after each step of the rotation.
fn disturb_steps(plays: impl Fn(&[(Duration, Disturbance)]) -> Played, disturbance: Disturbance) {
    keep_quiet();
    let points: Vec<Point> = plays(&[]).points.into_iter().filter(is_of_rotation).collect();
    assert_eq!(points.len(), 2 * STEPS.len(), "{points:?}");
    for point in points {
        let played = plays(&[(point.at, disturbance)]);
        assert_eq!(played.wrong, [""; 0], "{point:?}: {}", played.why);
    }
}

#[test]
fn leaders_killed_in_each_step_of_a_rotation_change_nothing_of_its_result() {
    disturb_steps(|disturbances| Story::EncryptionRotation.play(disturbances), Disturbance::Killed);
}

#[test]
fn leaders_that_stand_still_in_each_step_of_a_rotation_change_nothing_of_its_result() {
    let plays = |disturbances: &[_]| Story::EncryptionRotation.play_beside_a_standby(disturbances);
    disturb_steps(plays, Disturbance::Overtaken);
}

/// The moments of a rotation: its steps, and the restarts of API servers between them.
fn moments_of_rotation() -> Vec<Duration> {
    let undisturbed = play(Story::EncryptionRotation, &[]);
    let begun = undisturbed.points.iter().filter(|point| is_of_rotation(point)).map(|point| point.at).min();
    let begun = begun.unwrap();
    let moments: Vec<Duration> = undisturbed.moments.into_iter().filter(|at| *at > begun).collect();
    assert!(moments.len() > 10 * EACH, "{moments:?}");
    moments.into_iter().step_by(EACH).collect()
}

#[test]
fn leaders_killed_while_api_servers_restart_for_a_rotation_change_nothing_of_its_result() {
    keep_quiet();
    for at in moments_of_rotation() {
        let played = Story::EncryptionRotation.play(&[(at, Disturbance::Killed)]);
        assert_eq!(played.wrong, [""; 0], "{at:?}: {}", played.why);
    }
}

#[test]
fn control_plane_nodes_that_fail_during_a_rotation_change_nothing_of_its_result() {
    keep_quiet();
    for (place, at) in moments_of_rotation().into_iter().enumerate() {
        let node = CONTROL_PLANE[place % CONTROL_PLANE.len()];
        let played = Story::EncryptionRotation.play(&[(at, Disturbance::Dead(node))]);
        assert_eq!(played.wrong, [""; 0], "{at:?}, {node}: {}", played.why);
    }
}

#[test]
fn a_paused_roll_halts_a_rotation_until_it_is_resumed() {
    at_a_site(async |site| {
        kubernetes::bootstrap(site).await.unwrap();
        let mut rollout = site.rollout().await;
        rollout.paused = true;
        site.put(keys::ROLLOUT, &serde_json::to_string(&rollout).unwrap()).await;
        ask_for_rotation(site).await;
        let known = site.records.lock().unwrap().len();
        site.pass(OUTAGE).await;
        let stored = site.get(keys::ENCRYPTION_ROTATION).await.unwrap();
        let rotation: EncryptionRotation = serde_json::from_slice(&stored).unwrap();
        assert_eq!(rotation, EncryptionRotation::new("new"), "nothing has changed");
        let begun: Vec<String> =
            site.records.lock().unwrap()[known..].iter().map(|it| it.record.operation.clone()).collect();
        assert!(!begun.iter().any(|it| it == OPERATION || it == "kube-apiserver-restart"), "{begun:?}");
        let page = site.running.as_ref().unwrap().instance.view().operations.newest().unwrap();
        let held: Vec<String> =
            page.held.iter().map(|held| format!("{} {}", held.held.what, held.held.reason.name())).collect();
        assert!(held.contains(&format!("{OPERATION} roll-paused")), "{held:?}");
        let resumed = Rollout { paused: false, ..rollout };
        site.put(keys::ROLLOUT, &serde_json::to_string(&resumed).unwrap()).await;
        until_over(site).await.unwrap();
    });
}
