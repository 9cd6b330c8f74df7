//! Finds the process at the other end of a connection in Linux' `/proc`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;

use tokio::net::TcpStream;

use super::Node;

/// The kernel's list of IPv4 sockets.
const SOCKETS: &str = "/proc/net/tcp";
/// Bytes of the list that are read at a time.
const PIECE: usize = 64 * 1024;

/// The node whose process holds the other end; `None`: no node's process, or the socket is gone.
///
/// With tens of thousands of sockets the kernel takes a tenth of a second and more for the list. On the thread that
/// carries all connections that would be an unplanned fault, so a separate thread reads it.
#[allow(
    clippy::disallowed_methods,
    reason = "real files beside real processes; nothing is repeated by a seed here"
)]
pub(super) async fn find_owner(stream: &TcpStream, processes: BTreeMap<u32, Node>) -> Option<Node> {
    let (theirs, ours) = (stream.peer_addr().ok()?, stream.local_addr().ok()?);
    tokio::task::spawn_blocking(move || find_process(theirs, ours, &processes)).await.ok()?
}

fn find_process(theirs: SocketAddr, ours: SocketAddr, processes: &BTreeMap<u32, Node>) -> Option<Node> {
    let sockets = BufReader::with_capacity(PIECE, File::open(SOCKETS).ok()?);
    let inode = sockets.lines().map_while(Result::ok).find_map(|line| parse_inode(&line, theirs, ours))?;
    let named = format!("socket:[{inode}]");
    let holds = |process: &&u32| {
        let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
        files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|to| to == Path::new(&named)))
    };
    processes.keys().find(holds).and_then(|process| processes.get(process)).cloned()
}

/// The inode of the socket if the line is about the connection between these addresses.
fn parse_inode(line: &str, local: SocketAddr, remote: SocketAddr) -> Option<u64> {
    let mut words = line.split_whitespace().skip(1);
    let (is_local, is_remote) = (words.next()? == show_owner(local)?, words.next()? == show_owner(remote)?);
    // Skips state, queues, timer, retransmits, user and time-out.
    let inode = words.with_number(6)?.parse().ok()?;
    (is_local && is_remote).then_some(inode)
}

/// An address in the kernel's notation: the bytes in the machine's own order, the port as a number.
fn show_owner(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else { return None };
    let host = u32::from_ne_bytes(address.ip().octets());
    Some(format!("{host:08X}:{:04X}", address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_list_is_read() {
        let line = "   0: 0100007F:1F90 0201007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4711 1 0";
        let (local, remote) = ("127.0.0.1:8080".parse().unwrap(), "127.0.1.2:50000".parse().unwrap());
        if cfg!(target_endian = "little") {
            assert_eq!(parse_inode(line, local, remote), Some(4711));
        }
        assert_eq!(parse_inode(line, remote, local), None);
        assert_eq!(parse_inode("  sl  local_address rem_address   st tx_queue", local, remote), None);
    }
}
