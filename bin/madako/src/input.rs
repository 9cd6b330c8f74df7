//! Reads input files of commands: whole, within a limit; `-` is standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub(crate) use madako_console::{STDIN, display_name};
use madako_json::input::InputError;
use madako_json::strict::MAX_TEXT_BYTES;
use serde_json::Value;

use crate::failure::Failure;
pub(crate) use crate::limits::MAX_SETTINGS_BYTES;
use crate::limits::{MAX_DEPTH, MAX_EVENTS, MAX_REPLAYED_EVENTS};

/// # Errors
/// The file cannot be read, or is longer than [`MAX_TEXT_BYTES`].
pub(crate) fn read_input(name: &str) -> Result<Vec<u8>, Failure> {
    madako_console::read_input(name, MAX_TEXT_BYTES).map_err(Failure::BadInput)
}

/// # Errors
/// The file cannot be read, is too long, or is not UTF-8.
pub(crate) fn read_text(name: &str) -> Result<String, Failure> {
    madako_console::read_text(name, MAX_TEXT_BYTES).map_err(Failure::BadInput)
}

/// The failure of a command whose input file is wrong.
pub(crate) fn input_file_failure(name: &str, error: InputError) -> Failure {
    Failure::BadInput(anyhow::Error::from(error).context(name.to_owned()))
}

/// The YAML (or JSON) documents of a file, without empty ones. Scalars are typed by YAML 1.1, as in Krake's programs,
/// except for `y` and `n`: those are booleans here.
///
/// # Errors
/// The file cannot be read, or is not YAML: the error has the position, and never the content.
pub(crate) fn read_documents(name: &str) -> Result<Vec<Value>, Failure> {
    parse_documents(&read_text(name)?)
        .map_err(|why| Failure::bad_input(format_args!("{} is not valid YAML: {why}", display_name(name))))
}

/// The text of a file of at most `most` bytes.
///
/// # Errors
/// The file cannot be read, is longer, or is not UTF-8.
pub(crate) fn read_bounded(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {most} bytes")));
    }
    Ok(text)
}

/// The documents of a text; the error has the position and the reason.
///
/// # Errors
/// The text is not YAML.
pub(crate) fn parse_documents(text: &str) -> Result<Vec<Value>, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH, max_events: MAX_EVENTS, max_nodes: MAX_EVENTS },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPLAYED_EVENTS },
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let reason = error.without_snippet().to_string();
        reason.lines().next().unwrap_or("not readable").to_owned()
    })?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn empty_documents_are_skipped() {
        let text = "# a comment\n---\na: 1\n---\n\n# nothing\n---\n- yes\n- 0644\n- '1'\n---\n";
        assert_eq!(parse_documents(text).unwrap(), [json!({"a": 1}), json!([true, 420, "1"])]);
        assert_eq!(parse_documents("").unwrap(), Vec::<Value>::new());
        assert_eq!(parse_documents(r#"{"a": {"b": null}}"#).unwrap(), [json!({"a": {"b": null}})]);
    }

    #[test]
    fn malformed_yaml_is_reported_with_its_place_and_without_its_content() {
        for text in ["a: 'hunter2", "a: hunter2: b", "a: 1\na: 2", "a: *hunter2", "a: [hunter2"] {
            let why = parse_documents(text).unwrap_err();
            assert!(why.contains("line") && !why.contains('\n'), "{text}: {why}");
        }
        let bomb = format!("a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n{}", bomb());
        parse_documents(&bomb).unwrap_err();
        parse_documents(&"[".repeat(200_000)).unwrap_err();
    }

    fn bomb() -> String {
        let level =
            |name: char, of: char| format!("{name}: &{name} [{}]\n", vec![format!("*{of}"); 9].join(", "));
        ('b'..='i').zip('a'..).map(|(name, of)| level(name, of)).collect()
    }
}
