//! Reads the options that the user typed for a placement command, by name.

use std::env;

use clap::{ArgMatches, FromArgMatches as _};
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::list::ListArgs;
use crate::output::Format;

/// Options and arguments of one command. An option that the command does not have counts as not given.
#[derive(Clone)]
pub(super) struct GivenOptions(ArgMatches);

impl GivenOptions {
    pub(super) fn new(matches: ArgMatches) -> Self {
        Self(matches)
    }

    fn value_of<T: Clone + Send + Sync + 'static>(&self, id: &str) -> Option<&T> {
        self.0.try_get_one(id).ok().flatten()
    }

    pub(super) fn text_value(&self, id: &str) -> Option<&str> {
        self.value_of::<String>(id).map(String::as_str)
    }

    /// The option, or a variable of the environment.
    ///
    /// # Errors
    /// Neither is given.
    pub(super) fn text_or_env(&self, id: &str, variable: &str) -> Result<String, Failure> {
        match self.text_value(id) {
            Some(text) => Ok(text.to_owned()),
            None => env::var(variable).map_err(|_| {
                Failure::bad_input(format_args!(
                    "--{id} or the environment variable {variable} must be given"
                ))
            }),
        }
    }

    /// As JSON; null if not given.
    pub(super) fn json_value(&self, id: &str) -> Value {
        self.text_value(id).map_or(Value::Null, Value::from)
    }

    /// All values of an option that may be repeated.
    pub(super) fn text_values(&self, id: &str) -> Vec<String> {
        self.0.try_get_many(id).ok().flatten().into_iter().flatten().cloned().collect()
    }

    /// True if the option was given, with or without a value.
    pub(super) fn has_option(&self, id: &str) -> bool {
        self.0.try_contains_id(id).unwrap_or(false)
    }

    pub(super) fn is_flag_set(&self, id: &str) -> bool {
        self.value_of::<bool>(id).copied().unwrap_or(false)
    }

    pub(super) fn whole_number(&self, id: &str) -> Option<i64> {
        self.value_of(id).copied()
    }

    pub(super) fn whole_numbers(&self, id: &str) -> Vec<i64> {
        self.0.try_get_many(id).ok().flatten().into_iter().flatten().copied().collect()
    }

    pub(super) fn decimal_value(&self, id: &str) -> Option<f64> {
        self.value_of(id).copied()
    }

    /// The name of the resource.
    ///
    /// # Errors
    /// A name that would change the path of the URL.
    pub(super) fn name(&self) -> Result<&str, Failure> {
        match self.text_value("name").unwrap_or_default() {
            name @ ("" | "." | "..") => Err(Failure::bad_input(format_args!(
                "NAME: got {name:?}, expected the name of a resource, which is neither empty nor . nor .."
            ))),
            name => Ok(name),
        }
    }

    pub(super) fn format(&self) -> Format {
        self.value_of("output").copied().unwrap_or(Format::Table)
    }

    /// The options of a list.
    ///
    /// # Errors
    /// The command shows no list.
    pub(super) fn list(&self) -> Result<ListArgs, Failure> {
        ListArgs::from_arg_matches(&self.0).map_err(|error| Failure::bad_input(error.to_string()))
    }

    /// Query parameters of `--wait` and `--force`.
    pub(super) fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = Vec::new();
        if let Some(state) = self.text_value("wait") {
            query.push(("blocking", state.to_owned()));
        }
        if self.is_flag_set("force") {
            // Krake's server accepts only this spelling.
            query.push(("force", "True".to_owned()));
        }
        query
    }

    /// `KEY=VALUE` pairs; the last value of a key counts.
    ///
    /// # Errors
    /// A pair has no `=`.
    pub(super) fn read_entries(&self, id: &str) -> Result<Map<String, Value>, Failure> {
        let entry = |text: String| match text.split_once('=') {
            Some((key, value)) => Ok((key.trim().to_owned(), Value::from(value))),
            None => Err(Failure::bad_input(format_args!("--{id}: got {text:?}, expected KEY=VALUE"))),
        };
        self.text_values(id).into_iter().map(entry).collect()
    }

    /// Pairs of a name and a number.
    ///
    /// # Errors
    /// A number is invalid.
    pub(super) fn read_weights(&self, id: &str) -> Result<Vec<(String, f64)>, Failure> {
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

    /// References to the metrics of `--metric` and `--global-metric`.
    ///
    /// # Errors
    /// A weight is not a number.
    pub(super) fn read_metrics(&self) -> Result<Vec<Value>, Failure> {
        let mut metrics = Vec::new();
        for (id, namespaced) in [("metric", true), ("global-metric", false)] {
            for (name, weight) in self.read_weights(id)? {
                metrics.push(json!({ "name": name, "weight": weight, "namespaced": namespaced }));
            }
        }
        Ok(metrics)
    }
}
