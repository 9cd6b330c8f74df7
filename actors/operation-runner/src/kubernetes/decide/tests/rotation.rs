//! Tests of the rotation of the encryption key: its steps, and the restarts of API servers between them.

use madako_domain::encryption_rotation::EncryptionRotation;

use super::*;
use crate::kubernetes::rotation;

const SERVERS: [&str; 3] = [A, B, C];

impl Fleet {
    /// The next step of a rotation, or the reason for which it waits.
    fn step(&self, rotation: &EncryptionRotation) -> String {
        match rotation::decide(rotation, &self.input()).map_err(|reason| *reason) {
            Ok(command) => format!("{} {}", command.name(), command.target()),
            Err(BlockedBy::EarlierEncryptionKeys { nodes }) => format!("waits for {}", nodes.join(" ")),
            Err(reason) => reason.name().to_owned(),
        }
    }

    /// Lets the API servers have the keys that the rotation knows them to have.
    fn note_rotation(&mut self, rotation: &EncryptionRotation) {
        for address in SERVERS {
            self.of(address, Component::ApiServer).has_earlier_keys = rotation.has_earlier_keys(address);
        }
    }
}

/// A rotation with the keys changed for the first time, of which no API server knows.
fn added() -> EncryptionRotation {
    EncryptionRotation::new("k").advance().unwrap()
}

#[test]
fn each_step_waits_until_all_api_servers_have_the_keys_of_the_step_before() {
    let mut fleet = Fleet::new(3, 1);
    let mut rotation = EncryptionRotation::new("k");
    let mut reported = Vec::new();
    loop {
        fleet.note_rotation(&rotation);
        for (place, address) in SERVERS.into_iter().enumerate() {
            if !rotation.has_earlier_keys(address) {
                continue;
            }
            assert_eq!(fleet.step(&rotation), format!("waits for {}", SERVERS[place..].join(" ")));
            let due = fleet.decide().operations;
            assert_eq!(due.len(), 1, "{due:?}");
            assert_eq!(
                (due[0].name, &due[0].targets[..]),
                (Name::KubeApiserverRestart, &[address.to_owned()][..])
            );
            assert_eq!(due[0].why[address], [Outdated::EncryptionKeys]);
            rotation = rotation.with_started(&due[0].targets).unwrap();
            fleet.note_rotation(&rotation);
        }
        assert_eq!(fleet.rows(), [""; 0]);
        reported.push(fleet.step(&rotation));
        let Some(next) = rotation.advance() else { break };
        rotation = next;
    }
    let commands = [
        "add-encryption-key",
        "put-encryption-key-first",
        "rewrite-secrets",
        "drop-encryption-keys",
        "complete-encryption-rotation",
    ];
    assert_eq!(reported, commands.map(|command| format!("{command} k")));
}

#[test]
fn a_step_waits_for_each_api_server_that_is_not_known_to_be_good() {
    let rotation = EncryptionRotation::new("k");
    let step = |spoil: fn(&mut Fleet)| {
        let mut fleet = Fleet::new(3, 1);
        spoil(&mut fleet);
        fleet.step(&rotation)
    };
    assert_eq!(step(|_| {}), "add-encryption-key k");
    let waits = format!("waits for {B}");
    assert_eq!(step(|fleet| fleet.of(B, Component::ApiServer).health = Some(Err("x".to_owned()))), waits);
    assert_eq!(step(|fleet| fleet.of(B, Component::ApiServer).health = None), waits);
    assert_eq!(step(|fleet| fleet.of(B, Component::ApiServer).container.to_mut().running = false), waits);
    assert_eq!(step(|fleet| fleet.of(B, Component::ApiServer).container.to_mut().foreign = true), waits);
    assert_eq!(step(|fleet| fleet.status.nodes.get_mut(B).unwrap().reachable = false), waits);
    assert_eq!(step(|fleet| drop(fleet.status.nodes.remove(B))), waits);
    let settle = |fleet: &mut Fleet| {
        fleet.settling.insert(B.to_owned());
    };
    assert_eq!(step(settle), waits);
    // A node that left the control plane, and whose API server still runs.
    let leave = |fleet: &mut Fleet| fleet.cluster.nodes[1].control_plane = false;
    assert_eq!(step(leave), waits);
}

#[test]
fn a_pause_of_the_roll_halts_the_rotation_and_no_other_restart() {
    let mut fleet = Fleet::new(3, 1);
    fleet.rollout.paused = true;
    assert_eq!(fleet.step(&EncryptionRotation::new("k")), "roll-paused");
    fleet.note_rotation(&added());
    assert_eq!(fleet.step(&added()), "roll-paused");
    assert_eq!(fleet.rows(), [format!("held kube-apiserver-restart roll-paused: {A} {B} {C}")]);
    // Another argument takes the keys along.
    OLD.clone_into(&mut fleet.of(B, Component::ApiServer).container.to_mut().image);
    let rows =
        [format!("kube-apiserver-restart: {B}"), format!("held kube-apiserver-restart roll-paused: {A} {C}")];
    assert_eq!(fleet.rows(), rows);
    fleet.rollout = Rollout { halted: true, ..Rollout::new(ImageName::Kubernetes.default_image()) };
    assert_eq!(fleet.step(&added()), "roll-halted");
    fleet.rollout_fault = Some("x");
    assert_eq!(fleet.step(&added()), "roll-unreadable");
    fleet.rollout_fault = None;
    // Waves of kubelets need no keys.
    fleet.rollout = Rollout::new(ImageName::Kubernetes.default_image());
    fleet.rollout.begin_wave("kubelet", &[A.to_owned()]);
    assert_eq!(fleet.step(&EncryptionRotation::new("k")), format!("waits for {A} {B} {C}"));
}

#[test]
fn other_components_do_not_wait_for_the_encryption_keys() {
    let mut fleet = Fleet::new(3, 1);
    fleet.note_rotation(&added());
    fleet.outdate(Component::Scheduler);
    let rows = fleet.rows();
    assert!(rows.contains(&format!("kube-apiserver-restart: {A}")), "{rows:?}");
    assert!(rows.contains(&format!("kube-scheduler-restart: {B}")), "{rows:?}");
}
