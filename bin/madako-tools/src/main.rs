//! The tools that run in containers on nodes: `rivers`, `write_files`, `make_directories`, `empty-dir` and `install-cni`.
//!
//! One static program acts as the tool whose name it was started with; `madako-tools NAME ...` does the same. The tools
//! image (`make tools-image`) holds the program under these names. Names, flags and defaults are those of CKE's tools, so
//! that the two images can replace each other.
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for a wrong command line.

mod empty_dir;
mod flags;
mod install_cni;
mod limits;
mod make_directories;
mod rivers;
mod tar;
mod write_files;

use std::io::Write as _;
use std::process::ExitCode;

use crate::flags::Failure;

/// Name of the program where no tool is named.
const PROGRAM: &str = "madako-tools";

const HELP: &str = "Tools that run in containers on nodes.

Usage: madako-tools TOOL [FLAGS]

Tools:
  rivers            forwards TCP connections to a random healthy upstream
  write_files       writes the files of a tar archive
  make_directories  creates directories
  empty-dir         removes everything in a directory
  install-cni       copies the CNI plugins of the image to the node

Example: madako-tools rivers --help
";

/// A tool: its name, its help, and its function.
struct Tool {
    name: &'static str,
    help: &'static str,
    run: fn(&[String]) -> Result<(), Failure>,
}

const TOOLS: [Tool; 5] = [
    Tool { name: "rivers", help: rivers::HELP, run: rivers::run },
    Tool { name: "write_files", help: write_files::HELP, run: write_files::run },
    Tool { name: "make_directories", help: make_directories::HELP, run: make_directories::run },
    Tool { name: "empty-dir", help: empty_dir::HELP, run: empty_dir::run },
    Tool { name: "install-cni", help: install_cni::HELP, run: install_cni::run },
];

fn main() -> ExitCode {
    let mut words = Vec::new();
    for word in std::env::args_os() {
        match word.into_string() {
            Ok(word) => words.push(word),
            Err(word) => {
                return print_usage_error(PROGRAM, &format!("{} is not UTF-8", word.display()), HELP);
            }
        }
    }
    let Some((tool, arguments)) = choose_tool(&words) else {
        return match words.get(1).map(String::as_str) {
            Some("-h" | "--help") => print_help(HELP),
            Some(other) => print_usage_error(PROGRAM, &format!("there is no tool {other:?}"), HELP),
            None => print_usage_error(PROGRAM, "no tool is named", HELP),
        };
    };
    match (tool.run)(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Help) => print_help(tool.help),
        Err(Failure::Usage(why)) => print_usage_error(tool.name, &why, tool.help),
        Err(Failure::Failed(error)) => {
            print_error(&format!("{}: {error:#}\n", tool.name));
            ExitCode::FAILURE
        }
    }
}

/// The tool that the first or the second word names, and the words after it.
fn choose_tool(words: &[String]) -> Option<(&'static Tool, &[String])> {
    let named = |word: &String| {
        let name = word.rsplit('/').next().unwrap_or_default();
        TOOLS.iter().find(|tool| tool.name == name)
    };
    let (own, rest) = words.split_first()?;
    if let Some(tool) = named(own) {
        return Some((tool, rest));
    }
    let (first, rest) = rest.split_first()?;
    Some((TOOLS.iter().find(|tool| tool.name == first)?, rest))
}

fn print_usage_error(name: &str, why: &str, help: &str) -> ExitCode {
    print_error(&format!("{name}: {why}\n\n{help}"));
    ExitCode::from(2)
}

fn print_help(help: &str) -> ExitCode {
    match std::io::stdout().write_all(help.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn print_error(text: &str) {
    // A failure cannot be reported anywhere.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_or_second_word_names_the_tool() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (line, expected) in [
            ("rivers --listen=a", Some(("rivers", 1))),
            ("/write_files /mnt", Some(("write_files", 1))),
            ("/usr/bin/madako-tools make_directories /a /b", Some(("make_directories", 2))),
            ("madako-tools", None),
            ("madako-tools --help", None),
            ("madako-tools /rivers", None),
            ("madako-tools other", None),
        ] {
            let words = words(line);
            let found = choose_tool(&words).map(|(tool, rest)| (tool.name, rest.len()));
            assert_eq!(found, expected, "{line}");
        }
    }
}
