//! What is wrong with something that came from outside: every field, what it held, what was expected.

use std::fmt;

use serde::Serialize;

use crate::limits::MAX_PROBLEMS_SHOWN;

/// One field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// Path of the field, such as `nodes[1].labels`; empty for the input as a whole.
    pub field: String,
    /// What it held, shortened; empty when the field is missing.
    pub got: String,
    /// What was expected.
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

/// Everything that is wrong with one input. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct InputError {
    /// What the input is, such as `template`.
    pub subject: String,
    /// Each wrong field: first what has the wrong shape, then what breaks a rule, each in order.
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

/// Something that is allowed but hardly meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Warning {
    /// Path of the field; empty for the input as a whole.
    pub field: String,
    /// What follows from it.
    pub message: String,
}

impl Warning {
    /// A warning about a field.
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
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Notes a wrong field.
    pub fn add(&mut self, field: impl Into<String>, got: impl Into<String>, expected: impl Into<String>) {
        self.0.push(Problem { field: field.into(), got: got.into(), expected: expected.into() });
    }

    /// Whether nothing was noted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a problem with some field was noted.
    pub fn any(&self, field: impl Fn(&str) -> bool) -> bool {
        self.0.iter().any(|problem| field(&problem.field))
    }

    /// How many were noted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes over all that another collection noted.
    pub fn append(&mut self, others: Problems) {
        self.0.extend(others.0);
    }

    /// Takes over what another collection noted about fields that this one does not speak of: a field with
    /// the wrong shape breaks rules, too, and those would only repeat it.
    pub fn add_unrelated(&mut self, others: Problems) {
        let own = self.0.len();
        for problem in others.0 {
            if !self.0[..own].iter().any(|known| related(&known.field, &problem.field)) {
                self.0.push(problem);
            }
        }
    }

    /// `Ok` when nothing was noted.
    ///
    /// # Errors
    /// All that was noted, as one [`InputError`].
    pub fn finish(self, subject: &str) -> Result<(), InputError> {
        if self.0.is_empty() { Ok(()) } else { Err(self.into_error(subject)) }
    }

    /// All that was noted; something must have been.
    pub fn into_error(self, subject: &str) -> InputError {
        debug_assert!(!self.0.is_empty(), "an input error names a problem");
        InputError { subject: subject.to_owned(), problems: self.0 }
    }
}

/// Whether one path is the other or lies below it; everything lies below the whole.
pub fn related(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
    short.is_empty()
        || long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
