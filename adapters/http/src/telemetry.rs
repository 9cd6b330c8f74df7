//! Metrics of the HTTP server: connections, requests and token checks. Those of the process are in [`crate::process`].

madako_protocol::declare_metrics! {
    "HTTP":
    counter madako_http_requests_total(endpoint, code)
        "Answered HTTP requests. `endpoint`: the path, or `other` for an unknown path.";
    histogram madako_http_request_seconds(endpoint) in Seconds
        "Time from the head of an HTTP request to the start of its answer, without the time that a watch stays \
         open.";
    gauge madako_http_connections() "Open HTTP connections.";
    gauge madako_placement_watches(kind)
        "Open watches of placement's API, by kind of resource, such as `Application`.";
    counter madako_authentication_requests_total(service, outcome)
        "Token checks. `service`: `keystone` or `keycloak`; `outcome`: `ok`, `refused` (the token), `failed` or \
         `unreachable`.";
    histogram madako_authentication_request_seconds(service) in Seconds "Duration of token checks.";

    "Leadership and commits":
    gauge madako_fault_since_timestamp_seconds(metric, value) in Seconds
        "Unix time since which a gauge has a value that is a fault, as far as this process knows; 0 without a \
         fault. `metric`: a gauge without another metric for the start of its fault. `value`: the value of the \
         gauge's label, such as the actor of `madako_actor_up`; empty for a gauge without a label.";
}
