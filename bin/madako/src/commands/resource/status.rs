//! `madako resource status`: the resources in Kubernetes beside their definitions.

use madako_operation_runner::kubernetes::objects::operation::ObjectOperationName;
use madako_operation_runner::kubernetes::objects::shown::{ObjectState, ShownObject, resource_states};
use madako_supervisor::clock::SystemClock;
use serde::Serialize;
use time::OffsetDateTime;

use crate::access;
use crate::cli::Global;
use crate::commands::ops::collected;
use crate::commands::ops::{ShownHeld, running};
use crate::failure::Failure;
use crate::limits::NODES_PAUSE;
use crate::list::{AsList, Cell, List, ListArgs, Tone};
use crate::output::escape_unprintable;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    list: ListArgs,
}

#[derive(PartialEq, Serialize)]
struct ResourceStatus {
    resources: Vec<ShownObject>,
    /// The reason for which the held operations of the leader are not known.
    leader_error: Option<String>,
}

pub(super) const NO_SERVER: &str = "no API server is healthy: run madako kube status";

pub(super) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let mut is_good = true;
    let read = async || {
        let shown = gather_resource_status(global).await?;
        is_good = shown.resources.iter().all(|resource| resource.state == ObjectState::Good);
        Ok(shown)
    };
    args.list.show(list_columns(), &SystemClock, NODES_PAUSE, read).await?;
    if is_good { Ok(()) } else { Err(Failure::Different) }
}

async fn gather_resource_status(global: &Global) -> Result<ResourceStatus, Failure> {
    let inputs = collected::gather_kubernetes(global).await?.inputs;
    let options = inputs.kubernetes_options()?;
    let resources = resource_states(&inputs.as_input(&inputs.settings), options);
    let mut resources = resources.ok_or_else(|| Failure::failed(NO_SERVER))?;
    let leader_error = match running::fetch_operations(&access::open_store(global)?).await {
        Ok(page) => {
            add_held(&mut resources, &page.held);
            None
        }
        Err(failure) => failure.message(),
    };
    Ok(ResourceStatus { resources, leader_error })
}

/// Adds the reasons for which the leader holds an object, such as its back-off, which only the leader knows.
pub(crate) fn add_held(objects: &mut [ShownObject], held: &[ShownHeld]) {
    for held in held.iter().filter(|held| held.what.parse::<ObjectOperationName>().is_ok()) {
        for object in objects.iter_mut().filter(|object| held.targets.contains(&object.key)) {
            if object.state != ObjectState::Unknown && !object.why.contains(&held.why) {
                object.state = ObjectState::Held;
                object.why.push(held.why.clone());
            }
        }
    }
}

pub(crate) fn tone_of_state(state: ObjectState) -> Tone {
    match state {
        ObjectState::Good => Tone::Good,
        ObjectState::Due | ObjectState::Held => Tone::Notice,
        ObjectState::Unknown => Tone::Bad,
    }
}

/// The line above a list that lacks the reasons of the leader.
pub(crate) fn describe_leader_error(error: Option<&str>) -> String {
    error.map_or_else(String::new, |error| {
        format!("The held operations of the leader are not known: {}\n", escape_unprintable(error))
    })
}

pub(crate) fn list_columns() -> List {
    List::new(&["OBJECT", "STATE", "WHY"], &[]).with_whole_reasons()
}

impl AsList for ResourceStatus {
    fn list(&self, _: OffsetDateTime) -> List {
        let mut list = list_columns();
        for ShownObject { key, state, why } in &self.resources {
            let state = Cell::new(state.name()).with_tone(tone_of_state(*state));
            list.add(vec![key.into(), state, why.join("; ").into()]);
        }
        list
    }

    fn summary(&self) -> String {
        describe_leader_error(self.leader_error.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::Surface;

    #[test]
    fn held_operation_of_the_leader_is_a_reason_of_its_object_alone() {
        let object =
            |key: &str| ShownObject { key: key.to_owned(), state: ObjectState::Due, why: Vec::new() };
        let mut objects = [object("ConfigMap/a/b"), object("ConfigMap/a/c")];
        let held = |what: &str| ShownHeld {
            what: what.to_owned(),
            reason: "backing-off".to_owned(),
            targets: vec!["ConfigMap/a/b".to_owned()],
            why: "it failed".to_owned(),
        };
        add_held(&mut objects, &[held("resource-apply"), held("etcd-start")]);
        assert_eq!((objects[0].state, objects[0].why.len()), (ObjectState::Held, 1));
        assert_eq!((objects[1].state, objects[1].why.len()), (ObjectState::Due, 0));
        let shown =
            ResourceStatus { resources: objects.to_vec(), leader_error: Some("silence\u{7}".to_owned()) };
        let text = shown.list(OffsetDateTime::UNIX_EPOCH).to_text(false, Surface::default());
        assert_eq!(text, "OBJECT         STATE  WHY\nConfigMap/a/b  held   it failed\nConfigMap/a/c  due\n");
        assert_eq!(shown.summary(), "The held operations of the leader are not known: silence\u{fffd}\n");
    }
}
