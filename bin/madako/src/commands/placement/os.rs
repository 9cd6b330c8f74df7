//! `madako os`: OpenStack projects and Magnum clusters.

use clap::Arg;
use madako_domain::placement::kind::Kind;
use serde_json::{Value, json};

use super::edit::{Change, put_value, put_values_unless_empty, value_at_path};
use super::given::GivenOptions;
use super::show::Column;
use super::words::{
    Create, Resource, Update, empty_options, integer_option, label_option, metric_option, name_argument,
    repeated_text_option, text_option,
};
use crate::failure::Failure;

pub(super) const PROJECT: Resource = Resource {
    kind: Kind::Project,
    word: "project",
    aliases: &[],
    one: "an OpenStack project",
    many: "OpenStack projects",
    columns: &[],
    details: &[
        Column::new("url", "/spec/url"),
        Column::new("template", "/spec/template"),
        Column::new("auth type", "/spec/auth/type"),
    ],
    create: Some(Create {
        more: "The command takes a missing address, user, password or project from the environment variables \
               OS_AUTH_URL, OS_USER_ID, OS_PASSWORD and OS_PROJECT_ID.",
        options: || project_options(true),
        build: build_project,
        example: "example --template 1234 --auth-url https://keystone.example.org:5000/v3 --user-id me \
                  --project-id ours",
    }),
    register: None,
    update: Update {
        more: "The credentials change only if one of their options is given; the command takes missing ones \
               from the environment variables OS_USER_ID, OS_PASSWORD and OS_PROJECT_ID. Labels and metrics \
               are replaced.",
        options: || project_options(false),
        changes: change_project,
        example: "example --template 1234",
    },
    delete: empty_options,
    retry: false,
};

fn project_options(new: bool) -> Vec<Arg> {
    vec![
        name_argument("Name of the project"),
        text_option("auth-url", "URL", "Address of OpenStack's identity service (Keystone)"),
        text_option("application-credential", "ID", "Id and secret of an application credential")
            .num_args(2)
            .value_names(["ID", "SECRET"])
            .conflicts_with_all(["user-id", "password", "project-id"]),
        text_option("user-id", "UUID", "OpenStack user"),
        text_option("password", "PASSWORD", "Password of the OpenStack user"),
        text_option("project-id", "UUID", "OpenStack project"),
        text_option("template", "UUID", "Template of Magnum clusters").required(new),
        label_option(),
        metric_option(),
    ]
}

/// The authentication from options and environment.
fn auth_document(given: &GivenOptions) -> Result<Value, Failure> {
    if let [id, secret] = given.text_values("application-credential").as_slice() {
        return Ok(json!({
            "type": "application_credential",
            "application_credential": { "id": id, "secret": secret },
        }));
    }
    let user = given.text_or_env("user-id", "OS_USER_ID")?;
    let password = given.text_or_env("password", "OS_PASSWORD")?;
    let project = given.text_or_env("project-id", "OS_PROJECT_ID")?;
    Ok(json!({
        "type": "password",
        "password": { "user": { "id": user, "password": password }, "project": { "id": project } },
    }))
}

fn build_project(given: &GivenOptions) -> Result<Value, Failure> {
    Ok(json!({
        "metadata": { "name": given.name()?, "labels": given.read_entries("label")? },
        "spec": {
            "url": given.text_or_env("auth-url", "OS_AUTH_URL")?,
            "auth": auth_document(given)?,
            "template": given.json_value("template"),
            "metrics": given.read_metrics()?,
        },
    }))
}

fn change_project(given: &GivenOptions) -> Result<Change, Failure> {
    let is_given =
        ["application-credential", "user-id", "password", "project-id"].iter().any(|id| given.has_option(id));
    let auth = is_given.then(|| auth_document(given)).transpose()?;
    let (labels, metrics) = (given.read_entries("label")?, given.read_metrics()?);
    let given = given.clone();
    Ok(Change::new(move |project| {
        put_value(project, &["spec", "auth"], auth.clone());
        put_value(project, &["spec", "template"], given.text_value("template"));
        put_value(project, &["spec", "url"], given.text_value("auth-url"));
        put_value(project, &["metadata", "labels"], (!labels.is_empty()).then(|| labels.clone()));
        put_values_unless_empty(project, &["spec", "metrics"], &metrics);
    }))
}

pub(super) const MAGNUM_CLUSTER: Resource = Resource {
    kind: Kind::MagnumCluster,
    word: "cluster",
    aliases: &[],
    one: "a Magnum cluster",
    many: "Magnum clusters",
    columns: &[Column::new("state", "/status/state")],
    details: &[
        Column::new("reason", "/status/reason"),
        Column::new("label constraints", "/spec/constraints"),
        Column::new("metrics", "/spec/metrics"),
        Column::new("project", "/status/project"),
        Column::new("template", "/status/template"),
        Column::new("cluster_id", "/status/cluster_id"),
        Column::new("node_count", "/status/node_count"),
        Column::new("api_address", "/status/api_address"),
        Column::new("master_addresses", "/status/master_addresses"),
        Column::new("node_addresses", "/status/node_addresses"),
        Column::new("cluster", "/status/cluster"),
    ],
    create: Some(Create {
        more: "",
        options: || {
            let mut options = vec![name_argument("Name of the cluster")];
            options.extend([
                integer_option("master-count", "Number of control plane nodes"),
                integer_option("node-count", "Number of workers"),
                constraint_option(),
                label_option(),
                metric_option(),
            ]);
            options
        },
        build: build_magnum,
        example: "example --master-count 1 --node-count 3 -L location=DE",
    }),
    register: None,
    update: Update {
        more: "Metrics and constraints are replaced.",
        options: || {
            vec![
                name_argument("Name of the cluster"),
                integer_option("node-count", "Number of workers"),
                constraint_option(),
                metric_option(),
            ]
        },
        changes: change_magnum,
        example: "example --node-count 5",
    },
    delete: empty_options,
    retry: false,
};

fn constraint_option() -> Arg {
    let help = "Constraint for labels of the project; may be given several times";
    repeated_text_option("project-label-constraint", "CONSTRAINT", help).short('L')
}

const CONSTRAINTS: [&str; 4] = ["spec", "constraints", "project", "labels"];

fn build_magnum(given: &GivenOptions) -> Result<Value, Failure> {
    let mut cluster = json!({
        "metadata": { "name": given.name()?, "labels": given.read_entries("label")? },
        "spec": {
            "master_count": given.whole_number("master-count"),
            "node_count": given.whole_number("node-count"),
            "metrics": given.read_metrics()?,
        },
    });
    put_values_unless_empty(&mut cluster, &CONSTRAINTS, &given.text_values("project-label-constraint"));
    Ok(cluster)
}

fn change_magnum(given: &GivenOptions) -> Result<Change, Failure> {
    let metrics = given.read_metrics()?;
    let given = given.clone();
    Ok(Change::new(move |cluster| {
        put_value(value_at_path(cluster, &["spec"]), &["node_count"], given.whole_number("node-count"));
        put_values_unless_empty(cluster, &["spec", "metrics"], &metrics);
        put_values_unless_empty(cluster, &CONSTRAINTS, &given.text_values("project-label-constraint"));
    }))
}
