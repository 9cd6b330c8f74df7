//! Scrapes a simulated instance as Prometheus does: its page every [`EVERY`] of simulated time, and `up`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use madako_http::MetricsRecorder;
use madako_simulation::clock::SimulatedClock;
use madako_simulation::serving::{LinkedDialer, LinkedDialers};
use madako_supervisor::http::MetricsText;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep_until, timeout};

/// Time between two scrapes: twice the guide's, which halves the work.
pub const EVERY: Duration = Duration::from_secs(30);
/// Prometheus' default time-out of a scrape.
const PATIENCE: Duration = Duration::from_secs(10);

/// The metrics recorder of an instance's process; a restart begins with a new recorder. Clones are the same process.
#[derive(Clone)]
pub struct Process(Arc<Mutex<Arc<MetricsRecorder>>>);

impl Process {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Arc::new(build_recorder()))))
    }

    /// Restarts the process, and returns the function that renders its page.
    pub fn starts(&self) -> MetricsText {
        let recorder = build_recorder();
        let page = recorder.page();
        *self.0.lock().unwrap() = Arc::new(recorder);
        madako_supervisor::describe_metrics();
        Arc::new(move |scope| page.render(scope))
    }

    fn now(&self) -> Arc<MetricsRecorder> {
        Arc::clone(&self.0.lock().unwrap())
    }
}

/// With a clock that begins now: the alerts use no starts of faults.
fn build_recorder() -> MetricsRecorder {
    let began = OffsetDateTime::UNIX_EPOCH + Duration::from_hours(24);
    madako_http::build_recorder(Arc::new(SimulatedClock::new(began))).unwrap()
}

impl Recorder for Process {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.now().describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.now().describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.now().describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.now().register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.now().register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.now().register_histogram(key, metadata)
    }
}

/// The samples of a series, one for each scrape; `None` if the page lacked the series.
pub type Samples = Vec<Option<f64>>;

/// The gathered series. Clones share their state.
#[derive(Clone)]
pub struct Gathered {
    inner: Arc<Mutex<Inner>>,
    /// The metrics that rules or dashboards name; only these are kept.
    wanted: Arc<BTreeSet<String>>,
    /// Labels that Prometheus adds.
    labels: String,
}

struct Inner {
    scrapes: usize,
    series: BTreeMap<String, Samples>,
    /// Every metric on a page, wanted or not, with true if it was ever different from 0.
    names: BTreeMap<String, bool>,
}

impl Gathered {
    /// Series of an instance whose first scrape comes `after` scrapes after the start of time.
    pub fn of(instance: &str, wanted: Arc<BTreeSet<String>>, after: usize) -> Self {
        let inner = Inner { scrapes: after, series: BTreeMap::new(), names: BTreeMap::new() };
        let labels = format!("job=\"madako\",instance=\"{instance}\"");
        Self { inner: Arc::new(Mutex::new(inner)), wanted, labels }
    }

    /// Scrapes the instance `name` until the future is dropped.
    pub async fn scrape(self, dialers: LinkedDialers, name: &'static str, began: Instant) {
        for nth in 0.. {
            sleep_until(began + EVERY * nth).await;
            let dialer = dialers.lock().unwrap().get(name).cloned();
            let page = match dialer {
                Some(dialer) => timeout(PATIENCE, page(&dialer)).await.ok().flatten(),
                None => None,
            };
            self.take(page.as_deref());
        }
    }

    fn take(&self, page: Option<&str>) {
        let inner = &mut *self.inner();
        inner.scrapes += 1;
        let scrapes = inner.scrapes;
        let kinds = page.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("# TYPE "));
        for (name, _) in kinds.filter_map(|kind| kind.split_once(' ')) {
            inner.names.entry(name.to_owned()).or_default();
        }
        let mut add = |series: String, value: f64| {
            let samples = inner.series.entry(series).or_default();
            samples.resize(scrapes - 1, None);
            samples.push(Some(value));
        };
        add(format!("up{{{}}}", self.labels), f64::from(u8::from(page.is_some())));
        let lines = page.unwrap_or_default().lines().filter(|line| !line.starts_with('#'));
        for (series, value) in lines.filter_map(|line| line.rsplit_once(' ')) {
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {series} {value}"));
            let parts = ["", "_bucket", "_sum", "_count"];
            let base = parts.iter().filter_map(|part| name.strip_suffix(part));
            let base = base.into_iter().find(|base| inner.names.contains_key(*base));
            let base = base.unwrap_or_else(|| panic!("a series without a kind: {series}"));
            *inner.names.get_mut(base).unwrap() |= value != 0.0;
            if !self.wanted.contains(name) {
                continue;
            }
            let comma = if labels == "}" { "" } else { "," };
            add(format!("{name}{{{}{comma}{labels}", self.labels), value);
        }
    }

    /// Every series, padded to the number of scrapes.
    pub fn series(&self) -> BTreeMap<String, Samples> {
        let inner = self.inner();
        let whole = |(name, samples): (&String, &Samples)| {
            let mut samples = samples.clone();
            samples.resize(inner.scrapes, None);
            (name.clone(), samples)
        };
        inner.series.iter().map(whole).collect()
    }

    /// All metrics that were on a page, each with true if it was ever different from 0.
    pub fn names(&self) -> BTreeMap<String, bool> {
        self.inner().names.clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }
}

/// The page of an instance; `None` if the instance does not answer.
async fn page(dialer: &LinkedDialer) -> Option<String> {
    let mut stream = dialer.connect().await.ok()?;
    let requested = b"GET /metrics HTTP/1.1\r\nHost: alpha.invalid\r\nConnection: close\r\n\r\n";
    stream.write_all(requested).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    (head.starts_with("HTTP/1.1 200") && !head.to_lowercase().contains("chunked")).then(|| body.to_owned())
}
