//! Evaluates the rules on gathered series with Prometheus' own engine (promtool), with every `for`, window and
//! threshold of `grafana/rules`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::gathered::{EVERY, Samples};

/// Time between two evaluations of the rules.
const LOOKED_AT_EVERY: &str = "30s";

pub fn rule_files() -> Vec<PathBuf> {
    files("rules", "yml")
}

pub fn dashboard_files() -> Vec<PathBuf> {
    files("dashboards", "json")
}

/// The files with an extension in a directory of `grafana/`.
fn files(directory: &str, end: &str) -> Vec<PathBuf> {
    let grafana = Path::new(env!("CARGO_MANIFEST_DIR")).join("../grafana").canonicalize().unwrap();
    let files = fs::read_dir(grafana.join(directory)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|it| it == end)).collect();
    files.sort();
    files
}

pub fn alerts() -> BTreeSet<String> {
    let texts = rule_files().into_iter().map(|path| fs::read_to_string(path).unwrap());
    let names = |text: String| -> Vec<String> {
        text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).map(str::to_owned).collect()
    };
    texts.flat_map(names).collect()
}

/// All words of the files that can be names of metrics.
pub fn words(files: Vec<PathBuf>) -> BTreeSet<String> {
    let texts = files.into_iter().map(|path| fs::read_to_string(path).unwrap());
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = |text: String| -> Vec<String> {
        text.split(|c| !is_part(c)).filter(|word| word.contains('_')).map(str::to_owned).collect()
    };
    texts.flat_map(words).collect()
}

/// Checks that no alert fired until `begins`, that exactly `fires` fired until `end`, and that none fires at the end.
///
/// # Errors
/// promtool's differences.
pub fn judge(
    series: &BTreeMap<String, Samples>,
    fires: &BTreeSet<String>,
    [begins, end]: [Duration; 2],
) -> Result<(), String> {
    let firing = "ALERTS{alertstate=\"firing\"}";
    let ever = format!("group by (alertname) (present_over_time({firing}[{}s]))", end.as_secs() + 60);
    let now = format!("group by (alertname) ({firing})");
    let none = BTreeSet::new();
    let asks = |expr: &str, at: Duration, alerts: &BTreeSet<String>| {
        let sample = |alert: &String| json!({"labels": format!("{{alertname={alert:?}}}"), "value": 1});
        let samples: Vec<Value> = alerts.iter().map(sample).collect();
        json!({"expr": expr, "eval_time": format!("{}s", at.as_secs()), "exp_samples": samples})
    };
    let inputs: Vec<Value> =
        series.iter().map(|(series, samples)| json!({"series": series, "values": values(samples)})).collect();
    let file = json!({
        "rule_files": rule_files(),
        "evaluation_interval": LOOKED_AT_EVERY,
        "tests": [{
            "interval": format!("{}s", EVERY.as_secs()),
            "input_series": inputs,
            "promql_expr_test": [asks(&ever, begins, &none), asks(&ever, end, fires), asks(&now, end, &none)],
        }],
    });
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("test.yml");
    fs::write(&path, file.to_string()).unwrap();
    let output = Command::new("promtool").args(["test", "rules"]).arg(&path).output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Err(format!("{}{}", text(&output.stdout), text(&output.stderr)))
}

/// Samples in promtool's notation: repeated samples are counted, and the first missing one is stale.
fn values(samples: &Samples) -> String {
    let mut text = String::new();
    let mut at = 0;
    let mut before = None;
    while at < samples.len() {
        let sample = samples[at];
        // Prometheus writes a stale marker where a series ends.
        if sample.is_none() && before.is_some() {
            text.push_str("stale ");
            (before, at) = (None, at + 1);
            continue;
        }
        let same = samples[at..].iter().take_while(|next| **next == sample).count();
        // Writing to a string does not fail.
        let _ = match sample {
            Some(value) => write!(text, "{value}+0x{} ", same - 1),
            None => write!(text, "_x{same} "),
        };
        (before, at) = (sample, at + same);
    }
    text
}

#[test]
fn repeated_samples_are_counted_and_ended_series_are_stale() {
    let samples = [None, None, Some(1.0), Some(1.0), Some(2.5), None, None, Some(0.0)].to_vec();
    assert_eq!(values(&samples), "_x2 1+0x1 2.5+0x0 stale _x1 0+0x0 ");
}
