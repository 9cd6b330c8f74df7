//! Strict reading of what people type: the shape of an input, checked whole before anything is stored.
//!
//! Guarantees: every field with a wrong shape is named, unknown ones with the name that may have been
//! meant; sizes, depth and repetition are bounded; a value that passes has the shape that CKE's types have.
//! Assumes: the text is in memory already, so whoever reads a file bounds it by [`MAX_TEXT_BYTES`].
//! Does not: know what values mean; the `rules` of a cluster do.

pub(crate) mod components;
mod document;
mod hint;
mod lines;
mod quantity;
pub(crate) mod schema;
pub(crate) mod tree;
pub(crate) mod walk;
pub(crate) mod yaml;

pub use document::Document;
pub use hint::nearest;
pub use tree::{Number, Tree, shown_text};
pub use walk::{Kind, Path, Schema};
pub use yaml::MAX_TEXT_BYTES;

#[cfg(test)]
mod tests;
