//! Constraints on metrics: `load greater than 0.5`, `load lte 3`.

use std::fmt;

use serde::Serialize;

use super::cursor::Cursor;
use super::names::{is_label_key, is_resource_name};
use super::{Constraint, ConstraintError, sealed};
use crate::limits::MAX_NUMBER;
use madako_json::krake::schema::Shape;

/// A constraint on the value of one metric of a cluster or a cloud.
pub type MetricConstraint = Constraint<MetricRule>;

const NAME: &str = "a metric's name: at most 255 letters, digits, '_', '-', '.' or ':', with a letter, digit or \
    '_' at both ends (or a label's key with a prefix and '/')";
const OPERATOR: &str = "is, =, ==, is not, !=, greater than, gt, >, greater than or equal, gte, >=, =>, \
    lesser than, less than, lt, <, lesser than or equal, less than or equal, lte, <= or =<";
macro_rules! number {
    () => {
        "a finite decimal number of at most 63 characters, such as 5, -0.5 or 1e3"
    };
}
const NUMBER: &str = number!();
const NUMBER_OR_NOT: &str = concat!("'not', or ", number!());
const NUMBER_OR_EQUAL: &str = concat!("'or equal', or ", number!());

/// The parsed content of a metric constraint.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricRule {
    /// The name of the metric.
    pub metric: String,
    /// Comparison of the metric's value with the constraint's number.
    pub comparison: Comparison,
    /// The number on the right. Finite, and never a negative zero.
    pub number: f64,
}

// `f64` lacks `Eq` because of NaN; this number is finite.
impl Eq for MetricRule {}

/// The operator between a metric's value and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `is`, `=` or `==`: the value is exactly the number.
    Is,
    /// `is not` or `!=`: the value is any other number.
    IsNot,
    /// `greater than` or `>`.
    GreaterThan,
    /// `greater than or equal` or `>=`.
    GreaterThanOrEqual,
    /// `lesser than` or `<`.
    LesserThan,
    /// `lesser than or equal` or `<=`.
    LesserThanOrEqual,
}

impl Comparison {
    /// True if the comparison holds. Floats are compared exactly, without a tolerance.
    #[expect(clippy::float_cmp, reason = "a metric that counts has whole values, and people ask for one")]
    #[must_use]
    pub fn holds(self, value: f64, number: f64) -> bool {
        match self {
            Self::Is => value == number,
            Self::IsNot => value != number,
            Self::GreaterThan => value > number,
            Self::GreaterThanOrEqual => value >= number,
            Self::LesserThan => value < number,
            Self::LesserThanOrEqual => value <= number,
        }
    }
}

/// The result of evaluating a metric constraint.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum MetricVerdict<'a> {
    /// The comparison holds.
    Matched {
        /// The value that was compared with the number.
        value: f64,
    },
    /// The metric is absent or has no value; then nothing matches, negations included.
    Missing,
    /// The value is infinite or NaN; then nothing matches, negations included.
    NotFinite,
    /// The comparison does not hold.
    Differs {
        /// The value that was compared with the number.
        value: f64,
    },
    /// The constraint cannot be parsed; then nothing matches.
    Unreadable {
        /// The syntax error in the constraint.
        error: &'a ConstraintError,
    },
}

impl MetricVerdict<'_> {
    /// True if the constraint is met.
    #[must_use]
    pub fn is_match(self) -> bool {
        matches!(self, Self::Matched { .. })
    }
}

impl MetricConstraint {
    /// The name of the metric; `None` if the constraint cannot be parsed.
    #[must_use]
    pub fn metric(&self) -> Option<&str> {
        self.rule().ok().map(|rule| rule.metric.as_str())
    }

    /// Evaluates the constraint on the value of [its metric](Self::metric); `None` means that the metric is absent or
    /// has no value. The caller chooses between the metric's own and its weighted value.
    #[must_use]
    pub fn evaluate(&self, value: Option<f64>) -> MetricVerdict<'_> {
        match (self.rule(), value) {
            (Err(error), _) => MetricVerdict::Unreadable { error },
            (Ok(_), None) => MetricVerdict::Missing,
            (Ok(_), Some(value)) if !value.is_finite() => MetricVerdict::NotFinite,
            (Ok(rule), Some(value)) if rule.comparison.holds(value, rule.number) => {
                MetricVerdict::Matched { value }
            }
            (Ok(_), Some(value)) => MetricVerdict::Differs { value },
        }
    }
}

impl sealed::Read for MetricRule {
    const SHAPE: Shape = Shape::MetricConstraint;

    fn read(cursor: &mut Cursor<'_>) -> Result<Self, ConstraintError> {
        let name = cursor.read_word(|word| is_resource_name(word) || is_label_key(word), NAME)?;
        let (comparison, expected) = parse_comparison(cursor)?;
        let word = cursor.peek_word();
        // Adding 0 turns a negative zero into zero: both are equal, but have different texts.
        let number = parse_number(word).ok_or_else(|| cursor.error_at_cursor(expected))? + 0.0;
        cursor.advance(word.len());
        Ok(Self { metric: name.to_owned(), comparison, number })
    }
}

/// The operators that are signs. A sign comes before its own prefixes.
const SIGNS: [(&str, Comparison); 9] = [
    ("!=", Comparison::IsNot),
    ("==", Comparison::Is),
    ("=>", Comparison::GreaterThanOrEqual),
    (">=", Comparison::GreaterThanOrEqual),
    ("=<", Comparison::LesserThanOrEqual),
    ("<=", Comparison::LesserThanOrEqual),
    ("=", Comparison::Is),
    (">", Comparison::GreaterThan),
    ("<", Comparison::LesserThan),
];

/// The operator, and the tokens that may follow. As in Krake, words need no blank between them nor before the number;
/// a number never begins with a letter.
fn parse_comparison(cursor: &mut Cursor<'_>) -> Result<(Comparison, &'static str), ConstraintError> {
    if let Some((_, comparison)) = SIGNS.into_iter().find(|(sign, _)| cursor.skip_literal(sign)) {
        return Ok((comparison, NUMBER));
    }
    let word = cursor.peek_word();
    let word = &word[..word.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(word.len())];
    let (comparison, or_equal) = match word {
        "is" => {
            cursor.advance(word.len());
            let negated = cursor.skip_literal("not");
            return Ok(if negated { (Comparison::IsNot, NUMBER) } else { (Comparison::Is, NUMBER_OR_NOT) });
        }
        "isnot" => (Comparison::IsNot, None),
        "gt" => (Comparison::GreaterThan, None),
        "gte" => (Comparison::GreaterThanOrEqual, None),
        "lt" => (Comparison::LesserThan, None),
        "lte" => (Comparison::LesserThanOrEqual, None),
        _ if cursor.skip_literal("greater") => {
            (Comparison::GreaterThan, Some(Comparison::GreaterThanOrEqual))
        }
        _ if cursor.skip_literal("lesser") || cursor.skip_literal("less") => {
            (Comparison::LesserThan, Some(Comparison::LesserThanOrEqual))
        }
        _ => return Err(cursor.error_at_cursor(OPERATOR)),
    };
    let Some(or_equal) = or_equal else {
        cursor.advance(word.len());
        return Ok((comparison, NUMBER));
    };
    expect_keyword(cursor, "than", "'than'")?;
    if !cursor.skip_literal("or") {
        return Ok((comparison, NUMBER_OR_EQUAL));
    }
    expect_keyword(cursor, "equal", "'equal'")?;
    Ok((or_equal, NUMBER))
}

fn expect_keyword(
    cursor: &mut Cursor<'_>,
    word: &str,
    expected: &'static str,
) -> Result<(), ConstraintError> {
    if cursor.skip_literal(word) { Ok(()) } else { Err(cursor.error_at_cursor(expected)) }
}

/// A finite decimal number with optional sign, fraction and exponent. Rust's further notations of floats are
/// excluded: names (`inf`, `nan`), `_` between digits, other bases.
fn parse_number(word: &str) -> Option<f64> {
    let decimal = |c: u8| c.is_ascii_digit() || matches!(c, b'+' | b'-' | b'.' | b'e' | b'E');
    if word.len() > MAX_NUMBER || !word.bytes().all(decimal) {
        return None;
    }
    word.parse().ok().filter(|number: &f64| number.is_finite())
}

impl fmt::Display for MetricRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comparison = match self.comparison {
            Comparison::Is => "is",
            Comparison::IsNot => "is not",
            Comparison::GreaterThan => "greater than",
            Comparison::GreaterThanOrEqual => "greater than or equal",
            Comparison::LesserThan => "lesser than",
            Comparison::LesserThanOrEqual => "lesser than or equal",
        };
        write!(f, "{} {comparison} {}", self.metric, Number(self.number))
    }
}

/// The shortest text that parses as the same float. It uses an exponent only in place of many zeros, and so stays
/// within [`MAX_NUMBER`] characters.
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.0.abs();
        if size == 0.0 || (1e-6..1e21).contains(&size) {
            write!(f, "{}", self.0)
        } else {
            write!(f, "{:e}", self.0)
        }
    }
}
