//! Reads the fields of a YAML mapping one by one and reports unread fields as unknown.

use std::collections::BTreeMap;

use madako_json::input::Problems;
use serde_json::Value;

use crate::limits::{MAX_SETTINGS_DEPTH, MAX_SETTINGS_EVENTS, MAX_SHOWN, MAX_VALUE_DEPTH};

/// The whole file, or a section of it.
pub(super) struct Fields {
    /// Name of the section with a dot; empty for the whole file.
    path: String,
    fields: BTreeMap<String, Value>,
    /// Names of fields read so far, for hints.
    known: Vec<&'static str>,
    /// Fields with a reported problem.
    wrong: Vec<&'static str>,
}

/// Reads the document. An empty document is an empty mapping. Scalar types follow YAML 1.1, as in CKE.
///
/// The error names the position and the problem, never the content: it may be a secret.
pub(super) fn read(text: &str) -> Result<Fields, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_SETTINGS_DEPTH, max_events: MAX_SETTINGS_EVENTS },
        merge_keys: serde_saphyr::MergeKeyPolicy::AsOrdinary,
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    let fields = match parse(text, options)? {
        Value::Null => BTreeMap::new(),
        Value::Object(fields) => fields.into_iter().collect(),
        other => return Err(format!("expected a mapping of settings, got {}", kind(&other))),
    };
    Ok(Fields { path: String::new(), fields, known: Vec::new(), wrong: Vec::new() })
}

fn parse(text: &str, options: serde_saphyr::Options) -> Result<Value, String> {
    serde_saphyr::from_str_with_options(text, options).map_err(|error| place_and_reason(&error))
}

/// Reads another document; the caller bounds its size.
///
/// # Errors
/// Position and problem, never the content.
pub(super) fn value(text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_VALUE_DEPTH },
        merge_keys: serde_saphyr::MergeKeyPolicy::AsOrdinary,
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    parse(text, options)
}

/// The parser's messages are fixed phrases and key names; without snippets they quote no values.
fn place_and_reason(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet();
    // The parser's hints concern its caller, not the author of the file.
    if let serde_saphyr::Error::DuplicateMappingKey { key, location } = error {
        let key = key.as_deref().map_or_else(|| "a key".to_owned(), |key| format!("`{}`", shorten(key)));
        return format!(
            "{key} occurs a second time in line {}, column {}; remove one of the two",
            location.line(),
            location.column()
        );
    }
    let reason = error.to_string();
    reason.lines().next().unwrap_or("not readable").to_owned()
}

impl Fields {
    /// Path of a field, for messages.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.fields.remove(name)
    }

    pub(super) fn report(
        &mut self,
        name: &'static str,
        got: impl Into<String>,
        expected: impl Into<String>,
        problems: &mut Problems,
    ) {
        self.wrong.push(name);
        problems.add(self.path(name), got, expected);
    }

    /// Reports a missing field, unless the field (with or without `-file`) is present and has a reported problem.
    pub(super) fn report_missing(
        &mut self,
        name: &'static str,
        expected: impl Into<String>,
        problems: &mut Problems,
    ) {
        let form = |name: &str| name.trim_end_matches("-file").to_owned();
        if !self.wrong.iter().any(|wrong| form(wrong) == form(name)) {
            self.report(name, "", expected, problems);
        }
    }

    /// A text. As in CKE, a bare number counts as text. `null` means not given.
    pub(super) fn text(&mut self, name: &'static str, problems: &mut Problems) -> Option<String> {
        match self.take(name)? {
            Value::Null => None,
            Value::String(text) => Some(text),
            Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
            other => {
                self.report(name, show(&other), "a text", problems);
                None
            }
        }
    }

    /// `None`: not given.
    pub(super) fn flag(&mut self, name: &'static str, problems: &mut Problems) -> Option<bool> {
        match self.take(name)? {
            Value::Null => None,
            Value::Bool(flag) => Some(flag),
            other => {
                self.report(name, show(&other), "true or false", problems);
                None
            }
        }
    }

    /// A whole number within bounds; `None`: not given.
    pub(super) fn number(
        &mut self,
        name: &'static str,
        least: u64,
        greatest: u64,
        problems: &mut Problems,
    ) -> Option<u64> {
        let value = self.take(name).filter(|value| !value.is_null())?;
        let number = value.as_u64().filter(|number| (least..=greatest).contains(number));
        if number.is_none() {
            self.report(name, show(&value), format!("a whole number from {least} to {greatest}"), problems);
        }
        number
    }

    /// A finite number within bounds; `None`: not given.
    pub(super) fn decimal(
        &mut self,
        name: &'static str,
        least: f64,
        greatest: f64,
        problems: &mut Problems,
    ) -> Option<f64> {
        let value = self.take(name).filter(|value| !value.is_null())?;
        let number = value.as_f64().filter(|number| (least..=greatest).contains(number));
        if number.is_none() {
            let most = if greatest == f64::MAX { String::new() } else { format!(" and at most {greatest}") };
            self.report(name, show(&value), format!("a number of at least {least}{most}"), problems);
        }
        number
    }

    /// Reads fields without effect, and collects the names of those present.
    pub(super) fn ignore(&mut self, names: &[&'static str], ignored: &mut Vec<String>) {
        for name in names {
            // Hints do not offer fields without effect.
            if self.fields.remove(*name).is_some() {
                ignored.push(format!("`{}`", self.path(name)));
            }
        }
    }

    /// A secret text. Empty means not given, as in etcdutil.
    pub(super) fn secret(&mut self, name: &'static str, problems: &mut Problems) -> Option<String> {
        match self.take(name)? {
            Value::Null => None,
            Value::String(text) if text.is_empty() => None,
            Value::String(text) => Some(text),
            Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
            other => {
                self.report(
                    name,
                    kind(&other),
                    "a text, in quotes if it looks like something else",
                    problems,
                );
                None
            }
        }
    }

    /// Whether a field has a value, valid or not.
    pub(super) fn gives(&self, name: &str) -> bool {
        match self.fields.get(name) {
            None | Some(Value::Null) => false,
            Some(Value::String(text)) => !text.is_empty(),
            Some(_) => true,
        }
    }

    /// A text; empty means not given.
    pub(super) fn filled(&mut self, name: &'static str, problems: &mut Problems) -> Option<String> {
        self.text(name, problems).filter(|text| !text.is_empty())
    }

    /// `None`: not given.
    pub(super) fn texts(&mut self, name: &'static str, problems: &mut Problems) -> Option<Vec<String>> {
        let value = self.take(name)?;
        let Value::Array(items) = value else {
            self.report(name, show(&value), "a list of texts", problems);
            return None;
        };
        let mut texts = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            match item {
                Value::String(text) => texts.push(text),
                other => problems.add(self.path(&format!("{name}[{index}]")), show(&other), "a text"),
            }
        }
        Some(texts)
    }

    /// A section; an empty section counts as present.
    pub(super) fn section(&mut self, name: &'static str, problems: &mut Problems) -> Option<Fields> {
        let path = format!("{}.", self.path(name));
        match self.take(name)? {
            Value::Null => {
                Some(Fields { path, fields: BTreeMap::new(), known: Vec::new(), wrong: Vec::new() })
            }
            Value::Object(fields) => Some(Fields {
                path,
                fields: fields.into_iter().collect(),
                known: Vec::new(),
                wrong: Vec::new(),
            }),
            other => {
                self.report(name, show(&other), "a mapping of settings", problems);
                None
            }
        }
    }

    /// Reports all unread fields as unknown.
    pub(super) fn finish(self, problems: &mut Problems) {
        for name in self.fields.keys() {
            let meant = self.known.iter().find(|known| plain(known) == plain(name));
            let expected = match meant {
                Some(meant) => format!("`{}`, if that was meant", self.path(meant)),
                None => format!("one of {}", self.known.join(", ")),
            };
            // Shorten the name like a value: a line without its colon may have become a name.
            problems.add(shorten(&self.path(name)), "an unknown key", expected);
        }
    }
}

/// A name without differences in case, dashes and underscores, which are common mistakes.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

/// A shortened value; it must not be secret.
fn show(value: &Value) -> String {
    match value {
        Value::Bool(_) | Value::Number(_) | Value::String(_) => shorten(&value.to_string()),
        other => kind(other).to_owned(),
    }
}

/// At most [`MAX_SHOWN`] characters of a text.
pub(super) fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}
