//! `madako etcd restart`: asks the service to restart a member of the cluster's etcd.

use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_domain::restart::RestartRequest;
use madako_protocol::ports::Clock as _;
use madako_protocol::store::Store;
use madako_supervisor::clock::SystemClock;
use serde_json::json;

use crate::access::{concurrent_change_failure, decode, get_entry, put_if, unchanged_condition};
use crate::failure::Failure;
use crate::output::{OutputArgs, Table, print_text, show_value};

/// The command leaves a request in the store, which the leader takes with the record of the restart.
pub(super) async fn run(address: &str, output: OutputArgs, store: &dyn Store) -> Result<(), Failure> {
    let stored = get_entry(store, keys::CLUSTER).await?;
    let stored =
        stored.ok_or_else(|| Failure::failed("no cluster configuration is stored, so there is no etcd to restart (madako cluster set stores one)"))?;
    let cluster: Cluster = decode(keys::CLUSTER, &stored)?;
    let members: Vec<&str> = cluster.control_plane().map(|node| node.address.as_str()).collect();
    if !members.contains(&address) {
        return Err(Failure::bad_input(format_args!(
            "{address} is not a control plane node: expected one of {}",
            members.join(", ")
        )));
    }
    let key = keys::etcd_restart(address);
    let present = get_entry(store, &key).await?;
    let request = RestartRequest { requested_at: SystemClock.now() };
    // A node that leaves the control plane at this moment gets no request.
    let conditions =
        vec![unchanged_condition(&key, present.as_ref()), unchanged_condition(keys::CLUSTER, Some(&stored))];
    if !put_if(store, &key, serde_json::to_vec(&request)?, conditions).await? {
        return Err(concurrent_change_failure(&key));
    }
    let Some(format) = output.output else {
        return print_text(&format!(
            "{address}: the leader restarts etcd in its next pass; `madako ops` and `madako history` show it\n"
        ));
    };
    let request_shown =
        json!({ "address": address, "requested_at": serde_json::to_value(request)?["requested_at"] });
    show_value(format, &request_shown, |request_shown| {
        let mut table = Table::new(["ADDRESS", "REQUESTED AT"]);
        let time = request_shown["requested_at"].as_str().unwrap_or_default();
        table.add_row([address.to_owned(), time.to_owned()]);
        table.to_text()
    })
}
