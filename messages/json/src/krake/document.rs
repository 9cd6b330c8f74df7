//! Whole documents: what is stored, and what a request brings.

use serde::Deserializer;
use serde::de::Error as _;
use serde_json::value::RawValue;

use super::json;
use super::reader::{Field, Reader, Source};
use super::schema::Schema;
use crate::input::{InputError, Problems};
use crate::strict::walk::Path;

/// Why a request's body was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The body is no JSON (HTTP 415 in Krake).
    #[error("the body is not JSON: {0}")]
    NotJson(String),
    /// The body has the wrong shape or breaks a rule (HTTP 422).
    #[error(transparent)]
    Invalid(#[from] InputError),
}

/// What a request brought.
#[derive(Debug, Clone, PartialEq)]
pub struct Requested<T> {
    /// The value, with placeholders where a request may not set a field.
    pub value: T,
    /// Paths of fields that the type does not have and that were passed over nevertheless, because Krake's own
    /// client sends them.
    pub passed_over: Vec<String>,
}

/// Reads what is stored, leniently: unknown fields are kept, and what is absent has its default where there is
/// one.
///
/// # Errors
/// Names each field that has the wrong shape.
pub fn from_stored<T: Field>(subject: &str, text: &str) -> Result<T, InputError> {
    let normalized;
    let mut parsed = serde_json::from_str::<&RawValue>(text);
    // A line end would break the streams of a watch; what is no JSON may be so for a number only.
    if parsed.is_err() || text.contains(['\n', '\r']) {
        normalized = json::normalized(text).map_err(|error| whole(subject, error.to_string()))?;
        parsed = serde_json::from_str(&normalized);
    }
    let raw = parsed.map_err(|error| whole(subject, error.to_string()))?;
    read(subject, raw, Reader::new(Source::Stored)).map(|(value, _)| value)
}

/// Reads a request's body, strictly.
///
/// # Errors
/// The body is no JSON, or has wrong fields, each of which is named.
pub fn from_request<T: Field>(subject: &str, text: &str) -> Result<Requested<T>, RequestError> {
    let text = request_text(subject, text)?;
    let raw = request_value(&text)?;
    let (value, passed_over) = read(subject, raw, Reader::new(Source::Request))?;
    Ok(Requested { value, passed_over })
}

/// Reads a request's body that brings the status of a resource with this schema, strictly. Everything else in it has to be there, as
/// in Krake, and is passed over, whatever it holds: what is stored already may be something that no request may
/// bring any more, and whoever observes the resource sends it back as it is.
///
/// # Errors
/// The body is no JSON, or has wrong fields, each of which is named.
pub fn status_from_request<S: Field>(
    subject: &str,
    schema: &'static Schema,
    text: &str,
) -> Result<Requested<S>, RequestError> {
    const STATUS: &str = "status";
    let text = request_text(subject, text)?;
    let raw = request_value(&text)?;
    let mut reader = Reader::new(Source::Request);
    let mut status = None;
    if let Some(mut members) = reader.members(raw, Path::Root, schema) {
        for (name, value) in schema.constants {
            let _noted = reader.constant(&mut members, name, value, Path::Root);
        }
        for field in schema.fields {
            let path = Path::Root.field(field.name);
            match members.take(field.name) {
                None => reader.note(path, "", field.shape.expected()),
                Some(raw) if field.name == STATUS => status = S::read(raw, path, &mut reader),
                Some(raw) if raw.get().starts_with('{') => {}
                Some(raw) => reader.wrong(path, raw, field.shape.expected()),
            }
        }
    }
    let (value, passed_over) = finish(subject, status, reader)?;
    Ok(Requested { value, passed_over })
}

/// Takes over what an update brings (a PUT): fields that the service sets, and those with an address of their own,
/// stay as they are.
///
/// # Errors
/// Names each field that never changes and was to be changed; the value is then partly updated, so throw it away.
pub fn update<T: Field>(subject: &str, current: &mut T, new: T) -> Result<(), InputError> {
    let mut problems = Problems::default();
    current.update(new, Path::Root, &mut problems);
    problems.finish(subject)
}

/// The text of a request, on one line and with bounded nesting.
fn request_text(subject: &str, text: &str) -> Result<String, RequestError> {
    json::normalized(text).map_err(|error| {
        let mut problems = Problems::default();
        problems.add("", error.to_string(), format!("at most {} levels", json::MAX_JSON_DEPTH));
        problems.into_error(subject).into()
    })
}

/// The value of a request.
fn request_value(text: &str) -> Result<&RawValue, RequestError> {
    serde_json::from_str(text).map_err(|error| RequestError::NotJson(error.to_string()))
}

fn read<T: Field>(subject: &str, raw: &RawValue, mut reader: Reader) -> Result<(T, Vec<String>), InputError> {
    let value = T::read(raw, Path::Root, &mut reader);
    finish(subject, value, reader)
}

/// The value, if no problem was noted.
fn finish<T>(subject: &str, value: Option<T>, reader: Reader) -> Result<(T, Vec<String>), InputError> {
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

fn whole(subject: &str, got: String) -> InputError {
    let mut problems = Problems::default();
    problems.add("", format!("a text with an error: {got}"), "JSON");
    problems.into_error(subject)
}

/// For `Deserialize`: reads leniently.
pub fn deserialize<'de, T: Field, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let raw: Box<RawValue> = serde::Deserialize::deserialize(deserializer)?;
    from_stored("value", raw.get()).map_err(D::Error::custom)
}
