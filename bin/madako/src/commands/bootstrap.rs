//! `madako bootstrap`: writes the resources that placement needs before its API is usable directly into the store.
//!
//! Guarantees: every document is checked whole before the first connection. All resources are stored in one
//! transaction, or none. Stored resources have the form that Krake's own program writes.
//! Does not: authorize (write access to the store suffices), or merge with stored resources.

use std::collections::BTreeMap;

use bytes::Bytes;
use madako_domain::placement::kind::{ApiGroup, Kind, ObjectKey};
use madako_domain::placement::object_value::Object;
use madako_domain::store::{Condition, Outcome, StoreErrorKind, Transaction, Write};
use madako_http::placement::UidSource;
use madako_json::input::{InputError, Problem};
use madako_json::krake::document::RequestError;
use madako_json::krake::timestamp::Timestamp;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_store::EtcdStore;
use serde::Serialize;
use serde_json::Value;

use crate::access::{get_entry, unchanged_condition};
use crate::failure::Failure;
use crate::host;
use crate::input::{STDIN, display_name, parse_documents, read_documents};
use crate::limits::{MAX_BOOTSTRAP_TRIES, MAX_RESOURCES, MAX_TEXT_SHOWN};
use crate::output::{Format, Table, print_text, print_warning, show_value};

/// Roles of a new installation.
const DEFAULT_ROLES: &str = include_str!("bootstrap/default_roles.yaml");

/// Loads roles, role bindings, metrics and metrics providers straight into the store.
///
/// FILE contains YAML documents of the kinds Role, RoleBinding, Metric, GlobalMetric, MetricsProvider and
/// GlobalMetricsProvider, each with its api and kind. The command validates all of them first, and stores them in one
/// transaction of at most 128 resources. The command keeps given uids and times, and sets missing ones.
///
/// An API with roles rejects all requests until the first roles exist; this command stores them. The command needs
/// neither the API nor the service, only the store that the configuration file names.
///
/// --default-roles needs no FILE: it loads a role with all permissions for the user system:admin, and a role for each
/// of Krake's controllers.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  madako bootstrap --default-roles\n  madako bootstrap --default-roles --print > roles.yaml\n  \
                  madako bootstrap --force roles.yaml metrics.yaml"
)]
pub(crate) struct Args {
    /// YAML with one document or more; - reads standard input
    #[arg(required_unless_present = "default_roles", value_name = "FILE")]
    files: Vec<String>,
    /// Loads the default roles
    #[arg(long)]
    default_roles: bool,
    /// Prints the default roles as YAML instead, and stores nothing
    #[arg(long, requires = "default_roles", conflicts_with_all = ["files", "force", "output"])]
    print: bool,
    /// Replaces existing resources
    #[arg(short, long)]
    force: bool,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, Serialize)]
struct LoadedResource {
    /// `added` or `replaced`.
    action: &'static str,
    kind: &'static str,
    namespace: Option<String>,
    name: String,
    uid: String,
}

/// Validates the files before `store` is opened.
pub(crate) async fn run(
    args: &Args,
    clock: &dyn Clock,
    store: impl FnOnce() -> Result<EtcdStore, Failure>,
) -> Result<(), Failure> {
    if args.files.iter().filter(|file| *file == STDIN).count() > 1 {
        return Err(Failure::bad_input("only one FILE can be - (standard input)"));
    }
    if args.print {
        return print_text(DEFAULT_ROLES);
    }
    let files = args.files.iter().map(|file| Ok((display_name(file), read_documents(file)?)));
    let files = [default_roles(args.default_roles)?, files.collect::<Result<Vec<_>, Failure>>()?].concat();
    let uids = UidSource::from_seed(host::draw_bytes().map_err(Failure::Failed)?);
    let objects = validate_documents(&files, &Timestamp::new(clock.now()), &|| uids.draw())?;
    let loaded = load_resources(&objects, args.force, &store()?).await?;
    show_value(args.output, &loaded, |loaded| format_table(loaded))
}

/// The default roles if requested, in the form of a file's documents.
fn default_roles(wanted: bool) -> Result<Vec<(&'static str, Vec<Value>)>, Failure> {
    if !wanted {
        return Ok(Vec::new());
    }
    let roles = parse_documents(DEFAULT_ROLES).map_err(Failure::failed)?;
    Ok(vec![("the default roles", roles)])
}

fn format_table(loaded: &[LoadedResource]) -> String {
    let mut table = Table::new(["ACTION", "KIND", "NAMESPACE", "NAME", "UID"]);
    for one in loaded {
        let namespace = one.namespace.clone().unwrap_or_default();
        table.add_row([
            one.action.to_owned(),
            one.kind.to_owned(),
            namespace,
            one.name.clone(),
            one.uid.clone(),
        ]);
    }
    table.to_text()
}

/// The kinds that Krake's program can load.
fn loadable_kinds() -> impl Iterator<Item = Kind> + Clone {
    Kind::ALL.iter().copied().filter(|kind| kind.api() == ApiGroup::Core)
}

/// The resources of all files, in their order.
///
/// # Errors
/// Every invalid field of every document.
fn validate_documents(
    files: &[(&str, Vec<Value>)],
    now: &Timestamp,
    draw_uid: &dyn Fn() -> String,
) -> Result<Vec<Object>, Failure> {
    let mut problems = Vec::new();
    let mut objects = Vec::new();
    let mut places: BTreeMap<ObjectKey, String> = BTreeMap::new();
    for (file, documents) in files {
        if documents.is_empty() {
            print_warning(format_args!("{file} contains no document"));
        }
        for (number, document) in documents.iter().enumerate() {
            let place = format!("{file}, document {}", number + 1);
            match parse_resource(document, now, draw_uid) {
                Err(found) => problems.extend(found.into_iter().map(|problem| {
                    let field =
                        if problem.field.is_empty() { String::new() } else { format!(", {}", problem.field) };
                    Problem { field: format!("{place}{field}"), ..problem }
                })),
                Ok(object) => {
                    let key = object.key();
                    if let Some(first) = places.get(&key) {
                        let expected = format!("each resource once: {first} contains it, too");
                        problems.push(Problem { field: place, got: key.to_string(), expected });
                    } else {
                        places.insert(key, place);
                        objects.push(object);
                    }
                }
            }
        }
    }
    if !problems.is_empty() {
        return Err(InputError { subject: "the resources to load".to_owned(), problems }.into());
    }
    match objects.len() {
        0 => Err(Failure::bad_input(
            "the input has no resource: expected YAML documents such as a Role or a Metric",
        )),
        1..=MAX_RESOURCES => Ok(objects),
        many => Err(Failure::bad_input(format_args!(
            "{many} resources are too many: one transaction stores at most {MAX_RESOURCES}; load them in parts"
        ))),
    }
}

fn parse_resource(
    document: &Value,
    now: &Timestamp,
    draw_uid: &dyn Fn() -> String,
) -> Result<Object, Vec<Problem>> {
    let kind = kind_of_document(document)?;
    let mut problems = Vec::new();
    let kept = PreservedFields::read(document, kind, &mut problems);
    match Object::from_request(kind, &document.to_string()) {
        Ok(requested) if problems.is_empty() => {
            let mut object = requested.value;
            let metadata = object.metadata_mut();
            metadata.uid = kept.uid.unwrap_or_else(draw_uid);
            metadata.created = kept.created.unwrap_or_else(|| now.clone());
            metadata.modified = kept.modified.unwrap_or_else(|| now.clone());
            Ok(object)
        }
        Ok(_) => Err(problems),
        Err(RequestError::Invalid(error)) => Err([error.problems, problems].concat()),
        Err(RequestError::NotJson(why)) => Err(vec![field_problem("", why, "a resource")]),
    }
}

fn field_problem(field: &str, got: impl Into<String>, expected: impl Into<String>) -> Problem {
    Problem { field: field.to_owned(), got: got.into(), expected: expected.into() }
}

/// A short form of an invalid value.
fn describe_value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        scalar => scalar.to_string().chars().take(MAX_TEXT_SHOWN).collect(),
    }
}

fn kind_of_document(document: &Value) -> Result<Kind, Vec<Problem>> {
    if !document.is_object() {
        return Err(vec![field_problem(
            "",
            describe_value(document),
            "an object with api, kind and metadata",
        )]);
    }
    let (api, kind) = (&document["api"], &document["kind"]);
    let found = loadable_kinds().find(|known| kind == known.name());
    let mut problems = Vec::new();
    if api != ApiGroup::Core.name() {
        problems.push(field_problem("api", describe_value(api), format!("{:?}", ApiGroup::Core.name())));
    }
    if found.is_none() {
        let names: Vec<_> = loadable_kinds().map(|kind| kind.name()).collect();
        problems.push(field_problem("kind", describe_value(kind), format!("one of {}", names.join(", "))));
    }
    found.filter(|_| problems.is_empty()).ok_or(problems)
}

/// Fields that an API request could not set, and that this command preserves.
struct PreservedFields {
    uid: Option<String>,
    created: Option<Timestamp>,
    modified: Option<Timestamp>,
}

impl PreservedFields {
    fn read(document: &Value, kind: Kind, problems: &mut Vec<Problem>) -> Self {
        let metadata = &document["metadata"];
        let namespace = &metadata["namespace"];
        if kind.namespaced() && namespace.is_null() {
            problems.push(field_problem("metadata.namespace", "", "a namespace"));
        }
        if !kind.namespaced() && !namespace.is_null() {
            let expected = format!("no namespace: a {kind} is global");
            problems.push(field_problem("metadata.namespace", describe_value(namespace), expected));
        }
        if !metadata["deleted"].is_null() {
            let expected = "no value: a resource in deletion cannot be loaded";
            problems.push(field_problem("metadata.deleted", describe_value(&metadata["deleted"]), expected));
        }
        let mut time = |name: &str| {
            let value = &metadata[name];
            let time = value.as_str().and_then(Timestamp::parse);
            if time.is_none() && !value.is_null() {
                problems.push(field_problem(
                    &format!("metadata.{name}"),
                    describe_value(value),
                    "a time in ISO 8601",
                ));
            }
            time
        };
        let (created, modified) = (time("created"), time("modified"));
        let uid = match &metadata["uid"] {
            Value::Null => None,
            Value::String(uid) if !uid.is_empty() => Some(uid.clone()),
            other => {
                problems.push(field_problem("metadata.uid", describe_value(other), "a text, such as a UUID"));
                None
            }
        };
        Self { uid, created, modified }
    }
}

/// Stores all objects, or none.
async fn load_resources(
    objects: &[Object],
    force: bool,
    store: &EtcdStore,
) -> Result<Vec<LoadedResource>, Failure> {
    for _ in 0..MAX_BOOTSTRAP_TRIES {
        let mut conditions = Vec::new();
        let mut writes = Vec::new();
        let mut loaded = Vec::new();
        for object in objects {
            let key = object.key();
            let etcd_key = key.etcd_key();
            let stored = if force { get_entry(store, &etcd_key).await? } else { None };
            if let Some(stored) = &stored {
                check_readable(&key, &stored.value, store)?;
            }
            conditions.push(unchanged_condition(&etcd_key, stored.as_ref()));
            writes.push(Write::Put { key: etcd_key, value: Bytes::from(object.to_json()), lease: 0 });
            loaded.push(LoadedResource {
                action: if stored.is_some() { "replaced" } else { "added" },
                kind: key.kind.name(),
                namespace: key.namespace,
                name: key.name,
                uid: object.metadata().uid.clone(),
            });
        }
        match store.commit(Transaction { conditions, writes }).await {
            Ok(Outcome::Committed { .. }) => return Ok(loaded),
            Ok(Outcome::Refused { failed }) if !force => return Err(failure_of_existing(&failed)),
            Ok(Outcome::Refused { .. }) => {}
            Err(error) => {
                let unsure = matches!(error.kind, StoreErrorKind::Unavailable | StoreErrorKind::Deadline);
                let failure = Failure::from(error);
                return Err(match failure.message() {
                    Some(message) if unsure => Failure::failed(format_args!(
                        "{message}; either all resources were stored or none: list them before you run the command again"
                    )),
                    _ => failure,
                });
            }
        }
    }
    Err(Failure::failed(
        "other clients keep changing these resources; nothing was stored: run the command again later",
    ))
}

/// Checks that a stored value may be replaced. An encrypted value without its key may not: holders of the key would
/// lose its content, and the replacement would be stored in clear text.
fn check_readable(key: &ObjectKey, value: &[u8], store: &EtcdStore) -> Result<(), Failure> {
    let Ok(text) = std::str::from_utf8(value) else { return Ok(()) };
    match store.encryption().decrypt(key, text) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::failed(format_args!(
            "{key} exists and cannot be read ({error}); nothing was stored (see placement.encryption of the \
             configuration file)"
        ))),
    }
}

fn failure_of_existing(failed: &[Condition]) -> Failure {
    let names: Vec<_> = failed
        .iter()
        .map(|condition| {
            let key = condition.compared_key();
            ObjectKey::from_etcd_key(key).map_or_else(|| key.to_owned(), |key| key.to_string())
        })
        .collect();
    Failure::failed(format_args!(
        "these resources exist already: {}; nothing was stored (--force replaces them)",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use time::macros::datetime;

    use super::*;

    fn validate(documents: &[Value]) -> Result<Vec<Object>, Failure> {
        let now = Timestamp::new(datetime!(2026-11-21 12:00 UTC));
        validate_documents(&[("roles.yaml", documents.to_vec())], &now, &|| "drawn".to_owned())
    }

    fn role(metadata: Value) -> Value {
        json!({"api": "core", "kind": "Role", "metadata": metadata,
               "rules": [{"api": "", "namespaces": [""], "resources": [""], "verbs": ["get"]}]})
    }

    #[test]
    fn given_metadata_is_kept_and_missing_metadata_is_set() {
        let given =
            json!({"name": "a", "uid": "its own", "created": "2020-01-02 03:04:05", "modified": null});
        let objects = validate(&[role(given), role(json!({"name": "b"}))]).unwrap();
        let metadata = objects[0].metadata();
        assert_eq!((&*metadata.uid, metadata.created.text()), ("its own", "2020-01-02 03:04:05"));
        assert_eq!(metadata.modified.text(), "2026-11-21T12:00:00.000000+00:00");
        let metadata = objects[1].metadata();
        assert_eq!((&*metadata.uid, &metadata.created), ("drawn", &metadata.modified));
    }

    #[test]
    fn every_wrong_field_of_every_document_is_named() {
        let mut verbs =
            role(json!({"name": "it", "uid": 7, "created": "soon", "deleted": "2020-01-01T00:00:00"}));
        verbs["rules"][0]["verbs"] = json!(["read"]);
        let metric = json!({"api": "core", "kind": "Metric", "metadata": {"name": "heat"},
                            "spec": {"min": "x", "max": 1, "allowed_values": [], "provider": {"name": "p", "metric": "m"}}});
        let documents = [
            verbs,
            metric,
            json!({"api": "kubernetes", "kind": "Cluster"}),
            json!(["it"]),
            role(json!({"name": "a", "namespace": "n"})),
            role(json!({"name": "twice"})),
            role(json!({"name": "twice"})),
        ];
        let message = validate(&documents).unwrap_err().message().unwrap();
        let fields: Vec<&str> =
            message.lines().skip(1).map(|line| line.trim().split(": ").next().unwrap_or_default()).collect();
        assert_eq!(
            fields,
            [
                "roles.yaml, document 1, rules[0].verbs[0]",
                "roles.yaml, document 1, metadata.deleted",
                "roles.yaml, document 1, metadata.created",
                "roles.yaml, document 1, metadata.uid",
                "roles.yaml, document 2, spec.min",
                "roles.yaml, document 2, metadata.namespace",
                "roles.yaml, document 3, api",
                "roles.yaml, document 3, kind",
                "roles.yaml, document 4",
                "roles.yaml, document 5, metadata.namespace",
                "roles.yaml, document 7",
            ],
            "{message}"
        );
        assert!(message.contains("each resource once: roles.yaml, document 6 contains it, too"), "{message}");
    }

    #[test]
    fn as_many_resources_are_loaded_as_one_transaction_takes() {
        let roles =
            |count: usize| (0..count).map(|n| role(json!({"name": format!("r{n}")}))).collect::<Vec<_>>();
        assert_eq!(validate(&roles(MAX_RESOURCES)).unwrap().len(), MAX_RESOURCES);
        let message = validate(&roles(MAX_RESOURCES + 1)).unwrap_err().message().unwrap();
        assert!(
            message.starts_with("129 resources are too many: one transaction stores at most 128"),
            "{message}"
        );
        assert_eq!(validate(&[]).unwrap_err().exit_code(), 2);
    }
}
