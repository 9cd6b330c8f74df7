//! The supervisor: the tree, restart policy, configuration and wiring of one instance.

pub mod clock;
pub mod config;
pub mod http;
pub mod instance;
pub mod journal;
mod limits;
pub mod measured;
pub mod placement;
mod predecessor;
pub mod service;
pub mod store_failure;
pub mod tree;

pub fn describe_metrics() {
    madako_app_scheduler::describe_metrics();
    madako_cluster_planner::describe_metrics();
    madako_host::describe_metrics();
    madako_http::describe_metrics();
    madako_kubernetes::describe_metrics();
    madako_leader::describe_metrics();
    madako_protocol::mailbox::describe_metrics();
    madako_metrics_fetcher::describe_metrics();
    madako_repair_queue::describe_metrics();
    madako_metrics_providers::describe_metrics();
    madako_sabakan::describe_metrics();
    madako_sabakan_poller::describe_metrics();
    madako_store::describe_metrics();
    measured::describe_metrics();
    store_failure::describe_metrics();
    predecessor::describe_metrics();
    tree::describe_metrics();
}
