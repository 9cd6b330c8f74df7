//! Tests of spans at a trace collector: an observation, the decision on it, its commit and its effect, each a child
//! span of the one before.

use std::sync::{Arc, Mutex};

use madako_domain::machine::MachineState;
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
use super::page;
use super::site::{QUICK, WORKERS};
use super::stage::{Serve, eventually};
use crate::program::TEMPLATE;

/// Keeps all received requests.
#[derive(Clone, Default)]
pub(super) struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

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
    /// Serves on a port of its own, and returns the address.
    pub(super) async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        format!("http://{address}")
    }

    pub(super) fn spans(&self) -> Vec<Span> {
        let requests = self.0.lock().unwrap();
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| scope.spans.clone()).collect()
    }

    fn resource(&self) -> Vec<KeyValue> {
        let requests = self.0.lock().unwrap();
        requests[0].resource_spans[0].resource.as_ref().unwrap().attributes.clone()
    }
}

/// The span and its ancestors, up to the root of its trace.
pub(super) fn upwards<'s>(spans: &'s [Span], span: &'s Span) -> Vec<&'s Span> {
    let above = |span: &&Span| spans.iter().find(|other| other.span_id == span.parent_span_id);
    let scope: Vec<&Span> = std::iter::successors(Some(span), above).collect();
    assert!(scope.iter().all(|other| other.trace_id == span.trace_id), "{scope:?}");
    let first = scope.last().unwrap();
    assert!(first.parent_span_id.is_empty(), "the parent span was not sent: {first:?}");
    scope
}

pub(super) fn names<'s>(spans: &[&'s Span]) -> Vec<&'s str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

pub(super) fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
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
    // There is no leader: the next one plans on its first observation.
    site.ask_for(WORKERS + 1).await;

    let collector = Collector::default();
    let url = collector.serve().await;
    let second = Serve::start_with(site.config(), "60s", QUICK, &["--otlp-endpoint", &url]).await;
    site.until_workers(WORKERS + 1).await;
    // The commit is visible before its log line is written.
    let committed = second.until_told("the leader committed a change", "cluster").await;
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

    // The log has the same: the commit, with the observation's number.
    assert_eq!(committed["observation"], 1, "{committed}");
    assert_eq!(committed["action"], "increase-workers");
}

#[tokio::test]
async fn a_repair_is_traced_from_the_report_to_its_command() {
    let Some((_etcd, site)) = RealEtcd::with_site().await else { return };
    let done = site.files.path("done");
    let reset = site.files.write("reset.sh", format!("echo reset \"$1\" >> '{done}'\n"));
    let check = site.files.write("check.sh", format!("[ -e '{done}' ] && echo true || echo false\n"));
    let repair = format!(
        "
repair:
  repair_procedures:
  - machine_types: [iDRAC-9, IPMI-2.0]
    repair_operations:
    - operation: unreachable
      health_check_command: [/bin/sh, '{check}']
      repair_steps:
      - repair_command: [/bin/sh, '{reset}']
        watch_seconds: 3600
"
    );
    let template = site.files.write("template.yml", format!("{TEMPLATE}{repair}"));
    site.run(&["sabakan", "set-template", &template]).await.calm();
    site.run(&["constraints", "set", "maximum-repair-queue-entries", "1"]).await.calm();
    let collector = Collector::default();
    let url = collector.serve().await;
    let service = Serve::start_with(site.config(), "60s", QUICK, &["--otlp-endpoint", &url]).await;
    let cluster = site.first_cluster().await;

    let worker = |address: Option<&str>| address.is_some_and(|own| own == cluster.workers[0]);
    let machine =
        site.registry.list_machines().into_iter().find(|machine| worker(machine.address())).unwrap();
    site.registry.set_state(&machine.spec.serial, MachineState::Unreachable).unwrap();
    eventually("the machine is repaired", async || {
        let entry = site.keys.get("repairs/data/0000000000000000").await?;
        let entry: serde_json::Value = serde_json::from_slice(entry.value()).unwrap();
        (entry["status"] == "succeeded").then_some(())
    })
    .await;
    assert_eq!(std::fs::read_to_string(&done).unwrap(), format!("reset {}\n", cluster.workers[0]));
    let shown = page::is_declared(&service).await;
    for name in ["cke_machine_repair_status", "madako_host_commands_total", "process_open_fds"] {
        assert!(shown.contains(name), "{name} is not among {shown:?}");
    }
    assert!(service.terminate().await.success());

    let spans = collector.spans();
    let commands: Vec<&Span> = spans.iter().filter(|span| span.name == "command").collect();
    assert_eq!(commands.len(), 1, "{commands:?}");
    let command = commands[0];
    assert_eq!(text(&command.attributes, "outcome").as_deref(), Some("succeeded"));
    // The decision to run it, the decision to add the entry, and the report.
    let scope = upwards(&spans, command);
    assert_eq!(names(&scope), ["command", "repair", "repair", "report"]);
    let what = |span: &Span| text(&span.attributes, "what").unwrap();
    assert_eq!((what(scope[1]).as_str(), what(scope[2]).as_str()), ("repair-execute", "repair-request"));
    // Each decision was committed, and the command began after that.
    for decision in &scope[1..3] {
        let commits = spans
            .iter()
            .filter(|span| span.name == "commit" && span.parent_span_id == decision.span_id)
            .collect::<Vec<_>>();
        assert_eq!(commits.len(), 1, "{decision:?}");
        assert_eq!(what(commits[0]), what(decision));
        assert!(commits[0].start_time_unix_nano < command.start_time_unix_nano);
    }
}
