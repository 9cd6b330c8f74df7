//! The repair commands of a run: this same program as a client of the control API of the simulated data center.
//!
//! A reset lasts as long as its request: if its process is killed meanwhile, the connection closes, and the control API
//! records that.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use http::Method;
use serde_json::json;

use crate::datacenter::{RepairRequest, monotonic_nanoseconds};
use crate::web::{self, WebRequest};

/// The hidden word, followed by the action, the address of the control API, and the address of the machine.
pub(crate) const WORD: &str = "__repair";
/// Path that resets a machine.
pub(crate) const RESET: &str = "/repair";
/// Path of the health check.
pub(crate) const HEALTHY: &str = "/healthy";
/// Environment variable with the number of the instance that runs the command.
pub(crate) const INSTANCE: &str = "CHAOS_INSTANCE";
/// Time limit for the answer of the control API: a reset takes two seconds.
const WITHIN: Duration = Duration::from_secs(20);

/// Runs the action named by the words after the hidden one.
pub(crate) fn run(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let began = monotonic_nanoseconds();
    let mut word = || words.next().and_then(|word| word.into_string().ok());
    let (path, control, address) = (word(), word(), word());
    let control = control.and_then(|control| control.parse::<SocketAddr>().ok());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (Some(path), Some(control), Some(address), Ok(runtime)) = (path, control, address, runtime) else {
        return ExitCode::FAILURE;
    };
    let instance = std::env::var(INSTANCE).ok().and_then(|number| number.parse().ok()).unwrap_or(0);
    let body = json!(RepairRequest { address, instance, began });
    match runtime.block_on(web::send_request(control, WebRequest::send(&Method::POST, &path, &body, WITHIN)))
    {
        Ok(answer) if answer.status.is_success() => {
            // Prints the result of a health check; a reset prints nothing.
            let written = std::io::Write::write_all(&mut std::io::stdout(), &answer.body);
            if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        _ => ExitCode::FAILURE,
    }
}
