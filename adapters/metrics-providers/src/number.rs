//! Reads finite numbers from the texts and the JSON of metrics providers.

use madako_protocol::placement::providers::FetchError;
use serde_json::Value;

use crate::exchange::shorten_text;
use crate::limits::MAX_NUMBER;

/// The value, or an error if it is infinite or NaN.
pub(crate) fn check_finite(value: f64) -> Result<f64, FetchError> {
    if value.is_finite() { Ok(value) } else { Err(FetchError::NotFinite { got: value.to_string() }) }
}

/// A decimal number as text. The other names of floats (`NaN`, `+Inf`) give another error than a text that is no
/// number.
pub(crate) fn from_text(text: &str) -> Result<f64, FetchError> {
    let number = Some(text).filter(|text| text.len() <= MAX_NUMBER).and_then(|text| text.trim().parse().ok());
    match number {
        Some(number) => check_finite(number),
        None => Err(FetchError::NotANumber { got: format!("{:?}", shorten_text(text)) }),
    }
}

/// A number in JSON, or a string that contains one.
pub(crate) fn from_json(value: &Value) -> Result<f64, FetchError> {
    let got = |got: &str| Err(FetchError::NotANumber { got: got.to_owned() });
    match value {
        Value::Number(number) => check_finite(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => from_text(text),
        Value::Null => got("null"),
        Value::Bool(_) => got("a boolean"),
        Value::Array(_) => got("a list"),
        Value::Object(_) => got("an object"),
    }
}
