//! `madako resource status` and `diff`: the resources in Kubernetes beside their definitions.

use madako_domain::component::Component;
use madako_domain::objects::{FoundObject, Manifest};
use madako_operation_runner::kubernetes::objects::apply::WantedResource;
use madako_operation_runner::kubernetes::objects::decide::static_with_images;
use madako_operation_runner::kubernetes::objects::operation::ObjectOperationName;
use madako_operation_runner::kubernetes::objects::shown::{ObjectState, ShownObject, shown_resources};
use madako_protocol::components::Components;
use serde::Serialize;
use serde_json::Value;

use crate::access;
use crate::cli::Global;
use crate::commands::ops::collected::{self, GatheredStates};
use crate::commands::ops::{ShownHeld, running};
use crate::failure::Failure;
use crate::output::{Format, Table, escape_unprintable, show_value};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
struct Shown {
    resources: Vec<ShownObject>,
    /// The reason for which the held operations of the leader are not known.
    leader_error: Option<String>,
}

const NO_SERVER: &str = "no API server is healthy: run madako kube status";

pub(super) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let shown = find(global).await.map_err(Failure::into_bad_input)?;
    show_value(args.output, &shown, table)?;
    let is_good = shown.resources.iter().all(|resource| resource.state == ObjectState::Good);
    if is_good { Ok(()) } else { Err(Failure::Different) }
}

async fn find(global: &Global) -> Result<Shown, Failure> {
    let inputs = collected::gather_kubernetes(global).await?.inputs;
    let options = inputs.kubernetes_options()?;
    let resources = shown_resources(&inputs.input(&inputs.settings), options);
    let mut resources = resources.ok_or_else(|| Failure::failed(NO_SERVER))?;
    let leader_error = match running::held(&access::open_store(global)?).await {
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
        table.row([key.clone(), state.name().to_owned(), why.join("; ")]);
    }
    table.text()
}

fn table(shown: &Shown) -> String {
    let mut text = object_table(&shown.resources);
    if let Some(error) = &shown.leader_error {
        text.push_str(&format!(
            "\nThe held operations of the leader are not known: {}\n",
            escape_unprintable(error)
        ));
    }
    text
}

/// The differences of a resource.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Difference {
    key: String,
    /// The reason for which the differences are not known.
    error: Option<String>,
    fields: Vec<FieldDifference>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct FieldDifference {
    path: String,
    /// `None`: the field does not exist. The values of Secrets are hidden.
    has: Option<String>,
    wanted: Option<String>,
}

pub(super) async fn show_differences(args: &Args, global: &Global) -> Result<(), Failure> {
    let differences = find_differences(global).await.map_err(Failure::into_bad_input)?;
    show_value(args.output, &differences, |all| difference_table(all))?;
    if differences.is_empty() { Ok(()) } else { Err(Failure::Different) }
}

/// The resources that an apply would change, or whose dry run failed.
async fn find_differences(global: &Global) -> Result<Vec<Difference>, Failure> {
    let GatheredStates { inputs, ports, .. } = collected::gather_kubernetes(global).await?;
    inputs.kubernetes_options()?;
    let answers = inputs.status.kubernetes.as_ref();
    let serves = |address: &String| answers.is_some_and(|it| it.is_healthy(Component::ApiServer, address));
    let servers: Vec<String> =
        inputs.cluster.control_plane().map(|node| node.address.clone()).filter(serves).collect();
    let found = answers.and_then(|answers| answers.objects.as_ref());
    let found = found.ok_or_else(|| Failure::failed(NO_SERVER))?;
    let mut wanted = static_with_images(&inputs.settings.images.dns, found);
    let user = inputs.kubernetes.iter().flat_map(|kubernetes| &kubernetes.resources.wanted);
    wanted.extend(user.cloned());
    wanted.sort_by(|a, b| a.key.cmp(&b.key));
    let mut differences = Vec::new();
    let faults = inputs.kubernetes.iter().flat_map(|kubernetes| &kubernetes.resources.faults);
    for (key, why) in faults {
        let error = Some(format!("its definition cannot be read: {why}"));
        differences.push(Difference { key: key.clone(), error, fields: Vec::new() });
    }
    for WantedResource { manifest, .. } in &wanted {
        let difference = compare(&*ports.runner.components, &servers, manifest).await;
        differences.extend(difference.is_different().then_some(difference));
    }
    Ok(differences)
}

impl Difference {
    fn is_different(&self) -> bool {
        self.error.is_some() || !self.fields.is_empty()
    }
}

async fn compare(components: &dyn Components, servers: &[String], manifest: &Manifest) -> Difference {
    let key = manifest.name().key.to_string();
    let failed = |why: String| Difference { key: key.clone(), error: Some(why), fields: Vec::new() };
    let present = match components.object(servers, manifest.name()).await {
        FoundObject::Exists(present) => present,
        FoundObject::Missing => Value::Null,
        FoundObject::KindUnknown => return failed("the API server does not know the kind".to_owned()),
        FoundObject::Unread(why) => return failed(why),
    };
    match components.dry_run(servers, manifest).await {
        Ok(applied) => {
            let hides = manifest.name().key.kind == "Secret";
            let mut fields = Vec::new();
            differing(&mut fields, "", Some(&present), Some(&applied), hides);
            Difference { key: key.clone(), error: None, fields }
        }
        Err(error) => failed(error.to_string()),
    }
}

/// Fields that each write of the API server changes.
const OF_THE_SERVER: [&str; 6] = [
    ".metadata.creationTimestamp",
    ".metadata.generation",
    ".metadata.managedFields",
    ".metadata.resourceVersion",
    ".metadata.uid",
    ".status",
];

fn differing(
    fields: &mut Vec<FieldDifference>,
    path: &str,
    has: Option<&Value>,
    wanted: Option<&Value>,
    hides: bool,
) {
    if has == wanted || OF_THE_SERVER.contains(&path) {
        return;
    }
    let child = |name: &str| format!("{path}.{name}");
    match (has, wanted) {
        (Some(Value::Object(has)), Some(Value::Object(wanted))) => {
            let added = wanted.keys().filter(|name| !has.contains_key(*name));
            for name in has.keys().chain(added) {
                differing(fields, &child(name), has.get(name), wanted.get(name), hides);
            }
        }
        (Some(Value::Array(has)), Some(Value::Array(wanted))) => {
            for index in 0..has.len().max(wanted.len()) {
                let path = format!("{path}[{index}]");
                differing(fields, &path, has.get(index), wanted.get(index), hides);
            }
        }
        (has, wanted) => {
            let is_private = hides && !path.starts_with(".metadata");
            let shown = |value: &Value| if is_private { "(hidden)".to_owned() } else { value.to_string() };
            let of = |value: Option<&Value>| value.filter(|value| !value.is_null()).map(shown);
            let path = if path.is_empty() { "(the object)" } else { path };
            fields.push(FieldDifference { path: path.to_owned(), has: of(has), wanted: of(wanted) });
        }
    }
}

fn difference_table(differences: &[Difference]) -> String {
    let mut table = Table::new(["RESOURCE", "FIELD", "HAS", "WANTED"]);
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    for Difference { key, error, fields } in differences {
        if let Some(why) = error {
            table.row([key.clone(), "not compared".to_owned(), String::new(), why.clone()]);
        }
        for FieldDifference { path, has, wanted } in fields {
            table.row([key.clone(), path.clone(), value(has), value(wanted)]);
        }
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn differences(
        has: &Value,
        wanted: &Value,
        hides: bool,
    ) -> Vec<(String, Option<String>, Option<String>)> {
        let mut fields = Vec::new();
        differing(&mut fields, "", Some(has), Some(wanted), hides);
        fields.into_iter().map(|field| (field.path, field.has, field.wanted)).collect()
    }

    #[test]
    fn each_differing_field_is_told_and_those_of_the_api_server_are_not() {
        let has = json!({"metadata": {"uid": "1", "labels": {"a": "b"}}, "spec": {"x": [1, 2]}, "status": 1});
        let wanted = json!({"metadata": {"uid": "2", "labels": {}}, "spec": {"x": [1, 3, 4]}, "status": 2});
        let text = |text: &str| Some(text.to_owned());
        let expected = [
            (".metadata.labels.a".to_owned(), text("\"b\""), None),
            (".spec.x[1]".to_owned(), text("2"), text("3")),
            (".spec.x[2]".to_owned(), None, text("4")),
        ];
        assert_eq!(differences(&has, &wanted, false), expected);
        assert_eq!(differences(&has, &has, false), []);
    }

    #[test]
    fn values_of_secrets_are_hidden() {
        let with = |value: &str| json!({"metadata": {"labels": {"a": value}}, "data": {"p": value}});
        let shown = format!("{:?}", differences(&with("hunter1"), &with("hunter2"), true));
        let hidden = r#"(".data.p", Some("(hidden)"), Some("(hidden)"))"#;
        assert!(shown.contains(hidden) && shown.contains(".metadata.labels.a"), "{shown}");
        let created = differences(&Value::Null, &with("hunter2"), true);
        assert_eq!(created, [("(the object)".to_owned(), None, Some("(hidden)".to_owned()))]);
    }

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
