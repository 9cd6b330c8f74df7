//! A store on a directory, served on an address until Ctrl-C:
//! `cargo run -p madako-embedded-etcd --example serve -- DIRECTORY 127.0.0.1:2379`.
//!
//! For manual tests of clients, and for the crash test, which kills this program during writes.
#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::error::Error;
use std::net::SocketAddr;

use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, Options};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("the first argument is the data directory")?;
    let address: SocketAddr = arguments.next().ok_or("the second argument is the address")?.parse()?;
    let mut options = Options::new(Backend::File(directory.into()), Commit::Thread, 1);
    options.advertise_client_urls = vec![format!("http://{address}")];
    let store = EmbeddedEtcd::open(options)?;
    let server = store.serve(address, None).await?;
    println!("serving on {}", server.address());
    tokio::signal::ctrl_c().await?;
    store.shutdown().await;
    server.shutdown().await;
    Ok(())
}
