//! The comparison of an untyped value with a schema: wrong types, unknown fields, numbers out of range.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;

use crate::input::Problems;
use crate::limits::MAX_FIELD_SHOWN;
use crate::strict::tree::{Number, Tree};
use crate::strict::{hint, quantity};

/// The valid values of a field. `null` means an absent value of any kind, as in Kubernetes and Go, except for items
/// of a list and values of a map.
#[derive(Debug)]
pub enum Kind {
    /// Any string.
    Text,
    /// A string whose notation its user checks; the text describes it, such as "a name".
    Word(&'static str),
    /// A string that satisfies the predicate, which the text describes.
    Checked(&'static str, fn(&str) -> bool),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A string that messages never show.
    Secret,
    /// `true` or `false`.
    Bool,
    /// A finite number.
    Number,
    /// A number from 0 to this one.
    UpTo(f64),
    /// A string such as `1m30s` (Go). CKE's reader does not accept `null` here.
    Duration,
    /// A duration or `null`.
    OptionalDuration,
    /// A duration, or an integer of nanoseconds (Kubernetes' logging options).
    LogDuration,
    /// A number, or a string such as `100Mi` (Kubernetes).
    Quantity,
    /// An integer between the first and the second, both included.
    Whole(i64, i64),
    /// A list of items of one kind.
    List(&'static Kind),
    /// An object with free names, such as labels, and values of one kind.
    Map(&'static Kind),
    /// An object with known fields.
    Object(&'static Schema),
    /// An object with a foreign schema.
    FreeForm,
    /// Any value with a foreign schema.
    Any,
    /// Any value, without effect. Hints do not offer the field.
    Unused,
    /// A value of this kind; ckecli leaves the field out when it is empty (Go's `omitempty`).
    OmitEmpty(&'static Kind),
}

impl Kind {
    fn is_secret(&self) -> bool {
        match self {
            Kind::Secret => true,
            Kind::List(kind) | Kind::Map(kind) | Kind::OmitEmpty(kind) => kind.is_secret(),
            _ => false,
        }
    }

    /// The kind of a present value.
    #[must_use]
    pub fn of_value(&self) -> &Kind {
        if let Kind::OmitEmpty(kind) = self { kind } else { self }
    }
}

/// The fields of an object.
#[derive(Debug)]
pub struct Schema {
    /// Name and kind of each field.
    pub fields: &'static [(&'static str, Kind)],
}

/// An object whose declaration by [`go_object!`](crate::go::go_object) is its schema, too.
pub trait HasSchema {
    /// Names and kinds of the declared fields.
    const SCHEMA: &'static Schema;
}

/// A type whose values have one kind.
pub trait HasKind {
    /// The kind, without regard to `omitempty`.
    const KIND: Kind;
}

impl<T: HasSchema> HasKind for T {
    const KIND: Kind = Kind::Object(T::SCHEMA);
}

impl HasKind for String {
    const KIND: Kind = Kind::Text;
}

impl HasKind for bool {
    const KIND: Kind = Kind::Bool;
}

impl<T: HasKind> HasKind for Option<T> {
    const KIND: Kind = T::KIND;
}

impl<T: HasKind> HasKind for Vec<T> {
    const KIND: Kind = Kind::List(&T::KIND);
}

impl<T: HasKind> HasKind for BTreeMap<String, T> {
    const KIND: Kind = Kind::Map(&T::KIND);
}

/// The treatment of unknown fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownFieldPolicy {
    /// For typed input: unknown fields are problems, and so are known names in another case.
    Refuse,
    /// For stored values: a newer version may know the field. Names match in any case, as in Go.
    Keep,
}

/// Calls `report` with the path of each name that the schema does not know, and with the nearest known name.
pub fn unknown_names<'s>(
    tree: &Tree,
    schema: &'s Schema,
    path: Path<'_>,
    report: &mut impl FnMut(Path<'_>, Option<&'s str>),
) {
    for (name, value) in tree.fields() {
        let known = schema.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        match known.map(|(_, kind)| kind.of_value()) {
            None => {
                let near = hint::nearest_name(name, schema.fields.iter().map(|(known, _)| *known));
                report(path.field(&shorten_name(name)), near);
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

/// The path of a value, from the outside in.
#[derive(Clone, Copy)]
pub enum Path<'a> {
    /// The whole input.
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

/// A comparison of one input with its schema.
pub struct SchemaWalk<'a> {
    /// The schema of the whole input, which finds the right place of a misplaced field.
    pub root: &'static Schema,
    /// The treatment of unknown fields.
    pub unknown: UnknownFieldPolicy,
    /// All problems so far.
    pub problems: &'a mut Problems,
}

/// The parts of a typed input with the right shape; the others are problems.
pub fn check_strictly(tree: Tree, schema: &'static Schema, path: Path<'_>, problems: &mut Problems) -> Tree {
    SchemaWalk { root: schema, unknown: UnknownFieldPolicy::Refuse, problems }
        .check_object(tree, schema, path)
}

/// Reads a typed input by the schema of its type, without the parts that have a wrong shape: those are problems.
/// `None`: the input is no object.
pub fn read_strictly<T: HasSchema + DeserializeOwned>(
    tree: Tree,
    path: Path<'_>,
    problems: &mut Problems,
) -> Option<T> {
    match check_strictly(tree, T::SCHEMA, path, problems) {
        Tree::Null => None,
        good => {
            Some(serde_json::from_str(&good.to_string()).expect("a value of the right shape can be read"))
        }
    }
}

impl SchemaWalk<'_> {
    /// Checks an object and returns it without its wrong parts, so that the caller can check the rest further.
    pub fn check_object(&mut self, tree: Tree, schema: &'static Schema, path: Path<'_>) -> Tree {
        let Tree::Object(fields) = tree else {
            self.problems.add(path, tree.short_text(), "an object");
            return Tree::Null;
        };
        let mut good = Vec::with_capacity(fields.len());
        for (name, value) in fields {
            match self.find_field(schema, &name) {
                Some((known, kind)) => {
                    if value == Tree::Null && !matches!(kind, Kind::Duration) {
                        continue;
                    }
                    if let Some(value) = self.check_value(value, kind, path.field(known)) {
                        good.push((name, value));
                    }
                }
                None if self.unknown == UnknownFieldPolicy::Keep => good.push((name, value)),
                None => self.problems.add(
                    path.field(&shorten_name(&name)),
                    "an unknown field",
                    self.describe_known_fields(schema, &name, path),
                ),
            }
        }
        Tree::Object(good)
    }

    fn find_field(&self, schema: &'static Schema, name: &str) -> Option<(&'static str, &'static Kind)> {
        let exact = schema.fields.iter().find(|(known, _)| *known == name);
        let found = match self.unknown {
            UnknownFieldPolicy::Refuse => exact,
            UnknownFieldPolicy::Keep => {
                exact.or_else(|| schema.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)))
            }
        };
        found.map(|(known, kind)| (*known, kind.of_value()))
    }

    /// The valid value, or `None` after adding a problem.
    fn check_value(&mut self, value: Tree, kind: &'static Kind, path: Path<'_>) -> Option<Tree> {
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
            (Kind::Checked(_, is_valid), Tree::Text(text)) if is_valid(&text) => Some(Tree::Text(text)),
            (Kind::OneOf(words), Tree::Text(word)) if words.contains(&word.as_str()) => {
                Some(Tree::Text(word))
            }
            (Kind::LogDuration, value @ Tree::Number(Number::Integer(_)))
            | (Kind::Any | Kind::Unused, value) => Some(value),
            (Kind::UpTo(greatest), Tree::Number(number))
                if (0.0..=*greatest).contains(&number.to_float()) =>
            {
                Some(Tree::Number(number))
            }
            (Kind::Number | Kind::Quantity, Tree::Number(number)) if number.is_finite() => {
                Some(Tree::Number(number))
            }
            (Kind::List(item), Tree::List(items)) => {
                let items = items.into_iter().enumerate();
                // An empty item replaces a wrong one, so that the indices of the others stay.
                Some(Tree::List(
                    items
                        .map(|(index, value)| {
                            self.check_value(value, item, path.item(index))
                                .unwrap_or_else(|| empty_value(item))
                        })
                        .collect(),
                ))
            }
            (Kind::Map(entry), Tree::Object(fields)) => {
                let mut good = Vec::with_capacity(fields.len());
                for (name, value) in fields {
                    if let Some(value) = self.check_value(value, entry, path.entry(&name)) {
                        good.push((name, value));
                    }
                }
                Some(Tree::Object(good))
            }
            (Kind::Object(schema), value @ Tree::Object(_)) => Some(self.check_object(value, schema, path)),
            (Kind::FreeForm, value @ Tree::Object(_)) => Some(value),
            (kind, value) => {
                let got = if kind.is_secret() { value.kind().to_owned() } else { value.short_text() };
                self.problems.add(path, got, expected_form(kind, &value));
                None
            }
        }
    }

    /// A suggestion for an unknown name: its right place, the nearest known name, or all known names.
    fn describe_known_fields(&self, schema: &'static Schema, name: &str, path: Path<'_>) -> String {
        let offered = schema.fields.iter().filter(|(_, kind)| !matches!(kind, Kind::Unused));
        let names = || offered.clone().map(|(known, _)| *known);
        let mut places = Vec::new();
        find_places(self.root, name, String::new(), &mut places);
        let own = path.to_string();
        let place = places.iter().find(|place| **place != own);
        match (hint::nearest_name(name, names()), place) {
            (Some(near), None) => format!("a known field such as {near:?}"),
            (Some(near), Some(place)) => {
                format!("a known field such as {near:?} (this field belongs to {place})")
            }
            (None, Some(place)) => format!("it in {place}"),
            (None, None) => format!("one of {}", names().collect::<Vec<_>>().join(", ")),
        }
    }
}

/// Paths of the objects that have a field of that name.
fn find_places(schema: &'static Schema, name: &str, path: String, places: &mut Vec<String>) {
    if schema.fields.iter().any(|(known, _)| *known == name) {
        places.push(if path.is_empty() { "the top level".to_owned() } else { path.clone() });
    }
    for (field, kind) in schema.fields {
        let below = if path.is_empty() { (*field).to_owned() } else { format!("{path}.{field}") };
        match kind.of_value() {
            Kind::Object(schema) => find_places(schema, name, below, places),
            Kind::List(Kind::Object(schema)) => find_places(schema, name, format!("{below}[]"), places),
            _ => {}
        }
    }
}

fn expected_form(kind: &Kind, value: &Tree) -> String {
    match kind {
        Kind::Text | Kind::Secret => match value {
            Tree::Bool(_) | Tree::Number(_) => "a text: put it in quotes".to_owned(),
            Tree::Null => "a text, \"\" for an empty one".to_owned(),
            _ => "a text".to_owned(),
        },
        Kind::Word(what) | Kind::Checked(what, _) => (*what).to_owned(),
        Kind::OneOf(words) => format!("one of {}", words.join(", ")),
        Kind::Bool => "true or false, without quotes".to_owned(),
        Kind::Number => "a number".to_owned(),
        Kind::UpTo(f64::MAX) => "a number of at least 0".to_owned(),
        Kind::UpTo(greatest) => format!("a number from 0 to {greatest}"),
        Kind::Duration | Kind::OptionalDuration => "a duration such as 1m30s".to_owned(),
        Kind::LogDuration => "a duration such as 1m30s, or whole nanoseconds".to_owned(),
        Kind::Quantity => "a quantity such as 100Mi".to_owned(),
        Kind::Whole(least, greatest) => format!("a whole number from {least} to {greatest}"),
        Kind::List(item) => format!("a list of {}", plural_name(item)),
        Kind::Map(entry) => format!("an object of {}", plural_name(entry)),
        Kind::Object(_) | Kind::FreeForm => "an object".to_owned(),
        Kind::Any | Kind::Unused => "a value".to_owned(),
        Kind::OmitEmpty(kind) => expected_form(kind, value),
    }
}

fn plural_name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Text | Kind::Word(_) | Kind::Checked(..) | Kind::OneOf(_) | Kind::Secret => "texts",
        Kind::Bool => "booleans",
        Kind::Number | Kind::UpTo(_) => "numbers",
        Kind::Duration | Kind::OptionalDuration | Kind::LogDuration => "durations",
        Kind::Quantity => "quantities",
        Kind::Whole(..) => "whole numbers",
        Kind::List(_) => "lists",
        Kind::Any | Kind::Unused => "values",
        Kind::OmitEmpty(kind) => plural_name(kind),
        Kind::Map(_) | Kind::Object(_) | Kind::FreeForm => "objects",
    }
}

fn empty_value(kind: &Kind) -> Tree {
    match kind {
        Kind::Text
        | Kind::Word(_)
        | Kind::Checked(..)
        | Kind::OneOf(_)
        | Kind::Secret
        | Kind::Duration
        | Kind::OptionalDuration
        | Kind::LogDuration
        | Kind::Quantity => Tree::Text(String::new()),
        Kind::Number | Kind::UpTo(_) => Tree::Number(Number::Integer(0)),
        Kind::Any | Kind::Unused => Tree::Null,
        Kind::OmitEmpty(kind) => empty_value(kind),
        Kind::Bool => Tree::Bool(false),
        Kind::Whole(least, _) => Tree::Number(Number::Integer(*least)),
        Kind::List(_) => Tree::List(Vec::new()),
        Kind::Map(_) | Kind::Object(_) | Kind::FreeForm => Tree::Object(Vec::new()),
    }
}

fn shorten_name(name: &str) -> String {
    match name.char_indices().nth(MAX_FIELD_SHOWN) {
        None => name.to_owned(),
        Some((end, _)) => format!("{}...", &name[..end]),
    }
}
