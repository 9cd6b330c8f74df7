//! A fault on one line, as `--fault` takes it: `kill rack=12 at 2h for 30m`.

use std::str::FromStr;

use madako_json::input::{InputError, Problems};
use madako_json::strict::{Path, shown_text};

use crate::fault::Fault;
use crate::words::{Words, fault};

/// Bytes of a line: the longest valid one has about 150.
const MAX_BYTES: usize = 500;

const FORM: &str = "DO TARGET at|every DURATION [for DURATION], or DO TARGET random mean DURATION [for DURATION], \
                    such as kill rack=12 at 2h for 30m";

impl Fault {
    /// Reads the form on one line, which printing gives.
    ///
    /// # Errors
    /// All that is wrong, and what was expected.
    pub fn parse(text: &str) -> Result<Self, InputError> {
        let subject = format!("fault {}", shown_text(text));
        let mut problems = Problems::default();
        let found = match words(text) {
            Some(words) => fault(&words, Path::Root, &mut problems),
            None => {
                problems.add("", "", FORM);
                None
            }
        };
        problems.finish(&subject)?;
        Ok(found.expect("what is no fault was noted as a problem"))
    }
}

impl FromStr for Fault {
    type Err = InputError;

    fn from_str(text: &str) -> Result<Self, InputError> {
        Self::parse(text)
    }
}

/// The words of a line in its order; `None` if it has another form.
fn words(text: &str) -> Option<Words<'_>> {
    if text.len() > MAX_BYTES {
        return None;
    }
    let parts: Vec<&str> = text.split_whitespace().collect();
    let (act, target, rest) = match parts.as_slice() {
        [act, target, rest @ ..] => (act, target, rest),
        _ => return None,
    };
    let words = Words { act: Some(*act), target: Some(*target), ..Words::default() };
    let (words, rest) = match rest {
        ["at", span, rest @ ..] => (Words { at: Some(*span), ..words }, rest),
        ["every", span, rest @ ..] => (Words { every: Some(*span), ..words }, rest),
        ["random", "mean", span, rest @ ..] => (Words { random: Some(Some(*span)), ..words }, rest),
        _ => return None,
    };
    match rest {
        [] => Some(words),
        ["for", span] => Some(Words { lasts: Some(*span), ..words }),
        _ => None,
    }
}
