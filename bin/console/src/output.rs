//! Prints the output of commands as JSON, YAML or a table.

use std::io::{self, Write};

use clap::ValueEnum;
use madako_json::go::{to_pretty_json, to_yaml};
use serde::Serialize;

use crate::list::Surface;
use crate::wrap::push_wrapped;

/// Spaces between two columns of a table.
const GAP: usize = 2;
/// A last column of a table with less room is written below its row.
const NARROW: usize = 24;
/// Indentation of a cell below its row.
const BELOW: &str = "    ";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table, for people.
    #[value(alias = "simple")]
    Table,
    /// One JSON document, for programs.
    Json,
    /// One YAML document.
    Yaml,
}

/// # Errors
/// Standard output cannot be written.
pub fn print_text(text: &str) -> io::Result<()> {
    print_bytes(text.as_bytes())
}

/// # Errors
/// Standard output cannot be written.
pub fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Prints a value in one of the forms; `table` makes the text form.
///
/// # Errors
/// Standard output cannot be written, or the value has no such form.
pub fn show_value<T: Serialize>(
    format: Format,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> io::Result<()> {
    match format {
        Format::Table => print_text(&table(value)),
        Format::Json => print_text(&to_pretty_json(value)?),
        Format::Yaml => print_text(&to_yaml(value)?),
    }
}

/// Replaces control characters of a text from outside, which could manipulate the terminal.
#[must_use]
pub fn escape_unprintable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Rows in columns as wide as their contents.
#[derive(Debug, Clone)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    #[must_use]
    pub fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self { rows: vec![heading.map(str::to_owned).to_vec()] }
    }

    /// A table of rows with equally many cells, the first of which is the heading.
    #[must_use]
    pub fn of_rows(rows: Vec<Vec<String>>) -> Self {
        Self {
            rows: rows.iter().map(|row| row.iter().map(|cell| escape_unprintable(cell)).collect()).collect(),
        }
    }

    /// Adds a row with as many cells as the heading.
    pub fn add(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.rows[0].len(), "a row is as wide as its heading");
        self.rows.push(cells.iter().map(|cell| escape_unprintable(cell)).collect());
    }

    pub fn add_row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| escape_unprintable(&cell)).to_vec());
    }

    /// The table with a line end after each row. If standard output is a terminal, the last column is wrapped to its width.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.to_text_in(Surface::for_output().width)
    }

    /// The table in so many columns of a terminal; `None`: as many as the text needs.
    fn to_text_in(&self, most: Option<usize>) -> String {
        let columns = self.rows[0].len();
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let Some((last, others)) = widths.split_last() else { return String::new() };
        let begin = others.iter().map(|width| width + GAP).sum::<usize>();
        let most = most.unwrap_or(usize::MAX);
        // Words of a narrow column would have a line each: the last cell gets lines of its own then.
        let is_below = begin + last > most && most.saturating_sub(begin) < NARROW;
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(others).map(|(cell, width)| format!("{cell:width$}  "));
            let cells = cells.collect::<String>();
            let end = row.last().map_or("", String::as_str);
            if !is_below {
                push_wrapped(&mut text, &cells, end, begin, most);
                continue;
            }
            push_wrapped(&mut text, cells.trim_end(), "", 0, most);
            if !end.is_empty() {
                push_wrapped(&mut text, BELOW, end, BELOW.len(), most);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["NAME", "VALUE"]);
        table.add_row(["a".to_owned(), "1".to_owned()]);
        table.add_row(["größer".to_owned(), String::new()]);
        table.add_row(["x\u{1b}[31m".to_owned(), "2".to_owned()]);
        assert_eq!(table.to_text_in(None), "NAME    VALUE\na       1\ngrößer\nx\u{fffd}[31m  2\n");
    }

    #[test]
    fn the_last_column_is_wrapped_to_the_width_of_a_terminal() {
        let mut table = Table::new(["NAME", "WHY"]);
        table.add_row(["a".to_owned(), "the reason is a long sentence".to_owned()]);
        table.add_row(["b".to_owned(), String::new()]);
        let wrapped = "NAME  WHY\na     the reason is a long\n      sentence\nb\n";
        assert_eq!(table.to_text_in(Some(30)), wrapped);
        let below = "NAME\n    WHY\na\n    the reason is a\n    long sentence\nb\n";
        assert_eq!(table.to_text_in(Some(20)), below);
        assert_eq!(table.to_text_in(Some(35)), table.to_text_in(None));
    }
}
