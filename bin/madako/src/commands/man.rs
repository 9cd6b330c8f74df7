//! `madako man`: man pages, for packages.

use std::path::PathBuf;

use clap::CommandFactory;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::output::print_note;

/// Writes a man page for each command into a directory.
///
/// The directory must exist. The pages have names such as madako-machine-list.1, and belong in section 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  madako man /usr/local/share/man/man1")]
pub(crate) struct Args {
    /// Directory for the man pages
    directory: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let shown = args.directory.display();
    clap_mangen::generate_to(Cli::command(), &args.directory)
        .map_err(|error| Failure::failed(format_args!("cannot write man pages to {shown}: {error}")))?;
    print_note(format_args!("wrote the man pages to {shown}"));
    Ok(())
}
