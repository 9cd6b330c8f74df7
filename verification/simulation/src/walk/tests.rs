use madako_domain::placement::core::PrometheusSpec;
use tokio::time::advance;

use super::*;

const DEADLINE: Duration = Duration::from_secs(10);

fn kind(url: &str) -> Arc<MetricsProviderKind> {
    Arc::new(MetricsProviderKind::Prometheus(PrometheusSpec {
        url: url.to_owned(),
        rest: Default::default(),
    }))
}

fn metric(value: Option<f64>, fixed: bool) -> CopiedMetric {
    CopiedMetric { names: BTreeSet::new(), least: 10.0, greatest: 20.0, fixed, value }
}

fn provider(name: &str, metrics: &[(&str, CopiedMetric)]) -> CopiedProvider {
    let metrics = metrics.iter().map(|(name, metric)| ((*name).to_owned(), metric.clone())).collect();
    CopiedProvider { name: name.to_owned(), kind: kind(name), metrics }
}

fn walk(seed: u64, percent: f64) -> RandomWalk {
    let one = provider("one", &[("walks", metric(Some(12.0), false)), ("stands", metric(Some(13.0), true))]);
    let two = provider("two", &[("unknown", metric(None, true))]);
    RandomWalk::new(seed, vec![one, two], percent)
}

struct Site {
    walk: RandomWalk,
    network: Network,
    fetching: LinkedProviders,
}

fn site(seed: u64, percent: f64) -> Site {
    let (walk, network) = (walk(seed, percent), Network::new(1));
    let fetching = walk.linked_providers(&network, Endpoint::Instance(1), &Arc::default());
    Site { walk, network, fetching }
}

impl Site {
    async fn asked(&self, provider: &str, name: &str) -> Result<f64, FetchError> {
        let names = BTreeSet::from([name.to_owned()]);
        let mut samples = self.fetching.fetch(&kind(provider), &names, DEADLINE).await;
        samples.remove(name).unwrap().map(|sample| sample.value)
    }
}

async fn values(seed: u64, percent: f64, every: Duration) -> Vec<f64> {
    let site = site(seed, percent);
    let mut values = Vec::new();
    for _ in 0..(6 * 3600 / every.as_secs()) {
        advance(every).await;
        values.push(site.asked("one", "walks").await.unwrap());
    }
    values
}

#[tokio::test(start_paused = true)]
async fn a_value_begins_where_it_was_and_walks_within_its_bounds_by_the_seed() {
    assert_eq!(site(1, 5.0).asked("one", "walks").await, Ok(12.0));
    let hour = Duration::from_secs(3600);
    let walked = values(1, 5.0, STEP).await;
    assert!(walked.iter().all(|value| (10.0..=20.0).contains(value)), "{walked:?}");
    assert!(walked.windows(2).all(|pair| (pair[0] - pair[1]).abs() <= 0.5), "a step is five percent at most");
    assert!(walked.windows(2).any(|pair| pair[0] != pair[1]));
    assert_eq!(walked, values(1, 5.0, STEP).await);
    assert_ne!(walked, values(2, 5.0, STEP).await);
    // Each answer takes 20 ms, so that the times of the requests drift; an hour has the same steps for any number of
    // requests.
    let rarely = values(1, 5.0, hour).await;
    assert_eq!(rarely[0], walked[59], "a rare reader gets the same value");
    assert!(values(1, 0.0, hour).await.iter().all(|value| *value == 12.0));
}

#[tokio::test(start_paused = true)]
async fn fixed_metrics_stay_and_unknown_metrics_take_the_middle_of_their_range() {
    let site = site(1, 50.0);
    advance(Duration::from_secs(24 * 3600)).await;
    assert_eq!(site.asked("one", "stands").await, Ok(13.0));
    assert_eq!(site.asked("two", "unknown").await, Ok(15.0), "the middle of its range");
    assert!(matches!(site.asked("one", "nothing").await, Err(FetchError::NotFound { .. })));
    assert!(matches!(site.asked("three", "walks").await, Err(FetchError::Definition { .. })));
    site.walk.stop();
    let stopped = site.asked("one", "walks").await;
    advance(Duration::from_secs(24 * 3600)).await;
    assert_eq!(site.asked("one", "walks").await, stopped);
}

#[tokio::test(start_paused = true)]
async fn each_provider_fails_by_itself() {
    let site = site(1, 0.0);
    let Some(place @ Endpoint::ProviderOf(number)) = site.walk.endpoint_of("one") else { panic!() };
    assert_eq!(site.walk.endpoint_of("three"), None);
    site.network.change(place, |condition| condition.down += 1);
    assert!(matches!(site.asked("one", "walks").await, Err(FetchError::Unreachable { .. })));
    assert!(site.asked("two", "unknown").await.is_ok());
    site.network.change(place, |condition| condition.down -= 1);
    site.network.change(place, |condition| condition.silent += 1);
    assert!(matches!(site.asked("one", "walks").await, Err(FetchError::Deadline { .. })));
    site.network.change(place, |condition| condition.silent -= 1);
    site.walk.set_corrupt(number, true);
    assert!(matches!(site.asked("one", "walks").await, Err(FetchError::Malformed { .. })));
    assert!(site.asked("two", "unknown").await.is_ok());
    site.walk.set_corrupt(number, false);
    assert_eq!(site.asked("one", "walks").await, Ok(12.0));
}
