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
    /// Reads the page; a line of another form is no sample.
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

    /// The sums by the value of a label, without those that are 0.
    pub(crate) fn counts_by_label(&self, name: &str, label: &str) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for sample in self.0.get(name).into_iter().flatten().filter(|sample| sample.value > 0.0) {
            *counts.entry(sample.label_value(label)).or_default() += sample.value as u64;
        }
        counts
    }

    /// A time that the metric has in seconds since 1970; 0 stands for none.
    pub(crate) fn time_value(&self, name: &str) -> Option<OffsetDateTime> {
        let seconds = self.sum_of(name).filter(|seconds| *seconds > 0.0)?;
        OffsetDateTime::from_unix_timestamp(seconds as i64).ok()
    }
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
    }
}
