//! `madako history`: the records of operations.

use std::collections::BTreeMap;

use bytes::Bytes;
use madako_console::cut_to_width;
use madako_domain::keys;
use madako_domain::record::{Record, RecordStatus};
use madako_json::go::{to_pretty_json, to_yaml};
use madako_protocol::store::{Store, WatchEvent};
use madako_repair_queue::transition::ends_in_failure;
use madako_supervisor::clock::SystemClock;
use time::OffsetDateTime;

use crate::access::decode;
use crate::cli::whole_number;
use crate::commands::node::list::age_cell;
use crate::commands::repair_queue::format_time;
use crate::failure::Failure;
use crate::limits::{FIRST_FOLLOWED, LIST_PAUSE, MOST_RECORDS};
use crate::list::{AsList, Cell, CkeListArgs, List, ListForm, Surface, Tone};
use crate::output::{escape_unprintable, print_note, print_text};

/// Shows the records of operations, the newest first.
///
/// Without -o, the records follow each other as ckecli prints them; -o json prints one array.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako history -n 5 -o table\n  madako history --follow -o jsonl")]
pub(crate) struct Args {
    /// Maximum number of records; 0 shows all of them, or the last 20 with --follow
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 0, value_parser = parse_count)]
    count: usize,
    /// Shows the last records, the oldest first, and then each change
    #[arg(short, long, conflicts_with_all = ["watch", "sort_by"])]
    follow: bool,
    #[command(flatten)]
    list: CkeListArgs,
}

fn parse_count(text: &str) -> Result<usize, String> {
    let count = whole_number(text, 0..=u64::from(MOST_RECORDS))?;
    usize::try_from(count).map_err(|error| error.to_string())
}

pub(crate) async fn run(args: Args, store: &dyn Store) -> Result<(), Failure> {
    if args.follow {
        return follow_records(&args, store, &Printer::new(args.list.list_form())?).await;
    }
    let limit = if args.count == 0 { usize::MAX } else { args.count };
    let newest_first = async || {
        let stored = store.list(keys::RECORDS).await?.entries;
        let newest_first = stored.iter().rev().take(limit);
        newest_first.map(|(key, entry)| decode(key, entry)).collect::<Result<Vec<Record>, _>>()
    };
    let in_cke = |records: &Vec<Record>| {
        let documents = records.iter().map(|record| Ok(to_pretty_json(record)?));
        documents.collect::<Result<String, Failure>>()
    };
    args.list.show(list_columns(), &SystemClock, LIST_PAUSE, newest_first, in_cke).await
}

async fn follow_records(args: &Args, store: &dyn Store, printer: &Printer) -> Result<(), Failure> {
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
                    print_note(format_args!("{error}; waiting for the store"));
                }
                interrupted = true;
            }
        }
    }
    Err(Failure::failed("the watch on the records of operations ended: run the command again"))
}

/// Prints records one after another.
enum Printer {
    /// Documents as ckecli prints them.
    Documents,
    Lines,
    Yaml,
    /// Columns of fixed width, since later records are unknown; as wide as the terminal, or with all that is known.
    Table {
        is_wide: bool,
    },
}

impl Printer {
    /// `None`: ckecli's form.
    fn new(form: Option<ListForm>) -> Result<Self, Failure> {
        match form {
            None => Ok(Self::Documents),
            Some(ListForm::Jsonl) => Ok(Self::Lines),
            Some(ListForm::Yaml) => Ok(Self::Yaml),
            Some(form @ (ListForm::Table | ListForm::Wide)) => {
                Ok(Self::Table { is_wide: form == ListForm::Wide })
            }
            Some(ListForm::Json | ListForm::Csv) => Err(Failure::bad_input(
                "--follow prints a stream of records, which -o json and -o csv cannot hold: use -o jsonl, with one record a line",
            )),
        }
    }

    fn print_record(&self, record: &Record) -> Result<(), Failure> {
        match self {
            Self::Documents => print_text(&to_pretty_json(record)?),
            Self::Lines => print_text(&(serde_json::to_string(record)? + "\n")),
            Self::Yaml => print_text(&format!("---\n{}", to_yaml(record)?)),
            Self::Table { is_wide } => {
                let line = format_line(record, *is_wide);
                let width = Surface::for_output().width.filter(|_| !is_wide).unwrap_or(usize::MAX);
                print_text(&format!("{}\n", cut_to_width(&escape_unprintable(&line), width)))
            }
        }
    }
}

/// A record in a line, with its time: its age would be wrong soon. A wide line also has the status and the command.
fn format_line(record: &Record, is_wide: bool) -> String {
    let targets = record.targets.join(",");
    let (command, status) = match is_wide {
        true => (format_command(record), record.status.to_string()),
        false => (String::new(), String::new()),
    };
    let rest: [&str; 7] =
        [&record.operation, &command, &targets, record_outcome(record), &status, &record.info, &record.error];
    let rest: Vec<&str> = rest.into_iter().filter(|part| !part.is_empty()).collect();
    let (time, took) = (format_time(Some(record.start_at)), format_duration(record));
    format!("{:>6}  {time:<20}  {took:>7}  {}", record.id, rest.join("  "))
}

pub(crate) fn list_columns() -> List {
    let columns = ["ID", "AGE", "TOOK", "OPERATION", "TARGETS", "OUTCOME", "WHY"];
    List::new(&columns, &["STATUS", "COMMAND", "INFO", "ERROR"])
}

impl AsList for Vec<Record> {
    fn list(&self, now: OffsetDateTime) -> List {
        let mut list = list_columns();
        for record in self {
            let why = if record.error.is_empty() { &record.info } else { &record.error };
            let tone = match record.status {
                RecordStatus::Completed if !ends_in_failure(record) => Tone::Good,
                RecordStatus::New | RecordStatus::Running => Tone::Notice,
                _ => Tone::Bad,
            };
            let took = record.end_at.map_or(f64::INFINITY, |end| (end - record.start_at).as_seconds_f64());
            list.add(vec![
                Cell::new(record.id.to_string()).with_order(record.id),
                age_cell(Some(record.start_at), now),
                Cell::new(self::format_duration(record)).with_order_number(took),
                record.operation.as_str().into(),
                record.targets.join(",").into(),
                Cell::new(record_outcome(record)).with_tone(tone),
                why.as_str().into(),
                record.status.to_string().into(),
                format_command(record).into(),
                record.info.as_str().into(),
                record.error.as_str().into(),
            ]);
        }
        list
    }
}

/// The time that the operation took, in seconds; empty: it has not ended. It has a fraction only if a time of the record has
/// one: the service notes whole seconds.
fn format_duration(record: &Record) -> String {
    let Some(end) = record.end_at else { return String::new() };
    let has_fraction = end.nanosecond() != 0 || record.start_at.nanosecond() != 0;
    format!("{:.*}s", usize::from(has_fraction), (end - record.start_at).as_seconds_f64())
}

fn format_command(record: &Record) -> String {
    [record.command.name.as_str(), record.command.target.as_str()].join(" ").trim().to_owned()
}

/// Begin of the errors of operations whose end no leader saw.
const OUTCOME_UNKNOWN: &str = "outcome unknown";

/// The outcome of an operation. A failed repair is not a status of its record: the record of the failure has no
/// command, and ends well.
fn record_outcome(record: &Record) -> &'static str {
    match record.status {
        RecordStatus::New | RecordStatus::Running => "under way",
        RecordStatus::Cancelled if record.error.starts_with(OUTCOME_UNKNOWN) => "outcome unknown",
        RecordStatus::Cancelled if !record.error.is_empty() => "failed",
        RecordStatus::Cancelled => "cancelled before its end",
        RecordStatus::Completed if ends_in_failure(record) => "the repair failed",
        RecordStatus::Completed => "done",
        _ => "",
    }
}
