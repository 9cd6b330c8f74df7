//! Checks the variables of a GraphQL query as sabakan's server does.

use async_graphql_parser::Positioned;
use async_graphql_parser::types::{BaseType, Type, VariableDefinition};
use serde_json::{Map, Value, json};

#[derive(Debug, PartialEq)]
pub(crate) struct VariableError {
    pub(crate) message: String,
    pub(crate) path: Vec<Value>,
}

/// Checks the variables of an operation, converts them for the schema, and adds the defaults.
pub(crate) fn coerce_variables(
    definitions: &[Positioned<VariableDefinition>],
    variables: &mut Map<String, Value>,
) -> Result<(), VariableError> {
    for definition in definitions.iter().map(|definition| &definition.node) {
        let name = &definition.name.node;
        let kind = &definition.var_type.node;
        let mut path = vec![json!("variable"), json!(name.as_str())];
        match variables.get_mut(name.as_str()) {
            Some(value) => coerce_value(kind, value, &mut path)?,
            None if !kind.nullable && definition.default_value.is_none() => {
                return Err(VariableError { message: "must be defined".to_owned(), path });
            }
            None => {
                let default = definition.default_value.as_ref().map(|default| default.node.clone());
                if let Some(mut default) = default.and_then(|default| default.into_json().ok()) {
                    coerce_value(kind, &mut default, &mut path)?;
                    variables.insert(name.to_string(), default);
                }
            }
        }
    }
    Ok(())
}

/// Checks one value against a type and converts it for the schema.
pub(crate) fn coerce_value(
    kind: &Type,
    value: &mut Value,
    path: &mut Vec<Value>,
) -> Result<(), VariableError> {
    let mistake = |message: String, path: &[Value]| Err(VariableError { message, path: path.to_vec() });
    if value.is_null() {
        return if kind.nullable { Ok(()) } else { mistake("cannot be null".to_owned(), path) };
    }
    let name = match &kind.base {
        BaseType::List(of) => {
            if !value.is_array() {
                *value = Value::Array(vec![value.take()]);
            }
            for (index, element) in value.as_array_mut().into_iter().flatten().enumerate() {
                path.push(json!(index));
                coerce_value(of, element, path)?;
                path.pop();
            }
            return Ok(());
        }
        BaseType::Named(name) => name.as_str(),
    };
    match (name, &*value) {
        ("MachineState", Value::String(text)) => {
            let known = domain_name(text);
            match known {
                Some(known) => *value = json!(known),
                None => return mistake(format!("{text} is not a valid MachineState"), path),
            }
        }
        ("MachineState", Value::Number(number)) => {
            return mistake(format!("{number} is not a valid MachineState"), path);
        }
        ("MachineState", _) => return mistake("enums must be ints or strings".to_owned(), path),
        ("Int", Value::Number(number)) if number.is_i64() => {}
        ("Int", Value::String(text)) if text.parse::<i64>().is_ok() => {
            *value = json!(text.parse::<i64>().ok())
        }
        ("String" | "ID", Value::String(_)) => {}
        ("String" | "ID", Value::Number(number)) => *value = json!(number.to_string()),
        ("Int" | "String" | "ID", other) => {
            return mistake(format!("cannot use {} as {name}", go_kind(other)), path);
        }
        _ => {
            let Some(fields) = input_fields(name) else { return Ok(()) };
            return coerce_object(name, fields, value, path);
        }
    }
    Ok(())
}

fn coerce_object(
    name: &str,
    fields: &[(&str, &str)],
    value: &mut Value,
    path: &mut Vec<Value>,
) -> Result<(), VariableError> {
    let Value::Object(given) = value else {
        let message = format!("must be a {name}, not a {}", go_kind(value));
        return Err(VariableError { message, path: path.clone() });
    };
    if let Some(unknown) = given.keys().find(|key| fields.iter().all(|(field, _)| field != key)) {
        path.push(json!(unknown));
        return Err(VariableError { message: "unknown field".to_owned(), path: path.clone() });
    }
    for (field, kind) in fields {
        let kind = Type::new(kind).expect("the table below holds well-formed types");
        path.push(json!(field));
        match given.get_mut(*field) {
            Some(value) => coerce_value(&kind, value, path)?,
            None if !kind.nullable => {
                return Err(VariableError { message: "must be defined".to_owned(), path: path.clone() });
            }
            None => {}
        }
        path.pop();
    }
    Ok(())
}

fn input_fields(name: &str) -> Option<&'static [(&'static str, &'static str)]> {
    match name {
        "MachineParams" => Some(&[
            ("labels", "[LabelInput!]"),
            ("racks", "[Int!]"),
            ("roles", "[String!]"),
            ("states", "[MachineState!]"),
            ("minDaysBeforeRetire", "Int"),
        ]),
        "LabelInput" => Some(&[("name", "String!"), ("value", "String!")]),
        _ => None,
    }
}

fn domain_name(text: &str) -> Option<&'static str> {
    use madako_domain::machine::MachineState;
    MachineState::NAMES.iter().copied().find(|name| name.eq_ignore_ascii_case(text))
}

/// Name of a value's kind in sabakan's messages, where numbers are kept as text.
fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "invalid",
        Value::Bool(_) => "bool",
        Value::Number(_) | Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}
