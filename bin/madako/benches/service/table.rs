//! Prints the results of the benchmarks as one table.

use std::fmt;
use std::time::Duration;

/// Measured values with their targets.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<TableRow>);

#[derive(Debug)]
struct TableRow {
    measure: String,
    aim: String,
    measured: String,
    /// `None`: there is no target.
    reached: Option<bool>,
}

impl Table {
    /// Adds a row, with a verdict if there is a target.
    pub(crate) fn add_row(
        &mut self,
        measure: impl Into<String>,
        aim: impl Into<String>,
        measured: impl Into<String>,
        reached: Option<bool>,
    ) {
        let row = TableRow { measure: measure.into(), aim: aim.into(), measured: measured.into(), reached };
        eprintln!("  {}: {}", row.measure, row.measured);
        self.0.push(row);
    }

    /// Adds a row of times, each of which should meet the target.
    pub(crate) fn add_times(&mut self, measure: impl Into<String>, aim: Duration, times: &Times) {
        self.add_row(measure, format_time(aim), times.to_string(), Some(times.maximum() <= aim));
    }

    /// Adds a row of times whose median should meet the target: a client's usual experience, whatever other processes
    /// do at times.
    pub(crate) fn add_median(&mut self, measure: impl Into<String>, aim: Duration, times: &Times) {
        let measured = format!("median {}, {}", format_time(times.median()), times.p99_and_maximum());
        self.add_row(measure, format_time(aim), measured, Some(times.median() <= aim));
    }

    /// Adds a row of times without a target.
    pub(crate) fn add_note(&mut self, measure: impl Into<String>, times: &Times) {
        self.add_row(measure, "-", times.to_string(), None);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| Measure | Aim | Measured | |")?;
        writeln!(f, "|---|---|---|---|")?;
        for TableRow { measure, aim, measured, reached } in &self.0 {
            let verdict = match reached {
                Some(true) => "reached",
                Some(false) => "not reached",
                None => "",
            };
            writeln!(f, "| {measure} | {aim} | {measured} | {verdict} |")?;
        }
        Ok(())
    }
}

/// Samples of a time; at least one.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time);
        self.0.sort_unstable();
    }

    pub(crate) fn median(&self) -> Duration {
        self.0[self.0.len() / 2]
    }

    /// The 99th percentile and the maximum.
    pub(crate) fn p99_and_maximum(&self) -> String {
        let slow = self.0[(self.0.len() - 1) * 99 / 100];
        format!("p99 {}, worst {}", format_time(slow), format_time(self.maximum()))
    }

    pub(crate) fn maximum(&self) -> Duration {
        self.0[self.0.len() - 1]
    }
}

impl FromIterator<Duration> for Times {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        let mut times: Vec<_> = times.into_iter().collect();
        times.sort_unstable();
        Self(times)
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (median, worst) = (format_time(self.median()), format_time(self.maximum()));
        write!(f, "median {median}, worst of {} {worst}", self.0.len())
    }
}

/// A time with its significant digits.
pub(crate) fn format_time(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1e3;
    if milliseconds < 9.95 {
        format!("{milliseconds:.1} ms")
    } else if milliseconds < 999.5 {
        format!("{milliseconds:.0} ms")
    } else {
        format!("{:.2} s", milliseconds / 1e3)
    }
}
