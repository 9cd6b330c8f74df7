//! Rules across the fields of a request, as far as a schema can express them. Matching names within a kubeconfig is
//! beyond a schema.

use serde_json::{Value, json};

/// Adds the rules across fields to the description of a request's type.
pub(super) fn add_rules(name: &str, described: &mut Value) {
    match name {
        "ApplicationSpec" => {
            described["properties"]["tosca"] = json!({"anyOf": [
                {"type": "string", "pattern": "^$|[.]ya?ml$"}, empty_schema(), template_schema(),
            ]});
            let address = json!({"type": "string", "pattern": CSAR});
            described["properties"]["csar"] = json!({"anyOf": [address, {"type": "null"}]});
            described["anyOf"] = json!([
                require_member("manifest", &json!({"type": "array", "minItems": 1})),
                require_member("tosca", &json!({"anyOf": [{"type": "string", "minLength": 1}, any_value()]})),
                require_member("csar", &address),
            ]);
        }
        "ClusterSpec" => {
            described["properties"]["kubeconfig"] = json!({"anyOf": [empty_schema(), kubeconfig_schema()]});
            let output =
                require_member("kubeconfig", &json!({"not": {"enum": [null, false, 0, "", [], {}]}}));
            let outputs = require_member("topology_template", &require_member("outputs", &output));
            described["properties"]["tosca"] =
                json!({"anyOf": [empty_schema(), {"allOf": [template_schema(), outputs]}]});
            described["anyOf"] =
                json!([require_member("kubeconfig", &any_value()), require_member("tosca", &any_value())]);
        }
        "ImSpec" => {
            let text = json!({"type": "string"});
            let user = json!({
                "type": "object", "required": ["username", "password"],
                "properties": {"username": text, "password": text},
            });
            described["anyOf"] = json!([require_member("token", &text), user]);
        }
        "GlobalCloud" => {
            // A global resource refers to no namespaced one.
            let global = json!({"type": "object", "properties": {"namespaced": {"const": false}}});
            let content = json!({"type": "object", "properties": {
                "infrastructure_provider": global, "metrics": {"type": "array", "items": global},
            }});
            let spec = described["properties"]["spec"].take();
            described["properties"]["spec"] =
                json!({"allOf": [spec, {"type": "object", "properties": {"openstack": content}}]});
        }
        _ => {}
    }
}

const CSAR: &str = "[.](csar|zip)$";

fn require_member(name: &str, member: &Value) -> Value {
    json!({"type": "object", "required": [name], "properties": {name: member}})
}

fn empty_schema() -> Value {
    json!({"type": "object", "maxProperties": 0})
}

fn any_value() -> Value {
    json!({"type": "object", "minProperties": 1})
}

fn template_schema() -> Value {
    require_member("tosca_definitions_version", &json!({"type": "string"}))
}

fn kubeconfig_schema() -> Value {
    let list = |required: &[&str]| {
        let item = json!({"type": "object", "required": required});
        json!({"type": "array", "minItems": 1, "maxItems": 1, "items": item})
    };
    json!({
        "type": "object",
        "required": ["current-context", "contexts", "clusters", "users"],
        "properties": {
            "contexts": list(&["name", "context"]), "clusters": list(&["name", "cluster"]), "users": list(&["name"]),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::openapi_document;
    use super::*;

    #[test]
    fn rules_across_fields_are_only_in_request_types() {
        let document = openapi_document("1");
        let types = &document["components"]["schemas"];
        for name in ["ApplicationSpec", "ClusterSpec", "ImSpec"] {
            assert!(types[format!("{name}Request")]["anyOf"].is_array(), "{name}");
            assert!(types[name]["type"].is_string() && types[name]["anyOf"].is_null(), "{name}");
        }
        let global = &types["GlobalCloudRequest"]["properties"]["spec"]["allOf"];
        let provider =
            "/1/properties/openstack/properties/infrastructure_provider/properties/namespaced/const";
        assert_eq!(global.pointer(provider), Some(&json!(false)));
        assert!(types["CloudRequest"]["properties"]["spec"]["allOf"].is_null());
    }

    #[test]
    fn names_have_a_pattern_where_another_name_is_refused() {
        let document = openapi_document("1");
        let list = "/kubernetes/namespaces/{namespace}/applications";
        let pattern = |path: &str, rest: &str| {
            let parameters = document["paths"][path].pointer(rest).unwrap().as_array().unwrap();
            let namespace = parameters.iter().find(|parameter| parameter["name"] == "namespace");
            namespace.is_some_and(|namespace| namespace["schema"]["pattern"].is_string())
        };
        assert!(!pattern(list, "/parameters") && pattern(list, "/post/parameters"));
        assert!(!pattern(list, "/get/parameters"));
        assert!(pattern(&format!("{list}/{{name}}"), "/parameters"));
    }
}
