//! Reads and writes whole documents of Krake's API: stored values and the bodies of requests.

use serde::Deserializer;
use serde::de::Error as _;
use serde_json::value::RawValue;

use super::json;
use super::reader::{Field, Reader, Source};
use super::schema::Schema;
use crate::input::{InputError, Problems};
use crate::strict::walk::Path;

/// An error in the body of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The body is not JSON (HTTP 415 in Krake).
    #[error("the request body is not JSON: {0}")]
    NotJson(String),
    /// The body has the wrong shape or breaks a rule (HTTP 422).
    #[error(transparent)]
    Invalid(#[from] InputError),
}

/// The value of a request's body.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestedDocument<T> {
    /// The value, with placeholders for fields that a request cannot set.
    pub value: T,
    /// Paths of unknown fields that the reader ignored because Krake's own client sends them.
    pub passed_over: Vec<String>,
}

/// Reads a stored value leniently: unknown fields are kept, and absent fields get their default if they have one.
///
/// # Errors
/// The error names each field that has a wrong shape.
pub fn from_stored<T: Field>(subject: &str, text: &str) -> Result<T, InputError> {
    let normalized;
    let mut parsed = serde_json::from_str::<&RawValue>(text);
    // A line end would break the lines of a watch's stream. Text that is not JSON may still be readable: `NaN` and
    // `Infinity` are numbers in Python.
    if parsed.is_err() || text.contains(['\n', '\r']) {
        normalized =
            json::normalize_text(text).map_err(|error| refuse_document(subject, error.to_string()))?;
        parsed = serde_json::from_str(&normalized);
    }
    let raw = parsed.map_err(|error| refuse_document(subject, error.to_string()))?;
    read_document(subject, raw, Reader::new(Source::Stored)).map(|(value, _)| value)
}

/// Reads the body of a request strictly.
///
/// # Errors
/// The body is not JSON, or it has wrong fields, each of which the error names.
pub fn from_request<T: Field>(subject: &str, text: &str) -> Result<RequestedDocument<T>, RequestError> {
    let text = request_text(subject, text)?;
    let raw = request_value(&text)?;
    let (value, passed_over) = read_document(subject, raw, Reader::new(Source::Request))?;
    Ok(RequestedDocument { value, passed_over })
}

/// Reads the body of a request that updates the status of a resource with this schema, strictly. As in Krake, every
/// other field must be present, but its content is ignored: the stored value may break rules of requests, and an
/// observer sends it back unchanged.
///
/// # Errors
/// The body is not JSON, or it has wrong fields, each of which the error names.
pub fn status_from_request<S: Field>(
    subject: &str,
    schema: &'static Schema,
    text: &str,
) -> Result<RequestedDocument<S>, RequestError> {
    const STATUS: &str = "status";
    let text = request_text(subject, text)?;
    let raw = request_value(&text)?;
    let mut reader = Reader::new(Source::Request);
    let mut status = None;
    if let Some(mut members) = reader.read_members(raw, Path::Root, schema) {
        for (name, value) in schema.constants {
            let _noted = reader.read_constant(&mut members, name, value, Path::Root);
        }
        for field in schema.fields {
            let path = Path::Root.field(field.name);
            match members.take(field.name) {
                None => reader.note(path, "", field.shape.expected()),
                Some(raw) if field.name == STATUS => status = S::read(raw, path, &mut reader),
                Some(raw) if raw.get().starts_with('{') => {}
                Some(raw) => reader.add_problem(path, raw, field.shape.expected()),
            }
        }
    }
    let (value, passed_over) = finish_reading(subject, status, reader)?;
    Ok(RequestedDocument { value, passed_over })
}

/// Applies an update (a PUT). Fields that the service sets and subresources keep their current value.
///
/// # Errors
/// The error names each immutable field that the update changes. `current` is then partly updated: discard it.
pub fn update_document<T: Field>(subject: &str, current: &mut T, new: T) -> Result<(), InputError> {
    let mut problems = Problems::default();
    current.update(new, Path::Root, &mut problems);
    problems.finish(subject)
}

/// The text of a request on one line.
///
/// # Errors
/// The nesting exceeds [`json::MAX_JSON_DEPTH`].
fn request_text(subject: &str, text: &str) -> Result<String, RequestError> {
    json::normalize_text(text).map_err(|error| {
        let mut problems = Problems::default();
        problems.add("", error.to_string(), format!("at most {} levels", json::MAX_JSON_DEPTH));
        problems.into_error(subject).into()
    })
}

fn request_value(text: &str) -> Result<&RawValue, RequestError> {
    serde_json::from_str(text).map_err(|error| RequestError::NotJson(error.to_string()))
}

fn read_document<T: Field>(
    subject: &str,
    raw: &RawValue,
    mut reader: Reader,
) -> Result<(T, Vec<String>), InputError> {
    let value = T::read(raw, Path::Root, &mut reader);
    finish_reading(subject, value, reader)
}

fn finish_reading<T>(
    subject: &str,
    value: Option<T>,
    reader: Reader,
) -> Result<(T, Vec<String>), InputError> {
    let (mut problems, passed_over) = reader.finish();
    match value {
        Some(value) if problems.is_empty() => Ok((value, passed_over)),
        _ => {
            if problems.is_empty() {
                problems.add("", "something unreadable", "a value");
            }
            Err(problems.into_error(subject))
        }
    }
}

fn refuse_document(subject: &str, got: String) -> InputError {
    let mut problems = Problems::default();
    problems.add("", format!("a text with an error: {got}"), "JSON");
    problems.into_error(subject)
}

/// The lenient reader as an implementation of `Deserialize`.
pub fn deserialize<'de, T: Field, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let raw: Box<RawValue> = serde::Deserialize::deserialize(deserializer)?;
    from_stored("value", raw.get()).map_err(D::Error::custom)
}
