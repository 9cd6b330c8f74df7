//! Tests of refused constraints: the column and the message of each error.

use std::fmt::Write as _;

use crate::placement::constraint::{ConstraintError, LabelConstraint, MetricConstraint};

const LABELS: &[&str] = &[
    "",
    "  \t",
    "location",
    "location! == DE",
    "location == DE!",
    "location == (DE, SK)",
    "a location == DE",
    "a location = (DE, SK)",
    "location is (DE, SK)",
    "location inf (DE, SK)",
    "location is",
    "location =",
    "location !",
    " in (DE, SK)",
    "location in",
    "location in (",
    "location in ()",
    "location in (,DE)",
    "location in (DE",
    "location in (DE,",
    "location in (DE,,",
    "location in (DE,,SK)",
    "location in (DE) SK",
    "location not in ()",
    "location in [DE, SK)",
    "location in DE, SK",
    "location in (DE SK)",
    "location not in (DE, SK]",
    "location not in (DE, SK",
    "location not in (DE a, SK)",
    "location not inf (DE, SK)",
    "location not",
    "location not DE",
    "location is not valid DE",
    "location IS DE",
    "location iss DE",
    "location is DE UK",
    "location is DE\n",
    "location\u{a0}is DE",
    "location = = DE",
    "location ! = DE",
    "location > DE",
    "location is D>E",
    ". == DE",
    "-k = DE",
    "url/com/location != DE",
    "url.com/ is not DE",
    "/location in (DE, SK)",
    "url.com/location. in (DE.GER,)",
    "url.com/location = $DE",
    "url.com/location is .",
    "url.com/location in (DE-, SK)",
    "url.com/location in (DE, /SK,)",
    "Ort is Köln",
    "größe = 5",
];

const METRICS: &[&str] = &[
    "",
    "load",
    "load! == 5",
    "load == 5!",
    "load == (5, 7)",
    "a load = 5",
    "load inf 5",
    "load in (5, 7)",
    "load not 5",
    "load is",
    "load is not",
    "load >",
    "load greater 5",
    "load greater than",
    "load greater than or 5",
    "load greater than or equal",
    "load greater than or equal to 5",
    "load is greater than 5",
    "load lesser",
    "load less then 5",
    "load Gt 5",
    "load ge 5",
    "load gte e5",
    "load gtx 5",
    "load >> 5",
    "load = >5",
    "load <> 5",
    "load > = 5",
    "load > 5 6",
    "load > 5, 6",
    "load > abc",
    "load > nan",
    "load > inf",
    "load > 1e999",
    "load > 1_000",
    "load > 0x10",
    "load > 5%",
    "load > 1e",
    "load > .",
    "load > --5",
    "load > - 5",
    "load > ٥",
    ". == 5",
    "-k = 5",
    "url/com/load != 5",
    "url.com/ is not 5",
    "a/b:c is 5",
];

fn said<T>(written: &str, read: Result<T, ConstraintError>, said: &mut String) {
    let Err(error) = read else { panic!("accepted: {written:?}") };
    let shown: String = written.chars().map(|c| if c == '\n' || c == '\t' { '␣' } else { c }).collect();
    let (before, got, expected) = (" ".repeat(error.column - 1), error.got, error.expected);
    writeln!(said, "| {shown}\n| {before}^ {}: got {got}, expected {expected}\n", error.column).unwrap();
}

#[test]
fn errors_of_label_constraints_name_the_column() {
    let mut all = String::new();
    LABELS.iter().for_each(|written| said(written, LabelConstraint::parse(written), &mut all));
    insta::assert_snapshot!(all);
}

#[test]
fn errors_of_metric_constraints_name_the_column() {
    let mut all = String::new();
    METRICS.iter().for_each(|written| said(written, MetricConstraint::parse(written), &mut all));
    let too_long = format!("load > {}", "1".repeat(64));
    said(&too_long, MetricConstraint::parse(&too_long), &mut all);
    insta::assert_snapshot!(all);
}

#[test]
fn constraint_error_is_one_line() {
    let error = LabelConstraint::parse("location is DE UK").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the constraint is not valid at column 16: got \"UK\", expected the end of the constraint"
    );
}
