//! Constraints on labels: `location is DE`, `location not in (DE, SK)`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::cursor::Cursor;
use super::names::{is_label_key, is_label_value};
use super::{Constraint, ConstraintError, sealed};
use madako_json::krake::schema::Shape;

/// A constraint on one label of a cluster, a cloud or a project.
pub type LabelConstraint = Constraint<LabelRule>;

const KEY: &str = "a label's key: at most 63 letters, digits, '_', '-' or '.', with a letter, digit or '_' at \
    both ends, optionally after a prefix of at most 253 and '/'";
macro_rules! label_value {
    () => {
        "a label's value: at most 63 letters, digits, '_', '-' or '.', with a letter, digit or '_' at both ends"
    };
}
const VALUE: &str = label_value!();
const VALUE_OR_NOT: &str = concat!("'not', or ", label_value!());
const VALUE_OR_CLOSE: &str = concat!("')', or ", label_value!());
const OPERATOR: &str = "is, =, ==, is not, !=, in (...) or not in (...)";

/// The parsed content of a label constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelRule {
    /// Key of the label that the resource must have.
    pub key: String,
    /// The condition on its value.
    pub test: LabelTest,
}

/// The condition on a label's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelTest {
    /// Equal to this value.
    Is(String),
    /// Different from this value.
    IsNot(String),
    /// Equal to one of these values. Never empty.
    In(BTreeSet<String>),
    /// Different from all these values. Never empty.
    NotIn(BTreeSet<String>),
}

impl LabelTest {
    /// True if the value satisfies the condition.
    #[must_use]
    pub fn accepts(&self, value: &str) -> bool {
        match self {
            Self::Is(wanted) => value == wanted,
            Self::IsNot(unwanted) => value != unwanted,
            Self::In(wanted) => wanted.contains(value),
            Self::NotIn(unwanted) => !unwanted.contains(value),
        }
    }
}

/// The result of evaluating a label constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum LabelVerdict<'a> {
    /// The constraint accepts the label's value.
    Matched {
        /// The value that the resource has for the label.
        value: &'a str,
    },
    /// The label is absent; then nothing matches, negations included.
    Missing,
    /// The constraint does not accept the label's value.
    Differs {
        /// The value that the resource has for the label.
        value: &'a str,
    },
    /// The constraint cannot be parsed; then nothing matches.
    Unreadable {
        /// The syntax error in the constraint.
        error: &'a ConstraintError,
    },
}

impl LabelVerdict<'_> {
    /// True if the constraint is met.
    #[must_use]
    pub fn is_match(self) -> bool {
        matches!(self, Self::Matched { .. })
    }
}

impl LabelConstraint {
    /// Evaluates the constraint on a set of labels.
    #[must_use]
    pub fn evaluate<'a>(&'a self, labels: &'a BTreeMap<String, String>) -> LabelVerdict<'a> {
        let key = self.rule().ok().map(|rule| &rule.key);
        self.evaluate_value(key.and_then(|key| labels.get(key)).map(String::as_str))
    }

    /// Evaluates the constraint on the value of its label; `None` means that the label is absent.
    #[must_use]
    pub fn evaluate_value<'a>(&'a self, value: Option<&'a str>) -> LabelVerdict<'a> {
        match (self.rule(), value) {
            (Err(error), _) => LabelVerdict::Unreadable { error },
            (Ok(_), None) => LabelVerdict::Missing,
            (Ok(rule), Some(value)) if rule.test.accepts(value) => LabelVerdict::Matched { value },
            (Ok(_), Some(value)) => LabelVerdict::Differs { value },
        }
    }
}

impl sealed::Read for LabelRule {
    const SHAPE: Shape = Shape::LabelConstraint;

    fn read(cursor: &mut Cursor<'_>) -> Result<Self, ConstraintError> {
        let key = cursor.read_word(is_label_key, KEY)?.to_owned();
        Ok(Self { key, test: parse_test(cursor)? })
    }
}

fn parse_test(cursor: &mut Cursor<'_>) -> Result<LabelTest, ConstraintError> {
    if cursor.skip_literal("!=") {
        return Ok(LabelTest::IsNot(parse_value(cursor, VALUE)?));
    }
    if cursor.skip_literal("==") || cursor.skip_literal("=") {
        return Ok(LabelTest::Is(parse_value(cursor, VALUE)?));
    }
    let operator = cursor.peek_word();
    let mut after = cursor.skip_bytes(operator.len());
    match operator {
        // A label may have the value `not`, so `is not` without a further value is complete.
        "is" if after.skip_word("not") && !after.peek_word().is_empty() => {
            *cursor = after;
            Ok(LabelTest::IsNot(parse_value(cursor, VALUE)?))
        }
        "is" => {
            cursor.advance(operator.len());
            Ok(LabelTest::Is(parse_value(cursor, VALUE_OR_NOT)?))
        }
        "isnot" if !after.peek_word().is_empty() => {
            *cursor = after;
            Ok(LabelTest::IsNot(parse_value(cursor, VALUE)?))
        }
        "in" => {
            cursor.advance(operator.len());
            Ok(LabelTest::In(parse_list(cursor)?))
        }
        "notin" => {
            cursor.advance(operator.len());
            Ok(LabelTest::NotIn(parse_list(cursor)?))
        }
        "not" => {
            *cursor = after;
            if !cursor.skip_word("in") {
                return Err(cursor.error_at_cursor("'in'"));
            }
            Ok(LabelTest::NotIn(parse_list(cursor)?))
        }
        // Krake reads `isDE` as `is DE`. Here the text must end behind it: `iss DE` is a typing error in the
        // operator.
        glued if glued.starts_with("is") && after.expect_end().is_ok() => {
            cursor.advance("is".len());
            Ok(LabelTest::Is(parse_value(cursor, VALUE)?))
        }
        _ => Err(cursor.error_at_cursor(OPERATOR)),
    }
}

fn parse_value(cursor: &mut Cursor<'_>, expected: &'static str) -> Result<String, ConstraintError> {
    cursor.read_word(is_label_value, expected).map(str::to_owned)
}

/// `(DE, SK)` with at least one value; commas at the end are ignored.
fn parse_list(cursor: &mut Cursor<'_>) -> Result<BTreeSet<String>, ConstraintError> {
    if !cursor.skip_literal("(") {
        return Err(cursor.error_at_cursor("'('"));
    }
    let mut values = BTreeSet::from([parse_value(cursor, VALUE)?]);
    loop {
        if cursor.skip_literal(")") {
            return Ok(values);
        }
        if !cursor.skip_literal(",") {
            return Err(cursor.error_at_cursor("',' or ')'"));
        }
        let mut commas = 1;
        while cursor.skip_literal(",") {
            commas += 1;
        }
        if cursor.skip_literal(")") {
            return Ok(values);
        }
        if commas > 1 {
            return Err(cursor.error_at_cursor("')', as values are separated by one comma"));
        }
        values.insert(parse_value(cursor, VALUE_OR_CLOSE)?);
    }
}

impl fmt::Display for LabelRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        match &self.test {
            LabelTest::Is(value) => write!(f, " is {value}"),
            LabelTest::IsNot(value) => write!(f, " is not {value}"),
            LabelTest::In(values) => write!(f, " in ({})", ListedValues(values)),
            LabelTest::NotIn(values) => write!(f, " not in ({})", ListedValues(values)),
        }
    }
}

struct ListedValues<'a>(&'a BTreeSet<String>);

impl fmt::Display for ListedValues<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, value) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{value}")?;
        }
        Ok(())
    }
}
