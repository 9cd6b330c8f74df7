//! One reader of JSON for stored values and for requests.
//!
//! Guarantees: the error names every wrong field by its path. No input causes a panic. The recursion depth depends on
//! the types, not on the nesting of the text.
//! Assumes: the text went through [`super::json`], which bounds its nesting.
//! Does not: interpret objects with a foreign schema, such as manifests (see [`super::free`]).

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::json;
use super::schema::{Access, Schema, Shape};
use crate::go::{FieldName, RawJson, UnknownFields};
use crate::input::Problems;
use crate::limits::{MAX_NAME_SHOWN, MAX_PROBLEMS};
use crate::strict::nearest_name;
use crate::strict::tree::{Tree, shown_text};
use crate::strict::walk::Path;

/// The origin of the text, which decides between strict and lenient reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The store: unknown fields are kept, and absent fields get their default if they have one.
    Stored,
    /// A request: unknown fields are refused, and fields that a request cannot set are ignored.
    Request,
}

/// A value with a JSON form that can be a field of an object.
pub trait Field: Sized {
    /// The valid values, for messages and schemas.
    const SHAPE: Shape;

    /// Reads the value. Adds at least one problem to the reader before returning `None`.
    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self>;

    /// Applies an update. Values that an update cannot change stay or cause a problem.
    fn update(&mut self, new: Self, path: Path<'_>, problems: &mut Problems) {
        let _ = (path, problems);
        *self = new;
    }
}

/// The state of one read: its source and the problems so far.
#[derive(Debug)]
pub struct Reader {
    source: Source,
    problems: Problems,
    noted: usize,
    passed_over: Vec<String>,
}

impl Reader {
    /// A reader for this source.
    pub fn new(source: Source) -> Self {
        Self { source, problems: Problems::default(), noted: 0, passed_over: Vec::new() }
    }

    /// True if the source is a request, for which unknown and wrong members are problems.
    pub fn is_request(&self) -> bool {
        self.source == Source::Request
    }

    /// The problems, and the paths of the ignored fields.
    pub fn finish(self) -> (Problems, Vec<String>) {
        (self.problems, self.passed_over)
    }

    /// Adds a problem that shows the value.
    pub fn add_problem(&mut self, path: Path<'_>, raw: &RawValue, expected: impl Into<String>) {
        self.note(path, show_value(raw), expected);
    }

    /// Adds a problem that shows only the kind of the value.
    pub fn add_secret_problem(&mut self, path: Path<'_>, raw: &RawValue, expected: impl Into<String>) {
        self.note(path, describe_kind(raw), expected);
    }

    /// Adds a problem, unless there are `MAX_PROBLEMS` already.
    pub fn note(&mut self, path: Path<'_>, got: impl Into<String>, expected: impl Into<String>) {
        self.noted += 1;
        if self.noted <= MAX_PROBLEMS {
            self.problems.add(path, got, expected);
        }
    }

    /// Runs a rule on a value that has the right shape. Rules apply to requests only.
    pub fn check<T>(&mut self, value: &T, path: Path<'_>, rule: impl FnOnce(&T, Path<'_>, &mut Problems)) {
        if self.is_request() && self.noted < MAX_PROBLEMS {
            let mut found = Problems::default();
            rule(value, path, &mut found);
            self.noted += usize::from(!found.is_empty());
            self.problems.append(found);
        }
    }

    /// The members of an object. For a request, members unknown to the schema are left out: each is a problem or, if
    /// the schema tolerates its name, an ignored field.
    pub fn read_members<'a>(
        &mut self,
        raw: &'a RawValue,
        path: Path<'_>,
        schema: &Schema,
    ) -> Option<Members<'a>> {
        let mut members = self.any_members(raw, path)?;
        if self.is_request() {
            members.0.retain(|(name, _)| {
                let known = schema.names().any(|known| known == name);
                if !known && schema.tolerated.contains(&&**name) {
                    self.passed_over.push(path.field(name).to_string());
                } else if !known {
                    self.report_unknown_field(name, path, schema.names());
                }
                known
            });
        }
        Some(members)
    }

    /// Adds a problem about an unknown field, with the nearest of the known names.
    pub fn report_unknown_field<'s>(
        &mut self,
        name: &str,
        path: Path<'_>,
        known: impl Iterator<Item = &'s str> + Clone,
    ) {
        let expected = match nearest_name(name, known.clone()) {
            Some(near) => format!("a known field such as {near:?}"),
            None => format!("one of {}", known.collect::<Vec<_>>().join(", ")),
        };
        self.note(path.field(&shorten_name(name)), "an unknown field", expected);
    }

    /// All members of an object. Of two stored members with one name the last counts, as in Python; a request with
    /// two is refused.
    pub fn any_members<'a>(&mut self, raw: &'a RawValue, path: Path<'_>) -> Option<Members<'a>> {
        if !raw.get().starts_with('{') {
            // Show the kind only: the value may be a password in the place of an object.
            self.add_secret_problem(path, raw, "an object");
            return None;
        }
        let (members, repeated) = match serde_json::from_str::<AllMembers<'a>>(raw.get()) {
            Ok(AllMembers(members)) => deduplicate(members),
            Err(error) => {
                self.note(path, format!("an object that cannot be read: {error}"), "names in Unicode");
                return None;
            }
        };
        if self.is_request() {
            for name in repeated {
                self.note(path.field(&shorten_name(&name)), "the field for the second time", "it once");
            }
        }
        Some(Members(members))
    }

    /// Reads a field of an object according to its access; an absent field gets the default.
    pub fn read_field<T: Field>(
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
                // A nullable field has `null` as its default, or its type reads `null`.
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

    /// Reads a field that has only one valid value.
    pub fn read_constant(
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
        self.add_problem(path.field(name), raw, format!("{value:?}"));
        None
    }
}

/// The members of an object that were not taken yet.
#[derive(Debug)]
pub struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    /// Removes a member and returns its value.
    pub fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        let place = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(place).1)
    }

    /// The members as name and value, in input order.
    pub fn into_entries(self) -> Vec<(Cow<'a, str>, &'a RawValue)> {
        self.0
    }

    /// The remaining members as unknown fields to keep.
    pub fn into_unread_fields(self) -> UnreadFields {
        let mut rest = UnknownFields::default();
        for (name, raw) in self.0 {
            rest.push(name.into_owned(), RawJson::from(json::replace_infinite_numbers(raw)));
        }
        UnreadFields(rest)
    }
}

/// Unknown fields in input order, written back after the known ones. Their values may be secret, so `Debug` shows
/// their names only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct UnreadFields(UnknownFields);

impl UnreadFields {
    /// The fields as name and value, in input order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawJson)> {
        self.0.iter()
    }

    /// True if no unknown field is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for UnreadFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

/// Every member of an object, duplicates included.
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

/// The members with the last value of each name at the position of its first, and the names that occurred more than
/// once.
fn deduplicate<'a>(
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

/// A value for a message: scalars as they are, shortened; any other value by its kind.
fn show_value(raw: &RawValue) -> String {
    match raw.get().as_bytes().first() {
        Some(b'{' | b'[') => describe_kind(raw),
        Some(b'-' | b'0'..=b'9') => {
            let number = raw.get();
            if let Some(none) = json::infinite_number_text(number) {
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
        _ => Tree::from_json(raw.get()).map_or_else(|_| describe_kind(raw), |tree| tree.short_text()),
    }
}

fn describe_kind(raw: &RawValue) -> String {
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

/// A name from the input for a message: shortened and on one line.
pub fn shorten_name(name: &str) -> String {
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
