//! What a program says on standard error, and how its command line answers.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::error::ErrorKind;
use madako_json::input::InputError;

/// Tells something on standard error that is not the result.
pub fn note(program: &str, message: impl std::fmt::Display) {
    // There is no place left to complain when this fails.
    let _ = writeln!(io::stderr().lock(), "{program}: {message}");
}

/// Whether an error means that nobody reads any more: whoever closed the pipe has seen enough.
#[must_use]
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Problems of one input that are shown: a screen holds about as many.
const MAX_PROBLEMS_SHOWN: usize = 50;

/// An error with its causes; the problems of an input each on a line of its own when there are several.
#[must_use]
pub fn tell(error: &anyhow::Error) -> String {
    let mut parts = Vec::new();
    for cause in error.chain() {
        parts.push(match cause.downcast_ref::<InputError>() {
            Some(input) if input.problems.len() > 1 => lines(input),
            _ => cause.to_string(),
        });
    }
    parts.join(": ")
}

fn lines(input: &InputError) -> String {
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

/// Shows what became of a command line that is no command: help that was asked for on standard output, anything
/// else on standard error, where every error begins with the program's name.
#[must_use]
pub fn tell_words(program: &str, error: &clap::Error) -> ExitCode {
    let is_help = !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help {
        // There is no place left to complain when this fails.
        let _ = error.print();
    } else {
        let text = error.render().to_string();
        note(program, text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    }
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// The exit codes of a program for its help.
#[must_use]
pub fn exit_codes(codes: &[(u8, &str)]) -> String {
    let lines: Vec<String> = codes.iter().map(|(code, meaning)| format!("  {code}  {meaning}\n")).collect();
    format!("Exit codes:\n{}", lines.concat())
}
