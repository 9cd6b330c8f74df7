//! Prints the output of commands as JSON, YAML or a table.

use std::io::{self, Write};

use clap::ValueEnum;
use madako_json::go::{to_pretty_json, to_yaml};
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[value(alias = "simple")]
    Table,
    /// For programs.
    Json,
    /// For both.
    Yaml,
}

/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str) -> io::Result<()> {
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
pub fn show<T: Serialize>(format: Format, value: &T, table: impl FnOnce(&T) -> String) -> io::Result<()> {
    match format {
        Format::Table => print(&table(value)),
        Format::Json => print(&to_pretty_json(value)?),
        Format::Yaml => print(&to_yaml(value)?),
    }
}

/// Replaces control characters of a text from outside, which could manipulate the terminal.
#[must_use]
pub fn printable(text: &str) -> String {
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

    #[must_use]
    pub fn of(heading: Vec<String>) -> Self {
        Self { rows: vec![heading] }
    }

    /// Adds a row with as many cells as the heading.
    pub fn add(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.rows[0].len(), "a row is as wide as its heading");
        self.rows.push(cells.iter().map(|cell| printable(cell)).collect());
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| printable(&cell)).to_vec());
    }

    /// The table with a line end after each row.
    #[must_use]
    pub fn text(&self) -> String {
        let columns = self.rows[0].len();
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
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
        table.row(["a".to_owned(), "1".to_owned()]);
        table.row(["größer".to_owned(), String::new()]);
        table.row(["x\u{1b}[31m".to_owned(), "2".to_owned()]);
        assert_eq!(table.text(), "NAME    VALUE\na       1\ngrößer\nx\u{fffd}[31m  2\n");
    }
}
