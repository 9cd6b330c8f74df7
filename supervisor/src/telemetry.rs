//! The metrics of this crate, and the tables of all crates.

use std::iter;

use madako_protocol::telemetry::Metric;

madako_protocol::declare_metrics! {
    "Actors":
    counter madako_actor_messages_total(actor)
        "Messages that actors of this name started to handle; the actors that serve HTTP have metrics of their \
         requests instead.";
    histogram madako_actor_handling_seconds(actor) in Seconds "Duration of handling a message.";
    gauge madako_actor_handling_since_timestamp_seconds(actor) in Seconds
        "Unix time at which the actor started on its current message; 0 between messages. If this time is long \
         past, the actor is stuck.";
    gauge madako_actor_failure_timestamp_seconds(actor) in Seconds
        "Unix time of the last failure of an actor of this name; 0 before the first failure. The log has the error.";
    counter madako_actor_restarts_total(actor) "Restarts of an actor after a failure.";
    gauge madako_actor_up(actor) "Running actors of this name.";
    gauge madako_actor_parked(actor)
        "Actors of this name that failed too often and pause. Only actors of single nodes pause; they start again \
         after ten minutes.";
    counter madako_actor_meltdowns_total(supervisor)
        "Supervisors that ended because their children failed too often.";

    "The store":
    gauge madako_store_failure_timestamp_seconds() in Seconds
        "Unix time of the last permanent failure of the embedded store in this data directory, in this process or \
         an earlier process; 0 without a failure. Instances with an external etcd do not export it.";
    gauge madako_predecessor_lease_seconds() in Seconds
        "Time until the session lease of a process that was killed on this boot expires; no instance leads before \
         that. 0 without such a lease. Instances with an external etcd do not export it.";
}

/// Tables of the actors that run only while this instance leads: without them, the values of their gauges are outdated.
const OF_A_LEADER: [&[Metric]; 9] = [
    madako_app_scheduler::METRICS,
    madako_cluster_planner::METRICS,
    madako_etcd_backup::METRICS,
    madako_metrics_fetcher::METRICS,
    madako_node::METRICS,
    madako_operation_runner::METRICS,
    madako_reboot_queue::METRICS,
    madako_repair_queue::METRICS,
    madako_sabakan_poller::METRICS,
];

/// Tables of everything else.
const OF_AN_INSTANCE: [&[Metric]; 11] = [
    METRICS,
    madako_host::METRICS,
    madako_http::METRICS,
    madako_http::PROCESS_METRICS,
    madako_kubernetes::METRICS,
    madako_leader::METRICS,
    madako_metrics_providers::METRICS,
    madako_pki::METRICS,
    madako_protocol::mailbox::METRICS,
    madako_sabakan::METRICS,
    madako_store::METRICS,
];

/// Every metric of the service.
pub fn all_metrics() -> impl Iterator<Item = &'static Metric> {
    iter::chain(OF_A_LEADER, OF_AN_INSTANCE).flatten()
}

/// True if only the leader keeps the metric up to date.
pub(crate) fn is_of_a_leader(name: &str) -> bool {
    OF_A_LEADER.into_iter().flatten().any(|metric| metric.kind == "gauge" && metric.name == name)
}

/// Describes every metric to the current recorder, and creates the series that begin at zero.
pub fn describe_metrics() {
    all_metrics().for_each(Metric::describe);
    madako_store::register_counters();
}
