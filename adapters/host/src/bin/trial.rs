//! Test stand-in for the service: it is its own watcher, and a caller that a test can kill.
//!
//! `madako-host-trial run DEADLINE_MS SILENCE_MS WORD...` runs a command and prints its result in `Debug` format.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use madako_host::CommandsOnHost;
use madako_protocol::host::{Host as _, HostCommand};
use madako_protocol::permit::Permit;
use tokio::time::Instant;

fn main() -> ExitCode {
    if let Some(code) = madako_host::watcher_main(std::env::args_os()) {
        return code;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [word, deadline, silence, command @ ..] = words.as_slice() else { return ExitCode::FAILURE };
    let (Ok(deadline), Ok(silence), "run") = (deadline.parse(), silence.parse(), word.as_str()) else {
        return ExitCode::FAILURE;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return ExitCode::FAILURE };
    let host = CommandsOnHost::new(Duration::from_millis(silence));
    let command = HostCommand { words: command.to_vec(), deadline: Duration::from_millis(deadline) };
    let text = runtime.block_on(async {
        let permit = Permit::give(1, Instant::now() + Duration::from_secs(60));
        format!("{:?}\n", host.run(&permit, command).await)
    });
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
