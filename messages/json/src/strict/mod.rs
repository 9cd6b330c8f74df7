//! Strict reading of what people type: the shape of an input, checked whole before anything is stored.
//!
//! Guarantees: every field with a wrong shape is named, unknown ones with the name that may have been
//! meant; sizes, depth and repetition are bounded; a value that passes has the shape that CKE's types have.
//! Assumes: the text is in memory already, so whoever reads a file bounds it by [`MAX_TEXT_BYTES`].
//! Does not: know what values mean; the `rules` of a cluster do.

pub mod components;
mod document;
mod hint;
mod lines;
mod quantity;
pub mod schema;
pub mod tree;
pub mod walk;
pub mod yaml;

pub use document::Document;
pub use hint::nearest;
pub use tree::{Number, Tree, shown_text};
pub use walk::{Kind, Path, Schema};
pub use yaml::MAX_TEXT_BYTES;
