//! What a collector of traces is sent: an observation, the plan that was made from it, and its commit, one below the other.

use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use super::etcd::RealEtcd;
use super::site::{QUICK, WORKERS};
use super::stage::Serve;

/// Keeps what it is sent.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[async_trait::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Serves on a port of its own, and says where.
    async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        format!("http://{address}")
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.0.lock().unwrap();
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| scope.spans.clone()).collect()
    }

    fn resource(&self) -> Vec<KeyValue> {
        let requests = self.0.lock().unwrap();
        requests[0].resource_spans[0].resource.as_ref().unwrap().attributes.clone()
    }
}

/// The text of an attribute.
fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.key == key)?;
    match &attribute.value {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => Some(text.clone()),
        _ => None,
    }
}

#[tokio::test]
async fn a_commit_is_traced_back_to_the_observation_that_led_to_it() {
    let Some((_etcd, site)) = RealEtcd::with_site().await else { return };
    let first = site.serve("60s", QUICK).await;
    site.first_cluster().await;
    assert!(first.terminate().await.success());
    // Nobody leads: what the next one plans on is its first observation.
    site.ask_for(WORKERS + 1).await;

    let collector = Collector::default();
    let url = collector.serve().await;
    let second = Serve::start_with(site.config(), "60s", QUICK, &["--otlp-endpoint", &url]).await;
    site.until_workers(WORKERS + 1).await;
    let log = second.log();
    assert!(second.terminate().await.success());

    assert_eq!(text(&collector.resource(), "service.name").as_deref(), Some("madako"));
    let spans = collector.spans();
    let parent = |span: &Span| spans.iter().find(|other| other.span_id == span.parent_span_id);
    let of_cluster =
        |span: &&Span| span.name == "commit" && text(&span.attributes, "what").as_deref() == Some("cluster");
    let commits: Vec<&Span> = spans.iter().filter(of_cluster).collect();
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(commits.len(), 1, "{names:?}");
    let plan = parent(commits[0]).expect("the plan that was committed");
    assert_eq!(plan.name, "plan");
    assert_eq!(text(&plan.attributes, "action").as_deref(), Some("increase-workers"));
    let observation = parent(plan).expect("the observation that was planned on");
    assert_eq!(observation.name, "observation");
    assert_eq!(observation.parent_span_id, Vec::<u8>::new());
    assert_eq!(observation.trace_id, commits[0].trace_id);

    // The log tells the same: what was committed, with the observation's number.
    let committed: serde_json::Value = log
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .find(|line| line["message"] == "committed" && line["what"] == "cluster")
        .expect("the commit is logged");
    assert_eq!(committed["observation"], 1, "{committed}");
    assert_eq!(committed["action"], "increase-workers");
}
