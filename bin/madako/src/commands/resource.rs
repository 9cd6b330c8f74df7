//! `madako resource`: the user-defined resources that are applied to Kubernetes, stored as typed.

mod diff;
mod file;
pub(crate) mod status;

use std::collections::BTreeSet;

use clap::Subcommand;
use madako_domain::keys;
use madako_domain::resource::ResourceKey;
use madako_domain::store::{Entry, Transaction, Write};
use madako_json::strict::tree::shown_text;
use madako_protocol::store::Store;
use madako_supervisor::clock::SystemClock;
use serde::Serialize;
use time::OffsetDateTime;

use crate::access;
use crate::cli::Global;
use crate::failure::Failure;
use crate::input::parse_documents;
use crate::limits::LIST_PAUSE;
use crate::list::{AsList, Cell, CkeListArgs, List};
use crate::output::{Format, OutputArgs, print_text, show_value};

/// Shows or changes the user-defined resources: manifests for Kubernetes.
///
/// The resources are CKE's. With `kubernetes.mode: act`, the leader applies them by server-side apply with CKE's field
/// manager; else a leading CKE does.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    /// Lists the keys of all resources: KIND/NAME, or KIND/NAMESPACE/NAME.
    ///
    /// With an option, the resources are in the order in which they are applied, with that order's rank and with the revision
    /// of each definition: the applied object has the revision in its annotation cke.cybozu.com/revision.
    #[command(after_help = "Examples:\n  madako resource list\n  madako resource list -o table\n  \
                      madako resource list --sort-by revision --watch")]
    List(CkeListArgs),
    /// Shows the definition of a resource as it was typed.
    #[command(after_help = "Example:\n  madako resource get ConfigMap/kube-system/example")]
    Get {
        /// KIND/NAME, or KIND/NAMESPACE/NAME
        key: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Stores the resources of a file.
    ///
    /// The file has manifests in YAML or JSON, separated by lines with ---. If one of them is wrong, none is stored. A
    /// resource that is stored again gets a new revision, so it is applied again.
    #[command(
        after_help = "Examples:\n  madako resource set resources.yml\n  madako resource set - < resources.yml"
    )]
    Set {
        /// File with the manifests; - is standard input
        file: String,
    },
    /// Deletes the resources of a file from the store; the objects in Kubernetes stay.
    ///
    /// Of each manifest, only its kind, namespace and name count.
    #[command(after_help = "Example:\n  madako resource delete resources.yml")]
    Delete {
        /// File with the manifests; - is standard input
        file: String,
    },
    /// Shows each static and user-defined resource with its state in Kubernetes. Changes nothing.
    ///
    /// The command reads the cluster from the store and asks the API servers itself, whatever `kubernetes.mode` says. The
    /// states are good, due (an apply is due), held (it is due and waits) and unknown (no API server reported its state). The
    /// column WHY has the difference, and the reason for which the leader holds the resource, such as a refused apply.
    ///
    /// The JSON has these fields: resources ([{key, state, why}]) and leader_error (the reason for which the operations of the
    /// leader are not known, or null).
    ///
    /// Exit codes: 0: all resources are good; 1: some are not, or the state could not be read; 2: bad input.
    #[command(
        after_help = "Examples:\n  madako resource status\n  madako resource status --sort-by state\n  \
                      madako resource status -o json"
    )]
    Status(status::Args),
    /// Shows the fields that an apply of the resources would change, by server-side dry runs. Changes nothing.
    ///
    /// An apply takes place when the revision of a definition differs, so a field that another client changed may differ
    /// for long. The values of Secrets are hidden.
    ///
    /// The JSON is a list of resources with these fields: key, error (the reason for which the differences are not known, or
    /// null) and fields ([{path, has, wanted}], where null is a field that does not exist).
    ///
    /// Exit codes: 0: no field differs; 1: fields differ, a dry run failed, or the state could not be read; 2: bad input.
    #[command(after_help = "Examples:\n  madako resource diff\n  madako resource diff -o json")]
    Diff(diff::Args),
}

pub(crate) async fn run(command: Command, global: &Global) -> Result<(), Failure> {
    let store = || access::open_store(global);
    match command {
        Command::List(args) => list_resources(&args, &store()?).await,
        Command::Get { key, output } => get_resource(&key, &output, &store()?).await,
        Command::Set { file } => set_resources(&file, &store()?).await,
        Command::Delete { file } => delete(&file, &store()?).await,
        Command::Status(args) => Box::pin(status::run(&args, global)).await,
        Command::Diff(args) => Box::pin(diff::run(&args, global)).await,
    }
}

/// A resource in the output.
#[derive(PartialEq, Serialize)]
struct Row {
    key: String,
    /// `None`: the key has another form, and the resource cannot be applied.
    rank: Option<u16>,
    revision: i64,
    bytes: usize,
}

impl Row {
    fn new(key: &str, entry: &Entry) -> Self {
        let key = key.strip_prefix(keys::RESOURCES).unwrap_or(key);
        let rank = ResourceKey::parse(key).ok().map(|key| key.rank());
        Self { key: key.to_owned(), rank, revision: entry.mod_revision, bytes: entry.value.len() }
    }
}

async fn list_resources(args: &CkeListArgs, store: &dyn Store) -> Result<(), Failure> {
    let read = async || {
        let stored = access::list_entries(store, keys::RESOURCES).await?;
        let mut rows: Vec<Row> = stored.iter().map(|(key, entry)| Row::new(key, entry)).collect();
        rows.sort_by(|a, b| (a.rank.is_none(), a.rank, &a.key).cmp(&(b.rank.is_none(), b.rank, &b.key)));
        Ok(rows)
    };
    let in_cke = |rows: &Vec<Row>| {
        // ckecli lists in the order of the keys.
        let keys: BTreeSet<&str> = rows.iter().map(|row| row.key.as_str()).collect();
        Ok(keys.iter().map(|key| format!("{key}\n")).collect())
    };
    args.show(list_columns(), &SystemClock, LIST_PAUSE, read, in_cke).await
}

pub(crate) fn list_columns() -> List {
    List::new(&["KEY", "RANK", "REVISION", "BYTES"], &[])
}

impl AsList for Vec<Row> {
    fn list(&self, _: OffsetDateTime) -> List {
        let mut list = list_columns();
        for Row { key, rank, revision, bytes } in self {
            let text = rank.map_or_else(|| "none: the key is malformed".to_owned(), |rank| rank.to_string());
            list.add(vec![
                key.into(),
                Cell::new(text).with_order(rank.map_or(i64::MAX, i64::from)),
                Cell::new(revision.to_string()).with_order(*revision),
                Cell::new(bytes.to_string()).with_order(i64::try_from(*bytes).unwrap_or(i64::MAX)),
            ]);
        }
        list
    }
}

async fn get_resource(key: &str, args: &OutputArgs, store: &dyn Store) -> Result<(), Failure> {
    let stored = access::get_entry(store, &format!("{}{key}", keys::RESOURCES)).await?;
    let Some(entry) = stored else {
        return Err(Failure::failed(format_args!(
            "no resource {} is stored: madako resource list shows the stored ones",
            shown_text(key)
        )));
    };
    let text = String::from_utf8_lossy(&entry.value);
    match args.output {
        None | Some(Format::Table) => print_text(&format!("{}\n", text.trim())),
        Some(format) => {
            let unreadable =
                |why| Failure::failed(format_args!("the resource {key} is not valid YAML: {why}"));
            let manifests = parse_documents(&text).map_err(unreadable)?;
            show_value(format, &manifests.first(), |_| String::new())
        }
    }
}

async fn set_resources(file: &str, store: &dyn Store) -> Result<(), Failure> {
    for manifest in file::read_manifests(file)? {
        let value = manifest.text.into_bytes();
        access::put_if(store, &manifest.key.stored(), value, Vec::new()).await?;
        // Printed one by one: a later write may fail.
        print_text(&format!("{}: stored\n", manifest.key))?;
    }
    Ok(())
}

async fn delete(file: &str, store: &dyn Store) -> Result<(), Failure> {
    for manifest in file::read_manifests(file)? {
        let key = manifest.key.stored();
        let existed = access::get_entry(store, &key).await?.is_some();
        if existed {
            let writes = vec![Write::Delete { key }];
            store.commit(Transaction { conditions: Vec::new(), writes }).await?;
        }
        let text = if existed { "deleted" } else { "was not stored" };
        print_text(&format!("{}: {text}\n", manifest.key))?;
    }
    Ok(())
}
