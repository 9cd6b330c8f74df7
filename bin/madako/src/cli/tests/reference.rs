//! Compares docs/commands.md with the command line; `MADAKO_WRITE_REFERENCE=1` rewrites the document.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, Command as Words, CommandFactory};

use super::{examples, leaves};
use crate::cli::Cli;
use crate::failure::EXIT_CODES;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");

const INTRODUCTION: &str = "\
# Commands

`madako serve` runs the service, and `madako demo` shows it. All other commands are for operators. These commands use
the store of the service, with the configuration file of the service, and the words, keys and values of ckecli. The
placement commands (`kube`, `infra`, `os`, `core`) are krakectl's. The placement commands use the API of the service,
which `krakectl.yaml` names, and accept krakectl's aliases (`kubernetes`, `application`, `gip`, `mp`, ...). No command
uses a proxy of the environment.

This page is generated from the program's help (`madako help COMMAND`); a test compares the two.

## What all commands have in common

- `FILE` may be `-` for standard input.
- Results go to standard output. Errors, warnings and notes go to standard error, each beginning with `madako: `; an
  error is one message that names every wrong field.
- A command validates its whole input before it stores anything. A command stores a value only if no other client
  changed the value at the same time; otherwise it reports the conflict and writes nothing.
- Without `-o`, the output has the form of ckecli. Tables are for people and may change; JSON and YAML are for programs.
  A command that deletes something prints the deletion, where ckecli prints nothing.
- When an option is given twice, the last one counts.

";

fn reference() -> String {
    let mut text = INTRODUCTION.to_owned();
    text.push_str("| Exit code | Meaning |\n|---|---|\n");
    for (code, meaning) in EXIT_CODES {
        let _ = writeln!(text, "| {code} | {meaning} |");
    }
    text.push_str("\nOptions of every command:\n\n");
    let root = Cli::command();
    options(&mut text, root.get_arguments().filter(|arg| arg.is_global_set()));
    for (words, command) in leaves() {
        section(&mut text, &words, &command);
    }
    text
}

fn section(text: &mut String, words: &[String], command: &Words) {
    let positionals: Vec<String> = command
        .get_positionals()
        .map(|arg| if arg.is_required_set() { name(arg) } else { format!("[{}]", name(arg)) })
        .collect();
    let title = [words, &positionals].concat().join(" ");
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let about = about.trim_end();
    let stop = if about.ends_with('.') { "" } else { "." };
    let _ = writeln!(text, "\n## `{title}`\n\n{}{stop}", wrapped(about));
    // An option of a group with the name of a global one, but another text, is listed for the group.
    let root = Cli::command();
    let common =
        |arg: &Arg| root.get_arguments().any(|it| it.is_global_set() && it.get_help() == arg.get_help());
    // A hidden option without a text exists to be refused.
    let is_refused = |arg: &Arg| arg.is_hide_set() && arg.get_help().is_none();
    let is_shown = |arg: &Arg| !common(arg) && !is_built_in(arg) && !is_refused(arg);
    let own = || command.get_arguments().filter(|arg| is_shown(arg));
    if own().next().is_some() {
        text.push('\n');
        options(text, own());
    }
    let examples = examples(command);
    let _ = writeln!(text, "\n```console\n$ {}\n```", examples.join("\n$ "));
}

fn is_built_in(arg: &Arg) -> bool {
    matches!(arg.get_id().as_str(), "help" | "version")
}

fn name(arg: &Arg) -> String {
    arg.get_value_names().map_or_else(|| arg.get_id().to_string(), |names| names.join(" "))
}

fn options<'a>(text: &mut String, args: impl Iterator<Item = &'a Arg>) {
    text.push_str("| Argument | Meaning | Default |\n|---|---|---|\n");
    for arg in args.filter(|arg| !is_built_in(arg)) {
        let takes = arg.get_action().takes_values();
        let mut forms = Vec::new();
        forms.extend(arg.get_short().map(|short| format!("-{short}")));
        forms.extend(arg.get_long().map(|long| format!("--{long}")));
        let form = match (forms.is_empty(), takes) {
            (true, _) => name(arg),
            (false, true) => format!("{} {}", forms.join(", "), name(arg)),
            (false, false) => forms.join(", "),
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        // The help has a conditional default in brackets.
        let (meaning, told) = match help.split_once(" [default: ") {
            Some((meaning, rest)) => {
                let (default, after) = rest.split_once(']').unwrap_or((rest, ""));
                (format!("{meaning}{after}"), Some(default.to_owned()))
            }
            None => (help, None),
        };
        let set: Vec<String> =
            arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
        let default = told.or_else(|| (takes && !set.is_empty()).then(|| set.join(" "))).unwrap_or_default();
        let values: Vec<String> =
            arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
        let values = if takes && !values.is_empty() && !arg.is_hide_possible_values_set() {
            format!(": {}", values.join(", "))
        } else {
            String::new()
        };
        let _ =
            writeln!(text, "| `{form}` | {} | {default} |", format!("{meaning}{values}").replace('|', "\\|"));
    }
}

/// Maximum length of a line of a paragraph.
const WIDTH: usize = 116;

/// Paragraphs with filled lines.
fn wrapped(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| {
        let mut lines = vec![String::new()];
        for word in paragraph.split_whitespace() {
            let last = lines.last_mut().expect("there is a line");
            if !last.is_empty() && last.len() + 1 + word.len() > WIDTH {
                lines.push(word.to_owned());
            } else {
                if !last.is_empty() {
                    last.push(' ');
                }
                last.push_str(word);
            }
        }
        lines.join("\n")
    });
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

#[test]
fn command_reference_matches_the_help_texts() {
    let reference = reference();
    let path = Path::new(PATH);
    if std::env::var_os("MADAKO_WRITE_REFERENCE").is_some() {
        std::fs::write(path, &reference).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    let differs = written.lines().zip(reference.lines()).find(|(written, said)| written != said);
    assert!(
        written == reference,
        "docs/commands.md is out of date (MADAKO_WRITE_REFERENCE=1 writes it); first difference: {differs:?}"
    );
}
