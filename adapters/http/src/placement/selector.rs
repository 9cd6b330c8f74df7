//! Evaluates `labelSelector` as Kubernetes does, and cuts a list into pages by `limit` and `continue`.

use madako_domain::placement::constraint::names::{is_label_key, is_label_value};
use madako_domain::placement::kind::Kind;
use madako_json::krake::entries::Labels;

use super::problem::Problem;
use super::query::{Query, parse_number, shorten_parameter};
use crate::limits::MAX_TERMS;

const EXPECTED: &str = "requirements such as key=value, key!=value, key in (a,b), key notin (a,b), key or !key, \
    with commas between";

/// Requirements on labels; all must hold. An empty selector matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selector(Vec<LabelRequirement>);

/// One requirement. A resource without the label matches no list of values.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LabelRequirement {
    Has(String),
    Lacks(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
}

impl Selector {
    pub(super) fn read(query: &Query) -> Result<Self, Problem> {
        let text = query.get("labelSelector").unwrap_or_default();
        Self::parse(text).ok_or_else(|| {
            Problem::invalid_field("labelSelector", format!("{:?}", shorten_parameter(text)), EXPECTED)
        })
    }

    fn parse(text: &str) -> Option<Self> {
        if text.trim().is_empty() {
            return Some(Self::default());
        }
        let mut open = false;
        let terms = text.split(|c| {
            match c {
                '(' => open = true,
                ')' => open = false,
                _ => {}
            }
            c == ',' && !open
        });
        let terms: Vec<LabelRequirement> =
            terms.take(MAX_TERMS + 1).map(parse_requirement).collect::<Option<_>>()?;
        (terms.len() <= MAX_TERMS).then_some(Self(terms))
    }

    pub(super) fn selects(&self, labels: &Labels) -> bool {
        self.0.iter().all(|term| match term {
            LabelRequirement::Has(key) => labels.get(key).is_some(),
            LabelRequirement::Lacks(key) => labels.get(key).is_none(),
            LabelRequirement::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            LabelRequirement::NotIn(key, values) => {
                labels.get(key).is_none_or(|value| !values.contains(value))
            }
        })
    }
}

fn parse_requirement(text: &str) -> Option<LabelRequirement> {
    let text = text.trim();
    let key = |text: &str| Some(text.trim().to_owned()).filter(|key| is_label_key(key));
    // Kubernetes allows empty values; labels of Krake do not.
    let value = |text: &str| Some(text.trim().to_owned()).filter(|value| is_label_value(value));
    if let Some(rest) = text.strip_prefix('!') {
        return Some(LabelRequirement::Lacks(key(rest)?));
    }
    if let Some((left, right)) = text.split_once("!=") {
        return Some(LabelRequirement::NotIn(key(left)?, vec![value(right)?]));
    }
    if let Some((left, right)) = text.split_once('=') {
        let right = right.strip_prefix('=').unwrap_or(right);
        return Some(LabelRequirement::In(key(left)?, vec![value(right)?]));
    }
    let Some((left, values)) = text.split_once('(') else {
        return Some(LabelRequirement::Has(key(text)?));
    };
    let values = values.strip_suffix(')')?.split(',').map(value).collect::<Option<Vec<_>>>()?;
    let (name, operator) = left.trim_end().rsplit_once(char::is_whitespace)?;
    match operator {
        "in" => Some(LabelRequirement::In(key(name)?, values)),
        "notin" => Some(LabelRequirement::NotIn(key(name)?, values)),
        _ => None,
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) limit: Option<usize>,
    /// Only items after this etcd key.
    pub(super) after: Option<String>,
}

impl Page {
    pub(super) fn read(query: &Query, kind: Kind) -> Result<Self, Problem> {
        let limit = match query.get("limit") {
            None => None,
            Some(text) => match parse_number(text) {
                Some(limit) if limit > 0 => Some(usize::try_from(limit).unwrap_or(usize::MAX)),
                _ => {
                    return Err(Problem::invalid_field(
                        "limit",
                        format!("{:?}", shorten_parameter(text)),
                        "a whole number from 1 up",
                    ));
                }
            },
        };
        let after = match query.get("continue") {
            None | Some("") => None,
            Some(token) => Some(key_of_token(token, kind).ok_or_else(|| {
                Problem::invalid_field(
                    "continue",
                    format!("{:?}", shorten_parameter(token)),
                    "`metadata.continue` of the list before",
                )
            })?),
        };
        Ok(Self { limit, after })
    }
}

/// Token that continues a list after a key.
pub(super) fn continue_token(key: &str) -> String {
    key.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn key_of_token(token: &str, kind: Kind) -> Option<String> {
    let digits = token.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let bytes = digits
        .chunks(2)
        .map(|pair| u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok())
        .collect::<Option<Vec<u8>>>()?;
    String::from_utf8(bytes).ok().filter(|key| key.starts_with(kind.prefix()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_selected_as_kubernetes_does() {
        let mut labels = Labels::new();
        labels.insert("team", "a".to_owned());
        labels.insert("k8s.io/tier", "front".to_owned());
        for (selector, selects) in [
            ("", true),
            (" ", true),
            ("team=a", true),
            ("team == a", true),
            ("team=b", false),
            ("team!=b", true),
            ("team != a", false),
            ("other!=a", true),
            ("other=a", false),
            ("team", true),
            ("other", false),
            ("!other", true),
            ("! team", false),
            ("team in (a, b)", true),
            ("team in (b,c)", false),
            ("team notin (b, c)", true),
            ("other notin (b)", true),
            ("team notin (a)", false),
            ("team=a,k8s.io/tier in (front,back),!other", true),
            ("team=a,other", false),
        ] {
            let parsed = Selector::parse(selector).unwrap_or_else(|| panic!("{selector}"));
            assert_eq!(parsed.selects(&labels), selects, "{selector}");
        }
    }

    #[test]
    fn malformed_selectors_are_refused() {
        let many = vec!["a"; MAX_TERMS + 1].join(",");
        for text in [
            ",",
            "a,",
            "=a",
            "a=",
            "a=b=c",
            "a in",
            "a in (",
            "a in ()",
            "a on (b)",
            "(b)",
            "in (b)",
            "a b",
            "!",
            "-",
            "a=b c",
            "a in (b) c",
            &many,
        ] {
            assert_eq!(Selector::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_page_continues_after_the_key_in_its_token() {
        let key = "/core/roles/é";
        let query = |text: &str| Query::read(Some(text));
        let page =
            Page::read(&query(&format!("limit=2&continue={}", continue_token(key))), Kind::Role).unwrap();
        assert_eq!(page, Page { limit: Some(2), after: Some(key.to_owned()) });
        assert_eq!(Page::read(&query("continue="), Kind::Role).unwrap(), Page::default());
        let elsewhere = format!("continue={}", continue_token("/core/metrics/n/m"));
        for wrong in [
            "limit=0",
            "limit=-1",
            "limit=",
            "limit=a",
            "continue=zz",
            "continue=a",
            "continue=ff",
            &elsewhere,
        ] {
            assert!(Page::read(&query(wrong), Kind::Role).is_err(), "{wrong}");
        }
    }
}
