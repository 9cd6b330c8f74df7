//! Errors and warnings about input: for every wrong field its path, its value and the expected value.

use std::fmt;

use serde::Serialize;

use crate::limits::MAX_PROBLEMS_SHOWN;

/// A field with a wrong value, or a missing field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// Path of the field, such as `nodes[1].labels`; empty for the input as a whole.
    pub field: String,
    /// The value, shortened; empty when the field is missing.
    pub got: String,
    /// The expected value in words.
    pub expected: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        if !self.got.is_empty() {
            write!(f, "got {}, ", self.got)?;
        }
        write!(f, "expected {}", self.expected)
    }
}

/// Every problem of one input. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct InputError {
    /// The kind of input, such as `template`.
    pub subject: String,
    /// The wrong fields: those with a wrong shape first, then those that break a rule, each group in order.
    pub problems: Vec<Problem>,
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not valid", self.subject)?;
        for problem in self.problems.iter().take(MAX_PROBLEMS_SHOWN) {
            write!(f, "; {problem}")?;
        }
        match self.problems.len().saturating_sub(MAX_PROBLEMS_SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// A valid setting that is probably a mistake.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Warning {
    /// Path of the field; empty for the input as a whole.
    pub field: String,
    /// The consequence of the setting.
    pub message: String,
}

impl Warning {
    /// A warning about `field`; an empty path means the whole input.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Collects problems while an input is checked.
#[derive(Debug, Default)]
pub struct Problems(pub(crate) Vec<Problem>);

impl Problems {
    /// Adds a problem.
    pub fn add(&mut self, field: impl Into<String>, got: impl Into<String>, expected: impl Into<String>) {
        self.0.push(Problem { field: field.into(), got: got.into(), expected: expected.into() });
    }

    /// True if no problem was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if a problem's path satisfies the predicate.
    pub fn has_problem(&self, field: impl Fn(&str) -> bool) -> bool {
        self.0.iter().any(|problem| field(&problem.field))
    }

    /// The number of problems.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds all problems of `others`.
    pub fn append(&mut self, others: Problems) {
        self.0.extend(others.0);
    }

    /// Adds the problems of `others` whose fields are unrelated to the fields of this collection: a field with a
    /// wrong shape also breaks rules, and reporting those would repeat the first problem.
    pub fn add_unrelated(&mut self, others: Problems) {
        let own = self.0.len();
        for problem in others.0 {
            if !self.0[..own].iter().any(|known| are_related_paths(&known.field, &problem.field)) {
                self.0.push(problem);
            }
        }
    }

    /// `Ok` without problems.
    ///
    /// # Errors
    /// All problems as one [`InputError`].
    pub fn finish(self, subject: &str) -> Result<(), InputError> {
        if self.0.is_empty() { Ok(()) } else { Err(self.into_error(subject)) }
    }

    /// All problems as one error. Debug builds assert that at least one problem is there.
    pub fn into_error(self, subject: &str) -> InputError {
        debug_assert!(!self.0.is_empty(), "an input error names a problem");
        InputError { subject: subject.to_owned(), problems: self.0 }
    }
}

/// True if the two paths are equal or one lies below the other. The empty path contains every path.
pub fn are_related_paths(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
    short.is_empty()
        || long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
