//! Reads and writes single values of Krake's API (texts, numbers, booleans), and lists of them.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::reader::{Field, Reader};
use super::schema::Shape;
use crate::input::Problems;
use crate::limits::MAX_NUMBER_TEXT;
use crate::strict::walk::Path;

impl Field for String {
    const SHAPE: Shape = Shape::Text;

    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self> {
        let text = serde_json::from_str(raw.get()).ok();
        if text.is_none() {
            reader.add_problem(path, raw, "a text");
        }
        text
    }
}

impl Field for bool {
    const SHAPE: Shape = Shape::Bool;

    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self> {
        let value = raw.get().parse().ok();
        if value.is_none() {
            reader.add_problem(path, raw, Self::SHAPE.expected());
        }
        value
    }
}

impl Field for i64 {
    const SHAPE: Shape = Shape::Integer;

    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self> {
        let value = read_number(raw).and_then(|text| text.parse().ok().or_else(|| read_whole(&text)));
        if value.is_none() {
            reader.add_problem(path, raw, Self::SHAPE.expected());
        }
        value
    }
}

impl Field for f64 {
    const SHAPE: Shape = Shape::Number;

    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self> {
        let value =
            read_number(raw).and_then(|text| text.parse::<f64>().ok()).filter(|value| value.is_finite());
        if value.is_none() {
            reader.add_problem(path, raw, Self::SHAPE.expected());
        }
        value
    }
}

/// The text of a number, or of a decimal string with a number.
fn read_number(raw: &RawValue) -> Option<Cow<'_, str>> {
    let text = match raw.get().as_bytes().first() {
        Some(b'"') => serde_json::from_str::<String>(raw.get()).ok().map(Cow::Owned)?,
        Some(b'-' | b'0'..=b'9') => Cow::Borrowed(raw.get()),
        _ => return None,
    };
    // Rust parses `inf` and `nan` as floats; JSON does not have them.
    let plain = |c: u8| c.is_ascii_digit() || matches!(c, b'+' | b'-' | b'.' | b'e' | b'E');
    (text.len() <= MAX_NUMBER_TEXT && text.bytes().all(plain)).then_some(text)
}

/// Also reads a number such as `2.0` or `1e3`, which Python may write for an integer.
#[expect(clippy::cast_possible_truncation, reason = "the bounds are checked before")]
fn read_whole(text: &str) -> Option<i64> {
    /// Every integer up to 2^53 has an exact float.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let value: f64 = text.parse().ok()?;
    (value.fract() == 0.0 && value.abs() <= EXACT).then_some(value as i64)
}

impl<T: Field> Field for Option<T> {
    const SHAPE: Shape = Shape::Nullable(&T::SHAPE);

    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self> {
        if raw.get() == "null" { Some(None) } else { T::read(raw, path, reader).map(Some) }
    }

    fn update(&mut self, new: Self, path: Path<'_>, problems: &mut Problems) {
        match (self, new) {
            (Some(current), Some(new)) => current.update(new, path, problems),
            (current, new) => *current = new,
        }
    }
}

impl<T: Field> Field for Vec<T> {
    const SHAPE: Shape = Shape::List(&T::SHAPE);

    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self> {
        let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(raw.get()) else {
            // Show the kind only: the value may be the text of a manifest with secrets.
            reader.add_secret_problem(path, raw, Self::SHAPE.expected());
            return None;
        };
        // Read each item before failing, so that the error names every wrong one.
        let items =
            items.into_iter().enumerate().map(|(index, item)| T::read(item, path.item(index), reader));
        items.collect::<Vec<_>>().into_iter().collect()
    }
}

/// A password, token or key. `Debug` hides it; JSON contains it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Marks a text as secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret text. Call this only where the secret is used.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl Field for Secret {
    const SHAPE: Shape = Shape::Secret;

    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self> {
        let text = serde_json::from_str(raw.get()).ok().map(Self);
        if text.is_none() {
            reader.add_secret_problem(path, raw, "a text");
        }
        text
    }
}
