//! Machines from a file that an operator saved from sabakan, for plans without a running system.

use madako_domain::machine::Machine;
use madako_json::input::{InputError, Problem};
use serde_json::Value;

use crate::answer::shorten_text;
use crate::limits::MAX_PROBLEMS;

/// Reads machines in the format of sabakan's GraphQL: a JSON array of machines, or the whole response.
///
/// Fields that the planner does not use may be missing; additional fields are allowed. Machines without an IPv4 address
/// are kept; [`crate::leave_out_without_address`] removes them.
///
/// # Errors
/// Every machine that cannot be read, with the field, its value and the expected form.
pub fn parse_machines(json: &[u8]) -> Result<Vec<Machine>, InputError> {
    let document: Value = serde_json::from_slice(json)
        .map_err(|error| refuse_file(vec![field_problem("(document)", error.to_string(), "JSON")]))?;
    let (prefix, list) = machine_list(&document)?;
    let mut machines = Vec::with_capacity(list.len());
    let mut problems = Vec::new();
    for (index, value) in list.iter().enumerate() {
        match serde_path_to_error::deserialize::<_, Machine>(value) {
            Ok(machine) => machines.push(machine),
            Err(error) => problems.push(machine_problem(prefix, index, value, &error)),
        }
        if problems.len() == MAX_PROBLEMS {
            break;
        }
    }
    if problems.is_empty() { Ok(machines) } else { Err(refuse_file(problems)) }
}

fn machine_list(document: &Value) -> Result<(&'static str, &[Value]), InputError> {
    const EXPECTED: &str = "a JSON array of machines as sabakan's GraphQL returns them, \
                            or the whole response {\"data\": {\"searchMachines\": [...]}}";
    const IN_RESPONSE: &str = "data.searchMachines";
    if let Value::Array(list) = document {
        return Ok(("", list));
    }
    if let Some(errors) = document.get("errors").and_then(Value::as_array).filter(|list| !list.is_empty()) {
        let text = errors[0].get("message").and_then(Value::as_str).unwrap_or("no message");
        return Err(refuse_file(vec![field_problem(
            "errors",
            format!("a failed response: {}", shorten_text(text)),
            "a response without errors",
        )]));
    }
    match document.pointer("/data/searchMachines") {
        Some(Value::Array(list)) => Ok((IN_RESPONSE, list)),
        // Go writes a nil slice as `null`.
        Some(Value::Null) => Ok((IN_RESPONSE, &[])),
        Some(other) => Err(refuse_file(vec![field_problem(IN_RESPONSE, describe_kind(other), EXPECTED)])),
        None => Err(refuse_file(vec![field_problem("(document)", describe_kind(document), EXPECTED)])),
    }
}

fn machine_problem(
    prefix: &str,
    index: usize,
    value: &Value,
    error: &serde_path_to_error::Error<serde_json::Error>,
) -> Problem {
    let path = error.path().to_string();
    let within = if path == "." { String::new() } else { format!(".{path}") };
    let serial = value.pointer("/spec/serial").and_then(Value::as_str);
    let serial_note = serial.map(|serial| format!(" (serial {})", shorten_text(serial))).unwrap_or_default();
    let spec = value.get("spec");
    let from_rest = spec.is_some_and(|spec| spec.get("index-in-rack").is_some());
    let hint = if from_rest { "; this is a machine of sabakan's REST API, not of its GraphQL" } else { "" };
    let (got, expected) = split_got_and_expected(&error.inner().to_string());
    field_problem(&format!("{prefix}[{index}]{within}{serial_note}"), got, &format!("{expected}{hint}"))
}

/// The actual and the expected value in serde's message, in terms of the input.
fn split_got_and_expected(message: &str) -> (String, String) {
    if let Some(field) = message.strip_prefix("missing field ") {
        return (String::new(), format!("the field {field}"));
    }
    let Some((got, expected)) = message.split_once(", expected ") else {
        return (shorten_text(message), "the form of sabakan's GraphQL".to_owned());
    };
    let got =
        got.strip_prefix("invalid type: ").or_else(|| got.strip_prefix("invalid value: ")).unwrap_or(got);
    let expected = match expected {
        "i64" => "an integer",
        "f64" => "a number",
        "a sequence" => "a list",
        _ if expected.starts_with("struct ") => "an object",
        _ => expected,
    };
    (shorten_text(got), shorten_text(expected))
}

fn describe_kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "a truth value".to_owned(),
        Value::Number(_) => "a number".to_owned(),
        Value::String(_) => "a text".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(fields) => {
            let names: Vec<_> = fields.keys().take(5).map(String::as_str).collect();
            format!("an object with the fields [{}]", shorten_text(&names.join(", ")))
        }
    }
}

fn field_problem(field: &str, got: String, expected: &str) -> Problem {
    Problem { field: field.to_owned(), got, expected: expected.to_owned() }
}

fn refuse_file(problems: Vec<Problem>) -> InputError {
    InputError { subject: "list of machines".to_owned(), problems }
}
