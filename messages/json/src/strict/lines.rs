//! The line of each field and item of a YAML text.
//!
//! Guarantees: a path is found by the name that a [`Path`] shows for it. A path that the text does not have gets the
//! line of its nearest parent.
//! Does not: read values. The service reads a text for its lines only when there is a problem to report.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::walk::Path;
use super::yaml::{MAX_EVENTS, parse_within};

#[derive(Debug, Default)]
pub(super) struct LineNumbers(BTreeMap<String, u64>);

impl LineNumbers {
    /// The lines of a text with one document; empty for any other text.
    pub(super) fn from_text(text: &str) -> Self {
        let mut lines = Self::default();
        if let Ok(root) = parse_within::<Spanned<Shape>>(MAX_EVENTS, text, DuplicateKeyPolicy::Error) {
            lines.0.insert(String::new(), root.referenced.line());
            lines.gather(&root.value, Path::Root);
        }
        lines
    }

    fn gather(&mut self, shape: &Shape, path: Path<'_>) {
        match shape {
            Shape::Leaf => {}
            Shape::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.gather_at(item.referenced.line(), &item.value, path.item(index));
                }
            }
            Shape::Object(fields) => {
                for (name, value) in fields {
                    // The line of the name: a value may begin on a later line.
                    self.gather_at(name.referenced.line(), value, path.field(&name.value));
                }
            }
        }
    }

    fn gather_at(&mut self, line: u64, shape: &Shape, path: Path<'_>) {
        self.0.insert(path.to_string(), line);
        self.gather(shape, path);
    }

    /// The line of a field or of its nearest parent; `None` when the text has no lines.
    pub(super) fn find(&self, field: &str) -> Option<u64> {
        let mut field = field;
        loop {
            if let Some(line) = self.0.get(field) {
                return Some(*line);
            }
            if field.is_empty() {
                return None;
            }
            field = &field[..field.rfind(['.', '[']).unwrap_or(0)];
        }
    }
}

/// A node of the document that has lines.
enum Shape {
    Leaf,
    List(Vec<Spanned<Shape>>),
    Object(Vec<(Spanned<String>, Shape)>),
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyShape)
    }
}

struct AnyShape;

macro_rules! leaves {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E>(self, _: $type) -> Result<Shape, E> {
            Ok(Shape::Leaf)
        })*
    };
}

impl<'de> Visitor<'de> for AnyShape {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape::Leaf)
    }

    fn visit_none<E>(self) -> Result<Shape, E> {
        Ok(Shape::Leaf)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shape, D::Error> {
        deserializer.deserialize_any(self)
    }

    leaves!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Shape::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Shape::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::LineNumbers;

    #[test]
    fn fields_and_items_have_their_line_numbers() {
        let text = "# a comment\nname: a\n\nfaults:\n- do: kill\n  target:\n    rack=1\n- {do: cut, random: {mean: 1s}}\n\
                    expect:\n  calm_within: 1m\n  at_least:\n    faults: 3\n";
        let lines = LineNumbers::from_text(text);
        for (field, line) in [
            ("name", 2),
            ("faults", 4),
            ("faults[0]", 5),
            ("faults[0].target", 6),
            ("faults[1].random.mean", 8),
            ("expect.calm_within", 10),
            ("expect.at_least.faults", 12),
            // A missing field gets the line of its parent.
            ("faults[0].at", 5),
            ("faults[7].at", 4),
            ("expect.at_least.commits", 11),
            ("world.racks", 2),
            ("", 2),
        ] {
            assert_eq!(lines.find(field), Some(line), "{field}");
        }
        assert_eq!(LineNumbers::from_text("{\"a\":\n [1,\n  2]}").find("a[1]"), Some(3));
        assert_eq!(LineNumbers::from_text("a: [").find("a"), None);
    }
}
