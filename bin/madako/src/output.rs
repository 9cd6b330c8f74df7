//! Prints the output of commands; a failed write becomes a failure of the command.
//!
//! A closed pipe causes no panic: see [`crate::failure::Failure`].

use serde::Serialize;

pub(crate) use madako_console::{Format, Table, escape_unprintable};

use crate::failure::Failure;

/// Prefix of every message.
pub(crate) const PROGRAM: &str = "madako";

/// The option of a command that shows something, and prints as ckecli does without it.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct OutputArgs {
    /// Form of the output [default: as ckecli prints it]
    #[arg(short, long, value_name = "FORM", value_enum)]
    pub(crate) output: Option<Format>,
}

/// # Errors
/// Standard output cannot be written.
pub(crate) fn print_text(text: &str) -> Result<(), Failure> {
    Ok(madako_console::print_text(text)?)
}

/// # Errors
/// Standard output cannot be written.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    Ok(madako_console::print_bytes(bytes)?)
}

/// Prints a value in one of the forms; `table` makes the text form.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn show_value<T: Serialize>(
    format: Format,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    Ok(madako_console::show_value(format, value, table)?)
}

/// The line of a command that set a value.
pub(crate) fn describe_change(name: &str, old: &str, new: &str) -> String {
    escape_unprintable(&format!("{name}: {old} -> {new}")) + "\n"
}

/// Prints a message on standard error that is not part of the result.
pub(crate) fn print_note(message: impl std::fmt::Display) {
    madako_console::print_note(PROGRAM, message);
}

/// Warns on standard error.
pub(crate) fn print_warning(message: impl std::fmt::Display) {
    print_note(format_args!("warning: {message}"));
}
