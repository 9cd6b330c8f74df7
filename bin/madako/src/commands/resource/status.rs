//! `madako resource status`: the resources in Kubernetes beside their definitions.

use madako_operation_runner::kubernetes::objects::operation::ObjectOperationName;
use madako_operation_runner::kubernetes::objects::shown::{ObjectState, ShownObject, shown_resources};
use serde::Serialize;

use crate::access;
use crate::cli::Global;
use crate::commands::ops::collected;
use crate::commands::ops::{ShownHeld, running};
use crate::failure::Failure;
use crate::output::{Format, Table, escape_unprintable, show_value};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    pub(super) output: Format,
}

#[derive(Serialize)]
struct Shown {
    resources: Vec<ShownObject>,
    /// The reason for which the held operations of the leader are not known.
    leader_error: Option<String>,
}

pub(super) const NO_SERVER: &str = "no API server is healthy: run madako kube status";

pub(super) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let shown = find_status(global).await.map_err(Failure::into_bad_input)?;
    show_value(args.output, &shown, format_table)?;
    let is_good = shown.resources.iter().all(|resource| resource.state == ObjectState::Good);
    if is_good { Ok(()) } else { Err(Failure::Different) }
}

async fn find_status(global: &Global) -> Result<Shown, Failure> {
    let inputs = collected::gather_kubernetes(global).await?.inputs;
    let options = inputs.kubernetes_options()?;
    let resources = shown_resources(&inputs.as_input(&inputs.settings), options);
    let mut resources = resources.ok_or_else(|| Failure::failed(NO_SERVER))?;
    let leader_error = match running::fetch_held_operations(&access::open_store(global)?).await {
        Ok(held) => {
            add_held(&mut resources, &held);
            None
        }
        Err(failure) => failure.message(),
    };
    Ok(Shown { resources, leader_error })
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

/// A row for each object, with its state and the reasons.
pub(crate) fn object_table(objects: &[ShownObject]) -> String {
    let mut table = Table::new(["OBJECT", "STATE", "WHY"]);
    for ShownObject { key, state, why } in objects {
        table.add_row([key.clone(), state.name().to_owned(), why.join("; ")]);
    }
    table.to_text()
}

fn format_table(shown: &Shown) -> String {
    let mut text = object_table(&shown.resources);
    if let Some(error) = &shown.leader_error {
        text.push_str(&format!(
            "\nThe held operations of the leader are not known: {}\n",
            escape_unprintable(error)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let text = object_table(&objects);
        assert!(text.lines().nth(1).unwrap().contains("it failed"), "{text}");
    }
}
