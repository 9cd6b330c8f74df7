//! Messages on standard error, and answers to command lines that do not parse.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::error::ErrorKind;
use madako_json::input::InputError;

use crate::wrap::push_wrapped;

/// Indentation of the further lines of a message that a terminal has no room for in one line.
const NOTE_INDENT: usize = 2;

/// Prints a message that is not part of the result; on a terminal its lines end between words.
pub fn print_note(program: &str, message: impl std::fmt::Display) {
    let stderr = io::stderr();
    let size = rustix::termios::tcgetwinsize(&stderr).ok().filter(|_| stderr.is_terminal());
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    let text = wrap_note(&format!("{program}: {message}"), columns);
    // A failure cannot be reported anywhere.
    let _ = stderr.lock().write_all(text.as_bytes());
}

/// `columns`: 0 stands for any number.
fn wrap_note(note: &str, columns: usize) -> String {
    let width = if columns == 0 { usize::MAX } else { columns };
    let mut text = String::new();
    note.lines().for_each(|line| push_wrapped(&mut text, "", line, NOTE_INDENT, width));
    text
}

/// True if the error is a closed pipe: its reader wants no more output, so that this is not a failure.
#[must_use]
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Problems of one input that are shown: a screen holds about as many.
const MAX_PROBLEMS_SHOWN: usize = 50;

/// An error with its causes; several problems of an input have a line each.
#[must_use]
pub fn describe_error(error: &anyhow::Error) -> String {
    let mut parts = Vec::new();
    for cause in error.chain() {
        parts.push(match cause.downcast_ref::<InputError>() {
            Some(input) if input.problems.len() > 1 => format_lines(input),
            _ => cause.to_string(),
        });
    }
    parts.join(": ")
}

fn format_lines(input: &InputError) -> String {
    let mut text = format!("{} is not valid:", input.subject);
    for problem in input.problems.iter().take(MAX_PROBLEMS_SHOWN) {
        let _ = write!(text, "\n  {problem}");
    }
    let more = input.problems.len().saturating_sub(MAX_PROBLEMS_SHOWN);
    if more > 0 {
        let _ = write!(text, "\n  and {more} more");
    }
    text
}

/// Prints requested help on standard output, and every error on standard error, beginning with the program's name.
#[must_use]
pub fn print_clap_error(program: &str, error: &clap::Error) -> ExitCode {
    let is_help = !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help {
        // A failure cannot be reported anywhere.
        let _ = error.print();
    } else {
        let text = error.render().to_string();
        print_note(program, text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    }
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// The exit codes of a program for its help.
#[must_use]
pub fn exit_codes(codes: &[(u8, &str)]) -> String {
    let lines: Vec<String> = codes.iter().map(|(code, meaning)| format!("  {code}  {meaning}\n")).collect();
    format!("Exit codes:\n{}", lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_end_between_words_on_a_terminal_and_are_one_line_elsewhere() {
        let note = "madako: retired machines leave after 300 s\n  as the flag says";
        assert_eq!(wrap_note(note, 0), format!("{note}\n"));
        assert_eq!(
            wrap_note(note, 24),
            "madako: retired machines\n  leave after 300 s\n  as the flag says\n"
        );
    }
}
