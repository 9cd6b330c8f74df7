//! The one-line form of a fault, as `--fault` takes it: `kill rack=12 at 2h for 30m`.

use std::str::FromStr;

use madako_json::input::{InputError, Problems};
use madako_json::strict::{Path, shown_text};

use crate::fault::Fault;
use crate::words::{FaultWords, build_fault};

/// The longest valid line has about 150 bytes.
const MAX_BYTES: usize = 500;

const FORM: &str = "DO TARGET at|every DURATION [for DURATION], or DO TARGET random mean DURATION [for DURATION], \
                    such as kill rack=12 at 2h for 30m";

impl Fault {
    /// Reads the one-line form, the inverse of printing.
    ///
    /// # Errors
    /// All problems, each with the expected form.
    pub fn parse(text: &str) -> Result<Self, InputError> {
        let subject = format!("fault {}", shown_text(text));
        let mut problems = Problems::default();
        let found = match split_words(text) {
            Some(words) => build_fault(&words, Path::Root, &mut problems),
            None => {
                problems.add("", "", FORM);
                None
            }
        };
        problems.finish(&subject)?;
        Ok(found.expect("what is not a fault was noted as a problem"))
    }
}

impl FromStr for Fault {
    type Err = InputError;

    fn from_str(text: &str) -> Result<Self, InputError> {
        Self::parse(text)
    }
}

/// Splits a line into the words of a fault; `None` if it has another form.
fn split_words(text: &str) -> Option<FaultWords<'_>> {
    if text.len() > MAX_BYTES {
        return None;
    }
    let parts: Vec<&str> = text.split_whitespace().collect();
    let (act, target, rest) = match parts.as_slice() {
        [act, target, rest @ ..] => (act, target, rest),
        _ => return None,
    };
    let words = FaultWords { act: Some(*act), target: Some(*target), ..FaultWords::default() };
    let (words, rest) = match rest {
        ["at", span, rest @ ..] => (FaultWords { at: Some(*span), ..words }, rest),
        ["every", span, rest @ ..] => (FaultWords { every: Some(*span), ..words }, rest),
        ["random", "mean", span, rest @ ..] => (FaultWords { random: Some(Some(*span)), ..words }, rest),
        _ => return None,
    };
    match rest {
        [] => Some(words),
        ["for", span] => Some(FaultWords { lasts: Some(*span), ..words }),
        _ => None,
    }
}
