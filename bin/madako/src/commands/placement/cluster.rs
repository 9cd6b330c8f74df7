//! `madako kube cluster`: registers, changes, shows and deletes Kubernetes clusters.

use clap::Arg;
use madako_domain::placement::kind::Kind;
use madako_domain::placement::kubernetes::ClusterState;
use serde_json::{Map, Value, json};

use super::client::{ApiClient, Request};
use super::edit::{Change, append, merge, put_value, put_values_unless_empty, value_at_path};
use super::given::GivenOptions;
use super::kubeconfig::select_context;
use super::show::Column;
use super::words::{
    Create, Resource, Update, backoff_options, global_metric, label_option, metric_option, name_argument,
    repeated_text_option, switch_option, text_option,
};
use super::{CommandScope, RewriteOutcome, rewrite_resource};
use crate::failure::Failure;
use crate::input::read_documents;
use crate::output::print_warning;

pub(super) const CLUSTER: Resource = Resource {
    kind: Kind::Cluster,
    word: "cluster",
    aliases: &[],
    one: "a Kubernetes cluster",
    many: "Kubernetes clusters",
    columns: &[Column::new("state", "/status/state")],
    details: &[
        Column::new("reason", "/status/reason"),
        Column::new("custom_resources", "/spec/custom_resources"),
        Column::new("metrics", "/spec/metrics"),
        Column::new("failing_metrics", "/status/metrics_reasons"),
        Column::new("label constraints", "/spec/constraints/cloud/labels"),
        Column::new("metric constraints", "/spec/constraints/cloud/metrics"),
        Column::new("scheduled_to", "/status/scheduled_to"),
        Column::for_time("scheduled", "/status/scheduled"),
        Column::new("running_on", "/status/running_on"),
        Column::for_nodes("nodes", "Ready", true),
        Column::for_nodes("nodes_pid_pressure", "PIDPressure", false),
        Column::for_nodes("nodes_memory_pressure", "MemoryPressure", false),
        Column::for_nodes("nodes_disk_pressure", "DiskPressure", false),
        Column::new("backoff", "/spec/backoff"),
        Column::new("backoff_delay", "/spec/backoff_delay"),
        Column::new("backoff_limit", "/spec/backoff_limit"),
    ],
    register: Some(Create {
        more: "The cluster gets the name of the kubeconfig's cluster. The command sends the contents of \
               certificate and key files that the kubeconfig names.",
        options: register_options,
        build: read_registration,
        example: "-k kubeconfig.yaml --metric heat 0.5 -l location=DE",
    }),
    create: Some(Create {
        more: "The cluster is created on a cloud, from a TOSCA template. For an existing cluster, use \
               register.",
        options: || {
            let mut options = vec![name_argument("Name of the cluster"), tosca_option().required(true)];
            options.extend(shared_options());
            options.extend(cloud_constraints());
            options.extend([
                switch_option("inherit-labels", "Inherits the labels of its cloud"),
                switch_option("inherit-metrics", "Inherits the metrics of its cloud"),
            ]);
            options.extend(backoff_options(true));
            options
        },
        build,
        example: "example -f im-cluster.yaml --inherit-metrics -L location=DE",
    }),
    update: Update {
        more: "Given labels, metrics and constraints are added; custom resources are replaced.",
        options: || {
            let mut options = vec![
                name_argument("Name of the cluster"),
                kubeconfig_option(),
                context_option(),
                tosca_option(),
            ];
            options.extend([
                switch_option("remove-existing-labels", "Removes the existing labels first"),
                switch_option("remove-existing-metrics", "Removes the existing metrics first"),
                switch_option(
                    "remove-existing-cloud-label-constraints",
                    "Removes the existing label constraints first",
                ),
                switch_option(
                    "remove-existing-cloud-metric-constraints",
                    "Removes the existing metric constraints first",
                ),
            ]);
            options.extend(shared_options());
            options.extend(cloud_constraints());
            options.extend(backoff_options(false));
            options
        },
        changes: changes_of,
        example: "example --metric heat 0.5 -l location=DE",
    },
    delete: || {
        let help = "Deletes the cluster at once, even if it cannot be reached; its applications stay, and move \
             elsewhere";
        vec![switch_option("force", help)]
    },
    retry: false,
};

fn kubeconfig_option() -> Arg {
    text_option("kubeconfig", "FILE", "Kubeconfig that controls the cluster; - reads standard input")
        .short('k')
}

fn context_option() -> Arg {
    text_option("context", "NAME", "Context of the kubeconfig [default: its current one]").short('c')
}

fn tosca_option() -> Arg {
    text_option("file", "FILE", "TOSCA template of the cluster; - reads standard input").short('f')
}

fn shared_options() -> Vec<Arg> {
    let resource = "Custom resource definition that the cluster has; may be given several times";
    vec![
        repeated_text_option("custom-resource", "NAME", resource).short('R'),
        metric_option(),
        global_metric(),
        label_option(),
    ]
}

fn cloud_constraints() -> [Arg; 2] {
    let label = "Constraint for labels of the cloud; may be given several times";
    let metric = "Constraint for metrics of the cloud; may be given several times";
    [
        repeated_text_option("cloud-label-constraint", "CONSTRAINT", label).short('L'),
        repeated_text_option("cloud-metric-constraint", "CONSTRAINT", metric).short('M'),
    ]
}

fn register_options() -> Vec<Arg> {
    let mut options = vec![kubeconfig_option().required(true), context_option()];
    options.extend(shared_options());
    options.extend(backoff_options(true));
    options
}

/// The specification for `create` and `register`.
fn cluster_spec(given: &GivenOptions) -> Result<Value, Failure> {
    Ok(json!({
        "metrics": given.read_metrics()?,
        "custom_resources": given.text_values("custom-resource"),
        "backoff": given.whole_number("backoff"),
        "backoff_delay": given.whole_number("backoff_delay"),
        "backoff_limit": given.whole_number("backoff_limit"),
        "constraints": {
            "cloud": {
                "labels": given.text_values("cloud-label-constraint"),
                "metrics": given.text_values("cloud-metric-constraint"),
            },
        },
    }))
}

/// The document of an existing cluster, under its name in the kubeconfig.
fn read_registration(given: &GivenOptions) -> Result<Value, Failure> {
    let (config, name) =
        select_context(given.text_value("kubeconfig").unwrap_or_default(), given.text_value("context"))?;
    let mut spec = cluster_spec(given)?;
    spec["kubeconfig"] = config;
    Ok(json!({ "metadata": { "name": name, "labels": given.read_entries("label")? }, "spec": spec }))
}

fn build(given: &GivenOptions) -> Result<Value, Failure> {
    let mut spec = cluster_spec(given)?;
    spec["tosca"] = read_template(given.text_value("file").unwrap_or_default())?;
    spec["inherit_metrics"] = given.is_flag_set("inherit-metrics").into();
    Ok(json!({
        "metadata": {
            "name": given.name()?,
            "labels": given.read_entries("label")?,
            "inherit_labels": given.is_flag_set("inherit-labels"),
        },
        "spec": spec,
    }))
}

fn read_template(file: &str) -> Result<Value, Failure> {
    let mut documents = read_documents(file)?;
    match documents.len() {
        1 => Ok(documents.swap_remove(0)),
        many => Err(Failure::bad_input(format_args!(
            "{file} contains {many} documents, expected one TOSCA template"
        ))),
    }
}

fn changes_of(given: &GivenOptions) -> Result<Change, Failure> {
    let tosca = given.text_value("file").map(read_template).transpose()?;
    let config = given
        .text_value("kubeconfig")
        .map(|file| select_context(file, given.text_value("context")))
        .transpose()?;
    let (labels, metrics) = (given.read_entries("label")?, given.read_metrics()?);
    let given = given.clone();
    Ok(Change::new(move |cluster| {
        put_value(cluster, &["spec", "tosca"], tosca.clone());
        put_value(cluster, &["spec", "kubeconfig"], config.as_ref().map(|(config, _)| config.clone()));
        if given.is_flag_set("remove-existing-labels") {
            *value_at_path(cluster, &["metadata", "labels"]) = json!({});
        }
        merge(cluster, &["metadata", "labels"], &labels);
        if given.is_flag_set("remove-existing-metrics") {
            *value_at_path(cluster, &["spec", "metrics"]) = json!([]);
        }
        append(cluster, &["spec", "metrics"], &metrics, false);
        put_values_unless_empty(
            cluster,
            &["spec", "custom_resources"],
            &given.text_values("custom-resource"),
        );
        for (field, remove, option) in [
            ("labels", "remove-existing-cloud-label-constraints", "cloud-label-constraint"),
            ("metrics", "remove-existing-cloud-metric-constraints", "cloud-metric-constraint"),
        ] {
            let path = ["spec", "constraints", "cloud", field];
            if given.is_flag_set(remove) {
                *value_at_path(cluster, &path) = json!([]);
            }
            let values: Vec<Value> = given.text_values(option).into_iter().map(Value::from).collect();
            if !values.is_empty() {
                append(cluster, &path, &values, true);
            }
        }
        for field in ["backoff", "backoff_delay", "backoff_limit"] {
            put_value(cluster, &["spec", field], given.whole_number(field));
        }
    }))
}

/// The arguments of `set-state` with their states.
const STATES: [(&str, ClusterState); 2] =
    [("online", ClusterState::Online), ("offline", ClusterState::Offline)];

pub(super) fn state_options() -> [Arg; 2] {
    let words = STATES.map(|(word, _)| word);
    let state = Arg::new("state").value_name("STATE").required(true).value_parser(words);
    [name_argument("Name of the cluster"), state.help("New state of the cluster")]
}

/// Writes the state of a cluster with the request of Krake's cluster observer, which the API validates. Does nothing if
/// the cluster has this state already.
pub(super) async fn set_state(
    api: &ApiClient,
    place: &CommandScope,
    given: &GivenOptions,
) -> Result<Value, Failure> {
    let word = given.text_value("state").unwrap_or_default();
    let state = STATES.iter().find(|(known, _)| *known == word).map(|(_, state)| state.name());
    let name = given.name()?;
    let apply = Change::new(move |cluster| put_value(cluster, &["status", "state"], state)).apply;
    match rewrite_resource(api, place, &[name, "status"], Vec::new(), &apply).await? {
        RewriteOutcome::Same(cluster) | RewriteOutcome::Changed(Some(cluster)) => Ok(cluster),
        RewriteOutcome::Changed(None) => Ok(Value::Null),
    }
}

/// Adds the fields that a cluster inherits from its cloud, marked as inherited.
pub(super) async fn add_inherited(api: &ApiClient, cluster: &mut Value) -> Result<(), Failure> {
    let constraints = cluster["spec"]["constraints"]["cloud"].clone();
    let named = |field: &str| -> Vec<String> {
        let texts = constraints[field].as_array().into_iter().flatten();
        texts.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (label_constraints, metric_constraints) = (named("labels"), named("metrics"));
    let (all_labels, all_metrics) =
        (cluster["metadata"]["inherit_labels"] == true, cluster["spec"]["inherit_metrics"] == true);
    let inherits =
        all_labels || all_metrics || !label_constraints.is_empty() || !metric_constraints.is_empty();
    let Some(cloud_name) = cluster["status"]["scheduled_to"]["name"].as_str().filter(|_| inherits) else {
        return Ok(());
    };
    let namespace = cluster["status"]["scheduled_to"]["namespace"].as_str().map(str::to_owned);
    let kind = if namespace.is_some() { Kind::Cloud } else { Kind::GlobalCloud };
    let place = CommandScope { kind, namespace };
    let request = Request::new("GET", place.path_segments(&[cloud_name]), place.name_of_resource(cloud_name));
    let cloud = match api.send(&request).await {
        Ok(answer) => answer.body,
        Err(failure) => {
            print_warning(format_args!(
                "the labels and metrics that it inherits from its cloud are not shown: {}",
                failure.message().unwrap_or_default()
            ));
            return Ok(());
        }
    };
    let mentioned = |name: &str, constraints: &[String]| constraints.iter().any(|text| text.contains(name));
    for (name, value) in cloud["metadata"]["labels"].as_object().unwrap_or(&Map::new()) {
        if all_labels || mentioned(name, &label_constraints) {
            let labelled_value = format!("{} (inherited)", value.as_str().unwrap_or_default());
            cluster["metadata"]["labels"][name] = labelled_value.into();
        }
    }
    let kind = cloud["spec"]["type"].as_str().unwrap_or_default();
    let mut inherited = Vec::new();
    for metric in cloud["spec"][kind]["metrics"].as_array().into_iter().flatten() {
        if all_metrics || mentioned(metric["name"].as_str().unwrap_or_default(), &metric_constraints) {
            let mut metric = metric.clone();
            metric["inherited"] = true.into();
            inherited.push(metric);
        }
    }
    append(cluster, &["spec", "metrics"], &inherited, true);
    Ok(())
}
