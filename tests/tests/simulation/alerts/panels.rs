//! Tests of the dashboards on the simulated hours of `everything.txt`: a real Prometheus holds the gathered series, and
//! the test runs every query of every panel. `grafana/runs/everything.md` says which panels must move, and why.
//! Simulated time makes the result the same in each run.

#[path = "../../../../bin/madako-chaos/tests/prometheus/server.rs"]
mod server;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use server::{QueryWindow, Server};

use super::gathered::{EVERY, Samples};

/// Start of these hours, after 1970: the start of one of Prometheus' blocks.
pub const BEGINS: Duration = Duration::from_secs(2 * 60 * 60 * 138_889);

/// Asserts that each panel is as the table requires.
pub fn judge(series: &BTreeMap<String, Samples>) {
    if !(super::is_installed("prometheus")
        && super::is_installed("promtool")
        && super::is_installed("python3"))
    {
        return;
    }
    let files = tempfile::tempdir().unwrap();
    let text = files.path().join("gathered");
    write(series, &text);
    let made = Command::new("promtool")
        .args(["tsdb", "create-blocks-from", "openmetrics"])
        .args([&text, &files.path().join("data")])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::remove_file(text).unwrap();
    // A series that a scrape lacks is gone at that scrape; no sample is too old for the retention.
    let flags = ["--query.lookback-delta=45s", "--storage.tsdb.retention.time=100y"];
    let prometheus = Server::start(files, "global: {}\n", &flags);
    let scrapes = series.values().map(Vec::len).max().unwrap();
    let length = EVERY * u32::try_from(scrapes).unwrap();
    let minutes = u32::try_from(length.as_secs() / 60).unwrap();
    let rate = u32::try_from(4 * EVERY.as_secs()).unwrap();
    let requested = QueryWindow { minutes, until: (BEGINS + length).as_secs_f64(), rate, busy: false };
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("everything");
    // Drawn before the check, so that the pictures of a failed run exist.
    prometheus.python("picture.py", requested, &[place.to_str().unwrap()]).unwrap();
    let shows = prometheus.shows("everything.md", requested);
    assert!(shows.is_ok(), "see {}: {}", place.display(), shows.unwrap_err());
}

/// Writes the series in OpenMetrics format, ordered by scrape.
fn write(series: &BTreeMap<String, Samples>, path: &Path) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    let scrapes = series.values().map(Vec::len).max().unwrap();
    for scrape in 0..scrapes {
        let at = (BEGINS + EVERY * u32::try_from(scrape).unwrap()).as_secs();
        for (name, samples) in series {
            let Some(value) = samples.get(scrape).copied().flatten() else { continue };
            writeln!(file, "{name} {value} {at}").unwrap();
        }
    }
    file.write_all(b"# EOF\n").unwrap();
    file.flush().unwrap();
}
