//! Answers of the simulated registry that are deliberately wrong: cut off, malformed, or inconsistent.

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::StreamBody;
use hyper::body::Frame;
use serde_json::{Value, json};

use crate::faults::Fault;

/// Bytes in one piece of an endless answer.
const PIECE: usize = 16 * 1024;

/// Answer that a fault gives instead of the registry's.
pub(crate) fn replacement_answer(present: &[Fault]) -> Option<Response> {
    present.iter().find_map(|fault| match fault {
        Fault::Status(status) => {
            let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Some((status, "the registry is out of order").into_response())
        }
        Fault::Redirect(to) => Some((StatusCode::FOUND, [(header::LOCATION, to.clone())]).into_response()),
        Fault::EndlessBody => {
            let pieces = futures::stream::repeat_with(|| {
                Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(&[b' '; PIECE])))
            });
            let body = Body::new(StreamBody::new(pieces));
            Some(([(header::CONTENT_TYPE, "application/json")], body).into_response())
        }
        _ => None,
    })
}

/// The text of an answer after the faults have changed it.
pub(crate) fn corrupt_text(present: &[Fault], text: String) -> String {
    present.iter().fold(text, |text, fault| match fault {
        Fault::GraphQlError => json!({"errors": [graphql_error()], "data": null}).to_string(),
        Fault::PartialData => edit_json(&text, |answer| {
            let errors = Value::Array(vec![graphql_error()]);
            answer.as_object_mut().map(|answer| answer.insert("errors".to_owned(), errors));
        }),
        Fault::MalformedJson => text[..text.floor_char_boundary(text.len() / 2)].to_owned(),
        Fault::WrongTypes => edit_json(&text, turn_numbers_into_strings),
        Fault::NullList => edit_json(&text, |answer| {
            if let Some(list) = answer.pointer_mut("/data/searchMachines") {
                *list = Value::Null;
            }
        }),
        _ => text,
    })
}

/// The answer after the faults of the connection have changed it.
pub(crate) fn corrupt_response(present: &[Fault], response: Response) -> Response {
    if !present.contains(&Fault::TruncateBody) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // The head announces more bytes than the body has, so the client can detect the truncation.
    parts.headers.insert(header::CONTENT_LENGTH, header::HeaderValue::from_static("1000000"));
    let cut = futures::stream::iter([
        Ok(Frame::data(Bytes::from_static(b"{\"data\":{\"searchMachines\":["))),
        Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted)),
    ]);
    drop(body);
    Response::from_parts(parts, Body::new(StreamBody::new(cut)))
}

fn graphql_error() -> Value {
    json!({"message": "internal system error", "path": ["searchMachines"]})
}

fn edit_json(text: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut answer: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    change(&mut answer);
    answer.to_string()
}

fn turn_numbers_into_strings(value: &mut Value) {
    match value {
        Value::Number(number) => *value = Value::String(number.to_string()),
        Value::String(text) => *value = Value::from(text.len()),
        Value::Array(list) => list.iter_mut().for_each(turn_numbers_into_strings),
        Value::Object(fields) => fields.values_mut().for_each(turn_numbers_into_strings),
        Value::Null | Value::Bool(_) => {}
    }
}
