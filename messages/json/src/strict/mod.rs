//! Strict reading of typed input: its shape is checked as a whole before anything is stored.
//!
//! Guarantees: the error names every field with a wrong shape, and for an unknown field the nearest known name.
//! Sizes, depth and repetition are bounded. A value that passes has the shape of CKE's types.
//! Assumes: the text is in memory, so the reader of a file bounds it by [`MAX_TEXT_BYTES`].
//! Does not: check meaning; the `rules` of a cluster do.

pub mod components;
mod document;
mod hint;
mod lines;
mod quantity;
pub mod tree;
pub mod walk;
pub mod yaml;

pub use document::Document;
pub use hint::nearest_name;
pub use tree::{Number, Tree, shown_text};
pub use walk::{HasKind, HasSchema, Kind, Path, Schema};
pub use yaml::MAX_TEXT_BYTES;
