//! One reading of JSON for two purposes: what is stored, and what a request brings.
//!
//! Guarantees: every wrong field is named with its path; nothing panics; the depth of recursion is that of the
//! types, whatever the text nests.
//! Assumes: the text went through [`super::json`], which bounds its nesting.
//! Does not: look into parts of somebody else's shape, such as manifests (see [`super::free`]).

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::json;
use super::schema::{Access, Schema, Shape};
use crate::go::{FieldName, RawJson, UnknownFields};
use crate::input::Problems;
use crate::limits::{MAX_NAME_SHOWN, MAX_PROBLEMS};
use crate::strict::nearest;
use crate::strict::tree::{Tree, shown_text};
use crate::strict::walk::Path;

/// What is read, and so how strictly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The store: unknown fields are kept, absent ones get their default where there is one.
    Stored,
    /// A request: unknown fields are refused, fields that a request may not set are passed over.
    Request,
}

/// A value that has a JSON form and a place in an object.
pub trait Field: Sized {
    /// What the value may be.
    const SHAPE: Shape;

    /// The value, or `None` after noting at least one problem.
    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self>;

    /// Takes over what an update brings, but for what an update may not change.
    fn update(&mut self, new: Self, path: Path<'_>, problems: &mut Problems) {
        let _ = (path, problems);
        *self = new;
    }
}

/// One reading.
#[derive(Debug)]
pub struct Reader {
    source: Source,
    problems: Problems,
    noted: usize,
    /// Fields that were passed over although their type does not have them.
    passed_over: Vec<String>,
}

impl Reader {
    /// Reads strictly or leniently, as the source asks.
    pub fn new(source: Source) -> Self {
        Self { source, problems: Problems::default(), noted: 0, passed_over: Vec::new() }
    }

    /// Whether unknown and wrong members are problems.
    pub fn is_request(&self) -> bool {
        self.source == Source::Request
    }

    /// What was noted, and what was passed over.
    pub fn finish(self) -> (Problems, Vec<String>) {
        (self.problems, self.passed_over)
    }

    /// Notes a wrong value.
    pub fn wrong(&mut self, path: Path<'_>, raw: &RawValue, expected: impl Into<String>) {
        self.note(path, shown(raw), expected);
    }

    /// Notes a wrong value that must not be shown.
    pub fn wrong_secret(&mut self, path: Path<'_>, raw: &RawValue, expected: impl Into<String>) {
        self.note(path, kind(raw), expected);
    }

    /// Notes a problem.
    pub fn note(&mut self, path: Path<'_>, got: impl Into<String>, expected: impl Into<String>) {
        self.noted += 1;
        if self.noted <= MAX_PROBLEMS {
            self.problems.add(path, got, expected);
        }
    }

    /// Runs a check of a value that has the right shape; only what a request brings is checked.
    pub fn check<T>(&mut self, value: &T, path: Path<'_>, rule: impl FnOnce(&T, Path<'_>, &mut Problems)) {
        if self.is_request() && self.noted < MAX_PROBLEMS {
            let mut found = Problems::default();
            rule(value, path, &mut found);
            self.noted += usize::from(!found.is_empty());
            self.problems.append(found);
        }
    }

    /// The members of an object, without those that the schema does not know in a request.
    pub fn members<'a>(&mut self, raw: &'a RawValue, path: Path<'_>, schema: &Schema) -> Option<Members<'a>> {
        let mut members = self.any_members(raw, path)?;
        if self.is_request() {
            members.0.retain(|(name, _)| {
                let known = schema.names().any(|known| known == name);
                if !known && schema.tolerated.contains(&&**name) {
                    self.passed_over.push(path.field(name).to_string());
                } else if !known {
                    self.unknown(name, path, schema.names());
                }
                known
            });
        }
        Some(members)
    }

    /// Notes a field that its object does not have.
    pub fn unknown<'s>(&mut self, name: &str, path: Path<'_>, known: impl Iterator<Item = &'s str> + Clone) {
        let expected = match nearest(name, known.clone()) {
            Some(near) => format!("a known one: {near:?}, perhaps"),
            None => format!("one of {}", known.collect::<Vec<_>>().join(", ")),
        };
        self.note(path.field(&shortened(name)), "an unknown field", expected);
    }

    /// All members of an object. Of two with one name the last counts in what is stored, as in Python; a
    /// request with two is refused.
    pub fn any_members<'a>(&mut self, raw: &'a RawValue, path: Path<'_>) -> Option<Members<'a>> {
        if !raw.get().starts_with('{') {
            // Its kind only: somebody may have written a password where the object with it belongs.
            self.wrong_secret(path, raw, "an object");
            return None;
        }
        let (members, repeated) = match serde_json::from_str::<AllMembers<'a>>(raw.get()) {
            Ok(AllMembers(members)) => deduplicated(members),
            Err(error) => {
                self.note(path, format!("an object that cannot be read: {error}"), "names in Unicode");
                return None;
            }
        };
        if self.is_request() {
            for name in repeated {
                self.note(path.field(&shortened(&name)), "the field for the second time", "it once");
            }
        }
        Some(Members(members))
    }

    /// A field of an object.
    pub fn field<T: Field>(
        &mut self,
        members: &mut Members<'_>,
        name: &'static str,
        access: Access,
        default: Option<fn() -> T>,
        path: Path<'_>,
    ) -> Option<T> {
        let given = members.take(name);
        if self.is_request() && access.is_ours() {
            return default.map(|default| default());
        }
        let path = path.field(name);
        let default = match (self.source, access) {
            (Source::Request, Access::Required | Access::Immutable) | (Source::Stored, Access::Readonly) => {
                None
            }
            _ => default,
        };
        match (given, default) {
            (Some(raw), Some(default)) if raw.get() == "null" && !self.is_request() => {
                // A field that may be null has that as its default, or reads it.
                Some(if matches!(T::SHAPE, Shape::Nullable(_)) {
                    T::read(raw, path, self)?
                } else {
                    default()
                })
            }
            (Some(raw), _) => T::read(raw, path, self),
            (None, Some(default)) => Some(default()),
            (None, None) => {
                self.note(path, "", T::SHAPE.expected());
                None
            }
        }
    }

    /// A field that can only have one value.
    pub fn constant(
        &mut self,
        members: &mut Members<'_>,
        name: &'static str,
        value: &str,
        path: Path<'_>,
    ) -> Option<()> {
        let Some(raw) = members.take(name) else { return Some(()) };
        if serde_json::from_str::<Cow<'_, str>>(raw.get()).is_ok_and(|given| given == value) {
            return Some(());
        }
        self.wrong(path.field(name), raw, format!("{value:?}"));
        None
    }
}

/// The members of an object that were not taken yet.
#[derive(Debug)]
pub struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    /// Takes a member out.
    pub fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        let place = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(place).1)
    }

    /// Name and value of each, in the order of the input.
    pub fn into_entries(self) -> Vec<(Cow<'a, str>, &'a RawValue)> {
        self.0
    }

    /// What is left, to be kept.
    pub fn rest(self) -> Rest {
        let mut rest = UnknownFields::default();
        for (name, raw) in self.0 {
            rest.push(name.into_owned(), RawJson::from(json::storable(raw)));
        }
        Rest(rest)
    }
}

/// Fields that a type does not know, in the order of the input, written back after the known ones. What they
/// hold may be secret, so `Debug` shows their names only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Rest(UnknownFields);

impl Rest {
    /// Name and value of each field.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawJson)> {
        self.0.iter()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

/// Every member of an object, also those whose name comes again.
pub struct AllMembers<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for AllMembers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((name, value)) = map.next_entry::<FieldName<'de>, &'de RawValue>()? {
                    members.push((name.0, value));
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(All).map(AllMembers)
    }
}

/// The members with the last of each name at the place of the first, and the names that came again.
fn deduplicated<'a>(
    members: Vec<(Cow<'a, str>, &'a RawValue)>,
) -> (Vec<(Cow<'a, str>, &'a RawValue)>, Vec<String>) {
    let mut places = std::collections::BTreeMap::new();
    let mut kept: Vec<(Cow<'a, str>, &RawValue)> = Vec::with_capacity(members.len());
    let mut repeated = Vec::new();
    for (name, value) in members {
        if let Some(&place) = places.get(&name) {
            let place: &mut (Cow<'_, str>, &RawValue) = &mut kept[place];
            place.1 = value;
            repeated.push(name.into_owned());
        } else {
            places.insert(name.clone(), kept.len());
            kept.push((name, value));
        }
    }
    (kept, repeated)
}

/// A value for a message: scalars as they are, shortened, anything else by its kind.
fn shown(raw: &RawValue) -> String {
    match raw.get().as_bytes().first() {
        Some(b'{' | b'[') => kind(raw),
        Some(b'-' | b'0'..=b'9') => {
            let number = raw.get();
            if let Some(none) = json::not_finite(number) {
                none.to_owned()
            } else if number.len() <= 40 {
                format!("the number {number}")
            } else {
                "a long number".to_owned()
            }
        }
        Some(b'"') => match serde_json::from_str::<String>(raw.get()) {
            Ok(text) => shown_text(&text),
            Err(_) => "a text that is not Unicode".to_owned(),
        },
        _ => Tree::from_json(raw.get()).map_or_else(|_| kind(raw), |tree| tree.shown()),
    }
}

fn kind(raw: &RawValue) -> String {
    let kind = match raw.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b'"') => "a text",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    };
    kind.to_owned()
}

/// A name of somebody's own, cut to a length that fits a message, and on one line.
pub fn shortened(name: &str) -> String {
    let (name, dots) = match name.char_indices().nth(MAX_NAME_SHOWN) {
        None => (name, ""),
        Some((end, _)) => (&name[..end], "..."),
    };
    let mut shown = String::with_capacity(name.len() + dots.len());
    for c in name.chars() {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown + dots
}
