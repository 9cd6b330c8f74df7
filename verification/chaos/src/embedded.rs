//! The embedded store as a process of its own, so that it fails independently of the instances.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;

use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, Options};

/// Serves a store on a directory until the process ends.
///
/// # Errors
/// The store cannot be opened, or the address is not available.
pub(crate) async fn serve(directory: PathBuf, address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let mut options = Options::new(Backend::File(directory), Commit::Thread, 1);
    options.advertise_client_urls = vec![format!("http://{address}")];
    let store = EmbeddedEtcd::open(options)?;
    let _server = store.serve(address, None).await?;
    std::future::pending::<()>().await;
    Ok(())
}
