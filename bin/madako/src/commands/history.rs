//! `madako history`: the records of operations.

use std::collections::BTreeMap;

use bytes::Bytes;
use madako_domain::keys;
use madako_domain::record::{Record, RecordStatus};
use madako_json::go::{to_pretty_json, to_yaml};
use madako_protocol::store::{Store, WatchEvent};
use madako_repair_queue::transition::ends_in_failure;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::access::decode;
use crate::cli::whole_number;
use crate::failure::Failure;
use crate::limits::{FIRST_FOLLOWED, MOST_RECORDS};
use crate::output::{Format, OutputArgs, Table, note, print, printable};

/// Shows the records of operations, the newest first.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  madako history -n 5 -o table")]
pub(crate) struct Args {
    /// Maximum number of records; 0 shows all of them, or the last 20 with --follow
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 0, value_parser = parse_count)]
    count: usize,
    /// Shows the last records, the oldest first, and then each change
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    output: OutputArgs,
}

fn parse_count(text: &str) -> Result<usize, String> {
    let count = whole_number(text, 0..=u64::from(MOST_RECORDS))?;
    usize::try_from(count).map_err(|error| error.to_string())
}

pub(crate) async fn run(args: Args, store: &dyn Store) -> Result<(), Failure> {
    let format = args.output.output.unwrap_or(Format::Json);
    let printer = Printer { format };
    if args.follow {
        return follow(&args, store, &printer).await;
    }
    let stored = store.list(keys::RECORDS).await?.entries;
    let limit = if args.count == 0 { usize::MAX } else { args.count };
    let newest_first = stored.iter().rev().take(limit);
    let records = newest_first.map(|(key, entry)| decode(key, entry)).collect::<Result<Vec<Record>, _>>()?;
    printer.all(&records)
}

async fn follow(args: &Args, store: &dyn Store, printer: &Printer) -> Result<(), Failure> {
    let limit = if args.count == 0 { FIRST_FOLLOWED } else { args.count };
    let mut events = store.watch(keys::RECORDS);
    // The last shown version of each record: a repeated list shows only changes.
    let mut shown: Option<BTreeMap<String, Bytes>> = None;
    let mut interrupted = false;
    while let Some(event) = events.recv().await {
        match event {
            WatchEvent::Listed(snapshot) => {
                interrupted = false;
                let first = if shown.is_some() { 0 } else { snapshot.entries.len().saturating_sub(limit) };
                let before = shown.take().unwrap_or_default();
                for (key, entry) in snapshot.entries.iter().skip(first) {
                    if before.get(key) != Some(&entry.value) {
                        printer.print_record(&decode(key, entry)?)?;
                    }
                }
                shown = Some(snapshot.entries.into_iter().map(|(key, entry)| (key, entry.value)).collect());
            }
            WatchEvent::Changed { changes, .. } => {
                interrupted = false;
                let shown = shown.get_or_insert_default();
                for change in changes {
                    match change.entry {
                        // The removal of an old record is not shown.
                        None => drop(shown.remove(&change.key)),
                        Some(entry) => {
                            printer.print_record(&decode(&change.key, &entry)?)?;
                            shown.insert(change.key, entry.value);
                        }
                    }
                }
            }
            WatchEvent::Interrupted(error) => {
                if !interrupted {
                    note(format_args!("{error}; waiting for the store"));
                }
                interrupted = true;
            }
        }
    }
    Err(Failure::failed("the watch on the records ended"))
}

/// Prints records one after another.
struct Printer {
    format: Format,
}

impl Printer {
    /// All records, as a table with fitting columns.
    fn all(&self, records: &[Record]) -> Result<(), Failure> {
        if self.format != Format::Table {
            return records.iter().try_for_each(|record| self.print_record(record));
        }
        let mut table = Table::new([
            "ID",
            "STATUS",
            "STARTED",
            "SECONDS",
            "OPERATION",
            "COMMAND",
            "TARGETS",
            "OUTCOME",
            "INFO",
            "ERROR",
        ]);
        for record in records {
            table.row(cells(record));
        }
        print(&table.text())
    }

    /// One record, in columns of fixed width, since later records are unknown.
    fn print_record(&self, record: &Record) -> Result<(), Failure> {
        match self.format {
            Format::Json => print(&to_pretty_json(record)?),
            Format::Yaml => print(&format!("---\n{}", to_yaml(record)?)),
            Format::Table => {
                let [id, status, started, seconds, rest @ ..] = cells(record);
                let rest: Vec<String> = rest.into_iter().filter(|part| !part.is_empty()).collect();
                let line = format!("{id:>6}  {status:<9}  {started:<20}  {seconds:>7}  {}", rest.join("  "));
                print(&format!("{}\n", printable(&line)))
            }
        }
    }
}

/// The outcome of an operation. A failed repair is not a status of its record: the record of the failure has no
/// command, and ends well.
fn outcome(record: &Record) -> &'static str {
    match record.status {
        RecordStatus::New | RecordStatus::Running => "under way",
        RecordStatus::Cancelled => "cancelled before its end",
        RecordStatus::Completed if ends_in_failure(record) => "the repair failed",
        RecordStatus::Completed => "done",
        _ => "",
    }
}

fn cells(record: &Record) -> [String; 10] {
    let time = |time: OffsetDateTime| {
        time.replace_nanosecond(0).unwrap_or(time).format(&Rfc3339).unwrap_or_default()
    };
    let seconds = record.end_at.map(|end| format!("{:.1}", (end - record.start_at).as_seconds_f64()));
    [
        record.id.to_string(),
        record.status.to_string(),
        time(record.start_at),
        seconds.unwrap_or_default(),
        record.operation.clone(),
        [record.command.name.as_str(), record.command.target.as_str()].join(" ").trim().to_owned(),
        record.targets.join(","),
        outcome(record).to_owned(),
        record.info.clone(),
        record.error.clone(),
    ]
}
