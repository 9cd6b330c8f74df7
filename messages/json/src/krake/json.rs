//! JSON text as Python's `json` reads and writes it.
//!
//! Guarantees: the written text has the form of Krake's `json.dumps` (`", "` and `": "` between values, ASCII only,
//! Python's floats). Texts with too many levels are refused before any recursion.
//! Does not: parse; `serde_json` does.

use std::borrow::Cow;
use std::io::Result as Written;
use std::io::Write;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use serde_json::value::RawValue;

pub use crate::limits::MAX_JSON_DEPTH;

/// Python's numbers that JSON does not have, each with its replacement: a number beyond every type, so that the
/// reader can name the field and the original text. No program writes numbers in this form.
const NOT_FINITE: [(&str, &str); 3] =
    [("NaN", "1e99901"), ("Infinity", "1e99902"), ("-Infinity", "-1e99902")];

/// The JSON text as Krake stores it.
///
/// # Panics
/// Never: every type of this project can be written as JSON.
#[must_use]
pub fn to_text<T: Serialize>(value: &T) -> String {
    let mut text = Vec::new();
    value
        .serialize(&mut Serializer::with_formatter(&mut text, Python))
        .expect("a type with fields, lists and texts can be written");
    String::from_utf8(text).expect("the writer writes UTF-8")
}

struct Python;

impl Formatter for Python {
    fn begin_array_value<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> Written<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> Written<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> Written<()> {
        writer.write_all(b": ")
    }

    fn write_f64<W: Write + ?Sized>(&mut self, writer: &mut W, value: f64) -> Written<()> {
        writer.write_all(python_float(value).as_bytes())
    }

    fn write_string_fragment<W: Write + ?Sized>(&mut self, writer: &mut W, text: &str) -> Written<()> {
        let mut rest = text;
        while let Some(start) = rest.find(|c: char| !(' '..='~').contains(&c)) {
            let (plain, other) = rest.split_at(start);
            writer.write_all(plain.as_bytes())?;
            let end = other.find(|c: char| (' '..='~').contains(&c)).unwrap_or(other.len());
            for unit in other[..end].encode_utf16() {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &other[end..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// A finite float in the notation of Python's `repr`: always with a point or an exponent; an exponent from 1e16 up
/// and below 1e-4, with a sign and at least two digits.
fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        format!("{value:?}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}

/// The text exceeds [`MAX_JSON_DEPTH`] levels of nesting, or it is not JSON at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the JSON has more than {MAX_JSON_DEPTH} levels of nesting")]
pub struct TooDeep;

/// A stored text as JSON, with Python's non-finite numbers replaced as in [`normalize_text`]. `None` if the result is not
/// JSON either.
#[must_use]
pub fn make_readable(text: &str) -> Option<Cow<'_, str>> {
    let is_json = |text: &str| serde_json::from_str::<&RawValue>(text).is_ok();
    if is_json(text) {
        return Some(Cow::Borrowed(text));
    }
    normalize_text(text).ok().filter(|text| is_json(text)).map(Cow::Owned)
}

/// The text on one line, with Python's spacing between values. Python's numbers that JSON does not have (`NaN`,
/// `Infinity`) are replaced by the numbers of [`NOT_FINITE`].
pub fn normalize_text(text: &str) -> Result<String, TooDeep> {
    let mut written = String::with_capacity(text.len() + text.len() / 8);
    let mut depth = 0usize;
    let mut gap = false;
    let mut rest = text;
    while let Some(first) = rest.bytes().next() {
        let taken = match first {
            b' ' | b'\t' | b'\n' | b'\r' => {
                gap = true;
                1
            }
            b'"' => {
                let end = string_end(rest);
                keep_apart(&mut written, gap, false);
                written.push_str(&rest[..end]);
                end
            }
            b'{' | b'[' | b'}' | b']' | b',' | b':' => {
                match first {
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                if depth > MAX_JSON_DEPTH {
                    return Err(TooDeep);
                }
                keep_apart(&mut written, gap, !matches!(first, b'{' | b'['));
                written.push(char::from(first));
                if matches!(first, b',' | b':') {
                    written.push(' ');
                }
                1
            }
            _ => {
                let end = rest.find(|c| " \t\n\r\"{}[],:".contains(c)).unwrap_or(rest.len());
                keep_apart(&mut written, gap, false);
                let token = &rest[..end];
                let known = NOT_FINITE.iter().find(|(name, _)| *name == token);
                written.push_str(known.map_or(token, |(_, number)| number));
                end
            }
        };
        if !matches!(first, b' ' | b'\t' | b'\n' | b'\r') {
            gap = false;
        }
        rest = &rest[taken..];
    }
    Ok(written)
}

/// The original text of a number that [`normalize_text`] inserted.
pub fn infinite_number_text(number: &str) -> Option<&'static str> {
    NOT_FINITE.iter().find(|(_, known)| *known == number).map(|(name, _)| *name)
}

/// The value with `null` in place of each number that exceeds every float, such as the replacement of `NaN`:
/// JavaScript writes them so, and every JSON reader accepts the result.
pub fn replace_infinite_numbers(raw: &RawValue) -> Box<RawValue> {
    let text = raw.get();
    let mut written = None;
    let (mut place, mut copied) = (0, 0);
    while let Some(first) = text.as_bytes().get(place) {
        let rest = &text[place..];
        let end = match first {
            b'"' => string_end(rest),
            b'-' | b'0'..=b'9' => rest.find(|c: char| !"+-.0123456789Ee".contains(c)).unwrap_or(rest.len()),
            _ => 1,
        };
        if *first != b'"' && is_beyond_floats(&rest[..end]) {
            let written = written.get_or_insert_with(String::new);
            written.push_str(&text[copied..place]);
            written.push_str("null");
            copied = place + end;
        }
        place += end;
    }
    match written {
        None => raw.to_owned(),
        Some(written) => RawValue::from_string(written + &text[copied..])
            .expect("JSON with null in place of numbers is JSON"),
    }
}

/// True if a token is a number beyond the range of `f64`.
fn is_beyond_floats(token: &str) -> bool {
    /// A number of this many digits without exponent fits into every float.
    const SURELY: usize = 300;
    (token.len() > SURELY || token.contains(['e', 'E'])) && token.parse::<f64>().is_ok_and(f64::is_infinite)
}

/// Keeps a gap between two tokens, so that joining them cannot turn invalid text into JSON.
fn keep_apart(written: &mut String, gap: bool, closes: bool) {
    if gap && !closes && !written.is_empty() && !written.ends_with([' ', '{', '[']) {
        written.push(' ');
    }
}

/// The offset behind the closing quote of the string at the beginning of the text.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (place, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return place + 1,
            _ => {}
        }
    }
    text.len()
}

/// [`normalize_text`] for JSON text from this process; returns the text unchanged if its nesting is too deep.
pub fn with_spaces(text: &str) -> Cow<'_, str> {
    normalize_text(text).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// True if two JSON values are equal: numbers by value, objects in any order. Values that nest more deeply than
/// [`MAX_JSON_DEPTH`] count as different.
pub fn are_same_values(one: &RawValue, two: &RawValue) -> bool {
    are_equal_within(one, two, MAX_JSON_DEPTH)
}

fn are_equal_within(one: &RawValue, two: &RawValue, depth: usize) -> bool {
    if one.get() == two.get() {
        return true;
    }
    let Some(depth) = depth.checked_sub(1) else { return false };
    let start = |raw: &RawValue| raw.get().bytes().next();
    match (start(one), start(two)) {
        (Some(b'{'), Some(b'{')) => {
            type Fields<'a> = std::collections::BTreeMap<String, &'a RawValue>;
            let (Ok(one), Ok(two)) = (
                serde_json::from_str::<Fields<'_>>(one.get()),
                serde_json::from_str::<Fields<'_>>(two.get()),
            ) else {
                return false;
            };
            one.len() == two.len()
                && one
                    .iter()
                    .zip(&two)
                    .all(|(one, two)| one.0 == two.0 && are_equal_within(one.1, two.1, depth))
        }
        (Some(b'['), Some(b'[')) => {
            let (Ok(one), Ok(two)) = (
                serde_json::from_str::<Vec<&RawValue>>(one.get()),
                serde_json::from_str::<Vec<&RawValue>>(two.get()),
            ) else {
                return false;
            };
            one.len() == two.len() && one.iter().zip(&two).all(|(one, two)| are_equal_within(one, two, depth))
        }
        (Some(b'"'), Some(b'"')) => {
            let text = |raw: &RawValue| serde_json::from_str::<String>(raw.get()).ok();
            text(one).is_some_and(|one| Some(one) == text(two))
        }
        (Some(b'-' | b'0'..=b'9'), Some(b'-' | b'0'..=b'9')) => {
            // Integers differ if their digits differ. Floats have several notations.
            let is_float = |raw: &RawValue| raw.get().contains(['.', 'e', 'E']);
            let value = |raw: &RawValue| raw.get().parse::<f64>().ok();
            (is_float(one) || is_float(two)) && value(one) == value(two)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-1.5e-7, "-1.5e-07"),
            (f64::MAX, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(to_text(&value), text);
        }
    }

    #[test]
    fn texts_are_escaped_as_python_does() {
        let text = "a\"\\\n\t\u{1}\u{7f}é\u{2028}\u{1f600}~ ";
        assert_eq!(to_text(&text), r#""a\"\\\n\t\u0001\u007f\u00e9\u2028\ud83d\ude00~ ""#);
    }

    #[test]
    fn json_is_written_with_pythons_spacing() {
        for (text, expected) in [
            ("{ \"a\" : [ 1 ,2,\n{ } ,[ ]] }\n", r#"{"a": [1, 2, {}, []]}"#),
            (r#"{"a b":"c , \" : d"}"#, r#"{"a b": "c , \" : d"}"#),
            ("[1 2]", "[1 2]"),
            ("tr ue", "tr ue"),
            ("\"a\" \"b\"", "\"a\" \"b\""),
            ("{} {}", "{} {}"),
            ("[NaN,-Infinity , Infinity]", "[1e99901, -1e99902, 1e99902]"),
            ("\"NaN\"", "\"NaN\""),
            ("\"open", "\"open"),
            ("", ""),
        ] {
            assert_eq!(normalize_text(text).unwrap(), expected, "{text}");
        }
        assert!(normalize_text(&"[".repeat(MAX_JSON_DEPTH)).is_ok());
        assert_eq!(normalize_text(&"[".repeat(MAX_JSON_DEPTH + 1)), Err(TooDeep));
    }

    #[test]
    fn unrepresentable_numbers_become_null_and_the_rest_is_kept() {
        let digits = format!("1{}", "0".repeat(400));
        for (text, expected) in [
            ("1e999", "null"),
            ("[-1e400, 1e308, 1E+309]", "[null, 1e308, null]"),
            (
                r#"{"1e999": "1e999\"", "b": {"é": [1e99901]}, "c": 1.0}"#,
                r#"{"1e999": "1e999\"", "b": {"é": [null]}, "c": 1.0}"#,
            ),
            (&digits, "null"),
            (&digits[..300], &digits[..300]),
            ("[true, null, 5e-999]", "[true, null, 5e-999]"),
        ] {
            assert_eq!(
                replace_infinite_numbers(serde_json::from_str(text).unwrap()).get(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn equal_values_compare_equal_in_any_notation() {
        let same = |one: &str, two: &str| {
            super::are_same_values(serde_json::from_str(one).unwrap(), serde_json::from_str(two).unwrap())
        };
        for (one, two) in
            [(r#"{"a":1,"b":[1.0,"é"]}"#, r#"{"b": [1, "\u00e9"], "a": 1}"#), ("1e2", "100.0"), ("[]", "[ ]")]
        {
            assert!(same(one, two), "{one} {two}");
        }
        for (one, two) in [
            ("1000000000000000000000000000001", "1000000000000000000000000000000"),
            ("[1]", "[1,2]"),
            ("{}", "[]"),
            (r#"{"a":1}"#, r#"{"b":1}"#),
            ("1", "true"),
            ("\"1\"", "1"),
            ("null", "false"),
        ] {
            assert!(!same(one, two), "{one} {two}");
        }
    }
}
