//! The commands of repairs: this same program, which asks the data center's door.
//!
//! A reset lasts as long as its request: who is killed in the middle of it closes the connection, and the door writes
//! that down.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use http::Method;
use serde_json::json;

use crate::datacenter::{Repaired, monotonic};
use crate::web::{self, Ask};

/// The hidden word, before what is asked for, the door and the address.
pub(crate) const WORD: &str = "__repair";
/// Resets a machine.
pub(crate) const RESET: &str = "/repair";
/// Tells whether it is healthy.
pub(crate) const HEALTHY: &str = "/healthy";
/// The number of the instance that runs a command, in its environment.
pub(crate) const INSTANCE: &str = "CHAOS_INSTANCE";
/// Time for the door's answer: a reset takes two seconds.
const WITHIN: Duration = Duration::from_secs(20);

/// Does what the words after the hidden one say.
pub(crate) fn run(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let began = monotonic();
    let mut word = || words.next().and_then(|word| word.into_string().ok());
    let (path, door, address) = (word(), word(), word());
    let door = door.and_then(|door| door.parse::<SocketAddr>().ok());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (Some(path), Some(door), Some(address), Ok(runtime)) = (path, door, address, runtime) else {
        return ExitCode::FAILURE;
    };
    let instance = std::env::var(INSTANCE).ok().and_then(|number| number.parse().ok()).unwrap_or(0);
    let body = json!(Repaired { address, instance, began });
    match runtime.block_on(web::ask(door, Ask::send(&Method::POST, &path, &body, WITHIN))) {
        Ok(answer) if answer.status.is_success() => {
            // What a health check found; a reset says nothing.
            let told = std::io::Write::write_all(&mut std::io::stdout(), &answer.body);
            if told.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        _ => ExitCode::FAILURE,
    }
}
