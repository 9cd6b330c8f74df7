//! Parses the query parameters of the placement API as Krake's server does, and refuses an invalid one with its name.

use std::time::Duration;

use madako_domain::placement::kind::Kind;
use madako_domain::placement::object_value::Object;
use madako_json::krake::schema::Shape;

use super::problem::Problem;
use super::route::decode_segment;
use crate::limits::{HEARTBEAT, MAX_HEARTBEAT, MAX_QUERY_SHOWN};

/// Value of `blocking` for a deleted resource.
const DELETED: &str = "DELETED";

/// Names and values, in order.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses a query. Invalid percent-encoding stays unchanged, as in Python.
    pub(super) fn read(text: Option<&str>) -> Self {
        let plain = |text: &str| {
            let text = text.replace('+', " ");
            decode_segment(&text).unwrap_or(text)
        };
        let pairs = text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (plain(name), plain(value))
                })
                .collect(),
        )
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn all_values<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// True if the deletion is forced: Krake accepts only this word.
    pub(super) fn is_forced(&self) -> bool {
        self.get("force") == Some("True")
    }

    /// True if a watch is requested: any value counts, as in Krake.
    pub(super) fn watch(&self) -> bool {
        self.get("watch").is_some()
    }

    /// Interval of heartbeats; `None` for no heartbeats.
    pub(super) fn heartbeat_interval(&self) -> Result<Option<Duration>, Problem> {
        let Some(text) = self.get("heartbeat") else { return Ok(Some(HEARTBEAT)) };
        let seconds: u64 = parse_number(text).ok_or_else(|| {
            Problem::invalid_field(
                "heartbeat",
                format!("{:?}", shorten_parameter(text)),
                "a whole number of seconds, 0 or more",
            )
        })?;
        Ok((seconds > 0).then(|| Duration::from_secs(seconds).min(MAX_HEARTBEAT)))
    }

    pub(super) fn awaited_condition(&self, kind: Kind) -> Result<Option<AwaitedCondition>, Problem> {
        let Some(states) = state_names(kind) else { return Ok(None) };
        let Some(text) = self.get("blocking").filter(|text| *text != "False") else { return Ok(None) };
        let state = text.to_uppercase();
        if state == DELETED {
            return Ok(Some(AwaitedCondition::Deleted));
        }
        match states.iter().find(|known| **known == state) {
            Some(state) => Ok(Some(AwaitedCondition::State(state))),
            None => {
                let expected = format!("deleted, False, or one of {}", states.join(", ").to_lowercase());
                Err(Problem::invalid_field("blocking", format!("{:?}", shorten_parameter(text)), expected))
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AwaitedCondition {
    Deleted,
    State(&'static str),
}

pub(super) fn state_names(kind: Kind) -> Option<&'static [&'static str]> {
    let status = kind.schema().fields.iter().find(|field| field.name == "status")?;
    let Shape::Object(status) = &status.shape else { return None };
    let state = status.fields.iter().find(|field| field.name == "state")?;
    match state.shape {
        Shape::Choice(names) => Some(names),
        _ => None,
    }
}

pub(super) fn state_name(object: &Object) -> Option<&'static str> {
    match object {
        Object::Application(it) => Some(it.status.state.name()),
        Object::Cluster(it) => Some(it.status.state.name()),
        Object::MagnumCluster(it) => Some(it.status.state.name()),
        Object::Project(it) => Some(it.status.state.name()),
        Object::Cloud(it) => Some(it.status.state.name()),
        Object::GlobalCloud(it) => Some(it.status.state.name()),
        Object::Role(_)
        | Object::RoleBinding(_)
        | Object::GlobalMetric(_)
        | Object::Metric(_)
        | Object::GlobalMetricsProvider(_)
        | Object::MetricsProvider(_)
        | Object::GlobalInfrastructureProvider(_)
        | Object::InfrastructureProvider(_) => None,
    }
}

/// A whole number of at least 0, with a sign and surrounding spaces as in Python.
pub(super) fn parse_number(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.strip_prefix('+').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    // A number beyond 64 bits is capped.
    Some(digits.parse().unwrap_or(u64::MAX))
}

pub(super) fn shorten_parameter(text: &str) -> &str {
    text.char_indices().nth(MAX_QUERY_SHOWN).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded_and_the_first_counts() {
        let query = Query::read(Some("watch&a=1&a=2&b=x%20y+z&c=%zz&=d"));
        assert!(query.watch());
        assert_eq!(query.get("a"), Some("1"));
        assert_eq!(query.get("b"), Some("x y z"));
        assert_eq!(query.get("c"), Some("%zz"));
        assert_eq!(query.get("d"), None);
    }

    #[test]
    fn the_heartbeat_parameter_is_in_whole_seconds() {
        for (query, expected) in [
            ("", Some(Some(10))),
            ("heartbeat=0", Some(None)),
            ("heartbeat=3", Some(Some(3))),
            ("heartbeat=%203", Some(Some(3))),
            ("heartbeat=99999999999999999999999", Some(Some(86_400))),
            ("heartbeat=", None),
            ("heartbeat=-1", None),
            ("heartbeat=1.5", None),
            ("heartbeat=abc", None),
        ] {
            let read = Query::read(Some(query)).heartbeat_interval().ok();
            let expected = expected.map(|beat| beat.map(Duration::from_secs));
            assert_eq!(read, expected, "{query}");
        }
    }

    #[test]
    fn a_state_to_wait_for_is_one_of_the_kind() {
        let read = |query, kind| Query::read(Some(query)).awaited_condition(kind).ok();
        for (query, kind, expected) in [
            ("blocking=False", Kind::Application, Some(None)),
            ("", Kind::Application, Some(None)),
            ("blocking=running", Kind::Application, Some(Some(AwaitedCondition::State("RUNNING")))),
            ("blocking=Online", Kind::Cluster, Some(Some(AwaitedCondition::State("ONLINE")))),
            ("blocking=deleted", Kind::Application, Some(Some(AwaitedCondition::Deleted))),
            ("blocking=deleted", Kind::Cluster, Some(Some(AwaitedCondition::Deleted))),
            ("blocking=online", Kind::Application, None),
            ("blocking=", Kind::Application, None),
            ("blocking=online", Kind::Role, Some(None)),
        ] {
            assert_eq!(read(query, kind), expected, "{query} {kind}");
        }
    }
}
