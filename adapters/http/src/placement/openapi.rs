//! The API's machine-readable description (OpenAPI 3.1), generated from the table of paths and from the types.
//!
//! Streams are documented in descriptions only: a program that tries every parameter would wait for the end of a
//! stream.

mod rules;
mod types;

use axum::http::Method;
use madako_domain::placement::kind::{Kind, ObjectKey};
use serde_json::{Map, Value, json};

use self::types::{Direction, LABEL, LABEL_KEY, NAME, Types, schema_reference};
use super::explain::MOST_ASSUMPTIONS;
use super::route::{DEPENDENTS, EXPLAIN, Target, subresources_of};

/// Label selectors, as [`super::selector`] parses them.
const SELECTOR: &str = "^((!?KEY|KEY(=|==|!=)VALUE|KEY (in|notin) \\(VALUE(,VALUE)*\\))\
    (,(!?KEY|KEY(=|==|!=)VALUE|KEY (in|notin) \\(VALUE(,VALUE)*\\)))*)?$";

/// A metric and its assumed value.
const ASSUMED: &str = "^[^\n\r]*[^=\n\r]=[+-]?([0-9]{1,15}([.][0-9]{0,15})?|[.][0-9]{1,15})$";

pub(super) fn openapi_document(version: &str) -> Value {
    let mut types = Types::default();
    let mut paths = Map::new();
    for page in [
        (Target::Index, "/", "The version", 200, json!({"type": "object", "required": ["version"]})),
        (
            Target::Me,
            "/me",
            "The user and its roles",
            200,
            json!({"type": "object", "required": ["user", "roles"]}),
        ),
        (Target::Release, "/release", "A greeting", 202, json!({"type": "string"})),
        (Target::Document, "/openapi.json", "This document", 200, json!({"type": "object"})),
    ] {
        let (_, path, summary, status, schema) = page;
        let mut responses = problem_responses(&[401, 503]);
        responses.insert(status.to_string(), describe_answer(summary, schema));
        let name = path.trim_matches('/').replace('.', "_");
        let id = format!("get_{}", if name.is_empty() { "index" } else { &name });
        paths.insert(
            path.to_owned(),
            json!({"get": {"operationId": id, "summary": summary, "responses": responses}}),
        );
    }
    for &kind in Kind::ALL {
        for (path, target) in list_targets(kind) {
            let mut item = Map::new();
            let parameters = path_parameters(&path, &target);
            if !parameters.is_empty() {
                item.insert("parameters".to_owned(), parameters.into());
            }
            for method in target.allowed_methods().iter().filter(|method| is_described(method)) {
                let operation = operation_object(&mut types, kind, &target, method);
                item.insert(method.as_str().to_lowercase(), operation);
            }
            paths.insert(path, item.into());
        }
    }
    types.named.insert("Problem".to_owned(), problem_schema());
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Placement", "version": version},
        "paths": paths,
        "components": {"schemas": types.named},
    })
}

/// HEAD and OPTIONS have the semantics of HTTP and are left out.
fn is_described(method: &Method) -> bool {
    ![Method::HEAD, Method::OPTIONS].contains(method)
}

fn list_targets(kind: Kind) -> Vec<(String, Target)> {
    let (api, plural) = (kind.api().name(), kind.plural());
    let all = format!("/{api}/{plural}");
    let namespace = kind.namespaced().then(|| "{namespace}".to_owned());
    let collection = match &namespace {
        Some(namespace) => format!("/{api}/namespaces/{namespace}/{plural}"),
        None => all.clone(),
    };
    let key = ObjectKey::new(kind, namespace.as_deref(), "{name}");
    let mut targets = vec![(collection.clone(), Target::Collection { kind, namespace: namespace.clone() })];
    if namespace.is_some() {
        targets.push((all, Target::Collection { kind, namespace: None }));
    }
    targets.push((format!("{collection}/{{name}}"), Target::Object(key.clone())));
    targets.extend(
        subresources_of(kind)
            .iter()
            .map(|part| (format!("{collection}/{{name}}/{}", part.name()), Target::Part(key.clone(), *part))),
    );
    if kind == Kind::Application {
        targets.push((format!("{collection}/{{name}}/{EXPLAIN}"), Target::Explanation(key.clone())));
    }
    targets.push((format!("{collection}/{{name}}/{DEPENDENTS}"), Target::Dependents(key)));
    targets
}

/// Parameters of the path. The namespace of a list may be an invalid name: such a list is empty, and no error.
fn path_parameters(path: &str, target: &Target) -> Vec<Value> {
    let schema = match target {
        Target::Collection { .. } => json!({"type": "string", "minLength": 1}),
        _ => name_schema(),
    };
    ["namespace", "name"]
        .into_iter()
        .filter(|name| path.contains(&format!("{{{name}}}")))
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": schema}))
        .collect()
}

fn name_schema() -> Value {
    json!({"type": "string", "pattern": NAME})
}

fn operation_object(types: &mut Types, kind: Kind, target: &Target, method: &Method) -> Value {
    match target {
        Target::Explanation(_) => return explanation_path(),
        Target::Dependents(_) => return dependents_path(kind),
        _ => {}
    }
    let resource = types.object_schema(kind.schema(), Direction::Answer);
    let verb = match (target, method) {
        (Target::Collection { .. }, &Method::POST) => "create",
        (Target::Collection { namespace: None, .. }, _) if kind.namespaced() => "list_all",
        (Target::Collection { .. }, _) => "list",
        (_, &Method::GET) => "read",
        (_, &Method::DELETE) => "delete",
        _ => "update",
    };
    let part = match target {
        Target::Part(_, part) => Some(*part),
        _ => None,
    };
    let suffix = part.map_or(String::new(), |part| format!("_{}", part.name()));
    let mut operation = Map::new();
    operation.insert("operationId".to_owned(), format!("{verb}_{}{suffix}", kind.name()).into());
    operation.insert("tags".to_owned(), json!([kind.api().name()]));

    let mut statuses = vec![401, 403, 503];
    let mut parameters = Vec::new();
    let mut description = Vec::new();
    let body = match (target, method) {
        (Target::Collection { .. }, &Method::POST) => {
            Some(types.object_schema(kind.schema(), Direction::Request))
        }
        (Target::Object(_), &Method::PUT) => Some(types.object_schema(kind.schema(), Direction::Request)),
        (Target::Part(_, part), _) => types.subresource_schema(kind, *part),
        _ => None,
    };
    if let Some(body) = body {
        statuses.extend([400, 413, 415, 422]);
        let content = json!({"application/json": {"schema": body}});
        operation.insert("requestBody".to_owned(), json!({"required": true, "content": content}));
    }
    match target {
        Target::Collection { namespace, .. } if *method == Method::POST => {
            statuses.extend([409, 412]);
            if namespace.is_some() {
                // The name of the created resource.
                let schema = name_schema();
                parameters
                    .push(json!({"name": "namespace", "in": "path", "required": true, "schema": schema}));
            }
        }
        Target::Collection { .. } => {
            statuses.push(422);
            parameters.extend(list_parameters());
            let text = "With `watch`, whatever its value, the answer has no end: each line is a change \
                (`{\"type\": \"ADDED\" | \"MODIFIED\" | \"DELETED\", \"object\": ...}`), or empty as a sign of life \
                every `heartbeat` seconds (10; 0 for none).";
            description.push(text);
            description.push("`continue` is `metadata.continue` of an earlier list with a `limit`.");
        }
        // 409: the stored value cannot be read.
        _ => statuses.extend([404, 409, 412]),
    }
    if matches!(target, Target::Object(_) | Target::Part(..)) && *method != Method::GET {
        statuses.extend([400, 422]);
        description.push("With `If-Match` the request changes only the version with this `ETag`.");
    }
    if *method == Method::DELETE {
        parameters.push(json!({
            "name": "force", "in": "query", "schema": {"type": "string"},
            "description": "`True` removes an application or a cluster at once, and a stored resource that cannot be read.",
        }));
    }
    if part.is_none() && *method != Method::GET && super::query::state_names(kind).is_some() {
        description.push("With `blocking=STATE` (or `deleted`) the answer waits up to 60 s for that state.");
    }
    if !description.is_empty() {
        operation.insert("description".to_owned(), description.join(" ").into());
    }
    if !parameters.is_empty() {
        operation.insert("parameters".to_owned(), parameters.into());
    }
    let mut responses = problem_responses(&statuses);
    let shown = if verb.starts_with("list") { types.list(kind, &resource) } else { resource };
    let mut success = describe_answer("The requested resources", shown);
    if !verb.starts_with("list") {
        success["headers"] = json!({
            "ETag": {"schema": {"type": "string"}, "description": "The version; absent for a removed resource."},
        });
    }
    responses.insert("200".to_owned(), success);
    if *method == Method::DELETE {
        let gone = json!({"description": "The unreadable resource is removed."});
        responses.insert("204".to_owned(), gone);
    }
    operation.insert("responses".to_owned(), responses.into());
    operation.into()
}

/// Extension: the scheduler's explanation of an application's placement.
fn explanation_path() -> Value {
    let parameter = |name: &str, item: Value, text: &str| {
        let texts = json!({"type": "array", "items": item, "maxItems": MOST_ASSUMPTIONS / 2});
        json!({"name": name, "in": "query", "schema": texts, "description": text})
    };
    let mut responses = problem_responses(&[401, 403, 404, 422, 503]);
    let schema = json!({"type": "object", "required": ["application", "revision", "decision", "clusters"]});
    responses.insert(
        "200".to_owned(),
        describe_answer(
            "Every candidate with its result. An instance that does not control placement answers with \
             `last` (the last decision) and `leader` (the host of the controlling instance) only",
            schema,
        ),
    );
    json!({
        "operationId": "explain_Application",
        "tags": [Kind::Application.api().name()],
        "summary": "The reasons of the placement of an application, and changes that would alter it",
        "parameters": [
            parameter(
                "with",
                json!({"type": "string", "pattern": ASSUMED}),
                "A metric and its assumed value, such as `load=0.5`.",
            ),
            parameter("without", json!({"type": "string"}), "A cluster that is left out."),
        ],
        "responses": responses,
    })
}

/// Extension: the resources that the garbage collection deletes with a resource.
fn dependents_path(kind: Kind) -> Value {
    let one = json!({
        "type": "object",
        "required": ["kind", "namespace", "name"],
        "properties": {
            "kind": {"type": "string"}, "namespace": {"type": ["string", "null"]}, "name": {"type": "string"},
        },
    });
    let schema = json!({
        "type": "object",
        "required": ["dependents", "hidden"],
        "properties": {
            "dependents": {"type": "array", "items": one},
            "hidden": {
                "type": "integer",
                "description": "Number of further deleted resources that the user may not list.",
            },
        },
    });
    let mut responses = problem_responses(&[401, 403, 404, 409, 503]);
    responses
        .insert("200".to_owned(), describe_answer("The resources that a deletion removes as well", schema));
    json!({
        "operationId": format!("dependents_{}", kind.name()),
        "tags": [kind.api().name()],
        "summary": "The resources that the deletion removes as well",
        "responses": responses,
    })
}

fn list_parameters() -> [Value; 2] {
    let bare = |pattern: &str| pattern.trim_matches(['^', '$']).to_owned();
    let selector = SELECTOR.replace("KEY", &bare(LABEL_KEY)).replace("VALUE", &bare(LABEL));
    let parameter = |name: &str, schema: Value, text: &str| json!({"name": name, "in": "query", "schema": schema, "description": text});
    [
        parameter("limit", json!({"type": "integer", "minimum": 1}), "Maximum number of items."),
        parameter(
            "labelSelector",
            json!({"type": "string", "pattern": selector}),
            "Requirements on labels, as Kubernetes has them.",
        ),
    ]
}

fn describe_answer(description: &str, schema: Value) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

fn problem_responses(statuses: &[u16]) -> Map<String, Value> {
    let schema = schema_reference("Problem");
    statuses
        .iter()
        .map(|status| {
            let content = json!({"application/problem+json": {"schema": schema}});
            (status.to_string(), json!({"description": "Refused", "content": content}))
        })
        .collect()
}

fn problem_schema() -> Value {
    let text = json!({"type": "string"});
    json!({
        "type": "object",
        "required": ["type", "status", "detail"],
        "properties": {
            "type": text, "title": text, "status": {"type": "integer"}, "detail": text,
            "errors": {"type": "array", "items": {
                "type": "object", "required": ["field", "got", "expected"],
                "properties": {"field": text, "got": text, "expected": text},
            }},
        },
    })
}

/// The template of a target's path in the document.
#[cfg(test)]
pub(super) fn path_template(target: &Target) -> String {
    let kind = match target {
        Target::Index => return "/".to_owned(),
        Target::Me => return "/me".to_owned(),
        Target::Release => return "/release".to_owned(),
        Target::Document => return "/openapi.json".to_owned(),
        Target::Collection { kind, .. } => *kind,
        Target::Object(key) | Target::Part(key, _) | Target::Explanation(key) | Target::Dependents(key) => {
            key.kind
        }
    };
    let alike = |known: &Target| match (known, target) {
        (Target::Collection { namespace: one, .. }, Target::Collection { namespace: other, .. }) => {
            one.is_some() == other.is_some()
        }
        (Target::Object(_), Target::Object(_))
        | (Target::Explanation(_), Target::Explanation(_))
        | (Target::Dependents(_), Target::Dependents(_)) => true,
        (Target::Part(_, one), Target::Part(_, other)) => one == other,
        _ => false,
    };
    list_targets(kind)
        .into_iter()
        .find(|(_, known)| alike(known))
        .map(|(path, _)| path)
        .expect("every target has a path")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::route::find_target;

    #[test]
    fn every_path_and_method_is_described() {
        let document = openapi_document("1");
        let paths = document["paths"].as_object().unwrap();
        let mut operations = 0;
        for (path, item) in paths {
            let example = path.replace("{namespace}", "n").replace("{name}", "a");
            let target = find_target(&example).unwrap_or_else(|| panic!("{path} stands for nothing"));
            assert_eq!(path_template(&target), *path);
            for method in target.allowed_methods().iter().filter(|method| is_described(method)) {
                let operation = &item[method.as_str().to_lowercase()];
                assert!(operation["operationId"].is_string(), "{method} {path}");
                operations += 1;
            }
        }
        let expected: usize = Kind::ALL
            .iter()
            .map(|kind| 6 + usize::from(kind.namespaced()) + subresources_of(*kind).len())
            .sum();
        // Plus the pages and the explanation of an application.
        assert_eq!(operations, expected + 4 + 1);
        let mut ids: Vec<&str> = paths
            .values()
            .flat_map(|item| item.as_object().unwrap().values())
            .filter_map(|operation| operation["operationId"].as_str())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), operations);
    }

    #[test]
    fn each_schema_reference_has_a_target() {
        fn check(value: &Value, known: &Map<String, Value>) {
            match value {
                Value::Object(members) => {
                    if let Some(Value::String(reference)) = members.get("$ref") {
                        let name = reference.strip_prefix("#/components/schemas/").unwrap();
                        assert!(known[name].is_object(), "{reference}");
                    }
                    members.values().for_each(|value| check(value, known));
                }
                Value::Array(items) => items.iter().for_each(|value| check(value, known)),
                _ => {}
            }
        }
        let document = openapi_document("1");
        check(&document, document["components"]["schemas"].as_object().unwrap());
    }
}
