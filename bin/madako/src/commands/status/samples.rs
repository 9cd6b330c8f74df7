//! The samples of a page `/metrics`, in Prometheus' text format.

use std::collections::BTreeMap;

use time::OffsetDateTime;

#[derive(Debug, Default)]
pub(crate) struct Samples(BTreeMap<String, Vec<Sample>>);

#[derive(Debug)]
struct Sample {
    /// The text between the braces.
    labels: String,
    value: f64,
}

impl Samples {
    /// Reads the page; a line of another form is not a sample.
    pub(crate) fn parse(text: &str) -> Self {
        let mut samples: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse() else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.trim_end_matches('}').to_owned();
            samples.entry(name.to_owned()).or_default().push(Sample { labels, value });
        }
        Self(samples)
    }

    /// The sum of all series of the name; `None`: there is none.
    pub(crate) fn sum_of(&self, name: &str) -> Option<f64> {
        Some(self.0.get(name)?.iter().map(|sample| sample.value).sum())
    }

    /// The sums by the value of a label; without a label, the sum of all series has an empty name.
    pub(crate) fn values_by_label(&self, name: &str, label: Option<&str>) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.0.get(name).into_iter().flatten() {
            let value = label.map_or_else(String::new, |label| sample.label_value(label));
            *sums.entry(value).or_default() += sample.value;
        }
        sums
    }

    /// Unix times of the starts of a gauge's faults, by the value of its label.
    pub(crate) fn fault_starts(&self, metric: &str) -> BTreeMap<String, f64> {
        let starts = self.0.get("madako_fault_since_timestamp_seconds").into_iter().flatten();
        let of_metric = starts.filter(|sample| sample.label_value("metric") == metric);
        of_metric.map(|sample| (sample.label_value("value"), sample.value)).collect()
    }

    /// These sums as counts, without those that are 0.
    pub(crate) fn counts_by_label(&self, name: &str, label: &str) -> BTreeMap<String, u64> {
        let sums = self.values_by_label(name, Some(label)).into_iter();
        sums.map(|(value, sum)| (value, sum as u64)).filter(|(_, count)| *count > 0).collect()
    }

    /// A time that the metric has in seconds since 1970; 0 stands for none.
    pub(crate) fn time_value(&self, name: &str) -> Option<OffsetDateTime> {
        to_time(self.sum_of(name)?)
    }

    /// Such a time of the series with this value of the label.
    pub(crate) fn time_by_label(&self, name: &str, label: &str, value: &str) -> Option<OffsetDateTime> {
        to_time(self.values_by_label(name, Some(label)).remove(value)?)
    }
}

/// Unix time in seconds; 0 stands for none.
pub(crate) fn to_time(seconds: f64) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(seconds as i64).ok().filter(|_| seconds > 0.0)
}

impl Sample {
    /// The value of a label. Values with quotes, which these pages do not have, are cut.
    fn label_value(&self, name: &str) -> String {
        let begin = format!("{name}=\"");
        let value = self.labels.split_once(&begin).map_or("", |(_, rest)| rest);
        value.split('"').next().unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_by_name_and_label() {
        let text = "# HELP a b\n# TYPE a gauge\na 3\nmadako_metrics{kind=\"static\",condition=\"good\"} 2\n\
                    madako_metrics{kind=\"influx\",condition=\"good\"} 1\n\
                    madako_metrics{kind=\"influx\",condition=\"failed\"} 0\nat_seconds 60\nbroken\nzero_seconds 0\n";
        let samples = Samples::parse(text);
        assert_eq!((samples.sum_of("a"), samples.sum_of("b")), (Some(3.0), None));
        assert_eq!(
            samples.counts_by_label("madako_metrics", "condition"),
            BTreeMap::from([("good".to_owned(), 3)])
        );
        assert_eq!(
            samples.time_value("at_seconds"),
            Some(OffsetDateTime::UNIX_EPOCH + time::Duration::MINUTE)
        );
        assert_eq!(samples.time_value("zero_seconds"), None);
        assert_eq!(samples.values_by_label("a", None), BTreeMap::from([(String::new(), 3.0)]));
        let failed = samples.values_by_label("madako_metrics", Some("condition"));
        assert_eq!(failed.get("failed"), Some(&0.0), "a series of 0 has a value");
        let since = Samples::parse("since{reason=\"a\"} 60\nsince{reason=\"b\"} 0\n");
        let minute = Some(OffsetDateTime::UNIX_EPOCH + time::Duration::MINUTE);
        assert_eq!(since.time_by_label("since", "reason", "a"), minute);
        assert_eq!(since.time_by_label("since", "reason", "b"), None);
    }
}
