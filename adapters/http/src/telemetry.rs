//! Metrics of the HTTP server: connections, requests and token checks. Those of the process are in [`crate::process`].

madako_protocol::declare_metrics! {
    counter madako_http_requests_total(endpoint, code) "Answered HTTP requests.";
    histogram madako_http_request_seconds(endpoint) "Time from a request's head to the start of its answer.";
    gauge madako_fault_since_timestamp_seconds(metric, value)
        "Unix time since which a gauge has a value that is a fault, by metric and value of its label; 0 without a fault.";
    gauge madako_http_connections() "Open HTTP connections.";
    gauge madako_placement_watches(kind) "Open watches of clients, by kind of resource.";
    counter madako_authentication_requests_total(service, outcome)
        "Token checks, by service and outcome: ok, refused (the token), failed or unreachable.";
    histogram madako_authentication_request_seconds(service) "Duration of token checks, by service.";
}
