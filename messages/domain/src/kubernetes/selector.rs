//! A label selector in the form of objects (`metav1.LabelSelector`) and in the notation of the API's queries.

use std::collections::BTreeMap;

use madako_json::go::go_object;
use madako_json::strict::HasKind as _;
use madako_json::strict::Kind::{self, OmitEmpty};

use crate::schema::TEXTS;

go_object! {
    /// Required labels and expressions; an object matches if all of them hold.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct LabelSelector {
        /// Required labels and their values.
        pub match_labels: BTreeMap<String, String> = "matchLabels", is OmitEmpty(&Kind::Map(&Kind::Text));
        /// Expressions, all of which must hold.
        pub match_expressions: Vec<Requirement> = "matchExpressions", is OmitEmpty(&<Vec<Requirement>>::KIND);
        ..drop typed
    }
}

go_object! {
    /// One expression of a selector.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Requirement {
        /// Key of the label.
        pub key: String = "key";
        /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
        pub operator: String = "operator";
        /// Values for `In` and `NotIn`; empty for the other operators.
        pub values: Vec<String> = "values", is OmitEmpty(&TEXTS);
        ..drop typed
    }
}

/// The reason why Kubernetes refuses a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// Kubernetes does not have this operator.
    #[error(
        "label selector: got the operator {operator:?} for the key {key}, expected In, NotIn, Exists or DoesNotExist"
    )]
    Operator {
        /// Key of the label.
        key: String,
        /// The operator's text in the selector.
        operator: String,
    },
    /// `In` and `NotIn` require values; the other operators allow none.
    #[error("label selector: the operator {operator} of the key {key} does not allow {count} values")]
    Values {
        /// Key of the label.
        key: String,
        /// The operator's text in the selector.
        operator: String,
        /// The number of values.
        count: usize,
    },
}

impl LabelSelector {
    /// The selector in the notation of `labelSelector=`; the empty notation selects everything.
    ///
    /// # Errors
    /// An expression is invalid.
    pub fn notation(&self) -> Result<String, SelectorError> {
        let mut parts: Vec<String> =
            self.match_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        for Requirement { key, operator, values } in &self.match_expressions {
            let listed = || format!("({})", values.join(","));
            let (wants_values, part) = match operator.as_str() {
                "In" => (true, format!("{key} in {}", listed())),
                "NotIn" => (true, format!("{key} notin {}", listed())),
                "Exists" => (false, key.clone()),
                "DoesNotExist" => (false, format!("!{key}")),
                _ => {
                    return Err(SelectorError::Operator { key: key.clone(), operator: operator.clone() });
                }
            };
            if wants_values == values.is_empty() {
                let (key, operator) = (key.clone(), operator.clone());
                return Err(SelectorError::Values { key, operator, count: values.len() });
            }
            parts.push(part);
        }
        Ok(parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notation(json: &str) -> Result<String, SelectorError> {
        serde_json::from_str::<LabelSelector>(json).unwrap().notation()
    }

    #[test]
    fn every_operator_has_its_notation() {
        let json = r#"{"matchLabels":{"b":"2","a":""},"matchExpressions":[
            {"key":"k","operator":"In","values":["x","y"]},{"key":"l","operator":"NotIn","values":["z"]},
            {"key":"m","operator":"Exists"},{"key":"n","operator":"DoesNotExist","values":null}]}"#;
        assert_eq!(notation(json).unwrap(), "a=,b=2,k in (x,y),l notin (z),m,!n");
        assert_eq!(notation("{}").unwrap(), "");
    }

    #[test]
    fn selectors_that_kubernetes_refuses_are_refused() {
        for odd in [
            r#"{"matchExpressions":[{"key":"k","operator":"in","values":["x"]}]}"#,
            r#"{"matchExpressions":[{"key":"k","operator":"In"}]}"#,
            r#"{"matchExpressions":[{"key":"k","operator":"Exists","values":["x"]}]}"#,
        ] {
            assert!(notation(odd).is_err(), "{odd}");
        }
    }
}
