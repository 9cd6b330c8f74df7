//! The patterns of names, labels and constraints, for schemas. The parsers are authoritative; a test compares both.

macro_rules! word {
    ($inside:literal, $most:literal) => {
        concat!("[A-Za-z0-9_](?:[A-Za-z0-9_", $inside, "-]{0,", $most, "}[A-Za-z0-9_])?")
    };
}
macro_rules! label {
    () => {
        word!(".", "61")
    };
}
macro_rules! label_key {
    () => {
        concat!("(?:", word!(".", "251"), "/)?", label!())
    };
}
macro_rules! name {
    () => {
        word!(".:", "253")
    };
}
macro_rules! number {
    () => {
        "[+-]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    };
}

pub(super) const NAME: &str = concat!("^", name!(), "$");
pub(super) const LABEL_KEY: &str = concat!("^", label_key!(), "$");
pub(super) const LABEL_VALUE: &str = concat!("^", label!(), "$");
pub(super) const LABEL_CONSTRAINT: &str = concat!(
    "^[ \\t]*",
    label_key!(),
    "(?:(?:[ \\t]*(?:==?|!=)[ \\t]*|[ \\t]+is(?:[ \\t]*not[ \\t]+|[ \\t]*))",
    label!(),
    "|[ \\t]+(?:not[ \\t]*)?in[ \\t]*\\([ \\t]*",
    label!(),
    "(?:[ \\t]*,[ \\t]*",
    label!(),
    ")*[ \\t,]*\\))[ \\t]*$"
);
pub(super) const METRIC_CONSTRAINT: &str = concat!(
    "^[ \\t]*(?:",
    name!(),
    "|",
    label_key!(),
    ")(?:[ \\t]*(?:==?|!=|>=?|<=?|=>|=<)|[ \\t]+(?:is(?:[ \\t]*not)?|gte?|lte?|",
    "(?:greater|lesser|less)[ \\t]*than(?:[ \\t]*or[ \\t]*equal)?))[ \\t]*",
    number!(),
    "[ \\t]*$"
);
