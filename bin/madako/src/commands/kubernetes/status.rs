//! `madako kubernetes status`: the components of Kubernetes on the nodes, and the objects in Kubernetes.

use madako_operation_runner::kubernetes::objects::shown::{ObjectState, ShownObject, objects};
use madako_operation_runner::kubernetes::operation::KubernetesOperationName;
use madako_operation_runner::kubernetes::shown::{ShownComponent, State, components};
use serde::Serialize;

use crate::access;
use crate::cli::Global;
use crate::commands::ops::{ShownHeld, collected, running};
use crate::commands::resource;
use crate::commands::resource::status::object_table;
use crate::failure::Failure;
use crate::output::{Format, Table, escape_unprintable, show_value};

/// Shows each component of Kubernetes on each node, with its state and its differences from the wanted component. Changes
/// nothing.
///
/// The command reads the cluster from the store and collects the state itself, as `madako ops plan` does, whatever
/// `kubernetes.mode` says. The states are good, unhealthy (no answer to the health check), outdated (it differs from the
/// wanted component), stopped, foreign (a container of another program), unwanted (kube-proxy runs although it is disabled)
/// and unreachable (the node does not answer). The column WHY has the failed health check, the differences, and the reason
/// for which the leader holds an operation on the component. `madako ops plan` shows the operations that follow.
///
/// A second table has the objects of Kubernetes that are not as wanted: due, held or unknown. `-o json` has all objects.
///
/// Exit codes: 0: all components and objects are good; 1: some are not; 2: the state could not be read, or bad input.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako kube status\n  madako kube status -o json")]
pub(crate) struct Args {
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
struct Shown {
    components: Vec<ShownComponent>,
    /// `None`: no API server is healthy.
    objects: Option<Vec<ShownObject>>,
    /// The reason for which the held operations of the leader are not known.
    leader_error: Option<String>,
}

pub(crate) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let shown = find_status(global).await.map_err(Failure::into_bad_input)?;
    show_value(args.output, &shown, format_table)?;
    let is_good = shown.components.iter().all(|component| component.state == State::Good);
    let objects = shown.objects.as_ref().is_some_and(|all| all.iter().all(is_as_wanted));
    if is_good && objects { Ok(()) } else { Err(Failure::Different) }
}

async fn find_status(global: &Global) -> Result<Shown, Failure> {
    let inputs = collected::gather_kubernetes(global).await?.inputs;
    let options = inputs.kubernetes_options()?;
    let input = inputs.as_input(&inputs.settings);
    let mut components = components(&input, options);
    let mut objects = objects(&input, options);
    let leader_error = match running::fetch_held_operations(&access::open_store(global)?).await {
        Ok(held) => {
            add_held(&mut components, &held);
            resource::status::add_held(objects.as_deref_mut().unwrap_or_default(), &held);
            None
        }
        Err(failure) => failure.message(),
    };
    Ok(Shown { components, objects, leader_error })
}

/// Adds the reasons for which the leader holds operations to the components that they would change.
fn add_held(components: &mut [ShownComponent], held: &[ShownHeld]) {
    for held in held {
        // Other operations are those on etcd and on rivers.
        let Ok(name) = held.what.parse::<KubernetesOperationName>() else { continue };
        let is_target = |shown: &&mut ShownComponent| {
            shown.component == name.component().name() && held.targets.contains(&shown.node)
        };
        for shown in components.iter_mut().filter(is_target) {
            shown.why.push(format!("{} is held: {}", held.what, held.why));
        }
    }
}

fn is_as_wanted(object: &ShownObject) -> bool {
    object.state == ObjectState::Good
}

fn format_table(shown: &Shown) -> String {
    let mut table = Table::new(["NODE", "COMPONENT", "STATE", "IMAGE", "WHY"]);
    for ShownComponent { node, component, state, image, why } in &shown.components {
        let image = image.clone().unwrap_or_default();
        table.add_row([
            node.clone(),
            (*component).to_owned(),
            state.name().to_owned(),
            image,
            why.join("; "),
        ]);
    }
    let mut text = table.to_text();
    let objects = shown.objects.iter().flatten();
    let others: Vec<ShownObject> = objects.filter(|object| !is_as_wanted(object)).cloned().collect();
    if !others.is_empty() {
        text.push_str(&format!("\n{}", object_table(&others)));
    }
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
    fn a_row_names_node_component_state_image_and_differences() {
        let component = |state, image: Option<&str>, why: &[&str]| ShownComponent {
            node: "10.0.0.1".to_owned(),
            component: "kubelet",
            state,
            image: image.map(str::to_owned),
            why: why.iter().map(|why| (*why).to_owned()).collect(),
        };
        let components = vec![
            component(State::Outdated, Some("k:1"), &["one", "two"]),
            component(State::Unreachable, None, &[]),
        ];
        let object = |key: &str, state| ShownObject { key: key.to_owned(), state, why: vec!["x".to_owned()] };
        let objects =
            Some(vec![object("Namespace/a", ObjectState::Good), object("Namespace/b", ObjectState::Held)]);
        let text = format_table(&Shown { components, objects, leader_error: Some("silence".to_owned()) });
        assert!(text.contains("Namespace/b  held   x\n") && !text.contains("Namespace/a"), "{text}");
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["10.0.0.1", "kubelet", "outdated", "k:1", "one;", "two"]);
        assert_eq!(rows[2], ["10.0.0.1", "kubelet", "unreachable"]);
        assert!(text.ends_with("of the leader are not known: silence\n"), "{text}");
    }

    #[test]
    fn a_held_operation_is_a_reason_of_its_component_alone() {
        let component = |node: &str, component| ShownComponent {
            node: node.to_owned(),
            component,
            state: State::Stopped,
            image: None,
            why: Vec::new(),
        };
        let mut components =
            [component("a", "kubelet"), component("b", "kubelet"), component("a", "kube-proxy")];
        let held = |what: &str| ShownHeld {
            what: what.to_owned(),
            reason: "backing-off".to_owned(),
            targets: vec!["a".to_owned()],
            why: "it failed".to_owned(),
        };
        add_held(&mut components, &[held("kubelet-bootstrap"), held("etcd-start")]);
        let whys = components.map(|component| component.why);
        assert_eq!(whys, [vec!["kubelet-bootstrap is held: it failed".to_owned()], Vec::new(), Vec::new()]);
    }
}
