//! Tests of the sabakan client against a registry with every fault, in memory and over TCP.

use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::{Fault, SimulatedRegistry};
use madako_domain::machine::QueryVariables;
use madako_http_client::ReqwestTransport;
use madako_protocol::ports::{HttpError, HttpTransport, Registry, RegistryError, RegistryMachines};
use madako_protocol::telemetry::Metric;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::registry;
use crate::SabakanRegistry;

/// Limit of answers in these tests, in bytes; that of 20 machines is far below.
const LIMIT: usize = 100_000;

struct Pair<T: HttpTransport> {
    client: SabakanRegistry<T>,
    registry: SimulatedRegistry,
    url: String,
    server: Option<JoinHandle<()>>,
}

impl<T: HttpTransport> Pair<T> {
    async fn ask(&self) -> Result<RegistryMachines, RegistryError> {
        self.client.machines(&self.url, None).await
    }
}

impl<T: HttpTransport> Drop for Pair<T> {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.abort();
        }
    }
}

fn in_memory(deadline: Duration) -> Pair<madako_datacenter_sim::InMemoryHttp> {
    let registry = registry(20);
    let client =
        SabakanRegistry::new(Arc::new(registry.open_in_memory_transport())).with_limits(LIMIT, deadline);
    Pair { client, registry, url: "http://simulated/graphql".to_owned(), server: None }
}

async fn over_tcp(deadline: Duration) -> Pair<ReqwestTransport> {
    let registry = registry(20);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/graphql", listener.local_addr().unwrap());
    let serving = registry.clone();
    let server = tokio::spawn(async move { serving.serve_tcp(listener).await.unwrap() });
    let transport = ReqwestTransport::with_roots(rustls::RootCertStore::empty()).unwrap();
    let client = SabakanRegistry::new(Arc::new(transport)).with_limits(LIMIT, deadline);
    Pair { client, registry, url, server: Some(server) }
}

/// Each fault of an answer with the client's result. Afterwards the registry works as before.
async fn assert_answers<T: HttpTransport>(pair: &Pair<T>) {
    let good = pair.ask().await.unwrap();
    assert_eq!(good.machines.len(), 20, "boot machines are not asked for");
    assert!(good.left_out.is_empty());
    type Check = fn(&Result<RegistryMachines, RegistryError>) -> bool;
    let faults: Vec<(Fault, Check)> = vec![
        (
            Fault::Status(500),
            |r| matches!(r, Err(RegistryError::Status { status: 500, body }) if body.contains("out of order")),
        ),
        (Fault::Status(404), |r| matches!(r, Err(RegistryError::Status { status: 404, .. }))),
        (Fault::Status(204), |r| matches!(r, Err(RegistryError::Status { status: 204, .. }))),
        (Fault::Redirect("http://elsewhere.invalid/graphql".to_owned()), |r| {
            matches!(r, Err(RegistryError::Status { status: 302, .. }))
        }),
        (
            Fault::GraphQlError,
            |r| matches!(r, Err(RegistryError::GraphQl { messages }) if messages == &["internal system error"]),
        ),
        (Fault::PartialData, |r| matches!(r, Err(RegistryError::GraphQl { .. }))),
        (Fault::TruncateBody, |r| matches!(r, Err(RegistryError::Http(HttpError::Truncated { .. })))),
        (Fault::MalformedJson, |r| matches!(r, Err(RegistryError::Malformed { why }) if why.contains("EOF"))),
        (
            Fault::WrongTypes,
            |r| matches!(r, Err(RegistryError::Malformed { why }) if why.contains("expected")),
        ),
        (Fault::EndlessBody, |r| {
            matches!(r, Err(RegistryError::Http(HttpError::TooLarge { limit: LIMIT, .. })))
        }),
        (Fault::EmptyList, |r| matches!(r, Ok(fetched) if fetched.machines.is_empty())),
        (Fault::NullList, |r| matches!(r, Ok(fetched) if fetched.machines.is_empty())),
        // Of the 22 machines, including boot machines, 11 are missing.
        (Fault::ShrinkList(50), |r| matches!(r, Ok(fetched) if (9..=11).contains(&fetched.machines.len()))),
        (Fault::DuplicateAddresses(22), |r| matches!(r, Ok(fetched) if fetched.machines.len() == 20)),
        (
            Fault::WithoutAddress(22),
            |r| matches!(r, Ok(fetched) if fetched.machines.is_empty() && fetched.left_out.len() == 20),
        ),
        (Fault::Slow(Duration::from_millis(1)), |r| matches!(r, Ok(fetched) if fetched.machines.len() == 20)),
    ];
    for (fault, check) in faults {
        pair.registry.faults().set(fault.clone());
        let result = pair.ask().await;
        assert!(check(&result), "{fault:?}: {result:?}");
        pair.registry.faults().clear(&fault);
        assert_eq!(pair.ask().await.as_ref(), Ok(&good), "after {fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_fault_of_an_answer_is_one_typed_error_in_memory() {
    assert_answers(&in_memory(Duration::from_secs(30))).await;
}

#[tokio::test]
async fn every_fault_of_an_answer_is_one_typed_error_over_tcp() {
    assert_answers(&over_tcp(Duration::from_secs(30)).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_hangs_or_is_slow_meets_the_deadline_in_memory() {
    let deadline = Duration::from_secs(30);
    let pair = in_memory(deadline);
    let url = pair.url.clone();
    for fault in [Fault::Hang, Fault::Slow(Duration::from_secs(31))] {
        pair.registry.faults().set(fault.clone());
        let begun = tokio::time::Instant::now();
        let expected = RegistryError::Http(HttpError::Deadline { url: url.clone(), deadline });
        assert_eq!(pair.ask().await, Err(expected), "{fault:?}");
        assert_eq!(begun.elapsed(), deadline);
        pair.registry.faults().clear(&fault);
    }
    pair.registry.faults().set(Fault::Slow(Duration::from_secs(29)));
    assert_eq!(pair.ask().await.unwrap().machines.len(), 20);
}

#[tokio::test]
async fn a_registry_that_hangs_meets_the_deadline_over_tcp() {
    let pair = over_tcp(Duration::from_millis(100)).await;
    pair.registry.faults().set(Fault::Hang);
    let result = pair.ask().await;
    assert!(matches!(result, Err(RegistryError::Http(HttpError::Deadline { .. }))), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_is_down_refuses_in_memory() {
    let pair = in_memory(Duration::from_secs(30));
    pair.registry.faults().set(Fault::RefuseConnections);
    let result = pair.ask().await;
    assert!(matches!(result, Err(RegistryError::Http(HttpError::Connect { .. }))), "{result:?}");
    pair.registry.faults().clear_all();
    assert_eq!(pair.ask().await.unwrap().machines.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn registry_that_goes_down_truncates_the_answer_in_progress() {
    let pair = in_memory(Duration::from_secs(30));
    pair.registry.faults().set(Fault::Hang);
    let asking = pair.ask();
    let falling = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        pair.registry.faults().set(Fault::RefuseConnections);
    };
    let (result, ()) = tokio::join!(asking, falling);
    assert!(matches!(result, Err(RegistryError::Http(HttpError::Truncated { .. }))), "{result:?}");
}

#[tokio::test]
async fn a_registry_that_is_down_refuses_over_tcp_and_returns_at_its_address() {
    let pair = over_tcp(Duration::from_secs(30)).await;
    assert!(pair.ask().await.is_ok());
    pair.registry.faults().set(Fault::RefuseConnections);
    // The server notices the switch when it runs next; until then an answer may still arrive.
    let refused = async {
        loop {
            match pair.ask().await {
                Err(RegistryError::Http(HttpError::Connect { .. })) => return,
                Ok(_) | Err(RegistryError::Http(HttpError::Truncated { .. })) => {
                    tokio::task::yield_now().await
                }
                Err(other) => panic!("a registry that is down gives {other:?}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), refused).await.expect("it refuses");
    pair.registry.faults().clear_all();
    let returned = async {
        while pair.ask().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), returned).await.expect("it is there again");
}

#[tokio::test(start_paused = true)]
async fn duplicate_addresses_are_kept_as_they_come() {
    let pair = in_memory(Duration::from_secs(30));
    pair.registry.faults().set(Fault::DuplicateAddresses(1));
    let all = pair.client.machines(&pair.url, Some(&QueryVariables::default())).await.unwrap().machines;
    assert_eq!(all.len(), 22, "with variables, the defaults do not hold");
    assert_eq!(all[0].spec.ipv4, all[1].spec.ipv4);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_machines_are_within_the_limits() {
    let registry = registry(10_000);
    let client = SabakanRegistry::new(Arc::new(registry.open_in_memory_transport()));
    let fetched = client.machines("http://simulated/graphql", None).await.unwrap();
    assert_eq!(fetched.machines.len(), 10_000);
    let expected: Vec<_> =
        registry.list_machines().into_iter().filter(|machine| machine.spec.role != "boot").collect();
    assert_eq!(fetched.machines, expected, "every field arrives as it was, in the registry's order");
}

#[test]
fn requests_are_counted_by_outcome_and_timed() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        crate::METRICS.iter().for_each(Metric::describe);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let pair = in_memory(Duration::from_secs(30));
            pair.ask().await.unwrap();
            pair.ask().await.unwrap();
            pair.registry.faults().set(Fault::Status(503));
            pair.ask().await.unwrap_err();
        });
    });
    let page = handle.render();
    for line in [
        "# HELP madako_registry_requests_total Requests to the machine registry by outcome",
        "madako_registry_requests_total{outcome=\"ok\"} 2",
        "madako_registry_requests_total{outcome=\"status\"} 1",
        "madako_registry_request_seconds_count 3",
    ] {
        assert!(page.contains(line), "{line} is missing in\n{page}");
    }
}
