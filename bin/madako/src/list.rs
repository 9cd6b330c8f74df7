//! Runs commands that print a list: as a table, JSON or YAML, sorted, and repeatedly with `--watch`.

use std::time::Duration;

use clap::ValueEnum;
use madako_console::push_wrapped;
use madako_json::go::{to_pretty_json, to_yaml};
use madako_protocol::ports::Clock;
use serde::Serialize;
use serde_json::value::RawValue;
use time::OffsetDateTime;

pub(crate) use madako_console::{Cell, List, Surface, Tone};

use crate::failure::Failure;
use crate::output::{print_note, print_text};

/// Moves the cursor to the first line, and erases the screen below it (ECMA-48).
const HOME: &str = "\u{1b}[H\u{1b}[J";
/// Lets the terminal cut long lines, and continue them on further lines again (DECAWM).
const CUT_LINES: &str = "\u{1b}[?7l";
const CONTINUE_LINES: &str = "\u{1b}[?7h";

/// Indentation of the further lines of a sentence above a list.
const SUMMARY_INDENT: usize = 2;

/// The options of a command that shows a list.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ListArgs {
    /// Form of the output; wide has more columns; json, jsonl and yaml have the whole objects, csv has all columns
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = ListForm::Table)]
    output: ListForm,
    #[command(flatten)]
    view: ListView,
}

/// The options of a command that shows a list, and prints as ckecli does without them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CkeListArgs {
    /// Form of the output; wide has more columns [default: as ckecli prints it, or table with --sort-by or --watch]
    #[arg(short, long, value_name = "FORM", value_enum)]
    output: Option<ListForm>,
    #[command(flatten)]
    view: ListView,
}

#[derive(Debug, Clone, clap::Args)]
struct ListView {
    /// Column whose values order the lines, named as in the heading of -o wide
    #[arg(long, value_name = "COLUMN")]
    sort_by: Option<String>,
    /// Shows the list again after each change; on a terminal in place
    #[arg(short, long)]
    watch: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListForm {
    /// A table, as wide as the terminal.
    #[value(alias = "simple")]
    Table,
    /// A table with all columns.
    Wide,
    /// One JSON document, for programs.
    Json,
    /// A line of JSON for each entry of the list; with --watch a line with the whole list after each change.
    Jsonl,
    /// One YAML document.
    Yaml,
    /// Comma-separated values, for spreadsheets.
    Csv,
}

impl ListForm {
    fn is_for_people(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }

    fn has_columns(self) -> bool {
        matches!(self, Self::Table | Self::Wide | Self::Csv)
    }
}

/// A value that is shown as a list. Its JSON has times in RFC 3339, the list has ages.
pub(crate) trait AsList: Serialize + PartialEq {
    fn list(&self, now: OffsetDateTime) -> List;

    /// Lines above the list for people, which are wrapped; a list without lines is left out then.
    fn summary(&self) -> String {
        String::new()
    }
}

impl ListArgs {
    /// True if the output has the columns of the list, and not the documents.
    pub(crate) fn has_columns(&self) -> bool {
        self.output.has_columns()
    }

    /// True if the output is a table with remarks above it.
    pub(crate) fn is_for_people(&self) -> bool {
        self.output.is_for_people()
    }

    /// True if an option differs from its default.
    pub(crate) fn is_given(&self) -> bool {
        self.output != ListForm::Table || self.view.watch || self.view.sort_by.is_some()
    }

    /// Shows what `read` returns, with `--watch` again after each pause. `columns`: the list without lines.
    ///
    /// A watch goes on after a failure, which it reports once.
    ///
    /// # Errors
    /// The first reading failed, or the options contradict each other.
    pub(crate) async fn show<T: AsList>(
        &self,
        columns: List,
        clock: &dyn Clock,
        pause: Duration,
        mut read: impl AsyncFnMut() -> Result<T, Failure>,
    ) -> Result<(), Failure> {
        let Self { output, view } = self;
        if view.watch && *output == ListForm::Json {
            return Err(Failure::bad_input(
                "--watch prints a stream of changes, which -o json cannot hold: use -o jsonl, with one change a line",
            ));
        }
        view.sort_list(columns)?;
        let surface = Surface::for_output();
        let first = read().await?;
        if !view.watch {
            return print_text(&view.render(*output, &first, clock.now(), surface)?);
        }
        let in_place = surface.is_terminal && output.is_for_people();
        let render = |value: &T| view.render(*output, value, clock.now(), Surface::for_output());
        watch(pause, in_place, first, read, render).await
    }
}

impl CkeListArgs {
    /// The given form; `None`: ckecli's.
    pub(crate) fn list_form(&self) -> Option<ListForm> {
        let is_table = self.view.watch || self.view.sort_by.is_some();
        self.output.or(is_table.then_some(ListForm::Table))
    }

    /// Shows a list as [`ListArgs::show`]; `in_cke`: the text without an option.
    ///
    /// # Errors
    /// See [`ListArgs::show`].
    pub(crate) async fn show<T: AsList>(
        &self,
        columns: List,
        clock: &dyn Clock,
        pause: Duration,
        mut read: impl AsyncFnMut() -> Result<T, Failure>,
        in_cke: impl FnOnce(&T) -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        match self.list_form() {
            None => print_text(&in_cke(&read().await?)?),
            Some(output) => {
                ListArgs { output, view: self.view.clone() }.show(columns, clock, pause, read).await
            }
        }
    }
}

impl ListView {
    /// The value in the form of the options.
    ///
    /// # Errors
    /// There is no column of that name.
    fn render(
        &self,
        form: ListForm,
        value: &impl AsList,
        now: OffsetDateTime,
        surface: Surface,
    ) -> Result<String, Failure> {
        let list = || self.sort_list(value.list(now));
        Ok(match form {
            ListForm::Table | ListForm::Wide => {
                let (list, mut text) = (list()?, String::new());
                for line in value.summary().lines() {
                    push_wrapped(&mut text, "", line, SUMMARY_INDENT, surface.width.unwrap_or(usize::MAX));
                }
                match (text.is_empty(), list.is_empty()) {
                    (false, true) => return Ok(text),
                    (false, false) => text.push('\n'),
                    (true, _) => {}
                }
                text + &list.to_text(form == ListForm::Wide, surface)
            }
            ListForm::Csv => list()?.to_csv(),
            ListForm::Json => to_pretty_json(value)?,
            ListForm::Jsonl => {
                let whole = serde_json::to_string(value)?;
                match serde_json::from_str::<Vec<&RawValue>>(&whole) {
                    Ok(entries) if !self.watch => entries.iter().map(|entry| format!("{entry}\n")).collect(),
                    // A list that is watched is one line, and not every document is an array.
                    Ok(_) | Err(_) => whole + "\n",
                }
            }
            ListForm::Yaml => to_yaml(value)?,
        })
    }

    fn sort_list(&self, mut list: List) -> Result<List, Failure> {
        if let Some(name) = &self.sort_by {
            list.sort_by(name).map_err(|why| Failure::bad_input(format_args!("--sort-by: {why}")))?;
        }
        Ok(list)
    }
}

/// Shows a value again after each change, until the program is ended. In place, it is drawn after each pause, because ages
/// in it grow.
///
/// # Errors
/// The value cannot be shown.
pub(crate) async fn watch<T: PartialEq>(
    pause: Duration,
    in_place: bool,
    mut shown: T,
    mut read: impl AsyncFnMut() -> Result<T, Failure>,
    render: impl Fn(&T) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let print = |text: String| match in_place {
        true => print_text(&screen_frame(&text, Surface::for_output().height)),
        false => print_text(&text),
    };
    print(render(&shown)?)?;
    // A leader that ends has a successor: its message is shown once.
    let mut shown_message = None;
    loop {
        tokio::time::sleep(pause).await;
        match read().await {
            Ok(newer) => {
                if in_place || newer != shown {
                    print(render(&newer)?)?;
                }
                (shown, shown_message) = (newer, None);
            }
            Err(failure) => {
                let message = failure.message();
                if message != shown_message {
                    print_note(message.as_deref().unwrap_or_default());
                }
                shown_message = message;
            }
        }
    }
}

/// A text that takes the place of an earlier one on a screen of so many lines: more lines would move the first ones out.
fn screen_frame(text: &str, height: Option<usize>) -> String {
    let lines: Vec<&str> = text.lines().collect();
    // The cursor has the last line, and the remark the one above.
    let shown = height.map_or(lines.len(), |height| height.saturating_sub(1).max(2));
    let body = match lines.len().checked_sub(shown) {
        None | Some(0) => text.to_owned(),
        Some(_) => {
            let (first, rest) = lines.split_at(shown - 1);
            format!("{}\n… and {} more lines\n", first.join("\n"), rest.len())
        }
    };
    format!("{HOME}{CUT_LINES}{body}{CONTINUE_LINES}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_list_stays_within_the_screen() {
        let frame = |height| screen_frame("1\n2\n3\n4\n5\n", height);
        let framed = |body: &str| format!("{HOME}{CUT_LINES}{body}{CONTINUE_LINES}");
        assert_eq!(frame(Some(6)), framed("1\n2\n3\n4\n5\n"));
        assert_eq!(frame(Some(5)), framed("1\n2\n3\n… and 2 more lines\n"));
        assert_eq!(frame(None), framed("1\n2\n3\n4\n5\n"));
        assert_eq!(frame(Some(1)), framed("1\n… and 4 more lines\n"));
    }
}
