//! The comparison of two configurations, field by field.

use std::collections::BTreeSet;

use madako_json::strict::tree::Number;
use madako_json::strict::walk::Kind;
use madako_json::strict::{Schema, Tree};

use super::file_schema::find_field;

/// Suffixes of Kubernetes' quantities, with their factors: a power of ten or of 1024.
const SUFFIXES: [(&str, u32, u32); 16] = [
    ("Ki", 1024, 1),
    ("Mi", 1024, 2),
    ("Gi", 1024, 3),
    ("Ti", 1024, 4),
    ("Pi", 1024, 5),
    ("Ei", 1024, 6),
    ("n", 10, 0),
    ("u", 10, 3),
    ("m", 10, 6),
    ("", 10, 9),
    ("k", 10, 12),
    ("M", 10, 15),
    ("G", 10, 18),
    ("T", 10, 21),
    ("P", 10, 24),
    ("E", 10, 27),
];
/// Powers of ten in one whole unit of an amount.
const DIGITS: u32 = 9;

/// Adds the paths of the fields in which two objects differ.
pub(super) fn add_differing_fields(
    one: &Tree,
    other: &Tree,
    schema: &'static Schema,
    path: &str,
    found: &mut Vec<String>,
) {
    let names: BTreeSet<&str> =
        one.fields().iter().chain(other.fields()).map(|(name, _)| name.as_str()).collect();
    for name in names {
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let kind = find_field(schema, name).map_or(&Kind::Any, |(_, kind)| kind);
        let value = |tree: &'_ Tree| {
            tree.fields().iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        match (value(one), value(other), kind) {
            (Some(one @ Tree::Object(_)), Some(other @ Tree::Object(_)), Kind::Object(schema)) => {
                add_differing_fields(&one, &other, schema, &path, found);
            }
            (Some(one), Some(other), kind) if values_equal(&one, &other, kind) => {}
            (None, None, _) => {}
            _ => found.push(path),
        }
    }
}

fn values_equal(one: &Tree, other: &Tree, kind: &'static Kind) -> bool {
    match (kind, one, other) {
        (Kind::Object(schema), Tree::Object(_), Tree::Object(_)) => {
            let mut found = Vec::new();
            add_differing_fields(one, other, schema, "", &mut found);
            found.is_empty()
        }
        (Kind::List(kind), Tree::List(one), Tree::List(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| values_equal(one, other, kind))
        }
        (Kind::Map(kind), Tree::Object(one), Tree::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, value)| {
                    other.iter().any(|(known, other)| known == name && values_equal(value, other, kind))
                })
        }
        (Kind::Duration | Kind::OptionalDuration | Kind::Quantity, one, other) => {
            match (parse_amount(one, kind), parse_amount(other, kind)) {
                (Some(one), Some(other)) => one == other,
                _ => one == other,
            }
        }
        // A text and a number of nanoseconds are written in their own forms.
        (Kind::LogDuration, Tree::Text(_), Tree::Text(_)) => {
            parse_amount(one, kind) == parse_amount(other, kind)
        }
        (Kind::Number, Tree::Number(one), Tree::Number(other)) => as_float(*one) == as_float(*other),
        (Kind::Any, one, other) => any_equal(one, other),
        (_, one, other) => one == other,
    }
}

/// The order of fields does not count.
fn any_equal(one: &Tree, other: &Tree) -> bool {
    match (one, other) {
        (Tree::Object(one), Tree::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, value)| {
                    other.iter().any(|(known, other)| known == name && any_equal(value, other))
                })
        }
        (Tree::List(one), Tree::List(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| any_equal(one, other))
        }
        (Tree::Number(one), Tree::Number(other)) => one.to_string() == other.to_string(),
        (one, other) => one == other,
    }
}

/// Kubernetes' types have floats of 32 bits.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "the precision of Kubernetes' types"
)]
fn as_float(number: Number) -> f32 {
    match number {
        Number::Integer(value) => value as f32,
        Number::Large(value) => value as f32,
        Number::Float(value) => value as f32,
    }
}

/// A duration in nanoseconds, or a quantity in billionths; `None` for another value, or one that 128 bits cannot hold.
pub(super) fn parse_amount(value: &Tree, kind: &Kind) -> Option<i128> {
    match (kind, value) {
        (Kind::Quantity, Tree::Text(text)) => parse_quantity(text),
        (Kind::Quantity, Tree::Number(number)) => parse_quantity(&number.to_string()),
        (_, Tree::Text(text)) => {
            let (sign, text) = text.strip_prefix('-').map_or((1, text.as_str()), |text| (-1, text));
            let duration = madako_json::duration::parse(text).ok()?;
            i128::try_from(duration.as_nanos()).ok().map(|nanoseconds| sign * nanoseconds)
        }
        _ => None,
    }
}

fn parse_quantity(text: &str) -> Option<i128> {
    let text = text.trim();
    let (sign, text) =
        text.strip_prefix('-').map_or((1, text.strip_prefix('+').unwrap_or(text)), |text| (-1, text));
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let places = i32::try_from(fraction.len()).ok()?;
    let scaled = |factor: i128, tens: i32| {
        let digits = digits.checked_mul(factor)?;
        let power = 10_i128.checked_pow(tens.unsigned_abs())?;
        // Kubernetes rounds up below a billionth.
        if tens < 0 { Some((digits + power - 1) / power) } else { digits.checked_mul(power) }
    };
    let known = SUFFIXES.iter().find(|(known, ..)| *known == suffix);
    let amount = match known {
        Some((_, 1024, power)) => scaled(1024_i128.pow(*power), i32::try_from(DIGITS).ok()? - places)?,
        Some((_, _, tens)) => scaled(1, i32::try_from(*tens).ok()? - places)?,
        None => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            scaled(1, exponent.checked_add(i32::try_from(DIGITS).ok()?)?.checked_sub(places)?)?
        }
    };
    Some(sign * amount)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_of_one_amount_are_equal() {
        for (one, other) in [
            ("1Gi", "1024Mi"),
            ("1k", "1000"),
            ("0.5", "500m"),
            ("1e3", "1k"),
            ("-1", "-1000m"),
            ("1E", "1e18"),
            ("0", "0Ki"),
            ("1.5Gi", "1536Mi"),
            ("1n", "0.5n"),
        ] {
            assert_eq!(parse_quantity(one), parse_quantity(other), "{one} {other}");
            assert!(parse_quantity(one).is_some(), "{one}");
        }
        assert_ne!(parse_quantity("1G"), parse_quantity("1Gi"));
        assert_eq!(parse_quantity("1Gib"), None);
    }
}
