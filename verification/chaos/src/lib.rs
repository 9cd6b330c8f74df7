//! Chaos: real processes of the service on a real store, with the faults of a scenario, observed and judged from
//! outside.
//!
//! Used by `madako-chaos run` and `madako-chaos datacenter`, and by the test that runs two minutes of it.
//!
//! Guarantees: every process ends with the run, however the run ends. Each fault is injected or reported as skipped.
//! Each invariant has its number of judgements. An existing checker of linearizability judges the answers to clients.
//! Everything is on loopback, or in namespaces without a route to the outside.
//!
//! Assumes: Linux with `/proc`; a program that first passes its command line to [`hidden_command_main`].
//!
//! Does not: repeat a run. The same seed gives the same schedule, clients and draws; their timing on the machine
//! differs.

pub mod check;
mod clients;
pub mod datacenter;
mod drill;
mod embedded;
mod followers;
mod helper;
pub mod history;
mod inject;
pub mod keeper;
pub mod network;
pub mod observer;
mod operators;
mod pace;
mod process;
mod registrar;
pub mod report;
mod run;
mod watcher;
mod web;
mod world;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

pub use network::{NetworkCarrier, NetworkChoice, find_on_path};
pub use process::ProcessError;
pub use run::{Options, RunError, run};
pub use web::RequestError;
pub use world::{Programs, WorldError};

/// The hidden word before the directory and the address of an embedded store.
const STORE_WORD: &str = "__store";

/// Runs the part of a run that this program was started as; `None`: it was started by a user.
pub fn hidden_command_main(words: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let words: Vec<OsString> = words.collect();
    if let Some(code) = keeper::keeper_main(words.iter().cloned()) {
        return Some(code);
    }
    let mut words = words.into_iter().skip(1);
    match words.next()? {
        word if word == OsStr::new(STORE_WORD) => Some(store_main(words)),
        word if word == OsStr::new(helper::WORD) => Some(helper::run(words)),
        _ => None,
    }
}

/// Serves the embedded store on a directory at an address, both from `words`.
fn store_main(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let place = words.next().zip(words.next().and_then(|word| word.to_str()?.parse().ok()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (Some((directory, address)), Ok(runtime)) = (place, runtime) else { return ExitCode::FAILURE };
    let served = runtime.block_on(embedded::serve(directory.into(), address));
    // Only the file behind the process's standard error can report this.
    let _ = served.map_err(|error| {
        std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("the embedded store: {error}\n"))
    });
    ExitCode::FAILURE
}
