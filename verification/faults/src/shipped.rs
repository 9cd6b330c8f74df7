//! The scenarios that ship with the program, compiled in from `verification/faults/scenarios`.

use madako_json::input::InputError;

use crate::scenario::Scenario;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShippedScenario {
    /// Also the file name without `.yml`.
    pub name: &'static str,
    pub text: &'static str,
}

macro_rules! files {
    ($($name:literal),+ $(,)?) => {
        [$(ShippedScenario { name: $name, text: include_str!(concat!("../scenarios/", $name, ".yml")) }),+]
    };
}

/// From calm to storm.
pub const SHIPPED: [ShippedScenario; 30] = files![
    "calm-day",
    "short-storm",
    "two-minutes",
    "rack-power-loss",
    "rack-unreachable",
    "flapping-machines",
    "registry-out-for-an-hour",
    "registry-clock-an-hour-off",
    "lying-registry",
    "leader-killed-again-and-again",
    "leader-stands-still",
    "leader-cut-off",
    "store-member-lost",
    "store-without-majority",
    "whole-service-down",
    "slow-store",
    "full-disk",
    "compaction-under-watchers",
    "lying-providers",
    "panics-of-each-actor",
    "everything-fails-at-times",
    "default",
    "without-nodes",
    "contention",
    "reboots",
    "upgrade",
    "upgrade-of-500-nodes",
    "sabotage",
    "long-day",
    "processes-fail-at-times",
];

#[must_use]
pub fn find_shipped(name: &str) -> Option<&'static ShippedScenario> {
    SHIPPED.iter().find(|shipped| shipped.name == name)
}

impl ShippedScenario {
    /// # Errors
    /// None in a program that passed its tests.
    pub fn parse_scenario(&self) -> Result<Scenario, InputError> {
        Scenario::parse(self.text)
    }

    /// The purpose of the scenario: the first sentence of the comment at the top of its file.
    #[must_use]
    pub fn purpose_text(&self) -> String {
        let comment = self.text.lines().map_while(|line| line.strip_prefix('#'));
        let text = comment.map(str::trim).collect::<Vec<_>>().join(" ");
        text.split_once(". ").map_or(text.as_str(), |(first, _)| first).trim_end_matches('.').to_owned()
    }
}
