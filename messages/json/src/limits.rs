//! The limits of this crate, with unit and derivation.

/// Problems that the text of an error names; the text counts the rest. A screen holds about as many.
pub(crate) const MAX_PROBLEMS_SHOWN: usize = 50;

/// Maximum length of a duration's text in bytes. The longest valid text, `2562047h47m16.854775807s`, has 24.
pub(crate) const MAX_DURATION_TEXT: usize = 64;

/// Characters. A longer name is not a typing error, and computing the edit distance takes quadratic time.
pub(crate) const MAX_GUESSED_NAME: usize = 64;

/// Characters of a field name in a message: more do not fit on a line.
pub(crate) const MAX_FIELD_SHOWN: usize = 60;

/// Characters of a text that are shown in a message: more do not fit on a line.
pub(crate) const MAX_SCALAR_SHOWN: usize = 60;
/// Levels of nesting; [`Tree::from_json`](crate::strict::tree::Tree::from_json) reads as many.
pub(crate) const MAX_TREE_DEPTH: usize = 128;

/// Bytes of a typed text. etcd accepts requests of 1.5 MiB; a cluster that is analysed offline may have 100,000 nodes
/// of about 700 bytes.
pub const MAX_TEXT_BYTES: usize = 128 * 1024 * 1024;
/// Levels of nesting. CKE's deepest structure has 9; the rest is for free-form parts.
pub(crate) const MAX_YAML_DEPTH: usize = 64;
/// Parser events: a node of a cluster has about 60, so 100,000 nodes fit.
pub const MAX_EVENTS: usize = 8_000_000;
/// Anchors in one text: a template has a handful.
pub(crate) const MAX_ANCHORS: usize = 1_000;
/// Events that all aliases together may produce. A block of options is about 100 events, and a template may repeat it
/// for some dozens of roles; an alias bomb needs millions.
pub(crate) const MAX_REPLAYED_EVENTS: usize = 100_000;
/// Number of merge keys (`<<`) in one text: as many as anchors.
pub(crate) const MAX_MERGE_KEYS: usize = 1_000;
/// Characters of a parser's message, which quotes keys and tags in full.
pub(crate) const MAX_REASON: usize = 200;

/// Characters of a number's text. The longest exact notation of a float has 1,077; typed numbers have about 20.
pub(crate) const MAX_NUMBER_TEXT: usize = 64;

/// Problems that one read collects: more do not help the sender of the input, and each takes memory.
pub(crate) const MAX_PROBLEMS: usize = 100;
/// Characters of a name in a message: more do not fit on a line.
pub(crate) const MAX_NAME_SHOWN: usize = 60;

/// Levels of nesting. The deepest of Krake's own types has 9, and Kubernetes' deepest have about 40. Python's reader
/// gives up near 1,000, and our reader of free-form parts at 127.
pub const MAX_JSON_DEPTH: usize = 100;

/// Bytes of a time's text. Python's longest has 32; readers cut longer fractions anyway.
pub(crate) const MAX_TIMESTAMP_TEXT: usize = 64;

const _: () = assert!(
    MAX_NUMBER_TEXT <= MAX_TEXT_BYTES && MAX_REPLAYED_EVENTS < MAX_EVENTS,
    "aliases are a part of a text"
);
const _: () =
    assert!(MAX_YAML_DEPTH < MAX_TREE_DEPTH && MAX_JSON_DEPTH < MAX_TREE_DEPTH, "a tree holds each document");
