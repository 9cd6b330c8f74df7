//! Converts YAML and JSON text to an untyped value, within limits.

use serde::de::DeserializeOwned;
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Error, Location};

use crate::input::{InputError, Problems};
use crate::limits::{MAX_ANCHORS, MAX_MERGE_KEYS, MAX_REASON, MAX_REPLAYED_EVENTS, MAX_YAML_DEPTH};
pub use crate::limits::{MAX_EVENTS, MAX_TEXT_BYTES};
use crate::strict::tree::{Tree, shown_text};

/// Reads one document. Scalars have their types of YAML 1.1, as in CKE's reader: `yes` and `on` are booleans, `0644`
/// is octal.
pub fn read_yaml(subject: &str, text: &str) -> Result<Tree, InputError> {
    if text.len() > MAX_TEXT_BYTES {
        let got = format!("{} bytes", text.len());
        return Err(error_of_text(subject, got, &format!("at most {MAX_TEXT_BYTES} bytes")));
    }
    // JSON is YAML as well, but its own reader is many times faster. The YAML reader explains errors.
    if text.trim_start().starts_with('{')
        && let Ok(tree) = Tree::from_json(text)
    {
        return Ok(tree);
    }
    match parse(text) {
        Ok(Tree::Null) => {
            Err(error_of_text(subject, String::new(), "a YAML or JSON object, not an empty text"))
        }
        Ok(tree) => Ok(tree),
        Err(why) => Err(error_of_text(subject, why, "one YAML or JSON document")),
    }
}

/// Parses one document.
///
/// # Errors
/// Place and reason. Only names of fields are quoted, not values.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    parse_within(MAX_EVENTS, text, DuplicateKeyPolicy::Error)
}

/// True if a text is one YAML object or empty. Of two fields with the same name the last one counts, as in
/// Kubernetes' reader. The error names place and reason.
pub fn is_lenient_object(text: &str) -> Result<bool, String> {
    let value: serde_json::Value = parse_within(MAX_EVENTS, text, DuplicateKeyPolicy::LastWins)?;
    Ok(value.is_object() || value.is_null())
}

/// Parses one YAML document of at most `max_events` events.
///
/// # Errors
/// The text is not YAML, exceeds the limit, or has another shape. The message names the line.
pub fn parse_within<T: DeserializeOwned>(
    max_events: usize,
    text: &str,
    duplicate_keys: DuplicateKeyPolicy,
) -> Result<T, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_YAML_DEPTH,
            max_events: max_events,
            max_nodes: max_events,
            max_anchors: MAX_ANCHORS,
            max_merge_keys: MAX_MERGE_KEYS,
            max_documents: 1,
            max_total_scalar_bytes: MAX_TEXT_BYTES,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPLAYED_EVENTS },
        duplicate_keys: duplicate_keys,
        legacy_octal_numbers: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| explain_error(error.without_snippet()))
}

/// The error in words for the author of the text. The parser's own message is used unless it is about the parser's
/// settings.
fn explain_error(error: &Error) -> String {
    let place = |location: &Location| format!("line {}, column {}", location.line(), location.column());
    match error {
        Error::DuplicateMappingKey { key, location } => {
            let key = key.as_deref().map_or_else(|| "a key".to_owned(), shown_text);
            format!("{key} for the second time at {}", place(location))
        }
        Error::Budget { breach: BudgetBreach::Documents { .. }, location }
        | Error::MultipleDocuments { location, .. } => format!("a second document at {}", place(location)),
        Error::Budget { breach: BudgetBreach::Depth { .. }, location } => {
            format!("more than {MAX_YAML_DEPTH} levels of nesting at {}", place(location))
        }
        Error::Budget { location, .. }
        | Error::AliasReplayLimitExceeded { location, .. }
        | Error::AliasReplayStackDepthExceeded { location, .. }
        | Error::AliasExpansionLimitExceeded { location, .. } => {
            format!("more content, aliases included, than the limit ({})", place(location))
        }
        Error::RecursiveReferencesRequireWeakTypes { location } => {
            format!("an alias inside its own anchor at {}", place(location))
        }
        Error::NonFiniteFloat { value, location } => {
            format!("{value}, which JSON cannot hold, at {}", place(location))
        }
        Error::AliasError { error, .. } => explain_error(error),
        other => {
            let reason = other.to_string();
            match reason.char_indices().nth(MAX_REASON) {
                None => reason,
                Some((end, _)) => format!("{}...", &reason[..end]),
            }
        }
    }
}

/// An error about the text as a whole.
pub fn error_of_text(subject: &str, got: String, expected: &str) -> InputError {
    let mut problems = Problems::default();
    problems.add("", got, expected);
    problems.into_error(subject)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_of_a_document_is_bounded() {
        // Ten strings, with the list, the object and the document around them.
        let text = format!("a: [{}]", "b,".repeat(10));
        assert!(parse_within::<Tree>(20, &text, DuplicateKeyPolicy::Error).is_ok());
        let error = parse_within::<Tree>(12, &text, DuplicateKeyPolicy::Error).unwrap_err();
        assert!(error.starts_with("more content"), "{error}");
    }

    #[test]
    fn a_duplicate_key_is_refused_unless_the_last_one_may_win() {
        assert_eq!(parse::<Tree>("a: 1\na: 2").unwrap_err(), "\"a\" for the second time at line 2, column 1");
        assert_eq!(is_lenient_object("a: 1\na: {b: 1, b: 2}"), Ok(true));
        assert_eq!(is_lenient_object(""), Ok(true));
        assert_eq!(is_lenient_object("[]"), Ok(false));
    }
}
