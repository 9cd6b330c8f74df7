//! Compares every request and answer of the tests with the API's OpenAPI document: every answer of every test is
//! checked.

use std::sync::OnceLock;

use super::*;

/// Panics if the document does not describe such an answer.
#[track_caller]
pub(super) fn check(method: &str, path: &str, sent: Option<&Value>, answer: &Answer) {
    let Some(target) = route::find_target(path) else { return };
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    let document = DOCUMENT.get_or_init(|| openapi::openapi_document("1"));
    let template = openapi::path_template(&target);
    let operation = &document["paths"][&template][method.to_lowercase()];
    // An operation that is not described is refused.
    if operation.is_null() {
        let status = answer.status.as_u16();
        let known = ["HEAD", "OPTIONS"].contains(&method) || [401, 405].contains(&status);
        assert!(known, "{method} {path}: {status}");
        return;
    }
    let described = &operation["responses"][answer.status.as_str()];
    assert!(described.is_object(), "{method} {template} does not describe {}", answer.status);
    if answer.status == StatusCode::NO_CONTENT {
        assert!(described["content"].is_null() && answer.body.is_empty());
        return;
    }
    let (media, _) =
        answer.header("content-type").split_once(';').unwrap_or((answer.header("content-type"), ""));
    let schema = &described["content"][media]["schema"];
    assert!(schema.is_object(), "{method} {template} {} is not described as {media}", answer.status);
    if let Err(why) = valid(document, schema, &answer.json()) {
        panic!("the answer to {method} {path} is not as described: {why}");
    }
    let request = &operation["requestBody"]["content"]["application/json"]["schema"];
    if let (true, true, Some(sent)) = (answer.status.is_success(), request.is_object(), sent)
        && let Err(why) = valid(document, request, sent)
    {
        panic!("{method} {path} was taken, but its body is not as described: {why}");
    }
}

/// The subset of JSON Schema that the document uses, without patterns.
fn valid(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        return valid(document, &document["components"]["schemas"][name], value)
            .map_err(|why| format!("{name}: {why}"));
    }
    for (word, few) in [("anyOf", false), ("oneOf", true)] {
        if let Some(choices) = schema[word].as_array() {
            let results: Vec<_> = choices.iter().map(|choice| valid(document, choice, value)).collect();
            let fitting = results.iter().filter(|result| result.is_ok()).count();
            if fitting == 0 || (few && fitting > 1) {
                return Err(format!("{fitting} of {word} fit {value}: {results:?}"));
            }
        }
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        valid(document, part, value)?;
    }
    let fits = match schema["type"].as_str() {
        None => true,
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        Some("null") => value.is_null(),
        Some(other) => panic!("no such type: {other}"),
    };
    if !fits {
        return Err(format!("{value} is no {}", schema["type"]));
    }
    if schema.get("const").is_some_and(|wanted| wanted != value) {
        return Err(format!("{value} is not {}", schema["const"]));
    }
    if schema["enum"].as_array().is_some_and(|choices| !choices.contains(value)) {
        return Err(format!("{value} is none of {}", schema["enum"]));
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        values.iter().try_for_each(|value| valid(document, items, value))?;
    }
    let Some(members) = value.as_object() else { return Ok(()) };
    for name in schema["required"].as_array().into_iter().flatten() {
        if !members.contains_key(name.as_str().unwrap()) {
            return Err(format!("{name} is missing"));
        }
    }
    for (name, value) in members {
        match (schema["properties"].get(name), schema.get("additionalProperties")) {
            (Some(schema), _) => valid(document, schema, value).map_err(|why| format!("{name}: {why}"))?,
            (None, Some(Value::Bool(false))) => return Err(format!("{name} is not described")),
            (None, Some(schema)) => valid(document, schema, value).map_err(|why| format!("{name}: {why}"))?,
            (None, None) => {}
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_document_is_served_and_describes_itself() {
    let document = world().ask("GET", "/openapi.json").await.with(200);
    assert_eq!(document.json()["info"]["version"], "1.2.3");
    assert_eq!(document.json()["paths"].as_object().unwrap().len(), 4 + 14 * 3 + 8 + 12 + 1);
}

#[test]
fn schema_validation_finds_deviations() {
    let document = openapi::openapi_document("1");
    let role = json!({"$ref": "#/components/schemas/RoleRequest"});
    let mut body = example(Kind::Role, "r");
    assert_eq!(valid(&document, &role, &body), Ok(()));
    body["rules"][0]["verbs"] = json!(["fly"]);
    assert!(valid(&document, &role, &body).is_err());
    for (spoil, value) in
        [("extra", json!(1)), ("metadata", json!(1)), ("metadata", json!({})), ("kind", json!("X"))]
    {
        let mut body = example(Kind::Role, "r");
        body[spoil] = value;
        assert!(valid(&document, &role, &body).is_err(), "{spoil}");
    }
}
