//! Accepted and refused constraints with the column of the error, and the results of evaluation. The examples come from
//! Krake's documentation and from its tests.

mod errors;
mod properties;

use std::collections::BTreeMap;

use super::names::{is_label_key, is_label_value, is_resource_name};
use super::*;

fn label(written: &str) -> LabelConstraint {
    LabelConstraint::parse(written).unwrap_or_else(|error| panic!("{written:?}: {error}"))
}

fn metric(written: &str) -> MetricConstraint {
    MetricConstraint::parse(written).unwrap_or_else(|error| panic!("{written:?}: {error}"))
}

fn labels(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value.to_owned())])
}

#[test]
fn every_spelling_of_a_label_constraint_has_one_canonical_form() {
    for (canonical, spellings) in [
        (
            "location is DE",
            &[
                "location = DE",
                "location == DE",
                "location=DE",
                "location==DE",
                "location =DE",
                " location\tis \t DE ",
                "location isDE",
            ][..],
        ),
        (
            "location is not DE",
            &["location != DE", "location!=DE", "location isnot DE", "location  is  not  DE"],
        ),
        (
            "location in (DE, SK)",
            &[
                "location in (DE, SK,)",
                "location in(DE,SK)",
                "location in ( SK , DE )",
                "location in (DE, SK, DE)",
                "location in (DE, SK,,\t, )",
            ],
        ),
        (
            "location not in (DE, SK)",
            &["location not in (DE, SK,)", "location notin(DE,SK)", "location not\tin (SK,DE)"],
        ),
        ("location in (DE)", &["location in (DE,)"]),
        (
            "url.com/location is DE.GER",
            &["url.com/location = DE.GER", "url.com/location==DE.GER", "url.com/location == DE.GER"],
        ),
        ("url.com/location not in (DE.GER, SK.SLOV)", &["url.com/location not in (DE.GER, SK.SLOV,)"]),
        // Words of the language are also valid names and values.
        ("is is is", &["is=is", "is isis"]),
        ("is is not", &["is = not", "is isnot"]),
        ("not is not not", &["not != not", "not isnot not"]),
        ("not not in (in)", &["not notin(in)"]),
        ("in in (in)", &["in in(in,)"]),
        ("_ is __", &["_=__"]),
        ("a is notb", &["a isnotb", "a = notb"]),
        // A consequence of reading everything that Krake reads.
        ("location is land", &["location island"]),
    ] {
        assert_eq!(label(canonical).canonical_text(), canonical);
        for written in spellings {
            let read = label(written);
            assert_eq!(read.canonical_text(), canonical, "{written:?}");
            assert_eq!(read, label(canonical), "{written:?}");
            assert_eq!(read.written(), *written);
        }
    }
}

#[test]
fn every_spelling_of_a_metric_constraint_has_one_canonical_form() {
    for (canonical, spellings) in [
        (
            "load is 5",
            &["load = 5", "load == 5", "load=5", "load==5", "load is 5.0", "load is5", "load = 05"][..],
        ),
        ("load is not 5", &["load != 5", "load!=5", "load isnot 5", "load is not5", "load isnot5"]),
        ("load greater than 5", &["load gt 5", "load > 5", "load>5", "load gt5", "load greaterthan5"]),
        (
            "load greater than or equal 5",
            &[
                "load gte 5",
                "load >= 5",
                "load => 5",
                "load>=5",
                "load=>5",
                "load gte5",
                "load greaterthanorequal5",
            ],
        ),
        (
            "load lesser than 5",
            &[
                "load less than 5",
                "load lt 5",
                "load < 5",
                "load<5",
                "load lessthan 5",
                "load lesser\tthan 5",
            ],
        ),
        (
            "load lesser than or equal 5",
            &[
                "load less than or equal 5",
                "load lte 5",
                "load <= 5",
                "load =< 5",
                "load<=5",
                "load =<5",
                "load lte5",
                "load lesser than orequal 5",
            ],
        ),
        ("load greater than -0.5", &["load > -.5", "load > -5e-1", "load gt -0.50"]),
        ("load is 0", &["load = -0", "load is 0.0", "load == 1e-999", "load is +0"]),
        ("load is 1500000", &["load is 1.5e6", "load is 15E+5", "load is 1500000."]),
        ("node:load lesser than 1", &["node:load<1"]),
        ("url.com/load is 1", &["url.com/load=1"]),
        ("greater greater than 1", &["greater > 1"]),
        ("gt lesser than or equal 1", &["gt lte1"]),
    ] {
        assert_eq!(metric(canonical).canonical_text(), canonical);
        for written in spellings {
            let read = metric(written);
            assert_eq!(read.canonical_text(), canonical, "{written:?}");
            assert_eq!(read, metric(canonical), "{written:?}");
            assert_eq!(read.written(), *written);
        }
    }
}

#[test]
fn constraints_of_different_meaning_differ() {
    assert_ne!(label("location is DE"), label("location is not DE"));
    assert_ne!(label("location is DE"), label("location is FR"));
    assert_ne!(label("location is DE"), label("country is DE"));
    assert_ne!(label("location is DE"), label("location in (DE)"));
    assert_ne!(metric("load is 5"), metric("load is 6"));
    assert_ne!(metric("load gt 5"), metric("load gte 5"));
    let unreadable = |written: &str| LabelConstraint::from_stored(written.to_owned());
    assert_ne!(unreadable("location iss DE"), unreadable("location  iss DE"));
    assert_eq!(unreadable("location iss DE"), unreadable("location iss DE"));
}

#[test]
fn a_constraint_on_a_missing_label_is_not_met() {
    for (written, value, expected) in [
        ("location is DE", "DE", true),
        ("location is DE", "SK", false),
        ("location is DE", "de", false),
        ("location is not DE", "SK", true),
        ("location is not DE", "DE", false),
        ("location in (DE, SK)", "SK", true),
        ("location in (DE, SK)", "EU", false),
        ("location not in (DE, SK)", "EU", true),
        ("location not in (DE, SK)", "DE", false),
    ] {
        let constraint = label(written);
        let wanted = if expected { LabelVerdict::Matched { value } } else { LabelVerdict::Differs { value } };
        assert_eq!(constraint.evaluate(&labels("location", value)), wanted, "{written}");
        assert_eq!(constraint.evaluate(&labels("country", value)), LabelVerdict::Missing, "{written}");
        assert_eq!(wanted.is_match(), expected);
    }
}

#[test]
fn a_constraint_on_a_missing_metric_is_not_met() {
    // Results for a value below 5, for 5, and for a value above 5.
    for (written, below, same, above) in [
        ("load is 5", false, true, false),
        ("load is not 5", true, false, true),
        ("load lt 5", true, false, false),
        ("load lte 5", true, true, false),
        ("load gt 5", false, false, true),
        ("load gte 5", false, true, true),
    ] {
        let constraint = metric(written);
        for (value, expected) in [(-6.0, below), (4.999, below), (5.0, same), (5.001, above)] {
            let wanted =
                if expected { MetricVerdict::Matched { value } } else { MetricVerdict::Differs { value } };
            assert_eq!(constraint.evaluate(Some(value)), wanted, "{written} {value}");
        }
        assert_eq!(constraint.evaluate(None), MetricVerdict::Missing, "{written}");
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(constraint.evaluate(Some(value)), MetricVerdict::NotFinite, "{written} {value}");
        }
        assert_eq!(constraint.metric(), Some("load"));
    }
}

#[test]
fn a_custom_resource_constraint_is_met_by_its_presence() {
    let there = ["crontabs.stable.example.com".to_owned()];
    assert!(has_custom_resource(&there, "crontabs.stable.example.com"));
    assert!(!has_custom_resource(&there, "crontabs"));
    assert!(!has_custom_resource(&[], "crontabs.stable.example.com"));
}

#[test]
fn unreadable_stored_constraint_is_kept_and_matches_nothing() {
    let json = r#"["load > 5","load > abc","load > nan"," load=>5 "]"#;
    let stored: Vec<MetricConstraint> = serde_json::from_str(json).unwrap();
    assert_eq!(serde_json::to_string(&stored).unwrap(), json);
    let matched: Vec<bool> = stored.iter().map(|one| one.evaluate(Some(6.0)).is_match()).collect();
    assert_eq!(matched, [true, false, false, true]);
    let MetricVerdict::Unreadable { error } = stored[1].evaluate(Some(6.0)) else {
        panic!("it cannot be read");
    };
    assert_eq!((error.column, error.got.as_str()), (8, "\"abc\""));
    assert_eq!((stored[1].canonical_text(), stored[1].metric()), ("load > abc", None));

    let json = r#"["location is not valid DE","location is not DE"]"#;
    let stored: Vec<LabelConstraint> = serde_json::from_str(json).unwrap();
    assert_eq!(serde_json::to_string(&stored).unwrap(), json);
    let there = labels("location", "SK");
    assert!(matches!(stored[0].evaluate(&there), LabelVerdict::Unreadable { .. }));
    assert!(stored[1].evaluate(&there).is_match());
}

#[test]
fn a_verdict_is_machine_readable() {
    let constraint = label("location is DE");
    let there = labels("location", "SK");
    let verdict = serde_json::to_string(&constraint.evaluate(&there)).unwrap();
    assert_eq!(verdict, r#"{"verdict":"differs","value":"SK"}"#);
    let verdict = serde_json::to_string(&metric("load > 5").evaluate(None)).unwrap();
    assert_eq!(verdict, r#"{"verdict":"missing"}"#);
}

#[test]
fn a_constraint_is_at_most_64_kib() {
    let list = |values: usize| format!("a in ({})", vec!["b"; values].join(","));
    let longest = list((MAX_CONSTRAINT - "a in ()".len()) / 2) + " ";
    assert_eq!(longest.len(), MAX_CONSTRAINT - 1);
    label(&longest);
    label(&(longest.clone() + " "));
    let error = LabelConstraint::parse(&(longest + "  ")).unwrap_err();
    assert_eq!((error.got.as_str(), error.expected), ("65537 bytes", "at most 65536 bytes"));
}

#[test]
fn names_are_those_of_krake() {
    let (of_63, of_253, of_255) = ("k".repeat(63), "k".repeat(253), "k".repeat(255));
    for key in ["a", "_", "A_b.c-9", "a..b", "Url_.com/a", &of_63, &format!("{of_253}/{of_63}")] {
        assert!(is_label_key(key), "{key}");
    }
    let (long_name, long_prefix) = (format!("a/{of_63}k"), format!("{of_253}k/a"));
    for key in ["", ".", "-k", "k.", "/a", "a/", "a/b/c", "a:b", "a b", "ä", "a\n", &long_name, &long_prefix]
    {
        assert!(!is_label_key(key), "{key:?}");
    }
    assert!(is_label_value(&of_63) && is_label_value("_9"));
    for value in ["", "-", "a-", "a/b", "a:b", "ä", &"k".repeat(64)] {
        assert!(!is_label_value(value), "{value:?}");
    }
    assert!(is_resource_name(&of_255) && is_resource_name("system:admin"));
    for name in ["", ":", ":a", "a:", "a/b", "a b", &"k".repeat(256)] {
        assert!(!is_resource_name(name), "{name:?}");
    }
}
