//! Reads inputs from this machine: its host name, and random bytes.

use std::io::Read as _;

use anyhow::Context as _;

/// The host name, as CKE stores it in the leader key.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A seed for this process: every random choice of the service comes from it.
pub(crate) fn draw_seed() -> anyhow::Result<u64> {
    Ok(u64::from_le_bytes(draw_bytes()?))
}

/// Bytes of a cryptographic generator.
pub(crate) fn draw_bytes<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("cannot read a random seed from /dev/urandom")?;
    Ok(bytes)
}
