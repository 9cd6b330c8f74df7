//! Validates the kubeconfig of a registered cluster. Messages never show its values.

use serde_json::{Map, Value};

use super::{describe_kind, is_set};
use madako_json::input::Problems;
use madako_json::krake::free::JsonObject;
use madako_json::strict::walk::Path;

/// Requires one context, one user and one cluster, with the current context naming the context, and that context
/// naming the cluster.
pub(super) fn check_kubeconfig(kubeconfig: &JsonObject, path: Path<'_>, problems: &mut Problems) {
    let config = match kubeconfig.parse() {
        Ok(config) => config,
        // The request was parsed before, so no error is expected.
        Err(error) => {
            problems.add(path, error.to_string(), "a kubeconfig");
            return;
        }
    };
    let contexts = read_only_entry(&config, "contexts", path, problems);
    let clusters = read_only_entry(&config, "clusters", path, problems);
    let users = read_only_entry(&config, "users", path, problems);
    let current = config.get("current-context").filter(|value| is_set(value));
    let Some(current) = current else {
        problems.add(path.field("current-context"), "", "the name of the context");
        return;
    };
    let Some(context) = contexts else { return };
    let path_here = path.field("contexts");
    if context.get("name") != Some(current) {
        problems.add(path.field("current-context"), "another name", "the name of the context");
    }
    let path_here = path_here.item(0);
    let path_here = path_here.field("context");
    let named = |what: &str| context.get("context").and_then(|context| context.get(what));
    if let (Some(user), Some(entry)) = (named("user").filter(|value| is_set(value)), users)
        && entry.get("name") == Some(user)
        && !is_there(entry.get("user"))
    {
        let path = path.field("users");
        problems.add(path.item(0).field("user"), "", "an object for the user (it may be empty)");
    }
    let cluster = named("cluster");
    let Some(cluster) = cluster.filter(|value| is_set(value)) else {
        problems.add(path_here.field("cluster"), "", "the name of the cluster");
        return;
    };
    let Some(entry) = clusters else { return };
    if entry.get("name") != Some(cluster) {
        problems.add(path_here.field("cluster"), "another name", "the name of the cluster");
    } else if !is_there(entry.get("cluster")) {
        let path = path.field("clusters");
        let path = path.item(0);
        problems.add(path.field("cluster"), "", "an object for the cluster (it may be empty)");
    }
}

/// True unless the value is absent or `null`; an empty value counts.
fn is_there(value: Option<&Value>) -> bool {
    value.is_some_and(|value| !value.is_null())
}

/// The only entry of a list of named entries.
fn read_only_entry<'a>(
    config: &'a Map<String, Value>,
    list: &str,
    path: Path<'_>,
    problems: &mut Problems,
) -> Option<&'a Value> {
    let path = path.field(list);
    match config.get(list) {
        None => problems.add(path, "", "a list with one entry"),
        Some(Value::Array(entries)) => match &entries[..] {
            [entry] if entry.get("name").is_some() => return Some(entry),
            [_] => problems.add(path.item(0), "no \"name\"", "an entry with a name"),
            _ => problems.add(path, format!("{} entries", entries.len()), "one"),
        },
        Some(other) => problems.add(path, describe_kind(other), "a list with one entry"),
    }
    None
}
