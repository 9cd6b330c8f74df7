//! A real Prometheus beside a run: it scrapes the instances, evaluates the rules of `grafana/rules`, and afterwards
//! answers the queries of the dashboards.
//!
//! The run's leases and polls are shorter than those of a deployment, and so are the rules' times: [`scaled`] divides
//! each duration in them. Thresholds are unchanged.

mod server;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use server::{QueryWindow, Server, root};
use tokio::time::{Instant, sleep};

/// The speed-up over a deployment, and the interval of scrapes and evaluations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    faster: u32,
    every: &'static str,
}

impl Pace {
    /// The pace of the run: it polls the registry every 2 s instead of every 60 s.
    pub(crate) const OF_THE_RUN: Self = Self { faster: 30, every: "1s" };
    /// At this pace an hour of the rules is a minute.
    pub(crate) const HURRIED: Self = Self { faster: 60, every: "250ms" };

    /// The alerts whose look-back exceeds this many seconds at this pace.
    pub(crate) fn look_back(self, seconds: u32) -> BTreeSet<String> {
        let texts =
            rule_files().into_iter().map(|path| scaled(&fs::read_to_string(path).unwrap(), self.faster));
        texts.flat_map(|text| looking_back(&text, seconds)).collect()
    }
}

fn rule_files() -> Vec<PathBuf> {
    let files = fs::read_dir(root().join("grafana/rules")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "yml")).collect()
}

/// The alerts of rules, with times in seconds, that have a longer range or offset.
fn looking_back(rules: &str, seconds: u32) -> Vec<String> {
    let back = |part: &str| -> Option<u32> { part.split('s').next()?.parse().ok() };
    let longest = |rule: &str| rule.split("offset ").flat_map(|part| part.split('[')).filter_map(back).max();
    let alerts = rules.split("- alert: ").skip(1);
    let further = alerts.filter(|rule| longest(rule).is_some_and(|longest| longest > seconds));
    further.map(|rule| rule.split_whitespace().next().unwrap().to_owned()).collect()
}

/// Range of rates in seconds: at least four scrapes, and long enough for a rare request to show on several points.
const RATE: u32 = 10;

/// Time limit for an alert whose own wait is ten seconds.
const FIRES_WITHIN: Duration = Duration::from_secs(60);
/// Interval of checks for that.
const GLANCE: Duration = Duration::from_millis(250);

/// A Prometheus that observes a run.
pub(crate) struct Prometheus(Server);

impl Prometheus {
    /// Starts a Prometheus that scrapes the targets of a file, which may appear later.
    pub(crate) fn start(targets: &Path, Pace { faster, every }: Pace) -> Self {
        let files = tempfile::tempdir().unwrap();
        let rules = files.path().join("rules");
        fs::create_dir(&rules).unwrap();
        for path in rule_files() {
            let text = fs::read_to_string(&path).unwrap();
            fs::write(rules.join(path.file_name().unwrap()), scaled(&text, faster)).unwrap();
        }
        let (targets, rules) = (targets.display(), rules.display());
        let config = format!(
            "global: {{scrape_interval: {every}, scrape_timeout: {every}, evaluation_interval: {every}}}\n\
             rule_files: ['{rules}/*.yml']\n\
             scrape_configs:\n\
             - job_name: madako\n  \
               file_sd_configs: [{{files: ['{targets}'], refresh_interval: 1s}}]\n"
        );
        Self(Server::start(files, &config, &[]))
    }

    fn promtool(&self, args: &[&str], query: &str) -> Vec<Value> {
        let output =
            Command::new("promtool").arg("query").args(args).args([&self.0.url, query]).output().unwrap();
        assert!(output.status.success(), "{query}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Time of the last successful scrape within this many minutes, in seconds of Unix time.
    pub(crate) fn last_answer(&self, minutes: u32) -> f64 {
        let query = format!("max(max_over_time(timestamp(up == 1)[{minutes}m:1s]))");
        let answers = self.promtool(&["instant", "--format=json"], &query);
        answers[0]["value"][1].as_str().unwrap().parse().unwrap()
    }

    /// The value of a scalar query at a time.
    pub(crate) fn number(&self, query: &str, at: f64) -> f64 {
        let answers = self.promtool(&["instant", "--format=json", &format!("--time={at}")], query);
        assert_eq!(answers.len(), 1, "{query}: {answers:?}");
        answers[0]["value"][1].as_str().unwrap().parse().unwrap()
    }

    /// True if an alert fires now.
    pub(crate) fn fires(&self, alert: &str) -> bool {
        let query = format!("ALERTS{{alertname=\"{alert}\", alertstate=\"firing\"}}");
        !self.promtool(&["instant", "--format=json"], &query).is_empty()
    }

    pub(crate) fn until_fires(&self, alert: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let began = Instant::now();
            while !self.fires(alert) {
                assert!(began.elapsed() < FIRES_WITHIN, "{alert} does not fire within {FIRES_WITHIN:?}");
                sleep(GLANCE).await;
            }
        });
    }

    /// The alerts that fired, and of these the ones that still fired at the end.
    pub(crate) fn fired(&self, minutes: u32, until: f64) -> [BTreeSet<String>; 2] {
        let start = format!("--start={}", until - f64::from(minutes) * 60.0);
        let args = ["range", "--format=json", "--step=1s", &start, &format!("--end={until}")];
        let fired = self.promtool(&args, "ALERTS{alertstate=\"firing\"}");
        let last = |one: &Value| one["values"].as_array().unwrap().last().unwrap()[0].as_f64().unwrap();
        let names = |since: f64| {
            let some = fired.iter().filter(|one| last(one) >= since);
            some.map(|one| one["metric"]["alertname"].as_str().unwrap().to_owned()).collect()
        };
        [names(0.0), names(until - 1.5)]
    }

    /// See [`Server::shows`].
    pub(crate) fn shows(&self, table: &str, busy: bool, minutes: u32, until: f64) -> Result<(), String> {
        self.0.shows(table, QueryWindow { busy, ..asked(minutes, until) })
    }

    /// Renders each dashboard into a directory.
    pub(crate) fn draw(&self, directory: &Path, minutes: u32, until: f64) -> Result<(), String> {
        self.0.python("picture.py", asked(minutes, until), &[directory.to_str().unwrap()])
    }
}

fn asked(minutes: u32, until: f64) -> QueryWindow {
    QueryWindow { minutes, until, rate: RATE, busy: true }
}

/// Divides each duration in rules (`for`, ranges, offsets), down to a second.
fn scaled(rules: &str, faster: u32) -> String {
    let mut text = String::new();
    let mut rest = rules;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        let digits = from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len());
        let (number, after) = from.split_at(digits);
        text.push_str(before);
        let part_of_a_word = before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
        let unit = after.chars().next().and_then(|unit| match unit {
            's' => Some(1),
            'm' => Some(60),
            'h' => Some(60 * 60),
            _ => None,
        });
        let ends = !after.chars().nth(1).is_some_and(char::is_alphanumeric);
        match (unit, number.parse::<u32>()) {
            (Some(seconds), Ok(number)) if ends && !part_of_a_word => {
                text.push_str(&format!("{}s", (number * seconds / faster).max(1)));
                rest = &after[1..];
            }
            _ => {
                text.push_str(number);
                rest = after;
            }
        }
    }
    text + rest
}

#[test]
fn each_length_of_time_is_divided_and_nothing_else() {
    let rule = "record: a:b:ratio_rate5m\nexpr: increase(a{code=~\"5..\"}[30m]) > 5 and b offset 1h\nfor: 10m\n# [3m:30s]";
    let faster = "record: a:b:ratio_rate5m\nexpr: increase(a{code=~\"5..\"}[60s]) > 5 and b offset 120s\nfor: 20s\n# [6s:1s]";
    assert_eq!(scaled(rule, 30), faster);
}

#[test]
fn alerts_that_look_back_far_are_known() {
    let rules = "- record: a:b:ratio_rate99s\n  expr: rate(a[99s])\n- alert: Near\n  expr: max(last_over_time(a[6s:1s])) > 30\n  for: 40s\n\
                 - alert: Range\n  expr: increase(a{b=~\"5..\"}[20s]) > 1\n- alert: Offset\n  expr: a unless a offset 120s\n";
    assert_eq!(looking_back(rules, 15), ["Range", "Offset"]);
    assert_eq!(looking_back(rules, 20), ["Offset"]);
    let far = Pace::OF_THE_RUN.look_back(60);
    assert!(far.contains("MadakoLeaderChanges") && !far.contains("MadakoInstanceDown"), "{far:?}");
}
