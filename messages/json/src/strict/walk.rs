//! The walk over an untyped value along a schema: wrong types, unknown fields, numbers out of range.

use std::fmt;

use crate::input::Problems;
use crate::limits::MAX_FIELD_SHOWN;
use crate::strict::tree::{Number, Tree};
use crate::strict::{hint, quantity};

/// What a value may be. `null` stands for an absent value of any kind, as in Kubernetes and Go, but not
/// for an item of a list or a value of a map.
#[derive(Debug)]
pub enum Kind {
    /// Any text.
    Text,
    /// A text whose form is judged by whoever reads it; what it is in words, such as "a name".
    Word(&'static str),
    /// A text that must not be shown.
    Secret,
    /// `true` or `false`.
    Bool,
    /// A number that is finite.
    Number,
    /// A text such as `1m30s` (Go). CKE's reader does not take `null` for one.
    Duration,
    /// The same, or `null`.
    OptionalDuration,
    /// A duration, or a whole number of nanoseconds (Kubernetes' logging options).
    LogDuration,
    /// A number, or a text such as `100Mi` (Kubernetes).
    Quantity,
    /// A whole number from the first to the second, both included.
    Whole(i64, i64),
    /// Items of one kind.
    List(&'static Kind),
    /// An object with names of its own, such as labels.
    Map(&'static Kind),
    /// An object with known fields.
    Object(&'static Schema),
    /// An object of somebody else's shape.
    FreeForm,
    /// Anything of somebody else's shape.
    Any,
}

impl Kind {
    fn is_secret(&self) -> bool {
        match self {
            Kind::Secret => true,
            Kind::List(item) => item.is_secret(),
            Kind::Map(entry) => entry.is_secret(),
            _ => false,
        }
    }
}

/// The fields of an object.
#[derive(Debug)]
pub struct Schema {
    /// Name and kind of each.
    pub fields: &'static [(&'static str, Kind)],
}

/// What becomes of fields that a schema does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// Somebody typed them: they are problems, and so are known names in another case.
    Refuse,
    /// They were stored: a newer version may know them. Names match in any case, as Go has it.
    Keep,
}

/// Reports the names in a value that a schema does not know: their path, and the known name that is near.
pub fn unknown_names<'s>(
    tree: &Tree,
    schema: &'s Schema,
    path: Path<'_>,
    report: &mut impl FnMut(Path<'_>, Option<&'s str>),
) {
    for (name, value) in tree.fields() {
        let known = schema.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        match known.map(|(_, kind)| kind) {
            None => {
                let near = hint::nearest(name, schema.fields.iter().map(|(known, _)| *known));
                report(path.field(&shortened(name)), near);
            }
            Some(Kind::Object(schema)) => unknown_names(value, schema, path.field(name), report),
            Some(Kind::List(Kind::Object(schema))) => {
                for (index, item) in value.items().iter().enumerate() {
                    unknown_names(item, schema, path.field(name).item(index), report);
                }
            }
            Some(_) => {}
        }
    }
}

/// Where a value is, from the outside in.
#[derive(Clone, Copy)]
pub enum Path<'a> {
    /// The whole.
    Root,
    /// A field of an object.
    Field(&'a Path<'a>, &'a str),
    /// An entry of a map, whose name may have dots.
    Entry(&'a Path<'a>, &'a str),
    /// An item of a list, counted from 0.
    Item(&'a Path<'a>, usize),
}

impl Path<'_> {
    /// The path of a field.
    #[must_use]
    pub fn field<'a>(&'a self, name: &'a str) -> Path<'a> {
        Path::Field(self, name)
    }

    /// The path of an entry of a map.
    pub fn entry<'a>(&'a self, name: &'a str) -> Path<'a> {
        Path::Entry(self, name)
    }

    /// The path of an item, counted from 0.
    #[must_use]
    pub fn item(&self, index: usize) -> Path<'_> {
        Path::Item(self, index)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, name) => f.write_str(name),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
            Path::Entry(parent, name) => write!(f, "{parent}[{name}]"),
            Path::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

impl From<Path<'_>> for String {
    fn from(path: Path<'_>) -> Self {
        path.to_string()
    }
}

/// One walk.
pub struct Walk<'a> {
    /// The schema of the whole input, to find fields that stand in the wrong place.
    pub root: &'static Schema,
    /// What becomes of unknown fields.
    pub unknown: Unknown,
    /// Every problem found so far.
    pub problems: &'a mut Problems,
}

impl Walk<'_> {
    /// Checks an object and returns it without what is wrong, so that the rest can be checked further.
    pub fn object(&mut self, tree: Tree, schema: &'static Schema, path: Path<'_>) -> Tree {
        let Tree::Object(fields) = tree else {
            self.problems.add(path, tree.shown(), "an object");
            return Tree::Null;
        };
        let mut good = Vec::with_capacity(fields.len());
        for (name, value) in fields {
            match self.known(schema, &name) {
                Some((known, kind)) => {
                    if value == Tree::Null && !matches!(kind, Kind::Duration) {
                        continue;
                    }
                    if let Some(value) = self.value(value, kind, path.field(known)) {
                        good.push((name, value));
                    }
                }
                None if self.unknown == Unknown::Keep => good.push((name, value)),
                None => self.problems.add(
                    path.field(&shortened(&name)),
                    "an unknown field",
                    self.hint(schema, &name, path),
                ),
            }
        }
        Tree::Object(good)
    }

    fn known(&self, schema: &'static Schema, name: &str) -> Option<(&'static str, &'static Kind)> {
        let exact = schema.fields.iter().find(|(known, _)| *known == name);
        let found = match self.unknown {
            Unknown::Refuse => exact,
            Unknown::Keep => {
                exact.or_else(|| schema.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)))
            }
        };
        found.map(|(known, kind)| (*known, kind))
    }

    /// The value if it is right, `None` and a problem if not.
    fn value(&mut self, value: Tree, kind: &'static Kind, path: Path<'_>) -> Option<Tree> {
        match (kind, value) {
            (Kind::Text | Kind::Word(_) | Kind::Secret, Tree::Text(text)) => Some(Tree::Text(text)),
            (Kind::Bool, Tree::Bool(value)) => Some(Tree::Bool(value)),
            (Kind::Whole(least, greatest), Tree::Number(Number::Integer(value)))
                if (*least..=*greatest).contains(&value) =>
            {
                Some(Tree::Number(Number::Integer(value)))
            }
            (Kind::Duration | Kind::OptionalDuration | Kind::LogDuration, Tree::Text(text))
                if quantity::is_duration(&text) =>
            {
                Some(Tree::Text(text))
            }
            (Kind::Quantity, Tree::Text(text)) if quantity::is_quantity(&text) => Some(Tree::Text(text)),
            (Kind::LogDuration, value @ Tree::Number(Number::Integer(_))) | (Kind::Any, value) => Some(value),
            (Kind::Number | Kind::Quantity, Tree::Number(number)) if number.is_finite() => {
                Some(Tree::Number(number))
            }
            (Kind::List(item), Tree::List(items)) => {
                let items = items.into_iter().enumerate();
                // A wrong item leaves its place to an empty one: the indices of the others stay.
                Some(Tree::List(
                    items
                        .map(|(index, value)| {
                            self.value(value, item, path.item(index)).unwrap_or_else(|| empty(item))
                        })
                        .collect(),
                ))
            }
            (Kind::Map(entry), Tree::Object(fields)) => {
                let mut good = Vec::with_capacity(fields.len());
                for (name, value) in fields {
                    if let Some(value) = self.value(value, entry, path.entry(&name)) {
                        good.push((name, value));
                    }
                }
                Some(Tree::Object(good))
            }
            (Kind::Object(schema), value @ Tree::Object(_)) => Some(self.object(value, schema, path)),
            (Kind::FreeForm, value @ Tree::Object(_)) => Some(value),
            (kind, value) => {
                let got = if kind.is_secret() { value.kind().to_owned() } else { value.shown() };
                self.problems.add(path, got, expected(kind, &value));
                None
            }
        }
    }

    /// Which name may have been meant, where it belongs, or which names there are.
    fn hint(&self, schema: &'static Schema, name: &str, path: Path<'_>) -> String {
        let names = || schema.fields.iter().map(|(known, _)| *known);
        let mut places = Vec::new();
        find(self.root, name, String::new(), &mut places);
        let own = path.to_string();
        let place = places.iter().find(|place| **place != own);
        match (hint::nearest(name, names()), place) {
            (Some(near), None) => format!("a known one: {near:?}, perhaps"),
            (Some(near), Some(place)) => {
                format!("a known one: {near:?}, perhaps, since this one belongs to {place}")
            }
            (None, Some(place)) => format!("it in {place}"),
            (None, None) => format!("one of {}", names().collect::<Vec<_>>().join(", ")),
        }
    }
}

/// Paths of the objects that have a field of that name.
fn find(schema: &'static Schema, name: &str, path: String, places: &mut Vec<String>) {
    if schema.fields.iter().any(|(known, _)| *known == name) {
        places.push(if path.is_empty() { "the top level".to_owned() } else { path.clone() });
    }
    for (field, kind) in schema.fields {
        let below = if path.is_empty() { (*field).to_owned() } else { format!("{path}.{field}") };
        match kind {
            Kind::Object(schema) => find(schema, name, below, places),
            Kind::List(Kind::Object(schema)) => find(schema, name, format!("{below}[]"), places),
            _ => {}
        }
    }
}

fn expected(kind: &Kind, value: &Tree) -> String {
    match kind {
        Kind::Text | Kind::Secret => match value {
            Tree::Bool(_) | Tree::Number(_) => "a text: put it in quotes".to_owned(),
            Tree::Null => "a text, \"\" for an empty one".to_owned(),
            _ => "a text".to_owned(),
        },
        Kind::Word(what) => (*what).to_owned(),
        Kind::Bool => "true or false, without quotes".to_owned(),
        Kind::Number => "a number".to_owned(),
        Kind::Duration | Kind::OptionalDuration => "a duration such as 1m30s".to_owned(),
        Kind::LogDuration => "a duration such as 1m30s, or whole nanoseconds".to_owned(),
        Kind::Quantity => "a quantity such as 100Mi".to_owned(),
        Kind::Whole(least, greatest) => format!("a whole number from {least} to {greatest}"),
        Kind::List(item) => format!("a list of {}", plural(item)),
        Kind::Map(entry) => format!("an object of {}", plural(entry)),
        Kind::Object(_) | Kind::FreeForm => "an object".to_owned(),
        Kind::Any => "a value".to_owned(),
    }
}

fn plural(kind: &Kind) -> &'static str {
    match kind {
        Kind::Text | Kind::Word(_) | Kind::Secret => "texts",
        Kind::Bool => "booleans",
        Kind::Number => "numbers",
        Kind::Duration | Kind::OptionalDuration | Kind::LogDuration => "durations",
        Kind::Quantity => "quantities",
        Kind::Whole(..) => "whole numbers",
        Kind::List(_) => "lists",
        Kind::Any => "values",
        Kind::Map(_) | Kind::Object(_) | Kind::FreeForm => "objects",
    }
}

fn empty(kind: &Kind) -> Tree {
    match kind {
        Kind::Text
        | Kind::Word(_)
        | Kind::Secret
        | Kind::Duration
        | Kind::OptionalDuration
        | Kind::LogDuration
        | Kind::Quantity => Tree::Text(String::new()),
        Kind::Number => Tree::Number(Number::Integer(0)),
        Kind::Any => Tree::Null,
        Kind::Bool => Tree::Bool(false),
        Kind::Whole(least, _) => Tree::Number(Number::Integer(*least)),
        Kind::List(_) => Tree::List(Vec::new()),
        Kind::Map(_) | Kind::Object(_) | Kind::FreeForm => Tree::Object(Vec::new()),
    }
}

/// A name of somebody's own, cut to a length that fits a message.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(MAX_FIELD_SHOWN) {
        None => name.to_owned(),
        Some((end, _)) => format!("{}...", &name[..end]),
    }
}
