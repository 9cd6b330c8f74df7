//! Client access to the embedded store: over TCP with or without TLS, over an in-memory stream, or without a
//! connection.

mod connection;
mod direct;
pub(crate) mod http;
mod server;
mod tls;

pub(crate) use connection::serve_connection;
pub(crate) use direct::direct_client;
pub use server::ServerHandle;
pub(crate) use server::serve_listener;
pub use tls::{ServerTls, TlsError};
