//! `make lab`: machines to try things on, until Ctrl-C.
//!
//! Usage: `madako-lab [MACHINES] [ARCHIVE...]`, with archives for `docker load`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

use std::path::PathBuf;
use std::process::ExitCode;

use madako_lab::{LOGIN, Lab, LabError, SSH_OPTIONS};
use tokio::time::Instant;

/// Three members of etcd and a machine to replace one.
const MACHINES: usize = 4;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match stay().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn stay() -> Result<(), LabError> {
    let mut words = std::env::args().skip(1).peekable();
    let machines = words.next_if(|word| word.parse::<usize>().is_ok()).and_then(|word| word.parse().ok());
    let images: Vec<PathBuf> = words.map(PathBuf::from).collect();
    let machines = machines.unwrap_or(MACHINES);
    println!("Starting {machines} machines ...");
    let began = Instant::now();
    let lab = Lab::start(machines, &images).await?;
    println!("They are up after {:.1} s.", began.elapsed().as_secs_f64());
    // The service goes here: a command of `lab.command("target/debug/madako")` that acts on the machines.
    explain(&lab).await?;
    let interrupt = tokio::signal::ctrl_c().await;
    println!("Removing the lab ...");
    drop(lab);
    interrupt.map_err(|source| LabError::Start { what: "waiting for Ctrl-C".to_owned(), source })
}

async fn explain(lab: &Lab) -> Result<(), LabError> {
    let enter = lab.enter().join(" ");
    let first = lab.machine(0);
    let ssh = format!("{enter} ssh -i {} {}", lab.key_file().display(), SSH_OPTIONS.join(" "));
    println!("The lab is in {} (process {}).", lab.directory().display(), std::process::id());
    for machine in lab.machines() {
        println!("  {}", machine.address());
    }
    println!("In another terminal, as root:");
    println!("  {ssh} {LOGIN}@{}                # log in", first.address());
    println!("  {ssh} {LOGIN}@{} docker ps -a   # look at its containers", first.address());
    println!("  {enter} bash   # a shell in the network of the machines");
    let images = lab.machine(0).docker(&["image", "ls", "--format={{.Repository}}:{{.Tag}}"]).await?;
    println!("Images on each machine: {}", images.trim_end().replace('\n', ", "));
    println!("Ctrl-C ends everything.");
    Ok(())
}
