//! `madako kubernetes plan`: what an image of Kubernetes, or the present differences, make restart.

use std::collections::BTreeMap;

use madako_console::format_duration_in_words;
use madako_domain::component::Component;
use madako_domain::images::ImageName;
use madako_domain::skew::{KubernetesVersion, Skew};
use madako_domain::state::ClusterState;
use madako_operation_runner::kubernetes::deprecated::{DeprecationAnswers, RequestedApi, join_answers};
use madako_operation_runner::kubernetes::plan::{
    ComponentsPlan, DRAIN, PlannedComponent, PlannedHold, plan, usual_durations,
};
use madako_operation_runner::limits::MAX_CONCURRENT_UPDATES;
use madako_operation_runner::{KubernetesMode, Settings};
use madako_protocol::ports::Clock as _;
use madako_reboot_queue::forecast::{History, NodeForecast};
use madako_reboot_queue::next_action::BlockedBy;
use madako_supervisor::clock::SystemClock;
use madako_supervisor::config::Config;
use serde::Serialize;

use crate::access;
use crate::cli::Global;
use crate::commands::images::Assignment;
use crate::commands::ops::collected::GatheredStates;
use crate::commands::ops::{collected, join_addresses};
use crate::commands::reboot_queue::forecast::{ReachedServer, make_forecast};
use crate::failure::Failure;
use crate::list::{Cell, List, Surface, Tone};
use crate::output::{Format, show_value};
use crate::serve_args::parse_updates;

/// Shows the operations that make the components of Kubernetes as wanted: what restarts, in which order and waves, what holds
/// it, and the expected duration. Changes nothing.
///
/// With --image, the plan is for that image, as if `madako images set` had stored it. The command collects the state
/// itself, as `madako ops plan` does, whatever `kubernetes.mode` says. The operations are the leader's own decisions, as if
/// each of them succeeded and all obstacles of the present had gone; the list HELD has these obstacles. What remains in HELD after
/// all steps has the reason of the leader. Kubelets and proxies restart in waves: one node, then twice as many after each
/// wave, at most --max-concurrent-updates. Nodes that are drained before their kubelets get another minor version
/// (`kubernetes.minor_upgrade: drain`) have steps of their own, as many nodes at once as the reboot queue has slots; the list
/// DRAINED shows the pods and budgets that hold such a drain at present. The duration comes from the completed operations and the
/// drains in the history.
///
/// The version of an image is what its program prints. If no node has the image, the command guesses from the tag.
///
/// The plan also lists the deprecated APIs that clients requested since the start of each API server
/// (apiserver_requested_deprecated_apis), with the release that removes them: those that the planned version lacks come first.
///
/// The plan is refused, with the rule, if it breaks the version policy of Kubernetes: minor-skipped (API servers go up by
/// one minor version at a time), minor-reverted (API servers never go back to an earlier minor version), node-too-old
/// (kubelets and proxies are at most three minor versions older than the API servers), newer-than-api-server (no component
/// is newer than the oldest API server).
///
/// The JSON has these fields: image, version, is_guessed; components ([{node, component, state, from_image, from_version,
/// to_image, to_version, why}]); steps ([{number, operation, nodes, wave, is_gap, begins_after_seconds,
/// ends_after_seconds}], where a drain has the operation "drain"); held ([{operation, reason, nodes, why, remains}]); refused
/// (empty: a refused plan is an error); expected_seconds; deprecated_apis ([{api_version, resource, removed_in, is_removed,
/// servers}]); notes; drains (the drained nodes, with the fields of nodes in madako reboot-queue forecast -o json). Unknown
/// versions are null.
///
/// Exit codes: 0: nothing to do; 1: work is left, the plan is refused, or the state could not be read; 2: bad input.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako kube plan\n  madako kube plan --image \
                        kubernetes=registry.example.com/kubernetes:1.34.5 -o json")]
pub(crate) struct Args {
    /// The image to plan for [default: the present one]
    #[arg(long, value_name = "kubernetes=IMAGE", value_parser = parse_image)]
    image: Option<Assignment>,
    /// Nodes on which one operation starts or restarts components
    #[arg(long, value_name = "NUMBER", value_parser = parse_updates, default_value_t = MAX_CONCURRENT_UPDATES)]
    max_concurrent_updates: usize,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

fn parse_image(text: &str) -> Result<Assignment, String> {
    let given: Assignment = text.parse()?;
    match given {
        Assignment { name: ImageName::Kubernetes, image: Some(_) } => Ok(given),
        _ => Err("expected kubernetes=IMAGE: a plan is for the components of Kubernetes".to_owned()),
    }
}

pub(crate) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let given = args.image.as_slice();
    let (mut planned, gathered) = make_plan(global, given, args.max_concurrent_updates).await?;
    let (requested, unknown) = join_answers(ask_servers(&gathered).await, planned.version.as_ref());
    planned.deprecated_apis = requested;
    planned.notes.extend(unknown);
    if !planned.refused.is_empty() {
        return Err(Failure::failed(describe_refusal(&planned.refused)));
    }
    let drains = match forecast_drains(global, &gathered.state, &planned).await {
        Ok((obstacles, drains)) => {
            planned.held.extend(obstacles);
            drains
        }
        Err(failure) => {
            let why = failure.message().unwrap_or_default();
            planned.notes.push(format!("the obstacles to the drains are not known: {why}"));
            Vec::new()
        }
    };
    let shown = ShownPlan { plan: planned, drains };
    show_value(args.output, &shown, format_plan)?;
    if shown.plan.is_empty() { Ok(()) } else { Err(Failure::Different) }
}

#[derive(Serialize)]
struct ShownPlan {
    #[serde(flatten)]
    plan: ComponentsPlan,
    /// The nodes that the plan drains.
    drains: Vec<NodeForecast>,
}

/// The obstacles to all drains at present, and the nodes that the plan drains, with the pods that hold their drains. Sends no
/// dry run.
async fn forecast_drains(
    global: &Global,
    state: &ClusterState,
    planned: &ComponentsPlan,
) -> Result<(Vec<PlannedHold>, Vec<NodeForecast>), Failure> {
    let nodes = planned.drained_nodes();
    if nodes.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let mut config = Config::load(global.config.as_deref())?;
    // Reads the API servers, whether the service leaves them to CKE or not.
    config.operations.settings.kubernetes = KubernetesMode::Observe;
    let history = History::default();
    let server = ReachedServer::connect(&config)?;
    let asked = (config.reboots, false);
    let found = make_forecast(&server, (state, &nodes), &history, asked, SystemClock.now()).await?;
    // A drain for an upgrade needs no command on the host.
    let no_command = BlockedBy::NoCommand { field: "" }.name();
    let obstacles = found.obstacles.into_iter().filter(|obstacle| obstacle.name != no_command);
    let held = obstacles.map(|obstacle| PlannedHold {
        operation: DRAIN,
        reason: obstacle.name,
        nodes: nodes.clone(),
        why: obstacle.why,
        remains: false,
    });
    let added = found.waves.into_iter().flat_map(|wave| wave.nodes).filter(|node| node.index.is_none());
    Ok((held.collect(), added.collect()))
}

/// The plan with these images in the place of those of the key.
async fn make_plan(
    global: &Global,
    images: &[Assignment],
    max_concurrent_updates: usize,
) -> Result<(ComponentsPlan, GatheredStates), Failure> {
    let gathered = collected::gather_kubernetes_with(global, images).await?;
    let settings = Settings { max_concurrent_updates, ..gathered.inputs.settings.clone() };
    let unclear = settings.unclear_images.get(&ImageName::Kubernetes);
    if let Some(why) = unclear {
        return Err(Failure::failed(format_args!(
            "cannot plan the update, because the image of Kubernetes is not known ({why}): run madako images set kubernetes=IMAGE"
        )));
    }
    let options = gathered.inputs.kubernetes_options()?;
    let records = access::read_records(&gathered.snapshot);
    let mut durations = usual_durations(&records);
    let drains = History::from_records(&records).drains();
    durations.extend(drains.map(|drains| (DRAIN.to_owned(), drains.median_seconds)));
    let mut planned = plan(&gathered.inputs.as_input(&settings), options, &durations);
    let mode = Config::load(global.config.as_deref())?.operations.settings.kubernetes;
    if mode != KubernetesMode::Act && !planned.steps.is_empty() {
        let note = "kubernetes.mode is not act in this configuration: a service with it does nothing of this";
        planned.notes.push(note.to_owned());
    }
    Ok((planned, gathered))
}

/// Asks the healthy API servers for the deprecated APIs that clients requested.
async fn ask_servers(gathered: &GatheredStates) -> DeprecationAnswers {
    let (components, mut answers) = (&gathered.ports.runner.components, DeprecationAnswers::new());
    let known = gathered.inputs.status.kubernetes.as_ref();
    let servers = gathered.inputs.cluster.control_plane().map(|node| &node.address);
    for address in servers {
        if known.is_some_and(|known| known.is_healthy(Component::ApiServer, address)) {
            let answer = components.deprecated_apis(address).await.map_err(|error| error.to_string());
            answers.insert(address.clone(), answer);
        }
    }
    answers
}

/// Refuses images of Kubernetes that break the version policy, and those whose version is not known.
///
/// # Errors
/// An image is refused, or the state cannot be read.
pub(crate) async fn refuse_skew(global: &Global, images: &[Assignment]) -> Result<(), Failure> {
    let (planned, _) = make_plan(global, images, MAX_CONCURRENT_UPDATES).await?;
    find_refusal(&planned).map_or(Ok(()), |why| Err(Failure::failed(why)))
}

fn find_refusal(planned: &ComponentsPlan) -> Option<String> {
    let image = &planned.image;
    if planned.version.is_none() {
        return Some(format!(
            "the version of the image {image} is not known: no node has the image, and its tag names no version"
        ));
    }
    (!planned.refused.is_empty()).then(|| describe_refusal(&planned.refused))
}

/// One line for each rule, with the first component that breaks it.
fn describe_refusal(refused: &[Skew]) -> String {
    let mut by_rule = BTreeMap::new();
    for skew in refused {
        let (_, count) = by_rule.entry(skew.rule).or_insert((skew, 0_usize));
        *count += 1;
    }
    let lines = by_rule.into_values().map(|(skew, count)| match count {
        1 => skew.to_string(),
        more => format!("{skew}; the same for {} other components", more - 1),
    });
    format!("the version policy of Kubernetes forbids the image: {}", lines.collect::<Vec<_>>().join("; "))
}

fn format_plan(ShownPlan { plan, drains }: &ShownPlan) -> String {
    let version = plan.version.as_ref().map_or_else(|| "unknown".to_owned(), ToString::to_string);
    let guessed = if plan.is_guessed { ", a guess from the tag" } else { "" };
    let mut text = format!("Image     {}\nVersion   {version}{guessed}\n", plan.image);
    text += &match plan.steps.is_empty() {
        true => "Duration  nothing restarts\n".to_owned(),
        false => format!("Duration  {}\n", format_duration_in_words(plan.expected_seconds)),
    };
    let mut steps = List::new(&["STEP", "OPERATION", "WAVE", "NODES", "BEGINS", "ENDS"], &[]);
    for step in &plan.steps {
        steps.add(vec![
            step.number.to_string().into(),
            step.operation.into(),
            step.wave.map_or_else(|| "-".to_owned(), |wave| wave.to_string()).into(),
            join_addresses(&step.nodes).into(),
            format_duration_in_words(step.begins_after_seconds).into(),
            format_duration_in_words(step.ends_after_seconds).into(),
        ]);
    }
    let mut held = List::new(&["HELD", "REASON", "NODES", "WHY"], &[]).with_whole_reasons();
    for wait in &plan.held {
        let nodes = join_addresses(&wait.nodes);
        held.add(vec![wait.operation.into(), wait.reason.into(), nodes.into(), (&wait.why).into()]);
    }
    let mut drained = List::new(&["DRAINED", "PODS", "BLOCKER", "WHY"], &[]).with_whole_reasons();
    for NodeForecast { node, pods, blockers, .. } in drains {
        for blocker in blockers {
            let pods = pods.to_string();
            drained.add(vec![node.into(), pods.into(), blocker.kind.into(), (&blocker.why).into()]);
        }
    }
    let mut deprecated = List::new(&["DEPRECATED", "RESOURCE", "REMOVED IN", "SERVERS"], &[]);
    for RequestedApi { api, is_removed, servers } in &plan.deprecated_apis {
        let removed = Cell::from(api.removed_in.as_deref().unwrap_or("-"));
        deprecated.add(vec![
            (&api.api_version).into(),
            (&api.resource).into(),
            if *is_removed { removed.with_tone(Tone::Bad) } else { removed },
            join_addresses(servers).into(),
        ]);
    }
    let mut notes = List::new(&["NOTE"], &[]).with_whole_reasons();
    for note in &plan.notes {
        notes.add(vec![note.into()]);
    }
    let lists = [changes(&plan.components), steps, held, drained, deprecated, notes];
    for list in lists.into_iter().filter(|list| !list.is_empty()) {
        text += &format!("\n{}", list.to_text(false, Surface::for_output()));
    }
    text
}

/// A row for the nodes on which a component changes in the same way.
fn changes(components: &[PlannedComponent]) -> List {
    let mut alike: Vec<(&PlannedComponent, Vec<&str>)> = Vec::new();
    for changed in components {
        let is_alike = |known: &PlannedComponent| {
            (known.component, known.state, &known.from_image)
                == (changed.component, changed.state, &changed.from_image)
        };
        match alike.iter_mut().find(|(known, _)| is_alike(known)) {
            Some((_, nodes)) => nodes.push(&changed.node),
            None => alike.push((changed, vec![&changed.node])),
        }
    }
    let version_text = |version: Option<&KubernetesVersion>, image: Option<&str>| match version {
        Some(version) => version.to_string(),
        None => image.unwrap_or("-").to_owned(),
    };
    let mut list = List::new(&["COMPONENT", "STATE", "FROM", "TO", "NODES"], &[]);
    for (changed, nodes) in alike {
        list.add(vec![
            Cell::from(changed.component),
            changed.state.into(),
            version_text(changed.from_version.as_ref(), changed.from_image.as_deref()).into(),
            version_text(changed.to_version.as_ref(), Some(&changed.to_image)).into(),
            join_addresses(&nodes).into(),
        ]);
    }
    list
}

#[cfg(test)]
mod tests {
    use madako_domain::skew::{Versions, check_upgrade};
    use madako_operation_runner::kubernetes::operation::KubernetesOperationName;
    use madako_reboot_queue::forecast::KUBELET_RESTART;

    use super::*;

    #[test]
    fn a_plan_is_for_an_image_of_kubernetes() {
        assert!(parse_image("kubernetes=a:1").is_ok());
        for text in ["etcd=a:1", "kubernetes=", "kubernetes", "a:1"] {
            assert!(parse_image(text).is_err(), "{text}");
        }
    }

    #[test]
    fn drains_end_with_the_operation_that_restarts_kubelets() {
        assert_eq!(KUBELET_RESTART, KubernetesOperationName::KubeletRestart.name());
    }

    #[test]
    fn components_that_change_alike_have_one_row() {
        let component = |node: &str, image: &str| PlannedComponent {
            node: node.to_owned(),
            component: Component::Kubelet.name(),
            state: "outdated",
            from_image: Some(image.to_owned()),
            from_version: None,
            to_image: "k:2".to_owned(),
            to_version: Some("1.31.0".parse().unwrap()),
            why: Vec::new(),
        };
        let components = [component("a", "k:1"), component("b", "k:0"), component("c", "k:1")];
        let text = changes(&components).to_text(false, Surface::default());
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows[1..],
            [
                vec!["kubelet", "outdated", "k:1", "1.31.0", "a,", "c"],
                vec!["kubelet", "outdated", "k:0", "1.31.0", "b"],
            ],
            "{text}"
        );
    }

    #[test]
    fn an_image_is_stored_only_at_a_known_version_that_breaks_no_rule() {
        let planned = |version: Option<&str>| ComponentsPlan {
            image: "k:latest".to_owned(),
            version: version.map(|version| version.parse().unwrap()),
            is_guessed: false,
            components: Vec::new(),
            steps: Vec::new(),
            held: Vec::new(),
            refused: Vec::new(),
            expected_seconds: 0,
            deprecated_apis: Vec::new(),
            notes: Vec::new(),
        };
        assert_eq!(find_refusal(&planned(Some("1.31.0"))), None);
        let why = find_refusal(&planned(None)).unwrap();
        assert!(why.starts_with("the version of the image k:latest is not known"), "{why}");
    }

    #[test]
    fn a_refusal_names_each_rule_once() {
        let mut versions = Versions::default();
        for node in ["a", "b"] {
            versions.insert(Component::ApiServer, node, "1.30.5".parse().unwrap());
        }
        let nodes = BTreeMap::from([(Component::ApiServer, vec!["a".to_owned(), "b".to_owned()])]);
        let refused = check_upgrade(&versions, &nodes, &"1.32.0".parse().unwrap());
        let text = describe_refusal(&refused);
        assert!(text.contains("minor-skipped (kube-apiserver 1.32.0 on a"), "{text}");
        assert!(text.ends_with("; the same for 1 other components"), "{text}");
    }
}
