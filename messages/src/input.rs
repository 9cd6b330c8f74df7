//! What is wrong with something that came from outside: every field, what it held, what was expected.

use std::fmt;

use serde::Serialize;

/// One field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// Path of the field, such as `nodes[1].labels`.
    pub field: String,
    /// What it held, shortened; empty when the field is missing.
    pub got: String,
    /// What was expected.
    pub expected: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.got.is_empty() {
            write!(f, "{}: expected {}", self.field, self.expected)
        } else {
            write!(f, "{}: got {}, expected {}", self.field, self.got, self.expected)
        }
    }
}

/// Everything that is wrong with one input. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct InputError {
    /// What the input is, such as `template`.
    pub subject: String,
    /// Each wrong field, in the order of the input.
    pub problems: Vec<Problem>,
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not valid", self.subject)?;
        for problem in &self.problems {
            write!(f, "; {problem}")?;
        }
        Ok(())
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

    /// `Ok` when nothing was noted.
    ///
    /// # Errors
    /// All that was noted, as one [`InputError`].
    pub fn finish(self, subject: &str) -> Result<(), InputError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(InputError { subject: subject.to_owned(), problems: self.0 })
        }
    }
}
