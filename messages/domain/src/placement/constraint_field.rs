//! Constraints as fields of a resource: strict in requests, unchanged in stored resources.

use serde_json::value::RawValue;

use super::constraint::{Constraint, Language};
use madako_json::krake::reader::{Field, Reader};
use madako_json::krake::schema::Shape;
use madako_json::strict::walk::Path;

impl<R: Language> Field for Constraint<R> {
    const SHAPE: Shape = R::SHAPE;

    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self> {
        let Ok(written) = serde_json::from_str::<String>(raw.get()) else {
            reader.add_problem(path, raw, Self::SHAPE.expected());
            return None;
        };
        if !reader.is_request() {
            return Some(Self::from_stored(written));
        }
        match Self::parse(&written) {
            Ok(constraint) => Some(constraint),
            Err(error) => {
                let got = format!("{} at column {}", error.got, error.column);
                reader.note(path, got, error.expected);
                None
            }
        }
    }
}
