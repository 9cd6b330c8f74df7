//! The languages in which people say where something may be placed: on labels, on metrics and on custom
//! resources (seed 004, "Constraints"; Krake's `krake/data/constraints.py`).
//!
//! For: reading constraints, comparing them, and saying whether one is met and why not, as data.
//!
//! Guarantees: a constraint is written again as it was written. Reading a stored one never fails; one that
//! cannot be read matches nothing and [says why](Constraint::rule). Its [canonical](Constraint::canonical)
//! form reads as an equal constraint, in any later version, too. Where the label or the metric is missing
//! nothing matches, negations included. Reading takes time linear in the text, which is bounded.
//!
//! Assumes: nothing about the text. Labels and values are compared as they are given.
//!
//! Does not: look up metrics, weight them, or know what a constraint is good for.
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
//! What Krake reads and can evaluate is read alike, also where it is odd: commas at the end of a list may be
//! many, and `isDE`, `isnot DE`, `notin (DE)`, `gt5`, `greaterthan 5` need no blank. Otherwise:
//!
//! - `less than` is `lesser than`, as in the seed; Krake refuses it.
//! - `load>5`, `load<=5`: a name ends before `<` and `>`. In Krake it does not, so that it refuses these.
//! - `load =>5`, `load =<5` are `=>` and `=<`. Krake takes them for `=` with the value `>5` and refuses that.
//! - Tabs are blanks everywhere. In Krake a name or value may swallow them, by chance in some places.
//! - A metric is compared with a number: a sign (`-5`, `1e+5`) and a point at an end (`.5`, `5.`) are
//!   accepted, which Krake refuses; anything that is no finite decimal number (`abc`, `nan`, `1_000`) is
//!   refused, which Krake accepts, and then its scheduler fails when it compares (or, with `nan`, `inf` and
//!   `1_000`, compares with what Python makes of it).
//! - `gte5`, `lte5` and `is not5` are `gte 5`, `lte 5` and `is not 5`. Krake reads the numbers `e5` and
//!   `not5`, with which its scheduler fails.
//! - A metric's name may be whatever a metric can be called, `:` and 255 characters included. In Krake only
//!   metrics that are named like a label's key can have constraints.
//! - A value that is infinite or no number meets no constraint. In Krake it meets `is not`.
//! - Values in a list are a set: their order does not count, nor do repetitions.

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

/// Why a text is no constraint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("the constraint is not valid at column {column}: got {got}, expected {expected}")]
pub struct ConstraintError {
    /// Where, in characters, the first of which is column 1.
    pub column: usize,
    /// What stands there, shortened; `the end` behind the last character.
    pub got: String,
    /// What could stand there.
    pub expected: &'static str,
}

/// A constraint as it was written, and what it says.
///
/// Two constraints are equal when they say the same, however they are written; two that cannot be read, when
/// they are written alike. Who must know whether the text changed compares [`written`](Self::written).
#[derive(Debug, Clone)]
pub struct Constraint<R> {
    written: String,
    /// The canonical form, where it is not what was written. Made once: every pass compares by it.
    canonical: Option<Box<str>>,
    rule: Result<R, ConstraintError>,
}

/// What a constraint can say; [`LabelRule`] and [`MetricRule`] are all there are. Its Display is canonical.
pub trait Language: fmt::Display + Eq + sealed::Read {}

impl<R: fmt::Display + Eq + sealed::Read> Language for R {}

mod sealed {
    use super::{ConstraintError, Cursor, Shape};

    /// Nobody outside can name it, which keeps the languages to those of this module.
    pub trait Read: Sized {
        /// What a constraint is in a schema.
        const SHAPE: Shape;

        /// Reads what is said up to the end of it.
        fn read(cursor: &mut Cursor<'_>) -> Result<Self, ConstraintError>;
    }
}

impl<R: Language> Constraint<R> {
    /// Reads what somebody asks for.
    ///
    /// # Errors
    /// The text is no constraint: where, and what could stand there.
    pub fn parse(written: &str) -> Result<Self, ConstraintError> {
        Ok(Self::new(written.to_owned(), Ok(read(written)?)))
    }

    /// Takes what is stored, whether it can be read or not. Deserialization does the same.
    #[must_use]
    pub fn stored(written: String) -> Self {
        let rule = read(&written);
        Self::new(written, rule)
    }

    fn new(written: String, rule: Result<R, ConstraintError>) -> Self {
        let canonical = rule.as_ref().ok().map(R::to_string).filter(|canonical| *canonical != written);
        Self { canonical: canonical.map(String::into_boxed_str), written, rule }
    }

    /// The text as it was written.
    #[must_use]
    pub fn written(&self) -> &str {
        &self.written
    }

    /// What it says.
    ///
    /// # Errors
    /// It was stored and cannot be read: where, and what could stand there.
    pub fn rule(&self) -> Result<&R, &ConstraintError> {
        self.rule.as_ref()
    }

    /// The one way to write what it says, which parses to an equal constraint; as it was written if it cannot
    /// be read. Display shows the same.
    #[must_use]
    pub fn canonical(&self) -> &str {
        self.canonical.as_deref().unwrap_or(&self.written)
    }
}

fn read<R: Language>(written: &str) -> Result<R, ConstraintError> {
    if written.len() > MAX_CONSTRAINT {
        let got = format!("{} bytes", written.len());
        return Err(ConstraintError { column: 1, got, expected: "at most 65536 bytes" });
    }
    let mut cursor = Cursor::new(written);
    let rule = R::read(&mut cursor)?;
    cursor.end()?;
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
        f.write_str(self.canonical())
    }
}

impl<R: Language> Serialize for Constraint<R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.written)
    }
}

impl<'de, R: Language> Deserialize<'de> for Constraint<R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::stored)
    }
}

#[cfg(test)]
mod tests;
