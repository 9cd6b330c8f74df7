//! Parses the scripted scenarios of alerts: a name, the alerts that fire, and the steps with their times.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use madako_faults::Span;

#[derive(Debug, Clone)]
pub struct Step {
    pub at: Duration,
    pub words: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: String,
    pub fires: BTreeSet<String>,
    /// The instance runs operations on simulated nodes.
    pub has_nodes: bool,
    /// Ordered by time; the last one is `end`.
    pub steps: Vec<Step>,
}

impl Scenario {
    pub fn end(&self) -> Duration {
        let last = self.steps.last().unwrap();
        assert_eq!(last.words, ["end"], "{} has no end", self.name);
        last.at
    }

    /// Time of the first step.
    pub fn begins(&self) -> Duration {
        self.steps[0].at
    }
}

pub fn time(word: &str) -> Duration {
    Span::parse(word).unwrap_or_else(|| panic!("no length of time: {word}")).duration()
}

/// The scenarios of a file. An unindented line starts one, `NAME: ALERT ...`; each indented line is a step, `TIME
/// WORDS`, or says that the deployment is `with nodes`.
pub fn scenarios(file: &str) -> Vec<Scenario> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulation/alerts").join(file);
    let text = fs::read_to_string(path).unwrap();
    let mut found: Vec<Scenario> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace().map(str::to_owned);
        let first = words.next().unwrap();
        if line.trim() == "with nodes" {
            found.last_mut().unwrap().has_nodes = true;
        } else if line.starts_with(' ') {
            let step = Step { at: time(&first), words: words.collect() };
            let scenario = found.last_mut().unwrap();
            assert!(scenario.steps.last().is_none_or(|last| last.at <= step.at), "{line}: is too early");
            scenario.steps.push(step);
        } else {
            let name = first.strip_suffix(':').unwrap_or_else(|| panic!("no name: {line}")).to_owned();
            found.push(Scenario { name, fires: words.collect(), has_nodes: false, steps: Vec::new() });
        }
    }
    found
}
