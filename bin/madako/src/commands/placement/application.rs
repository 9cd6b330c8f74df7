//! `madako kube app`: creates, changes, shows and deletes applications.

use clap::{Arg, ArgAction};
use madako_domain::placement::kind::Kind;
use serde_json::{Map, Value, json};

use super::edit::{Change, append, merge, put_value, put_values_unless_empty, value_at_path};
use super::given::GivenOptions;
use super::show::Column;
use super::words::{
    Create, Resource, Update, backoff_options, label_option, name_argument, repeated_text_option,
    switch_option, text_option, wait,
};
use crate::failure::Failure;
use crate::input::read_documents;
use crate::output::print_warning;

/// Default time for an application's shutdown hook, in seconds (krakectl's).
const SHUTDOWN_SECONDS: i64 = 60;
/// Actions when an application did not shut down in time.
const STRATEGIES: [&str; 2] = ["give_up", "delete"];
/// Kinds that lose work in a move without a shutdown hook (krakectl's list).
const HARD_TO_MOVE: [&str; 3] = ["CronJob", "Job", "StatefulSet"];

pub(super) const APPLICATION: Resource = Resource {
    kind: Kind::Application,
    word: "app",
    aliases: &["application"],
    one: "an application",
    many: "applications",
    columns: &[Column::new("state", "/status/state")],
    details: &[
        Column::new("reason", "/status/reason"),
        Column::for_pods("container_health", "/status/container_health"),
        Column::new("services", "/status/services"),
        Column::new("allow migration", "/spec/constraints/migration"),
        Column::new("label constraints", "/spec/constraints/cluster/labels"),
        Column::new("resources constraints", "/spec/constraints/cluster/custom_resources"),
        Column::new("metric constraints", "/spec/constraints/cluster/metrics"),
        Column::new("hooks", "/spec/hooks"),
        Column::new("scheduled_to", "/status/scheduled_to"),
        Column::for_time("scheduled", "/status/scheduled"),
        Column::new("running_on", "/status/running_on"),
        Column::new("backoff", "/spec/backoff"),
        Column::new("backoff_delay", "/spec/backoff_delay"),
        Column::new("backoff_limit", "/spec/backoff_limit"),
    ],
    create: Some(Create {
        more: "The application consists of Kubernetes manifests or of a TOSCA template, from a file or \
               (TOSCA and CSAR) an address.",
        options: create_options,
        build,
        example: "echo-demo -f echo-demo.yaml -L location=DE --wait",
    }),
    register: None,
    update: Update {
        more: "Given labels and metric constraints are added; manifest, hooks and the other constraints are \
               replaced.",
        options: update_options,
        changes: changes_of,
        example: "echo-demo --remove-existing-label-constraints -L location=SK",
    },
    delete: || {
        vec![
            wait(&["deleting", "deleted"]),
            switch_option("force", "Deletes the application even if its cluster cannot be reached"),
        ]
    },
    retry: true,
};

fn source_options() -> Vec<Arg> {
    vec![
        text_option("file", "FILE", "Kubernetes manifests or a TOSCA template; - reads standard input")
            .short('f'),
        text_option(
            "url",
            "URL",
            "Address of a TOSCA template (.yaml, .yml) or a CSAR archive (.csar, .zip)",
        )
        .short('u'),
        text_option(
            "observer_schema_file",
            "FILE",
            "Schema of the observed fields of the manifests; without it, all fields are observed",
        )
        .short('O')
        .alias("observer-schema-file"),
    ]
}

fn shared_options() -> Vec<Arg> {
    let label = "Constraint for labels of the cluster; may be given several times";
    let resource = "Custom resource definition that the cluster must have; may be given several times";
    let metric = "Constraint for metrics of the cluster; may be given several times";
    vec![
        switch_option("enable-migration", "Allows moves to another cluster (the default)")
            .conflicts_with("disable-migration"),
        switch_option("disable-migration", "Keeps the application on its cluster"),
        repeated_text_option("cluster-label-constraint", "CONSTRAINT", label).short('L'),
        repeated_text_option("cluster-resource-constraint", "NAME", resource).short('R'),
        repeated_text_option("cluster-metric-constraint", "CONSTRAINT", metric).short('M'),
        label_option(),
        switch_option("hook-complete", "Lets the application report its completion"),
        text_option(
            "hook-shutdown",
            "SECONDS",
            "Lets the application shut itself down: time-out in seconds (60), then give_up or delete, then \
             retries",
        )
        .num_args(0..=3)
        .action(ArgAction::Set)
        .value_names(["SECONDS", "STRATEGY", "RETRIES"]),
    ]
}

fn create_options() -> Vec<Arg> {
    let inject = "Replaces values of environment variables in the manifests; may be given several times";
    let mut options = vec![name_argument("Name of the application")];
    options.extend(source_options());
    options.push(wait(&["creating", "pending", "running"]));
    options.extend(shared_options());
    options.extend(backoff_options(true));
    options
        .push(switch_option("auto-cluster-create", "Allows the creation of a cluster for the application"));
    options.push(repeated_text_option("inject", "KEY=VALUE", inject).short('i').num_args(1..));
    options
}

fn update_options() -> Vec<Arg> {
    let mut options = vec![name_argument("Name of the application")];
    options.extend(source_options());
    options.extend([
        wait(&["reconciling", "running"]),
        switch_option("remove-existing-labels", "Removes the existing labels first"),
        switch_option("remove-existing-label-constraints", "Removes the existing label constraints first"),
        switch_option(
            "remove-existing-resource-constraints",
            "Removes the existing custom resource constraints first",
        ),
        switch_option("remove-existing-metric-constraints", "Removes the existing metric constraints first"),
    ]);
    options.extend(shared_options());
    options.extend(backoff_options(false));
    options
}

/// The source of an application's manifests.
enum Source {
    Manifest(Vec<Value>),
    Tosca(Value),
    Csar(String),
}

impl Source {
    fn from_options(given: &GivenOptions) -> Result<Option<Self>, Failure> {
        if let Some(file) = given.text_value("file") {
            let mut documents = read_documents(file)?;
            let is_tosca =
                documents.first().is_some_and(|first| first.get("tosca_definitions_version").is_some());
            return Ok(Some(if is_tosca {
                Self::Tosca(documents.swap_remove(0))
            } else {
                Self::Manifest(documents)
            }));
        }
        let Some(url) = given.text_value("url") else { return Ok(None) };
        if url.ends_with("yaml") || url.ends_with("yml") {
            Ok(Some(Self::Tosca(url.into())))
        } else if url.ends_with("zip") || url.ends_with("csar") {
            Ok(Some(Self::Csar(url.to_owned())))
        } else {
            Err(Failure::bad_input(format_args!(
                "--url: got {url:?}, expected an address that ends with .yaml, .yml, .zip or .csar"
            )))
        }
    }

    fn put(self, spec: &mut Value) {
        // Fields derived from an earlier template are removed.
        match self {
            Self::Manifest(manifest) => spec["manifest"] = manifest.into(),
            Self::Tosca(tosca) => {
                spec["manifest"] = json!([]);
                spec["tosca"] = tosca;
            }
            Self::Csar(csar) => {
                spec["manifest"] = json!([]);
                spec["tosca"] = json!({});
                spec["csar"] = csar.into();
            }
        }
    }
}

/// The given hooks as fields of a specification.
fn read_hooks(given: &GivenOptions) -> Result<Map<String, Value>, Failure> {
    let mut fields = Map::new();
    let mut names = Vec::new();
    if given.is_flag_set("hook-complete") {
        names.push("complete");
    }
    if given.has_option("hook-shutdown") {
        names.push("shutdown");
        let values = given.text_values("hook-shutdown");
        let whole = |place: usize, what: &str| {
            let parse = |text: &String| {
                text.parse::<i64>().map_err(|_| {
                    Failure::bad_input(format_args!(
                        "--hook-shutdown: got {text:?} as {what}, expected a whole number"
                    ))
                })
            };
            values.get(place).map(parse).transpose()
        };
        fields.insert(
            "shutdown_grace_time".to_owned(),
            whole(0, "SECONDS")?.unwrap_or(SHUTDOWN_SECONDS).into(),
        );
        if let Some(strategy) = values.get(1) {
            if !STRATEGIES.contains(&strategy.as_str()) {
                return Err(Failure::bad_input(format_args!(
                    "--hook-shutdown: got {strategy:?} as STRATEGY, expected {}",
                    STRATEGIES.join(" or ")
                )));
            }
            fields.insert("shutdown_failure_strategy".to_owned(), strategy.as_str().into());
        }
        if let Some(retries) = whole(2, "RETRIES")? {
            fields.insert("shutdown_retry_count".to_owned(), retries.into());
        }
    }
    if !names.is_empty() {
        fields.insert("hooks".to_owned(), names.into());
    }
    Ok(fields)
}

fn build(given: &GivenOptions) -> Result<Value, Failure> {
    let source = Source::from_options(given)?.ok_or_else(|| {
        Failure::bad_input(
            "the manifests or the template of the application are missing: give --file or --url",
        )
    })?;
    let schema =
        given.text_value("observer_schema_file").map(read_documents).transpose()?.unwrap_or_default();
    let mut application = json!({
        "metadata": { "name": given.name()?, "labels": given.read_entries("label")? },
        "spec": {
            "manifest": [],
            "tosca": {},
            "csar": null,
            "observer_schema": schema,
            "constraints": {
                "migration": !given.is_flag_set("disable-migration"),
                "cluster": {
                    "labels": given.text_values("cluster-label-constraint"),
                    "custom_resources": given.text_values("cluster-resource-constraint"),
                    "metrics": given.text_values("cluster-metric-constraint"),
                },
            },
            "backoff": given.whole_number("backoff"),
            "backoff_delay": given.whole_number("backoff_delay"),
            "backoff_limit": given.whole_number("backoff_limit"),
            "auto_cluster_create": given.is_flag_set("auto-cluster-create"),
        },
    });
    source.put(&mut application["spec"]);
    merge(&mut application, &["spec"], &read_hooks(given)?);
    warn_of_moves(&application);
    let variables = given.read_entries("inject")?;
    if !variables.is_empty() {
        for part in ["manifest", "tosca"] {
            inject(&mut application["spec"][part], &variables);
        }
    }
    Ok(application)
}

fn changes_of(given: &GivenOptions) -> Result<Change, Failure> {
    /// The field, the option that clears it, the option that sets it, and whether the latter appends.
    const CONSTRAINTS: [(&str, &str, &str, bool); 3] = [
        ("labels", "remove-existing-label-constraints", "cluster-label-constraint", false),
        ("custom_resources", "remove-existing-resource-constraints", "cluster-resource-constraint", false),
        ("metrics", "remove-existing-metric-constraints", "cluster-metric-constraint", true),
    ];
    let mut source = json!({});
    let replaced = Source::from_options(given)?.map(|made_of| made_of.put(&mut source)).is_some();
    let schema = given.text_value("observer_schema_file").map(read_documents).transpose()?;
    let (labels, hooks) = (given.read_entries("label")?, read_hooks(given)?);
    let given = given.clone();
    Ok(Change::new(move |application| {
        if replaced {
            merge(application, &["spec"], source.as_object().unwrap_or(&Map::new()));
        }
        put_value(application, &["spec", "observer_schema"], schema.clone());
        if given.is_flag_set("remove-existing-labels") {
            *value_at_path(application, &["metadata", "labels"]) = json!({});
        }
        merge(application, &["metadata", "labels"], &labels);
        merge(application, &["spec"], &hooks);
        for (field, remove, option, adds) in CONSTRAINTS {
            let path = ["spec", "constraints", "cluster", field];
            if given.is_flag_set(remove) {
                *value_at_path(application, &path) = json!([]);
            }
            let values = given.text_values(option);
            if adds && !values.is_empty() {
                let values: Vec<Value> = values.into_iter().map(Value::from).collect();
                append(application, &path, &values, true);
            } else {
                put_values_unless_empty(application, &path, &values);
            }
        }
        let migration = match (given.is_flag_set("enable-migration"), given.is_flag_set("disable-migration"))
        {
            (false, false) => None,
            (enabled, _) => Some(enabled),
        };
        put_value(application, &["spec", "constraints", "migration"], migration);
        for field in ["backoff", "backoff_delay", "backoff_limit"] {
            put_value(application, &["spec", field], given.whole_number(field));
        }
        warn_of_moves(application);
    }))
}

/// Warns of problems that a move of the application may cause.
fn warn_of_moves(application: &Value) {
    let spec = &application["spec"];
    let hooks = spec["hooks"].as_array();
    let shuts_down = hooks.is_some_and(|hooks| hooks.iter().any(|hook| hook == "shutdown"));
    if shuts_down || spec["constraints"]["migration"] == false {
        return;
    }
    let manifest = spec["manifest"].as_array().into_iter().flatten();
    let mut kinds: Vec<&str> = manifest.filter_map(|part| part["kind"].as_str()).collect();
    let nodes = spec["tosca"].pointer("/topology_template/node_templates").and_then(Value::as_object);
    for node in nodes.into_iter().flat_map(Map::values) {
        kinds.extend(node.pointer("/properties/spec/kind").and_then(Value::as_str));
    }
    let hard: Vec<&str> = HARD_TO_MOVE.into_iter().filter(|kind| kinds.contains(kind)).collect();
    if !hard.is_empty() {
        print_warning(format_args!(
            "{} may lose work when the application is moved: give it a shutdown hook (--hook-shutdown), or \
             keep it on its cluster (--disable-migration)",
            hard.join(", ")
        ));
    }
}

/// Replaces values of environment variables that name a variable.
fn inject(part: &mut Value, variables: &Map<String, Value>) {
    match part {
        Value::Array(items) => items.iter_mut().for_each(|item| inject(item, variables)),
        Value::Object(fields) => {
            for (name, field) in fields {
                let Value::Array(entries) = field else {
                    inject(field, variables);
                    continue;
                };
                for entry in entries {
                    let replaced = entry["value"]
                        .as_str()
                        .and_then(|value| variables.get(value))
                        .filter(|_| name == "env");
                    match replaced.cloned() {
                        Some(value) => entry["value"] = value,
                        None => inject(entry, variables),
                    }
                }
            }
        }
        _ => {}
    }
}
