//! Property tests of the constraint languages, for constraints in any spelling and for any text.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;

use crate::placement::constraint::{
    Comparison, LabelConstraint, LabelRule, LabelTest, LabelVerdict, MetricConstraint, MetricRule,
    MetricVerdict,
};

const CASES: u32 = 2_000;

const IS: &[&str] = &["is", "=", "=="];
const IS_NOT: &[&str] = &["is not", "!="];
const COMPARISONS: &[(Comparison, &[&str])] = &[
    (Comparison::Is, IS),
    (Comparison::IsNot, IS_NOT),
    (Comparison::GreaterThan, &["greater than", "gt", ">"]),
    (Comparison::GreaterThanOrEqual, &["greater than or equal", "gte", ">=", "=>"]),
    (Comparison::LesserThan, &["lesser than", "less than", "lt", "<"]),
    (Comparison::LesserThanOrEqual, &["lesser than or equal", "less than or equal", "lte", "<=", "=<"]),
];

/// Any name. Words of the languages are more frequent than in random names.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[A-Za-z0-9_]([A-Za-z0-9_.-]{0,8}[A-Za-z0-9_])?",
        1 => select(&["is", "not", "in", "isnot", "notin", "gt", "gte", "less", "than", "or", "equal"][..])
            .prop_map(str::to_owned),
    ]
}

fn key() -> impl Strategy<Value = String> {
    (proptest::option::weighted(0.2, name()), name()).prop_map(|(prefix, name)| match prefix {
        Some(prefix) => format!("{prefix}/{name}"),
        None => name,
    })
}

fn blanks() -> impl Strategy<Value = String> {
    "[ \t]{0,3}"
}

/// Inserts a blank between two words, which would otherwise be read as one.
fn joined(left: &str, blanks: &str, right: &str) -> String {
    let word = |c: char| !matches!(c, '=' | '!' | '<' | '>' | '(' | ')' | ',' | ' ' | '\t');
    let meet = left.chars().next_back().is_some_and(word) && right.chars().next().is_some_and(word);
    let blanks = if blanks.is_empty() && meet { " " } else { blanks };
    format!("{left}{blanks}{right}")
}

fn joined_all(parts: &[&str], blanks: &[String]) -> String {
    let words = parts.iter().flat_map(|part| part.split(' '));
    let text = words
        .zip(blanks.iter().cycle())
        .fold(String::new(), |text, (word, blank)| joined(&text, blank, word));
    text + &blanks[0]
}

/// The content of a label constraint, and one of its spellings.
fn label_constraint() -> impl Strategy<Value = (LabelRule, String)> {
    let values = proptest::collection::vec(name(), 1..4);
    let spaces = proptest::collection::vec(blanks(), 1..9);
    (key(), values, 0..4_u8, any::<prop::sample::Index>(), 0..3_usize, spaces).prop_map(
        |(key, values, form, spelling, commas, blanks)| {
            let first = values[0].clone();
            let list =
                format!("({}{})", values.join(&format!("{},{}", blanks[0], blanks[0])), ",".repeat(commas));
            let (test, operator, operand) = match form {
                0 => (LabelTest::Is(first.clone()), *spelling.get(IS), first),
                1 => (LabelTest::IsNot(first.clone()), *spelling.get(IS_NOT), first),
                2 => (LabelTest::In(values.into_iter().collect()), "in", list),
                _ => (LabelTest::NotIn(values.into_iter().collect()), "not in", list),
            };
            // The list is one part, because it contains its own blanks.
            let written = joined_all(&[&key, operator], &blanks);
            let written = joined(&written, &blanks[0], &operand);
            (LabelRule { key, test }, written)
        },
    )
}

fn metric_constraint() -> impl Strategy<Value = (MetricRule, String)> {
    let number = r"[+-]?([0-9]{1,6}(\.[0-9]{0,4})?|\.[0-9]{1,4})([eE][+-]?[0-9]{1,2})?";
    let spaces = proptest::collection::vec(blanks(), 1..9);
    let metric = prop_oneof![4 => key(), 1 => "[a-z]{1,3}:[a-z:]{0,3}[a-z]"];
    (metric, select(COMPARISONS), any::<prop::sample::Index>(), number, spaces).prop_map(
        |(metric, (comparison, spellings), spelling, number, blanks)| {
            let written = joined_all(&[&metric, *spelling.get(spellings), &number], &blanks);
            let number = number.parse::<f64>().unwrap() + 0.0;
            (MetricRule { metric, comparison, number }, written)
        },
    )
}

/// Pieces of both languages and of neither, in any order.
fn soup() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        " ", " ", " ", "\t", "\n", "a", "is", "not", "in", "=", "!", "<", ">", "(", ")", ",", "greater",
        "lesser", "less", "than", "or", "equal", "gt", "lt", "gte", "lte", "5", "-", "+", ".", "e", "/", ":",
        "ä", "\u{a0}", "𝄞",
    ];
    proptest::collection::vec(select(PIECES), 0..12).prop_map(|pieces| pieces.concat())
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![soup(), any::<String>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn every_spelling_of_a_label_constraint_has_the_same_meaning((rule, written) in label_constraint()) {
        let read = LabelConstraint::parse(&written).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(read.rule(), Ok(&rule));
        let canonical = LabelConstraint::parse(read.canonical_text()).unwrap();
        prop_assert_eq!(&canonical, &read);
        prop_assert_eq!(canonical.written(), canonical.canonical_text());
    }

    #[test]
    fn every_spelling_of_a_metric_constraint_has_the_same_meaning((rule, written) in metric_constraint()) {
        let read = MetricConstraint::parse(&written).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(read.rule(), Ok(&rule));
        let canonical = MetricConstraint::parse(read.canonical_text()).unwrap();
        prop_assert_eq!(&canonical, &read);
        prop_assert_eq!(canonical.written(), canonical.canonical_text());
    }

    #[test]
    fn a_missing_label_meets_no_constraint(
        (rule, written) in label_constraint(),
        mut labels in proptest::collection::btree_map(key(), name(), 0..5),
    ) {
        labels.remove(&rule.key);
        let constraint = LabelConstraint::parse(&written).unwrap();
        prop_assert_eq!(constraint.evaluate(&labels), LabelVerdict::Missing);
    }

    #[test]
    fn a_present_label_meets_a_constraint_or_its_negation(
        (rule, written) in label_constraint(),
        value in name(),
        one_of_them in any::<bool>(),
    ) {
        let value = match &rule.test {
            LabelTest::Is(known) | LabelTest::IsNot(known) if one_of_them => known.clone(),
            LabelTest::In(known) | LabelTest::NotIn(known) if one_of_them => known.first().unwrap().clone(),
            _ => value,
        };
        let (among, negated) = match &rule.test {
            LabelTest::Is(known) => (*known == value, false),
            LabelTest::IsNot(known) => (*known == value, true),
            LabelTest::In(known) => (known.contains(&value), false),
            LabelTest::NotIn(known) => (known.contains(&value), true),
        };
        let constraint = LabelConstraint::parse(&written).unwrap();
        let labels = BTreeMap::from([(rule.key, value)]);
        prop_assert_eq!(constraint.evaluate(&labels).is_match(), among != negated);
    }

    #[test]
    fn a_metric_without_a_finite_value_meets_no_constraint((_, written) in metric_constraint()) {
        let constraint = MetricConstraint::parse(&written).unwrap();
        prop_assert_eq!(constraint.evaluate(None), MetricVerdict::Missing);
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            prop_assert_eq!(constraint.evaluate(Some(value)), MetricVerdict::NotFinite);
        }
    }

    #[test]
    fn a_number_survives_writing_and_reading(number in any::<f64>().prop_filter("finite", |n| n.is_finite())) {
        let rule = MetricRule { metric: "load".to_owned(), comparison: Comparison::Is, number: number + 0.0 };
        let read = MetricConstraint::parse(&rule.to_string()).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(read.rule(), Ok(&rule));
    }

    #[test]
    fn any_text_is_parsed_or_refused_at_a_column_within_it(text in any_text()) {
        let label = LabelConstraint::parse(&text);
        let metric = MetricConstraint::parse(&text);
        for error in [label.as_ref().err(), metric.as_ref().err()].into_iter().flatten() {
            prop_assert!((1..=text.chars().count() + 1).contains(&error.column));
        }
        if let Ok(label) = label {
            prop_assert_eq!(LabelConstraint::parse(label.canonical_text()), Ok(label));
        }
        if let Ok(metric) = metric {
            prop_assert_eq!(MetricConstraint::parse(metric.canonical_text()), Ok(metric));
        }
    }

    #[test]
    fn any_text_that_is_stored_is_returned(text in any_text()) {
        let json = serde_json::to_string(&text).unwrap();
        let label: LabelConstraint = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(serde_json::to_string(&label).unwrap(), json.clone());
        prop_assert_eq!(label.rule().is_ok(), LabelConstraint::parse(&text).is_ok());
        let metric: MetricConstraint = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(serde_json::to_string(&metric).unwrap(), json);
        prop_assert_eq!(metric.rule().is_ok(), MetricConstraint::parse(&text).is_ok());
    }
}
