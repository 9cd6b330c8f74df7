//! The declaration of a section of the configuration file: the name and the kind of each field, and the place for its
//! value.
//!
//! [`section!`] derives the schema and the reading from it. [`read_settings`] compares the whole file with the schema first: a
//! value of a wrong kind is a problem, and counts as absent.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use madako_json::duration;
use madako_json::input::Problems;
use madako_json::strict::walk::check_strictly;
use madako_json::strict::{Kind, Number, Path, Schema, Tree, yaml};
use madako_protocol::secret::Secret;
use serde::de::DeserializeOwned;

/// Problems, warnings and remarks of the reading of one file.
#[derive(Debug, Default)]
pub(super) struct ConfigFindings {
    pub(super) problems: Problems,
    pub(super) warnings: Vec<String>,
    /// Paths of fields without effect.
    pub(super) unused: Vec<String>,
    /// Path of the first field with a secret value, valid or not.
    pub(super) secret: Option<String>,
}

impl ConfigFindings {
    pub(super) fn report(
        &mut self,
        field: impl Into<String>,
        got: impl Into<String>,
        expected: impl Into<String>,
    ) {
        self.problems.add(field, got, expected);
    }

    /// Reports a missing field, unless it is present with a problem.
    pub(super) fn report_missing(&mut self, field: &str, expected: &str) {
        if !self.problems.has_problem(|wrong| wrong == field) {
            self.report(field, "", expected);
        }
    }

    pub(super) fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }
}

/// The valid settings of a text; an empty text has none. Scalars have their types of YAML 1.1, as in CKE.
///
/// # Errors
/// The text is not a mapping in YAML. The error names place and reason, never the content: it may be a secret.
pub(super) fn read_settings(
    text: &str,
    schema: &'static Schema,
    findings: &mut ConfigFindings,
) -> Result<Tree, String> {
    let mut tree = match yaml::parse(text)? {
        Tree::Null => Tree::Object(Vec::new()),
        tree @ Tree::Object(_) => tree,
        other => return Err(format!("expected a mapping of settings, got {}", other.kind())),
    };
    normalize(&mut tree, schema, Path::Root, findings);
    Ok(check_strictly(tree, schema, Path::Root, &mut findings.problems))
}

/// Gives values the form of their kinds: an empty section is an object, an integer can be a text (as in CKE), an empty
/// text means not given (as in etcdutil), and YAML 1.1 reads the word `off` as false. Notes secrets and fields without
/// effect.
fn normalize(tree: &mut Tree, schema: &'static Schema, path: Path<'_>, findings: &mut ConfigFindings) {
    let Tree::Object(fields) = tree else { return };
    for (name, value) in fields {
        let Some((name, kind)) = schema.fields.iter().find(|(known, _)| known == name) else { continue };
        let path = path.field(name);
        match (kind, &*value) {
            (Kind::Object(_), Tree::Null) => *value = Tree::Object(Vec::new()),
            (
                Kind::Text | Kind::Secret | Kind::Checked(..),
                Tree::Number(number @ (Number::Integer(_) | Number::Large(_))),
            ) => *value = Tree::Text(number.to_string()),
            (Kind::OneOf(words), Tree::Bool(false)) if words.contains(&"off") => {
                *value = Tree::Text("off".to_owned());
            }
            (Kind::Text | Kind::Secret | Kind::OneOf(_), Tree::Text(text)) if text.is_empty() => {
                *value = Tree::Null
            }
            (Kind::List(_), Tree::Null) => findings.report(path, "nothing", "a list of texts"),
            _ => {}
        }
        match kind {
            Kind::Object(schema) => normalize(value, schema, path, findings),
            Kind::Unused => findings.unused.push(format!("`{path}`")),
            Kind::Secret if *value != Tree::Null => {
                findings.secret.get_or_insert_with(|| path.to_string());
            }
            _ => {}
        }
    }
}

/// Declares a section, read into `$it` from its defaults: the module gets `SCHEMA` and `from_tree`.
///
/// A field is `"key": kind => place`, optionally followed by `by` and a function from [`Tree`]. `pem "file", "text"` is a
/// [`Pem`], `at "key": module` the section of a module, `in "key" {}` an inner section, and `unused "key"` a key without
/// effect.
macro_rules! section {
    ($it:ident: $type:ty = $default:expr => $body:tt) => {
        pub(super) static SCHEMA: madako_json::strict::Schema = section!(@schema $body);

        pub(super) fn from_tree(tree: &madako_json::strict::Tree) -> $type {
            let mut $it: $type = $default;
            section!(@read tree $body);
            $it
        }
    };
    (@schema {
        $($key:literal: $kind:expr => $place:expr $(, by $read:expr)?;)*
        $(pem $file:literal, $text:literal: $pem_kind:expr => $pem:expr;)*
        $(at $outer:literal: $module:ident => $outer_place:expr;)*
        $(in $section:literal $inner:tt)*
        $(unused $($unused:literal),*;)?
    }) => {
        madako_json::strict::Schema {
            fields: &[
                $(($key, $kind),)*
                $(($file, madako_json::strict::Kind::Text), ($text, $pem_kind),)*
                $(($outer, madako_json::strict::Kind::Object(&$module::SCHEMA)),)*
                $(($section, madako_json::strict::Kind::Object(&section!(@schema $inner))),)*
                $($(($unused, madako_json::strict::Kind::Unused),)*)?
            ],
        }
    };
    (@read $tree:ident {
        $($key:literal: $kind:expr => $place:expr $(, by $read:expr)?;)*
        $(pem $file:literal, $text:literal: $pem_kind:expr => $pem:expr;)*
        $(at $outer:literal: $module:ident => $outer_place:expr;)*
        $(in $section:literal $inner:tt)*
        $(unused $($unused:literal),*;)?
    }) => {
        $(if let Some(value) = $tree.get($key).and_then(section!(@function $($read)?)) {
            $place = value;
        })*
        $($pem = $crate::config::settings::Pem::read($tree, [$file, $text]);)*
        $($outer_place = $tree.get($outer).map($module::from_tree);)*
        $(if let Some(inner) = $tree.get($section) {
            section!(@read inner $inner);
        })*
    };
    (@function) => { $crate::config::settings::read_plain };
    (@function $read:expr) => { $read };
}

pub(super) use section;

/// A text, a number, a boolean, or a list of them.
pub(super) fn read_plain<T: DeserializeOwned>(value: &Tree) -> Option<T> {
    serde_json::from_str(&value.to_string()).ok()
}

pub(super) fn read_word<T: FromStr>(value: &Tree) -> Option<T> {
    value.text()?.parse().ok()
}

pub(super) fn read_secret(value: &Tree) -> Option<Option<Secret>> {
    Some(value.text().map(Secret::new))
}

pub(super) fn read_span(value: &Tree) -> Option<Duration> {
    duration::parse(value.text()?).ok()
}

pub(super) fn is_span(text: &str, within: &RangeInclusive<Duration>) -> bool {
    duration::parse(text).is_ok_and(|span| within.contains(&span))
}

pub(super) const DURATION: Kind =
    Kind::Checked("a duration such as 2s", |text| duration::parse(text).is_ok());

pub(super) const ABSOLUTE_PATH: Kind = Kind::Checked("an absolute path", |path| path.starts_with('/'));

/// Clients cannot know a port that the system chooses, so 0 is none.
pub(super) const LISTEN: Kind = Kind::Checked("an IP address and a port, such as 127.0.0.1:2379", |text| {
    listen_address(text).is_some_and(|address| address.port() != 0)
});

pub(super) fn listen_address(text: &str) -> Option<SocketAddr> {
    let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    numeric.as_deref().unwrap_or(text).parse().ok()
}

/// A certificate or a key: the path of its file, or its text.
#[derive(Default)]
pub(super) struct Pem {
    /// Names of the two fields.
    pub(super) names: [&'static str; 2],
    pub(super) file: Option<String>,
    /// May be a private key.
    pub(super) text: Option<String>,
}

impl Pem {
    pub(super) fn read(tree: &Tree, names: [&'static str; 2]) -> Self {
        let [file, text] = names.map(|name| tree.get(name).and_then(Tree::text).map(str::to_owned));
        Self { names, file, text }
    }
}
