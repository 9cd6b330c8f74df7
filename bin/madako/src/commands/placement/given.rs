//! What was typed after a command, by the names of its options.

use std::env;

use clap::ArgMatches;
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::output::Format;

/// The options and arguments of one command. One that the command does not have was not given.
#[derive(Clone)]
pub(super) struct Given(ArgMatches);

impl Given {
    pub(super) fn new(matches: ArgMatches) -> Self {
        Self(matches)
    }

    fn one<T: Clone + Send + Sync + 'static>(&self, id: &str) -> Option<&T> {
        self.0.try_get_one(id).ok().flatten()
    }

    /// A text.
    pub(super) fn text(&self, id: &str) -> Option<&str> {
        self.one::<String>(id).map(String::as_str)
    }

    /// A text, or that of a variable of the environment.
    ///
    /// # Errors
    /// Neither was given.
    pub(super) fn text_or_env(&self, id: &str, variable: &str) -> Result<String, Failure> {
        match self.text(id) {
            Some(text) => Ok(text.to_owned()),
            None => env::var(variable).map_err(|_| {
                Failure::bad_input(format_args!(
                    "--{id} or the environment variable {variable} must be given"
                ))
            }),
        }
    }

    /// A text as JSON, null when it was not given.
    pub(super) fn json(&self, id: &str) -> Value {
        self.text(id).map_or(Value::Null, Value::from)
    }

    /// Every text of an option that may be given several times.
    pub(super) fn texts(&self, id: &str) -> Vec<String> {
        self.0.try_get_many(id).ok().flatten().into_iter().flatten().cloned().collect()
    }

    /// Whether an option was given, with or without a value.
    pub(super) fn has(&self, id: &str) -> bool {
        self.0.try_contains_id(id).unwrap_or(false)
    }

    /// Whether a flag was given.
    pub(super) fn flag(&self, id: &str) -> bool {
        self.one::<bool>(id).copied().unwrap_or(false)
    }

    /// A whole number.
    pub(super) fn whole(&self, id: &str) -> Option<i64> {
        self.one(id).copied()
    }

    /// Whole numbers.
    pub(super) fn wholes(&self, id: &str) -> Vec<i64> {
        self.0.try_get_many(id).ok().flatten().into_iter().flatten().copied().collect()
    }

    /// A decimal number.
    pub(super) fn decimal(&self, id: &str) -> Option<f64> {
        self.one(id).copied()
    }

    /// The name of the resource.
    ///
    /// # Errors
    /// A name that would lead somewhere else in an address.
    pub(super) fn name(&self) -> Result<&str, Failure> {
        match self.text("name").unwrap_or_default() {
            "" | "." | ".." => Err(Failure::bad_input("NAME must be the name of a resource")),
            name => Ok(name),
        }
    }

    /// The form of the output.
    pub(super) fn format(&self) -> Format {
        self.one("output").copied().unwrap_or(Format::Table)
    }

    /// What `--wait` and `--force` add to an address.
    pub(super) fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = Vec::new();
        if let Some(state) = self.text("wait") {
            query.push(("blocking", state.to_owned()));
        }
        if self.flag("force") {
            // Krake's server knows this spelling only.
            query.push(("force", "True".to_owned()));
        }
        query
    }

    /// `KEY=VALUE`, each key with its last value.
    ///
    /// # Errors
    /// One has no `=`.
    pub(super) fn entries(&self, id: &str) -> Result<Map<String, Value>, Failure> {
        let entry = |text: String| match text.split_once('=') {
            Some((key, value)) => Ok((key.trim().to_owned(), Value::from(value))),
            None => Err(Failure::bad_input(format_args!("--{id}: got {text:?}, expected KEY=VALUE"))),
        };
        self.texts(id).into_iter().map(entry).collect()
    }

    /// Names with numbers, from an option that takes both.
    ///
    /// # Errors
    /// A number is none.
    pub(super) fn weights(&self, id: &str) -> Result<Vec<(String, f64)>, Failure> {
        let given = self.0.try_get_occurrences::<String>(id).ok().flatten();
        let weight = |mut pair: Vec<&String>| {
            let (number, name) =
                (pair.pop().cloned().unwrap_or_default(), pair.pop().cloned().unwrap_or_default());
            match number.parse::<f64>() {
                Ok(weight) if weight.is_finite() => Ok((name, weight)),
                _ => Err(Failure::bad_input(format_args!(
                    "--{id} {name}: got {number:?}, expected a finite decimal number"
                ))),
            }
        };
        given.into_iter().flatten().map(|pair| weight(pair.collect())).collect()
    }

    /// The metrics of `--metric` and `--global-metric`, as resources refer to them.
    ///
    /// # Errors
    /// A weight is no number.
    pub(super) fn metrics(&self) -> Result<Vec<Value>, Failure> {
        let mut metrics = Vec::new();
        for (id, namespaced) in [("metric", true), ("global-metric", false)] {
            for (name, weight) in self.weights(id)? {
                metrics.push(json!({ "name": name, "weight": weight, "namespaced": namespaced }));
            }
        }
        Ok(metrics)
    }
}
