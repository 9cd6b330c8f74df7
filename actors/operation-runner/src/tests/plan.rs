//! Tests of the plan of Kubernetes' components.

use madako_domain::record::{Record, RecordStatus};
use time::OffsetDateTime;

use super::fleet::Fleet;
use super::kubernetes::running;
use crate::kubernetes::minor_upgrade::MinorUpgrade;
use crate::kubernetes::plan::{ComponentsPlan, DRAIN, Durations, Step, plan, usual_durations};

fn plan_of(fleet: &Fleet) -> ComponentsPlan {
    plan(&fleet.input(), fleet.kubernetes.as_ref().unwrap(), &Durations::new())
}

/// A fleet that runs 1.30.5, for which another image is configured.
fn outdated(image: &str, version: Option<&str>) -> Fleet {
    let mut fleet = running();
    let present = std::mem::replace(&mut fleet.settings.images.kubernetes, image.to_owned());
    let versions = &mut fleet.status.kubernetes.as_mut().unwrap().image_versions;
    versions.insert(present, "1.30.5".parse().unwrap());
    if let Some(version) = version {
        versions.insert(image.to_owned(), version.parse().unwrap());
    }
    fleet
}

fn steps(plan: &ComponentsPlan) -> Vec<String> {
    let step = |step: &Step| format!("{} {}", step.operation, step.nodes.len());
    plan.steps.iter().map(step).collect()
}

#[test]
fn nothing_is_planned_for_a_fleet_that_is_as_wanted() {
    let planned = plan_of(&running());
    assert!(planned.is_empty() && planned.held.is_empty() && planned.notes.is_empty(), "{planned:#?}");
}

const SERVERS_RESTART: [&str; 9] = [
    "kube-apiserver-restart 1",
    "kube-apiserver-restart 1",
    "kube-apiserver-restart 1",
    "kube-controller-manager-restart 1",
    "kube-controller-manager-restart 1",
    "kube-controller-manager-restart 1",
    "kube-scheduler-restart 1",
    "kube-scheduler-restart 1",
    "kube-scheduler-restart 1",
];
const KUBELETS_RESTART: [&str; 3] = ["kubelet-restart 1", "kubelet-restart 2", "kubelet-restart 3"];
const PROXIES_RESTART: [&str; 3] = ["kube-proxy-restart 1", "kube-proxy-restart 2", "kube-proxy-restart 3"];

#[test]
fn an_upgrade_in_place_has_the_order_and_the_waves_of_the_runner() {
    let mut fleet = outdated("k:2", Some("1.31.0"));
    fleet.settings.minor_upgrade = MinorUpgrade::InPlace;
    let mut planned = plan_of(&fleet);
    assert_eq!(steps(&planned), [&SERVERS_RESTART[..], &KUBELETS_RESTART, &PROXIES_RESTART].concat());
    assert_eq!((planned.refused.len(), planned.held.len(), planned.components.len()), (0, 0, 21));
    let last = planned.steps.pop().unwrap();
    assert_eq!((last.wave, last.ends_after_seconds + 30), (Some(3), planned.expected_seconds));
    assert!(planned.notes[0].starts_with("6 kubelets get another minor version"), "{planned:#?}");
    let first = &planned.components[0];
    assert_eq!(first.from_version.as_ref().unwrap().to_string(), "1.30.5");
    assert_eq!(first.to_version.as_ref().unwrap().to_string(), "1.31.0");
}

#[test]
fn nodes_are_drained_before_their_kubelets_get_another_minor_version() {
    let fleet = outdated("k:2", Some("1.31.0"));
    let durations = Durations::from([(DRAIN.to_owned(), 300)]);
    let planned = plan(&fleet.input(), fleet.kubernetes.as_ref().unwrap(), &durations);
    let each = ["drain 1", "kubelet-restart 1"];
    assert_eq!(steps(&planned), [&SERVERS_RESTART[..], &PROXIES_RESTART, &each.repeat(6)].concat());
    let workers = fleet.cluster.workers().map(|node| node.address.clone());
    let nodes: Vec<String> =
        workers.chain(fleet.cluster.control_plane().map(|node| node.address.clone())).collect();
    assert_eq!(planned.drained_nodes(), nodes, "control plane nodes come last");
    let drain = planned.steps.iter().find(|step| step.operation == DRAIN).unwrap();
    assert_eq!((drain.ends_after_seconds - drain.begins_after_seconds, drain.wave), (300, None));
    assert_eq!(planned.held.len(), 0);
}

#[test]
fn a_refused_version_has_no_step() {
    let planned = plan_of(&outdated("k:2", Some("1.32.0")));
    assert!(planned.steps.is_empty() && !planned.is_empty());
    assert_eq!(planned.refused[0].rule.name(), "minor-skipped");
    let guessed = plan_of(&outdated("k:1.29.0", None));
    assert!(guessed.is_guessed);
    assert_eq!(guessed.refused[0].rule.name(), "minor-reverted");
    let unknown = plan_of(&outdated("k:latest", None));
    assert!(unknown.version.is_none() && unknown.notes[0].contains("is not known"), "{unknown:#?}");
    assert!(!unknown.steps.is_empty());
}

#[test]
fn obstacles_of_the_present_stand_beside_the_steps_and_unreachable_nodes_remain() {
    let mut fleet = outdated("k:2", Some("1.30.6"));
    fleet.status.etcd.as_mut().unwrap().members[0].in_sync = Some(false);
    let worker = fleet.cluster.workers().next().unwrap().address.clone();
    fleet.node(&worker).reachable = false;
    let planned = plan_of(&fleet);
    let held: Vec<(&str, &str, bool)> =
        planned.held.iter().map(|held| (held.operation, held.reason, held.remains)).collect();
    assert!(held.contains(&("kube-apiserver-restart", "etcd-not-in-sync", false)), "{held:?}");
    assert!(held.contains(&("kubelet-bootstrap", "unreachable", true)), "{held:?}");
    assert_eq!(steps(&planned).last().unwrap(), "kube-proxy-restart 2");
}

#[test]
fn the_usual_duration_is_the_median_of_completed_operations() {
    let record = |seconds: i64, status| {
        let start = OffsetDateTime::UNIX_EPOCH;
        let end_at = Some(start + time::Duration::seconds(seconds));
        Record { status, end_at, ..Record::new(1, "kubelet-restart", Vec::new(), start) }
    };
    let completed = RecordStatus::Completed;
    let mut records: Vec<Record> = [9, 1, 5].map(|seconds| record(seconds, completed.clone())).into();
    records.push(record(100, RecordStatus::Cancelled));
    assert_eq!(usual_durations(&records), Durations::from([("kubelet-restart".to_owned(), 5)]));
}
