//! The languages for conditions on a placement: on labels, on metrics and on custom resources (Krake's "Scheduling",
//! "Constraints"; Krake's `krake/data/constraints.py`).
//!
//! For: parsing constraints, comparing them, and evaluating them with the reason for a mismatch as data.
//!
//! Guarantees: a constraint is written back in its original text. Reading a stored one never fails; a constraint that
//! cannot be parsed matches nothing and [says why](Constraint::rule). Its [canonical](Constraint::canonical_text) form
//! parses as an equal constraint, in later versions too. If the label or the metric is missing, nothing matches,
//! negations included. Parsing takes linear time in the text, whose length is bounded.
//!
//! Assumes: nothing about the text. Labels and values are compared unchanged.
//!
//! Does not: look up metrics, weight them, or know the purpose of a constraint.
//!
//! # The languages
//! A label's key or a metric's name, an operator, a value. Blanks (space, tab) may stand around each and are
//! needed only where two words meet; case counts. Operators and their canonical form:
//!
//! | on | written | canonical |
//! |---|---|---|
//! | both | `is`, `=`, `==` | `is` |
//! | both | `is not`, `!=` | `is not` |
//! | labels | `in (A, B)`; commas at the end are ignored | `in (A, B)`, values in order, each once |
//! | labels | `not in (A, B)` | `not in (A, B)`, likewise |
//! | metrics | `greater than`, `gt`, `>` | `greater than` |
//! | metrics | `greater than or equal`, `gte`, `>=`, `=>` | `greater than or equal` |
//! | metrics | `lesser than`, `less than`, `lt`, `<` | `lesser than` |
//! | metrics | `lesser than or equal`, `less than or equal`, `lte`, `<=`, `=<` | `lesser than or equal` |
//!
//! # Where it differs from Krake 1.0
//! Every constraint that Krake reads and can evaluate is read alike, odd notations included: a list may end with
//! several commas, and `isDE`, `isnot DE`, `notin (DE)`, `gt5`, `greaterthan 5` need no blank. Otherwise:
//!
//! - `less than` is `lesser than`, as in Krake's documentation; Krake's code refuses it.
//! - `load>5`, `load<=5`: a name ends before `<` and `>`. Krake does not end it there and refuses these constraints.
//! - `load =>5`, `load =<5` are `=>` and `=<`. Krake reads `=` with the value `>5` and refuses that.
//! - Tabs are blanks everywhere. In Krake a name or value may contain them at some places, by chance.
//! - A metric is compared with a number. A sign (`-5`, `1e+5`) and a point at an end (`.5`, `5.`) are accepted; Krake
//!   refuses them. Texts other than finite decimal numbers (`abc`, `nan`, `1_000`) are refused. Krake accepts them,
//!   and then its scheduler fails at the comparison (or, for `nan`, `inf` and `1_000`, compares with Python's value).
//! - `gte5`, `lte5` and `is not5` are `gte 5`, `lte 5` and `is not 5`. Krake reads the numbers `e5` and `not5`, with
//!   which its scheduler fails.
//! - Every valid name of a metric is allowed, with `:` and up to 255 characters. Krake allows constraints only on
//!   metrics whose names are valid label keys.
//! - An infinite value or NaN meets no constraint. In Krake it meets `is not`.
//! - Values in a list are a set: order and repetitions do not count.

mod cursor;
mod custom_resource;
mod label;
mod metric;
pub mod names;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use self::cursor::Cursor;
pub use self::custom_resource::has_custom_resource;
pub use self::label::{LabelConstraint, LabelRule, LabelTest, LabelVerdict};
pub use self::metric::{Comparison, MetricConstraint, MetricRule, MetricVerdict};
use madako_json::krake::schema::Shape;

pub use crate::limits::MAX_CONSTRAINT;

/// A syntax error in a constraint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("the constraint is not valid at column {column}: got {got}, expected {expected}")]
pub struct ConstraintError {
    /// The position in characters; the first is column 1.
    pub column: usize,
    /// The text at the position, shortened; `the end` behind the last character.
    pub got: String,
    /// The tokens that the position allows.
    pub expected: &'static str,
}

/// A constraint in its original text, with its parsed content.
///
/// Two parsed constraints are equal when their contents are equal; two that cannot be parsed are equal when their
/// texts are. To detect a change of the text, compare [`written`](Self::written).
#[derive(Debug, Clone)]
pub struct Constraint<R> {
    written: String,
    /// The canonical form, if it differs from the original text. Computed once, because every reconcile pass compares
    /// it.
    canonical: Option<Box<str>>,
    rule: Result<R, ConstraintError>,
}

/// The content of a constraint: [`LabelRule`] or [`MetricRule`]. Its `Display` is canonical.
pub trait Language: fmt::Display + Eq + sealed::Read {}

impl<R: fmt::Display + Eq + sealed::Read> Language for R {}

mod sealed {
    use super::{ConstraintError, Cursor, Shape};

    /// Private to this module, so that no other crate can add a language.
    pub trait Read: Sized {
        /// The shape of a constraint in a schema.
        const SHAPE: Shape;

        /// Parses up to the end of the text.
        fn read(cursor: &mut Cursor<'_>) -> Result<Self, ConstraintError>;
    }
}

impl<R: Language> Constraint<R> {
    /// Parses a constraint of a request.
    ///
    /// # Errors
    /// The text is not a constraint; the error has the position and the allowed tokens.
    pub fn parse(written: &str) -> Result<Self, ConstraintError> {
        Ok(Self::new(written.to_owned(), Ok(parse_constraint(written)?)))
    }

    /// Takes a stored text, whether it can be parsed or not. Deserialization does the same.
    #[must_use]
    pub fn from_stored(written: String) -> Self {
        let rule = parse_constraint(&written);
        Self::new(written, rule)
    }

    fn new(written: String, rule: Result<R, ConstraintError>) -> Self {
        let canonical = rule.as_ref().ok().map(R::to_string).filter(|canonical| *canonical != written);
        Self { canonical: canonical.map(String::into_boxed_str), written, rule }
    }

    /// The text as the user wrote it, for storage and answers.
    #[must_use]
    pub fn written(&self) -> &str {
        &self.written
    }

    /// The parsed content.
    ///
    /// # Errors
    /// The stored text cannot be parsed; the error has the position and the allowed tokens.
    pub fn rule(&self) -> Result<&R, &ConstraintError> {
        self.rule.as_ref()
    }

    /// The canonical text, which parses to an equal constraint; the original text if it cannot be parsed. `Display`
    /// shows the same.
    #[must_use]
    pub fn canonical_text(&self) -> &str {
        self.canonical.as_deref().unwrap_or(&self.written)
    }
}

fn parse_constraint<R: Language>(written: &str) -> Result<R, ConstraintError> {
    if written.len() > MAX_CONSTRAINT {
        let got = format!("{} bytes", written.len());
        return Err(ConstraintError { column: 1, got, expected: "at most 65536 bytes" });
    }
    let mut cursor = Cursor::new(written);
    let rule = R::read(&mut cursor)?;
    cursor.expect_end()?;
    Ok(rule)
}

impl<R: Language> FromStr for Constraint<R> {
    type Err = ConstraintError;

    fn from_str(written: &str) -> Result<Self, ConstraintError> {
        Self::parse(written)
    }
}

impl<R: Language> PartialEq for Constraint<R> {
    fn eq(&self, other: &Self) -> bool {
        match (&self.rule, &other.rule) {
            (Ok(one), Ok(other)) => one == other,
            (Err(_), Err(_)) => self.written == other.written,
            _ => false,
        }
    }
}

impl<R: Language> Eq for Constraint<R> {}

impl<R: Language> fmt::Display for Constraint<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.canonical_text())
    }
}

impl<R: Language> Serialize for Constraint<R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.written)
    }
}

impl<'de, R: Language> Deserialize<'de> for Constraint<R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from_stored)
    }
}

#[cfg(test)]
mod tests;
