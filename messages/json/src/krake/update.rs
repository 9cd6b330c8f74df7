//! The errors of an update that changes a field which must not change.

use serde::Serialize;

use crate::input::Problems;
use crate::strict::walk::Path;

/// Adds a problem about a change of an immutable field. It shows both values: no immutable field is secret.
pub fn refuse_change<T: Serialize>(current: &T, new: &T, path: Path<'_>, problems: &mut Problems) {
    let shown = |value: &T| {
        let text = serde_json::to_string(value).unwrap_or_else(|_| "a value".to_owned());
        super::reader::shorten_name(&text)
    };
    problems.add(path, shown(new), format!("{}, which cannot be changed", shown(current)));
}
