//! Decisions on objects of Kubernetes with the failures of earlier ones, and the execution of commands on objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::authority::Authority;
use madako_domain::cluster::Cluster;
use madako_domain::objects::{FoundObject, Manifest, NodeChange, NodeObject, ObjectAnswers};
use madako_domain::resource::ResourceKey;
use madako_domain::status::OperationPhase;
use madako_protocol::actors::Collected;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::permit::Permit;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::RunnerState;
use super::execute::{Basis, Executor, Failure};
use super::workflow::FailedCommand;
use crate::command::Command as RunnerCommand;
use crate::decide::{Decision, decide};
use crate::held::BlockedBy;
use crate::input::{Input, KubernetesPart, ObjectsPart};
use crate::kubernetes::objects::apply::FailedApply;
use crate::kubernetes::objects::decide::ObjectBlockedBy;
use crate::kubernetes::objects::failures::ObjectFailures;
use crate::kubernetes::objects::nodes::{node_key, surplus_nodes};
use crate::kubernetes::objects::operation::ObjectCommand as Command;
use crate::kubernetes::objects::webhooks::{
    needed_certificate, needs_authority, with_authority, with_certificate,
};
use crate::limits::{LEAST_OBJECTS_PAUSE, NODE_CHANGES_DEADLINE, PASSES_TO_AGREE};

impl RunnerState {
    /// Decides, and decides again if an object differs although it was applied.
    pub(super) fn decide_on_objects(&mut self, input: Input<'_>, collected: &Collected) -> Decision {
        let Some(found) = collected.kubernetes.as_ref().and_then(|answers| answers.objects.as_ref()) else {
            return decide(&with_failures(input, self.objects.failed()));
        };
        if !self.is_thinned {
            let names = |nodes: &Vec<NodeObject>| nodes.iter().map(|node| node.name.clone()).collect();
            let names: Option<BTreeSet<String>> = found.nodes.as_ref().map(names);
            self.objects.retain(|key| may_be_wanted(found, names.as_ref(), key));
        }
        let decision = decide(&with_failures(input, self.objects.failed()));
        // In other phases the objects were not decided on.
        let is_decided = matches!(
            decision.phase,
            OperationPhase::K8sMaintain | OperationPhase::StopControlPlane | OperationPhase::Completed
        );
        if is_decided && self.objects.observe(&due_objects(&decision), |key| was_read(found, key), input.now)
        {
            return decide(&with_failures(input, self.objects.failed()));
        }
        decision
    }

    /// The time until an object that waits may be due. Other objects may wait for it.
    pub(super) fn next_object_pause(&self) -> Option<Duration> {
        let held = self.decision.iter().flat_map(|decision| &decision.held);
        let mut reasons = held.filter_map(|held| match &held.reason {
            BlockedBy::Object(reason) => Some(reason),
            _ => None,
        });
        if reasons.any(|reason| *reason == ObjectBlockedBy::NotInitialized) {
            return Some(LEAST_OBJECTS_PAUSE);
        }
        let now = self.given.clock.now();
        let pause = self.objects.next_change(now)? - now;
        Some(pause.unsigned_abs().max(LEAST_OBJECTS_PAUSE))
    }

    /// After a command on one object, the last collection still has the state of all others.
    pub(super) fn forget_object(&mut self, command: &RunnerCommand, is_success: bool) {
        let manifest = match command {
            RunnerCommand::Object(command) => command.manifest(),
            _ => None,
        };
        // After a definition, discovery knows another kind.
        let manifest = manifest.filter(|it| it.name().key.kind != "CustomResourceDefinition");
        let Some(manifest) = manifest else { return self.forget_collected() };
        let collected = self.collected.as_mut().map(|(_, collected)| collected).filter(|_| is_success);
        let answers = collected.and_then(|collected| collected.kubernetes.as_mut());
        if let Some(found) = answers.and_then(|answers| answers.objects.as_mut()) {
            found.resources.remove(&manifest.name().key);
            found.contents.remove(&manifest.name().key);
            self.is_thinned = true;
        }
    }

    /// Notes the Node objects outside of the cluster. Returns whether there were no others for three passes.
    pub(super) fn note_surplus(&mut self, cluster: &Cluster, collected: &Collected) -> bool {
        let found = collected.kubernetes.as_ref().and_then(|answers| answers.objects.as_ref());
        let Some(nodes) = found.and_then(|found| found.nodes.as_ref()) else { return false };
        let now = surplus_nodes(cluster, nodes);
        let same = self.surplus.take().filter(|(last, _)| now.is_subset(last));
        let since = same.map_or_else(Instant::now, |(_, since)| since);
        self.surplus = Some((now, since));
        since.elapsed() >= self.given.interval * (PASSES_TO_AGREE - 1)
    }
}

/// True if an API server reported the state of an object.
fn was_read(found: &ObjectAnswers, key: &ResourceKey) -> bool {
    if *key == node_key(&key.name) {
        return found.nodes.is_some();
    }
    found.resources.get(key).is_some_and(|answer| !matches!(answer, FoundObject::Unread(_)))
        || found.contents.get(key).is_some_and(|answer| !matches!(answer, FoundObject::Unread(_)))
}

/// True unless the collection shows that an object is not wanted any more. `names` are those of the Node objects; `None`: no API
/// server reported them. An object that was not read keeps its back-off.
fn may_be_wanted(found: &ObjectAnswers, names: Option<&BTreeSet<String>>, key: &ResourceKey) -> bool {
    if *key == node_key(&key.name) {
        return names.is_none_or(|names| names.contains(&key.name));
    }
    found.resources.contains_key(key) || found.contents.contains_key(key)
}

/// The input with the failures of earlier changes.
pub(super) fn with_failures<'a>(
    input: Input<'a>,
    failed: &'a BTreeMap<ResourceKey, FailedApply>,
) -> Input<'a> {
    let part = |part: KubernetesPart<'a>| {
        let objects = ObjectsPart { failed, ..part.objects };
        KubernetesPart { objects, ..part }
    };
    Input { kubernetes: input.kubernetes.map(part), ..input }
}

/// The objects that the operations of a decision change, with their wanted contents.
fn due_objects(decision: &Decision) -> BTreeMap<ResourceKey, String> {
    let commands = decision.operations.iter().flat_map(|operation| &operation.commands);
    let objects = commands.filter_map(|command| match command {
        RunnerCommand::Object(command) => Some(command.objects()),
        _ => None,
    });
    objects.flatten().collect()
}

/// Learns from the end of a command. `failure` has the Node objects that failed, if the command knows them: else all failed.
pub(super) fn record_object_result(
    failures: &mut ObjectFailures,
    command: &Command,
    failure: Option<&FailedCommand>,
    now: OffsetDateTime,
) {
    let objects = command.objects();
    let are_known = |nodes: &Vec<String>| objects.iter().any(|(key, _)| nodes.contains(&key.name));
    let are_known = failure.and_then(|(nodes, _)| nodes.as_ref()).is_some_and(are_known);
    for (key, wanted) in objects {
        match failure {
            None => failures.record_success(key, wanted),
            Some((Some(nodes), why)) if !are_known || nodes.contains(&key.name) => {
                failures.record_failure(key, &wanted, why, now);
            }
            // The next pass decides anew.
            Some(_) => {}
        }
    }
}

impl Executor {
    pub(super) async fn run_on_objects(&self, command: &Command, basis: &Basis) -> Result<(), Failure> {
        match command {
            Command::UpdateNodes(changes) => self.change_nodes(changes, basis).await,
            Command::RemoveNodes(names) => self.remove_nodes(names, basis).await,
            _ => match command.manifest() {
                Some(manifest) => self.apply_manifest(manifest, basis).await,
                None => Ok(()),
            },
        }
    }

    async fn apply_manifest(&self, manifest: &Manifest, basis: &Basis) -> Result<(), Failure> {
        let manifest = &self.with_certificates(manifest).await?;
        let apply = |permit: Permit| async move {
            self.components.apply_object(&permit, &basis.servers, manifest).await
        };
        Ok(self.permits.try_effect(apply).await?)
    }

    /// The manifest with the certificates that its annotations ask for.
    async fn with_certificates(&self, manifest: &Manifest) -> Result<Manifest, Failure> {
        if needs_authority(manifest) {
            let certificate = self.authorities.certificate(Authority::KubernetesWebhook).await?;
            return Ok(with_authority(manifest, &certificate)?);
        }
        match needed_certificate(manifest) {
            Some(request) => {
                let issued = self.authorities.issue(&request).await?;
                Ok(with_certificate(manifest, &issued)?)
            }
            None => Ok(manifest.clone()),
        }
    }

    async fn change_nodes(&self, changes: &[NodeChange], basis: &Basis) -> Result<(), Failure> {
        let names: Vec<&str> = changes.iter().map(|change| change.name.as_str()).collect();
        let change = |place: usize| {
            let change = &changes[place];
            self.permits.try_effect(move |permit: Permit| {
                let components = Arc::clone(&self.components);
                async move { components.change_node(&permit, &basis.servers, change).await }
            })
        };
        change_one_by_one(&names, change).await
    }

    async fn remove_nodes(&self, names: &[String], basis: &Basis) -> Result<(), Failure> {
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let remove = |place: usize| {
            let name = &names[place];
            self.permits.try_effect(move |permit: Permit| {
                let components = Arc::clone(&self.components);
                async move { components.remove_node(&permit, &basis.servers, name).await }
            })
        };
        change_one_by_one(&all, remove).await
    }
}

/// Changes Node objects one after another, each by its place. Those that are not begun within [`NODE_CHANGES_DEADLINE`] are left to
/// the next pass.
async fn change_one_by_one<F>(names: &[&str], change: impl Fn(usize) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), KubernetesError>>,
{
    let end = Instant::now() + NODE_CHANGES_DEADLINE;
    let mut failed = FailedNodes::default();
    for (place, name) in names.iter().enumerate() {
        if Instant::now() >= end {
            failed.next = Some((*name).to_owned());
            break;
        }
        let result = change(place).await;
        let is_unanswered = matches!(result, Err(KubernetesError::Unavailable { .. }));
        failed.note_result(name, result);
        if is_unanswered {
            // The others would wait as long, one after another.
            failed.names.extend(names[place..].iter().map(|name| (*name).to_owned()));
            break;
        }
    }
    failed.into_result()
}

/// The Node objects that could not be changed. A failure costs no other node.
#[derive(Default)]
struct FailedNodes {
    names: BTreeSet<String>,
    why: Vec<String>,
    /// Other clients changed these meanwhile.
    changed: Vec<String>,
    /// The first one that was not begun in time.
    next: Option<String>,
}

impl FailedNodes {
    fn note_result(&mut self, name: &str, result: Result<(), KubernetesError>) {
        match result {
            Ok(()) => {}
            Err(KubernetesError::Refused { status: 409, .. }) => self.changed.push(name.to_owned()),
            Err(error) => {
                self.names.insert(name.to_owned());
                self.why.push(error.to_string());
            }
        }
    }

    /// A Node object that has changed since it was read, or that was not begun, is not a failure: the next pass decides on it anew.
    fn into_result(self) -> Result<(), Failure> {
        let Self { names, mut why, changed, next } = self;
        if !changed.is_empty() {
            why.push(format!("these Node objects have changed since they were read: {}", changed.join(", ")));
        }
        why.extend(next.map(|next| left_to_next_pass(&next)));
        if why.is_empty() {
            return Ok(());
        }
        let is_hold = names.is_empty();
        Err(Failure { nodes: names, why: why.join("; "), is_hold })
    }
}

/// The reason for which a command ends early. It names the next node, so that it differs after each pass that goes on.
pub(super) fn left_to_next_pass(next: &str) -> String {
    format!(
        "the Node objects from {next} on are left to the next pass: the others took {NODE_CHANGES_DEADLINE:?}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_command_without_an_end_in_time_fails_for_each_of_its_objects() {
        let now = datetime!(2026-11-29 12:00 UTC);
        let service =
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "a"}});
        let apply = Command::ApplyResource(Manifest::new(service).unwrap());
        let change = |name: &str| NodeChange { name: name.to_owned(), ..NodeChange::default() };
        let update = Command::UpdateNodes(vec![change("b"), change("c")]);
        let failed = |command: &Command, nodes: &[&str]| {
            let mut failures = ObjectFailures::default();
            let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
            record_object_result(&mut failures, command, Some(&(Some(nodes), "x".to_owned())), now);
            failures.failed().keys().map(|key| key.name.clone()).collect::<Vec<_>>()
        };
        // The operation has the address of an API server as its target.
        assert_eq!(failed(&apply, &["10.0.0.1"]), ["s"]);
        assert_eq!(failed(&update, &["10.0.0.1"]), ["b", "c"]);
        assert_eq!(failed(&update, &["c"]), ["c"], "the other one was changed");
    }

    /// The end of a command that changes the Node objects `0` to `9`. Each change takes so many seconds.
    async fn end_of_changes(
        seconds: u64,
        result: Result<(), KubernetesError>,
    ) -> (Vec<String>, bool, String) {
        let names: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let change = |_: usize| {
            let result = result.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                result
            }
        };
        match change_one_by_one(&names, change).await {
            Ok(()) => (Vec::new(), false, String::new()),
            Err(Failure { nodes, why, is_hold }) => (nodes.into_iter().collect(), is_hold, why),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_changes_of_node_objects_leave_the_others_to_the_next_pass() {
        let what = || "Node object".to_owned();
        let hanging = KubernetesError::Refused { what: what(), status: 500, why: "a webhook".to_owned() };
        let began = Instant::now();
        let (failed, is_hold, why) = end_of_changes(10, Err(hanging.clone())).await;
        assert_eq!((began.elapsed().as_secs(), is_hold), (30, false), "{why}");
        assert_eq!(failed, ["0", "1", "2"], "the others were not tried");
        assert!(why.contains("a webhook") && why.contains("from 3 on"), "{why}");
        // Changes that succeed are no failure, and the command is not complete.
        let (failed, is_hold, why) = end_of_changes(10, Ok(())).await;
        assert!(failed.is_empty() && is_hold && why.contains("from 3 on"), "{why}");
        assert_eq!(end_of_changes(3, Ok(())).await, (Vec::new(), false, String::new()));
        let (failed, _, _) = end_of_changes(2, Err(hanging)).await;
        assert_eq!(failed.len(), 10, "a failure costs no other node");
        let silent = KubernetesError::Unavailable { what: what(), why: "silence".to_owned() };
        let (failed, is_hold, _) = end_of_changes(15, Err(silent)).await;
        assert_eq!((failed.len(), is_hold), (10, false), "the others would wait as long");
    }

    #[test]
    fn an_object_that_was_not_read_keeps_its_back_off() {
        let key = |text: &str| ResourceKey::parse(text).unwrap();
        let (unread, read) = (key("ConfigMap/a/unread"), key("ConfigMap/a/read"));
        let mut found = ObjectAnswers::default();
        found.resources.insert(unread.clone(), FoundObject::Unread("silence".to_owned()));
        found.resources.insert(read.clone(), FoundObject::Missing);
        let keeps = |key: &ResourceKey, names: Option<&BTreeSet<String>>| may_be_wanted(&found, names, key);
        for (key, is_asked, is_read) in [
            (&unread, true, false),
            (&read, true, true),
            (&key("ConfigMap/a/gone"), false, false),
            // No API server reported the Node objects.
            (&node_key("n"), true, false),
        ] {
            assert_eq!((keeps(key, None), was_read(&found, key)), (is_asked, is_read), "{key}");
        }
        let names = BTreeSet::from(["n".to_owned()]);
        assert!(keeps(&node_key("n"), Some(&names)) && !keeps(&node_key("m"), Some(&names)));
    }
}
