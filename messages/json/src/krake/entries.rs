//! JSON objects with free member names, such as labels, in input order.

use serde::ser::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::reader::{Field, Reader};
use super::schema::Shape;
use crate::strict::walk::Path;

/// Named entries without duplicates. Equality ignores the order of the entries.
#[derive(Debug, Clone)]
pub struct Entries<T>(Vec<(String, T)>);

/// A resource's labels.
pub type Labels = Entries<String>;

impl<T> Entries<T> {
    /// A collection without entries.
    #[must_use]
    pub fn new() -> Self {
        Self(Vec::new())
    }

    /// The value of the entry with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&T> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Sets an entry. An existing entry keeps its position.
    pub fn insert(&mut self, name: impl Into<String>, value: T) {
        let name = name.into();
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some(entry) => entry.1 = value,
            None => self.0.push((name, value)),
        }
    }

    /// Removes an entry and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<T> {
        let place = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(place).1)
    }

    /// The entries as name and value, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if no entry is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: PartialEq> PartialEq for Entries<T> {
    fn eq(&self, other: &Self) -> bool {
        let sorted = |entries: &Self| {
            let mut places: Vec<usize> = (0..entries.0.len()).collect();
            places.sort_by(|one, two| entries.0[*one].0.cmp(&entries.0[*two].0));
            places
        };
        self.0.len() == other.0.len()
            && sorted(self).into_iter().zip(sorted(other)).all(|(one, two)| self.0[one] == other.0[two])
    }
}

impl<T> FromIterator<(String, T)> for Entries<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(entries: I) -> Self {
        let mut all = Self::new();
        for (name, value) in entries {
            all.insert(name, value);
        }
        all
    }
}

impl<T: Serialize> Serialize for Entries<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<T: Field> Field for Entries<T> {
    const SHAPE: Shape = Shape::Map(&T::SHAPE);

    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self> {
        let members = reader.any_members(raw, path)?.into_entries();
        // Read every entry before failing, so that the error names every wrong one. `members` has no duplicate names.
        let entries = members.into_iter().map(|(name, raw)| {
            let value = T::read(raw, path.entry(&super::reader::shorten_name(&name)), reader);
            Some((name.into_owned(), value?))
        });
        entries.collect::<Vec<_>>().into_iter().collect::<Option<Vec<_>>>().map(Self)
    }
}
