//! Messages on standard error, and answers to command lines that do not parse.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::error::ErrorKind;
use madako_json::input::InputError;

use crate::list::Surface;
use crate::wrap::push_wrapped;

/// Indentation of the further lines of a message that a terminal has no room for in one line.
const NOTE_INDENT: usize = 2;
const USAGE: &str = "Usage: ";
/// Stands between an option and its value while the usage is wrapped.
const JOINT: char = '\u{a0}';

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
        let text = wrap_usage(&error.render(), Surface::for_output());
        // A failure cannot be reported anywhere.
        let _ = match error.use_stderr() {
            true => io::stderr().lock().write_all(text.as_bytes()),
            false => io::stdout().lock().write_all(text.as_bytes()),
        };
    } else {
        let text = error.render().to_string();
        print_note(program, text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    }
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// The help in lines that fit the terminal: clap wraps everything but the usage.
fn wrap_usage(help: &StyledStr, surface: Surface) -> String {
    let plain = help.to_string();
    let shown = if surface.has_colours { help.ansi().to_string() } else { plain.clone() };
    let mut text = String::new();
    for (plain, shown) in plain.lines().zip(shown.lines()) {
        match surface.width {
            Some(width) if plain.starts_with(USAGE) && plain.chars().count() > width => {
                let mut usage = String::new();
                push_wrapped(&mut usage, "", &join_values(plain), USAGE.len(), width);
                text.push_str(&usage.replace(JOINT, " "));
            }
            _ => {
                text.push_str(shown);
                text.push('\n');
            }
        }
    }
    text
}

/// The usage in which each option and its value are one word.
fn join_values(usage: &str) -> String {
    let mut joined = String::new();
    let mut is_option = false;
    for word in usage.split(' ') {
        let space = if is_option && word.starts_with('<') { JOINT } else { ' ' };
        joined.extend((!joined.is_empty()).then_some(space));
        joined.push_str(word);
        is_option = word.starts_with("--");
    }
    joined
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
    fn usage_fits_the_terminal_and_keeps_each_option_beside_its_value() {
        let help = StyledStr::from("Adds one.\n\nUsage: a b [OPTIONS] --url <URL> --name <NAME> <NAME>\n");
        let terminal = Surface { width: Some(32), ..Surface::default() };
        let lines = "Usage: a b [OPTIONS] --url <URL>\n       --name <NAME> <NAME>\n";
        assert_eq!(wrap_usage(&help, terminal), format!("Adds one.\n\n{lines}"));
        assert_eq!(wrap_usage(&help, Surface::default()), help.to_string());
    }

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
