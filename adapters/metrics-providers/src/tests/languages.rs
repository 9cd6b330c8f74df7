//! Tests that no name of a metric or column can change the meaning of a query. Each query is parsed again by a parser
//! that this test has for the language, written from its grammar.

use std::collections::BTreeSet;

use madako_domain::placement::core::{KafkaSpec, MetricsProviderKind};
use proptest::prelude::*;
use serde_json::json;

use super::{HOSTILE, flux, kind};
use crate::{influx, ksql, prometheus};

/// Names with many special characters.
fn hostile_name() -> impl Strategy<Value = String> {
    let special = prop::sample::select(vec![
        "\"", "'", "`", "\\", "$", "{", "}", "${", "|", "(", ")", ".", "*", "\n", "\r", "\t", "\0", ";",
        "--", "or", " ", "a", "Z", "0", "_", ":", "é", "😀", "\u{85}", "\u{2028}", "#", "\\x22", "\\u0022",
        "\\\"",
    ]);
    prop_oneof![
        3 => prop::collection::vec(special, 1..12).prop_map(|parts| parts.concat()),
        1 => any::<String>().prop_filter("no metric is called so", |name| !name.is_empty()),
    ]
}

fn hostile_names() -> impl Strategy<Value = BTreeSet<String>> {
    prop::collection::btree_set(hostile_name(), 1..6)
}

/// The names that a selector of PromQL requests.
fn promql(query: &str) -> Option<Vec<String>> {
    let literal = query.strip_prefix("{__name__=~")?.strip_suffix('}')?;
    alternatives(&go_string(literal)?)
}

/// The value of a Go string literal in double quotes; `None` if the text is not exactly one literal.
fn go_string(literal: &str) -> Option<String> {
    let inner = literal.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::new();
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' | '\n' => return None,
            '\\' => match characters.next()? {
                escaped @ ('\\' | '"') => text.push(escaped),
                'u' => {
                    let code: String = characters.by_ref().take(4).collect();
                    text.push(char::from_u32(u32::from_str_radix(&code, 16).ok()?)?);
                }
                _ => return None,
            },
            _ => text.push(character),
        }
    }
    Some(text)
}

/// The texts that an alternation of RE2 matches; `None` if it contains anything but literal texts.
fn alternatives(expression: &str) -> Option<Vec<String>> {
    let mut texts = vec![String::new()];
    let mut characters = expression.chars();
    while let Some(character) = characters.next() {
        let literal = match character {
            '|' => {
                texts.push(String::new());
                continue;
            }
            '\\' => characters.next().filter(char::is_ascii_punctuation)?,
            '.' | '+' | '*' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '^' | '$' => return None,
            _ => character,
        };
        texts.last_mut()?.push(literal);
    }
    Some(texts)
}

/// The name that a statement of KSQL requests; `None` if it is not exactly one SELECT with one comparison.
fn ksql_name(statement: &str, beginning: &str) -> Option<String> {
    let inner = statement.strip_prefix(beginning)?.strip_prefix('\'')?.strip_suffix("';")?;
    let mut name = String::new();
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        if character == '\'' && characters.next() != Some('\'') {
            return None;
        }
        name.push(character);
    }
    Some(name)
}

fn table(value: &str, table: &str, comparison: &str) -> KafkaSpec {
    let of = json!({ "url": "", "value_column": value, "table": table, "comparison_column": comparison });
    match kind(&json!({ "type": "kafka", "of": of })) {
        MetricsProviderKind::Kafka(spec) => spec,
        other => panic!("{other:?}"),
    }
}

fn check(names: &BTreeSet<String>) {
    let owned: Vec<String> = names.iter().cloned().collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let query = prometheus::promql_query(&names);
    assert_eq!(promql(&query).as_ref(), Some(&owned), "{query}");
    let query = influx::flux_query(names[0], &names);
    let (bucket, measurements) = flux::read(&query).unwrap_or_else(|| panic!("{query}"));
    assert_eq!((bucket.as_str(), measurements), (names[0], owned), "{query}");
    for name in names {
        let statement = ksql::ksql_query(&table("v", "t", "c"), name);
        assert_eq!(ksql_name(&statement, "SELECT v FROM t WHERE c = ").as_deref(), Some(name), "{statement}");
        let quoted = ksql::quote_identifier(name);
        let plain = quoted == name;
        let inner = quoted.strip_prefix('`').and_then(|inner| inner.strip_suffix('`'));
        let whole = |inner: &str| !inner.replace("``", "").contains('`');
        assert!(
            inner
                .map_or_else(|| plain && name.bytes().all(|c| c == b'_' || c.is_ascii_alphanumeric()), whole),
            "{name:?} became {quoted}"
        );
    }
}

#[test]
fn hostile_names_do_not_change_the_meaning_of_a_query() {
    for name in HOSTILE {
        check(&BTreeSet::from([name.to_owned()]));
    }
    check(&HOSTILE.iter().map(|name| (*name).to_owned()).collect());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_name_changes_the_meaning_of_a_query(names in hostile_names()) {
        check(&names);
    }
}

#[test]
fn plain_and_quoted_columns_stay_as_they_are_and_others_are_quoted() {
    for (written, sent) in [
        ("my_value_col", "my_value_col"),
        ("_9", "_9"),
        ("`Mixed Case`", "`Mixed Case`"),
        ("9lives", "`9lives`"),
        ("a b", "`a b`"),
        ("", "``"),
        ("`", "````"),
        ("`a` FROM b; --`", "```a`` FROM b; --```"),
        ("größe", "`größe`"),
    ] {
        assert_eq!(ksql::quote_identifier(written), sent);
    }
    let statement = ksql::ksql_query(&table("v", "a b", "c"), "it's");
    assert_eq!(statement, "SELECT v FROM `a b` WHERE c = 'it''s';");
}

#[test]
fn the_queries_are_those_that_the_servers_take() {
    assert_eq!(prometheus::promql_query(&["a:b", "c.d"]), r#"{__name__=~"a:b|c\\.d"}"#);
    assert_eq!(
        influx::flux_query("b", &["one", "$two"]),
        r#"from(bucket: "b") |> range(start: -1h) |> filter(fn: (r) => r._measurement == "one" or r._measurement == "\x24two") |> last()"#
    );
}
