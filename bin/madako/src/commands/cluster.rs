//! `madako cluster`: shows or replaces the cluster configuration.

use std::collections::BTreeSet;

use clap::Subcommand;
use madako_console::count_with_noun;
use madako_domain::cluster::{Cluster, LABEL_ROLE};
use madako_domain::constraints::Constraints;
use madako_domain::keys;
use madako_json::go::{stored_json, with_every_field};
use madako_protocol::store::Store;

use crate::access::{concurrent_change_failure, decode, get_entry, put_if, unchanged_condition};
use crate::failure::Failure;
use crate::input::read_text;
use crate::output::{Format, OutputArgs, Table, print_text, print_warning, show_value};

/// Label with the rack of a node.
const LABEL_RACK: &str = "cke.cybozu.com/rack";

/// Shows or sets the cluster configuration.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    /// Shows the stored cluster configuration.
    #[command(after_help = "Example:\n  madako cluster get -o table")]
    Get(OutputArgs),
    /// Stores a cluster configuration.
    ///
    /// The command validates the whole configuration, which must satisfy the constraints, and replaces the stored
    /// one. The command prints the added and removed nodes. While the integration with sabakan is on, the planner
    /// continues from the new configuration.
    #[command(after_help = "Example:\n  madako cluster set cluster.yml")]
    Set {
        /// Configuration in YAML or JSON; - reads standard input
        file: String,
    },
}

pub(crate) async fn run(command: Command, store: &dyn Store) -> Result<(), Failure> {
    match command {
        Command::Get(args) => {
            let entry = get_entry(store, keys::CLUSTER).await?.ok_or_else(|| {
                Failure::failed("no cluster configuration is stored (madako cluster set stores one)")
            })?;
            let cluster: Cluster = decode(keys::CLUSTER, &entry)?;
            show_cluster(&args, &cluster)
        }
        Command::Set { file } => set_cluster(&read_text(&file)?, store).await,
    }
}

async fn set_cluster(text: &str, store: &dyn Store) -> Result<(), Failure> {
    let cluster = Cluster::from_yaml(text)?;
    let stored_constraints = get_entry(store, keys::CONSTRAINTS).await?;
    let constraints = match &stored_constraints {
        None => Constraints::default(),
        Some(entry) => decode(keys::CONSTRAINTS, entry)?,
    };
    constraints.check(&cluster)?;
    for warning in cluster.warnings() {
        print_warning(warning);
    }
    let stored = get_entry(store, keys::CLUSTER).await?;
    // The checked constraints must still hold at the write.
    let conditions = vec![
        unchanged_condition(keys::CLUSTER, stored.as_ref()),
        unchanged_condition(keys::CONSTRAINTS, stored_constraints.as_ref()),
    ];
    if !put_if(store, keys::CLUSTER, stored_json(&cluster)?.into_bytes(), conditions).await? {
        return Err(concurrent_change_failure("the cluster or the constraints"));
    }
    print_text(&describe_change(
        stored.and_then(|entry| decode(keys::CLUSTER, &entry).ok()).as_ref(),
        &cluster,
    ))
}

/// The nodes that a configuration adds and removes. An unreadable former configuration counts as empty.
fn describe_change(before: Option<&Cluster>, after: &Cluster) -> String {
    let addresses = |cluster: &Cluster| -> BTreeSet<String> {
        cluster.nodes.iter().map(|node| node.address.clone()).collect()
    };
    let (before, after) = (before.map(addresses).unwrap_or_default(), addresses(after));
    let listed = |one: &BTreeSet<String>, other: &BTreeSet<String>| {
        let difference: Vec<&str> = one.difference(other).map(String::as_str).collect();
        if difference.is_empty() { "none".to_owned() } else { difference.join(", ") }
    };
    format!(
        "cluster: stored, with {} nodes ({} before); added: {}; removed: {}\n",
        after.len(),
        before.len(),
        listed(&after, &before),
        listed(&before, &after)
    )
}

pub(crate) fn show_cluster(args: &OutputArgs, cluster: &Cluster) -> Result<(), Failure> {
    show_value(args.output.unwrap_or(Format::Yaml), &with_every_field(cluster)?, |_| format_table(cluster))
}

fn format_table(cluster: &Cluster) -> String {
    let mut table = Table::new(["ADDRESS", "PART", "ROLE", "RACK", "USER", "HOSTNAME", "TAINTS"]);
    for node in &cluster.nodes {
        let label = |name: &str| node.labels.get(name).cloned().unwrap_or_default();
        let taints = node.taints.iter().map(|taint| match taint.value.as_str() {
            "" => format!("{}:{}", taint.key, taint.effect),
            value => format!("{}={value}:{}", taint.key, taint.effect),
        });
        table.add_row([
            if node.address.is_empty() { "(template)".to_owned() } else { node.address.clone() },
            if node.control_plane { "control plane" } else { "worker" }.to_owned(),
            label(LABEL_ROLE),
            label(LABEL_RACK),
            node.user.clone(),
            node.hostname.clone(),
            taints.collect::<Vec<_>>().join(","),
        ]);
    }
    let control_plane = cluster.control_plane().count();
    format!(
        "Name            {}\nService subnet  {}\nNodes           {control_plane} control plane, {}\n\n{}",
        cluster.name,
        cluster.service_subnet,
        count_with_noun((cluster.nodes.len() - control_plane) as u64, "worker", "workers"),
        table.to_text()
    )
}
