//! Label selectors in the notation of API queries.

use std::collections::{BTreeMap, BTreeSet};

/// One requirement of a selector; all must hold.
enum Requirement<'a> {
    Is(&'a str, BTreeSet<&'a str>),
    /// Also matches where the label is absent.
    IsNot(&'a str, BTreeSet<&'a str>),
    Exists(&'a str),
    DoesNotExist(&'a str),
}

/// Matches a selector against labels; an empty selector matches all. `Err` if the selector is invalid for the API
/// server.
pub(super) fn selector_matches(selector: &str, labels: &BTreeMap<String, String>) -> Result<bool, String> {
    let requirements: Result<Vec<Requirement<'_>>, String> =
        split(selector).into_iter().filter(|part| !part.is_empty()).map(parse_requirement).collect();
    Ok(requirements?.iter().all(|requirement| is_met(requirement, labels)))
}

fn is_met(requirement: &Requirement<'_>, labels: &BTreeMap<String, String>) -> bool {
    let value = |key: &str| labels.get(key).map(String::as_str);
    match requirement {
        Requirement::Is(key, values) => value(key).is_some_and(|value| values.contains(value)),
        Requirement::IsNot(key, values) => value(key).is_none_or(|value| !values.contains(value)),
        Requirement::Exists(key) => value(key).is_some(),
        Requirement::DoesNotExist(key) => value(key).is_none(),
    }
}

/// Parts between commas outside parentheses.
fn split(selector: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0_i32);
    for (at, c) in selector.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(selector[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(selector[begin..].trim());
    parts
}

fn parse_requirement(part: &str) -> Result<Requirement<'_>, String> {
    let wrong = || format!("unable to parse requirement: {part}");
    let key =
        |key: &'_ str| !key.is_empty() && !key.contains(|c: char| c.is_whitespace() || "()=!,".contains(c));
    for (sign, negated) in [("!=", true), ("==", false), ("=", false)] {
        if let Some((name, value)) = part.split_once(sign) {
            let (name, value) = (name.trim(), value.trim());
            if !key(name) || value.contains(['=', '!', '(']) {
                return Err(wrong());
            }
            let values = BTreeSet::from([value]);
            return Ok(if negated {
                Requirement::IsNot(name, values)
            } else {
                Requirement::Is(name, values)
            });
        }
    }
    if let Some((head, list)) = part.split_once('(') {
        let list = list.strip_suffix(')').ok_or_else(wrong)?;
        let values: BTreeSet<&str> = list.split(',').map(str::trim).collect();
        let (name, operator) = head.trim().rsplit_once(char::is_whitespace).ok_or_else(wrong)?;
        let name = name.trim();
        return match operator {
            _ if !key(name) => Err(wrong()),
            "in" => Ok(Requirement::Is(name, values)),
            "notin" => Ok(Requirement::IsNot(name, values)),
            _ => Err(wrong()),
        };
    }
    match part.strip_prefix('!') {
        Some(name) if key(name) => Ok(Requirement::DoesNotExist(name)),
        None if key(part) => Ok(Requirement::Exists(part)),
        _ => Err(wrong()),
    }
}
