//! Reads the fields of a YAML mapping one by one and reports unread fields as unknown.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::mem;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use madako_json::duration;
use madako_json::input::Problems;
use serde_json::{Map, Value};

use crate::limits::{MAX_SETTINGS_DEPTH, MAX_SETTINGS_EVENTS, MAX_SHOWN, MAX_VALUE_DEPTH};

/// Problems, warnings and remarks of the reading of one file.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) problems: Problems,
    pub(super) warnings: Vec<String>,
    /// Keys of Krake without effect.
    pub(super) ignored: Vec<String>,
    /// Path of the first field with a secret value.
    pub(super) secret: Option<String>,
}

/// The whole file, or a section of it.
pub(super) struct Fields {
    /// Name of the section with a dot; empty for the whole file.
    path: String,
    fields: BTreeMap<String, Value>,
    /// Names of fields read so far, for hints.
    known: Vec<&'static str>,
    /// Fields with a reported problem.
    wrong: Vec<&'static str>,
    /// Shared by all sections.
    findings: Rc<RefCell<Findings>>,
}

/// Reads the document. An empty document is an empty mapping. Scalar types follow YAML 1.1, as in CKE.
///
/// The error names the position and the problem, never the content: it may be a secret.
pub(super) fn read(text: &str) -> Result<Fields, String> {
    let budget = serde_saphyr::budget! { max_depth: MAX_SETTINGS_DEPTH, max_events: MAX_SETTINGS_EVENTS };
    match parse(text, budget)? {
        Value::Null => Ok(Fields::new(String::new(), Map::new(), Rc::default())),
        Value::Object(fields) => Ok(Fields::new(String::new(), fields, Rc::default())),
        other => Err(format!("expected a mapping of settings, got {}", kind(&other))),
    }
}

/// Reads another document; the caller bounds its size.
///
/// # Errors
/// Position and problem, never the content.
pub(super) fn value(text: &str) -> Result<Value, String> {
    parse(text, serde_saphyr::budget! { max_depth: MAX_VALUE_DEPTH })
}

fn parse(text: &str, budget: Option<serde_saphyr::Budget>) -> Result<Value, String> {
    let options = serde_saphyr::options! {
        budget: budget,
        merge_keys: serde_saphyr::MergeKeyPolicy::AsOrdinary,
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| place_and_reason(&error))
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
    fn new(path: String, fields: Map<String, Value>, findings: Rc<RefCell<Findings>>) -> Self {
        let (known, wrong) = (Vec::new(), Vec::new());
        Self { path, fields: fields.into_iter().collect(), known, wrong, findings }
    }

    pub(super) fn findings(&self) -> RefMut<'_, Findings> {
        self.findings.borrow_mut()
    }

    /// Path of a field, for messages.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    pub(super) fn warn(&self, warning: impl Into<String>) {
        self.findings().warnings.push(warning.into());
    }

    fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.fields.remove(name)
    }

    pub(super) fn report(&mut self, name: &'static str, got: impl Into<String>, expected: impl Into<String>) {
        self.wrong.push(name);
        self.findings().problems.add(self.path(name), got, expected);
    }

    /// Reports a missing field, unless the field (with or without `-file`) is present and has a reported problem.
    pub(super) fn report_missing(&mut self, name: &'static str, expected: impl Into<String>) {
        let form = |name: &str| name.trim_end_matches("-file").to_owned();
        if !self.wrong.iter().any(|wrong| form(wrong) == form(name)) {
            self.report(name, "", expected);
        }
    }

    /// A text. As in CKE, a bare number counts as text. `null` means not given.
    pub(super) fn text(&mut self, name: &'static str) -> Option<String> {
        match self.take(name)? {
            Value::Null => None,
            Value::String(text) => Some(text),
            Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
            other => {
                self.report(name, show(&other), "a text");
                None
            }
        }
    }

    /// A text; empty means not given.
    pub(super) fn filled(&mut self, name: &'static str) -> Option<String> {
        self.text(name).filter(|text| !text.is_empty())
    }

    /// A text that a type can parse; empty means not given.
    pub(super) fn parsed<T: FromStr>(&mut self, name: &'static str, expected: &str) -> Option<T> {
        let text = self.filled(name)?;
        let value = text.parse().ok();
        if value.is_none() {
            self.report(name, format!("{text:?}"), expected);
        }
        value
    }

    /// As [`Fields::parsed`], for a type with the value `off`, which YAML 1.1 reads as false.
    pub(super) fn parsed_or_off<T: FromStr>(&mut self, name: &'static str, expected: &str) -> Option<T> {
        if let Some(value @ Value::Bool(false)) = self.fields.get_mut(name) {
            *value = Value::from("off");
        }
        self.parsed(name, expected)
    }

    /// The path of a file or directory.
    pub(super) fn absolute_path(&mut self, name: &'static str) -> Option<String> {
        let path = self.text(name)?;
        if !path.starts_with('/') {
            self.report(name, format!("{path:?}"), "an absolute path");
        }
        Some(path)
    }

    /// A duration within bounds, which `expected` describes; `None`: not given.
    pub(super) fn span(
        &mut self,
        name: &'static str,
        within: RangeInclusive<Duration>,
        expected: &str,
    ) -> Option<Duration> {
        let text = self.text(name)?;
        match duration::parse(&text) {
            Ok(span) if within.contains(&span) => return Some(span),
            Ok(_) => self.report(name, format!("{text:?}"), expected),
            Err(expected) => self.report(name, format!("{text:?}"), expected.to_string()),
        }
        None
    }

    /// `None`: not given.
    pub(super) fn flag(&mut self, name: &'static str) -> Option<bool> {
        match self.take(name)? {
            Value::Null => None,
            Value::Bool(flag) => Some(flag),
            other => {
                self.report(name, show(&other), "true or false");
                None
            }
        }
    }

    /// A whole number within bounds; `None`: not given.
    pub(super) fn number<T: TryFrom<u64>>(
        &mut self,
        name: &'static str,
        within: RangeInclusive<u64>,
    ) -> Option<T> {
        let value = self.take(name).filter(|value| !value.is_null())?;
        let number = value.as_u64().filter(|number| within.contains(number));
        if number.is_none() {
            let (least, greatest) = within.into_inner();
            self.report(name, show(&value), format!("a whole number from {least} to {greatest}"));
        }
        number.and_then(|number| T::try_from(number).ok())
    }

    /// A finite number from 0 to `greatest`; `None`: not given.
    pub(super) fn decimal(&mut self, name: &'static str, greatest: f64) -> Option<f64> {
        let value = self.take(name).filter(|value| !value.is_null())?;
        let number = value.as_f64().filter(|number| (0.0..=greatest).contains(number));
        if number.is_none() {
            let most = if greatest == f64::MAX { String::new() } else { format!(" and at most {greatest}") };
            self.report(name, show(&value), format!("a number of at least 0{most}"));
        }
        number
    }

    /// Passes over fields without effect, and returns the paths of those present. Hints do not offer them.
    pub(super) fn pass_over(&mut self, names: &[&'static str]) -> Vec<String> {
        let present = names.iter().filter(|name| self.fields.remove(**name).is_some());
        present.map(|name| format!("`{}{name}`", self.path)).collect()
    }

    /// Passes over fields that have an effect only in Krake.
    pub(super) fn ignore(&mut self, names: &[&'static str]) {
        let ignored = self.pass_over(names);
        self.findings().ignored.extend(ignored);
    }

    /// A secret text. Empty means not given, as in etcdutil.
    pub(super) fn secret(&mut self, name: &'static str) -> Option<String> {
        match self.take(name)? {
            Value::Null => None,
            Value::String(text) if text.is_empty() => None,
            Value::String(text) => Some(text),
            Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
            other => {
                self.report(name, kind(&other), "a text, in quotes if it looks like something else");
                None
            }
        }
    }

    /// Notes that a field with a value holds a secret, whether the value is valid or not.
    pub(super) fn note_secret(&mut self, name: &'static str) {
        let given = match self.fields.get(name) {
            None | Some(Value::Null) => false,
            Some(Value::String(text)) => !text.is_empty(),
            Some(_) => true,
        };
        if given {
            self.findings().secret.get_or_insert_with(|| self.path(name));
        }
    }

    /// `None`: not given.
    pub(super) fn texts(&mut self, name: &'static str) -> Option<Vec<String>> {
        let value = self.take(name)?;
        let Value::Array(items) = value else {
            self.report(name, show(&value), "a list of texts");
            return None;
        };
        let mut texts = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            match item {
                Value::String(text) => texts.push(text),
                other => {
                    let path = self.path(&format!("{name}[{index}]"));
                    self.findings().problems.add(path, show(&other), "a text");
                }
            }
        }
        Some(texts)
    }

    /// A section; an empty section counts as present.
    pub(super) fn section(&mut self, name: &'static str) -> Option<Fields> {
        let fields = match self.take(name)? {
            Value::Null => Map::new(),
            Value::Object(fields) => fields,
            other => {
                self.report(name, show(&other), "a mapping of settings");
                return None;
            }
        };
        Some(Fields::new(format!("{}.", self.path(name)), fields, Rc::clone(&self.findings)))
    }

    /// Reports all unread fields as unknown.
    pub(super) fn finish(&self) {
        for name in self.fields.keys() {
            let meant = self.known.iter().find(|known| plain(known) == plain(name));
            let expected = match meant {
                Some(meant) => format!("`{}`, if that was meant", self.path(meant)),
                None => format!("one of {}", self.known.join(", ")),
            };
            // Shorten the name like a value: a line without its colon may have become a name.
            self.findings().problems.add(shorten(&self.path(name)), "an unknown key", expected);
        }
    }

    /// The findings of all sections so far.
    pub(super) fn take_findings(&self) -> Findings {
        mem::take(&mut self.findings())
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
