//! `make lab`: machines and the service to try things on, until Ctrl-C.
//!
//! Usage: `madako-lab [MACHINES] [ARCHIVE...]`, with archives for `docker load`. One of them has the tools image. The
//! program `madako` is beside this one.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

use std::path::PathBuf;
use std::process::ExitCode;

use madako_lab::{LOGIN, Lab, LabError, OPTIONS, PAGES, SSH_OPTIONS, Service, Store};
use tokio::time::Instant;

/// Three control plane nodes and two workers.
const MACHINES: usize = 5;
/// Control plane nodes of the first cluster; a smaller lab has one.
const CONTROL_PLANE: usize = 3;

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
    let lab = Lab::start_kubernetes(machines, &images).await?;
    println!("They are up after {:.1} s.", began.elapsed().as_secs_f64());
    let service = serve(lab).await?;
    explain(&service).await?;
    let interrupt = tokio::signal::ctrl_c().await;
    println!("Removing the lab ...");
    drop(service);
    interrupt.map_err(|source| LabError::Start { what: "waiting for Ctrl-C".to_owned(), source })
}

/// Starts the service, and stores authorities and a cluster, which the service then builds.
async fn serve(lab: Lab) -> Result<Service, LabError> {
    let program = std::env::current_exe()
        .map_err(|source| LabError::Start { what: "the own program".to_owned(), source })?
        .with_file_name("madako");
    let machines: Vec<usize> = (0..lab.machines().len()).collect();
    let (control_plane, workers) =
        machines.split_at(if machines.len() < CONTROL_PLANE { 1 } else { CONTROL_PLANE });
    let service = Service::new(lab, program, Store::Embedded)?;
    service.serve()?;
    service.answers().await?;
    service.madako(&["ca", "init"]).await?;
    service.set_cluster(control_plane, workers, OPTIONS).await?;
    Ok(service)
}

async fn explain(service: &Service) -> Result<(), LabError> {
    let lab = service.lab();
    let enter = lab.enter().join(" ");
    let first = lab.machine(0);
    let ssh = format!("{enter} ssh -i {} {}", lab.key_file().display(), SSH_OPTIONS.join(" "));
    let madako = service.path("madako");
    let madako = madako.display();
    println!("The lab is in {} (process {}).", lab.directory().display(), std::process::id());
    for machine in lab.machines() {
        println!("  {}", machine.address());
    }
    let images = first.docker(&["image", "ls", "--format={{.Repository}}:{{.Tag}}"]).await?;
    println!("Images on each machine: {}", images.trim_end().replace('\n', ", "));
    println!("The service runs at {PAGES}, and builds rivers, etcd and Kubernetes on the machines now.");
    println!("In another terminal, as root:");
    println!("  {madako} ops                # the phase, what runs, what is next, and what is held");
    println!("  {madako} kube status        # the components of Kubernetes on each machine");
    println!("  {madako} history -o table   # the operations so far");
    println!("  tail -f {}   # the messages of the service", service.path("log").display());
    println!("  {madako} cluster get        # the cluster; `cluster set FILE` changes it");
    println!("  {madako} etcd root-issue --output file   # a certificate for etcdctl");
    println!("  {ssh} {LOGIN}@{} docker ps -a    # look at the containers of a machine", first.address());
    println!("  {ssh} {LOGIN}@{} docker stop etcd   # the service starts it again", first.address());
    println!("  {enter} bash   # a shell in the network of the machines");
    println!("Ctrl-C ends everything.");
    Ok(())
}
