//! The addresses of a run's processes in network namespaces.
//!
//! All are in 198.18.0.0/15, the range for benchmarks between devices (RFC 2544), which is not routed. A run takes a
//! block of it: one half is the network with faults, the other one is for observers and control.

use std::net::{IpAddr, Ipv4Addr};

/// The range of all blocks, and the bits of its prefix.
const RANGE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const RANGE_BITS: u32 = 15;
/// The range, as documents write it.
pub(crate) const RANGE_SHOWN: &str = "198.18.0.0/15";
/// Routes into the range are part of this one. A wider route leads everywhere, as the default route does.
pub(super) const AROUND: &str = "198.0.0.0/8";
/// Prefix bits of half a block.
pub(super) const HALF_BITS: u32 = 26;
/// Addresses of half a block.
const HALF: u32 = 1 << (32 - HALF_BITS);
const BLOCKS: u32 = 1 << (HALF_BITS - RANGE_BITS - 1);
/// Host number of the machine outside the namespaces, in each half.
pub(super) const OUTSIDE: u8 = 1;
/// Host number of the first node.
const FIRST: u8 = 2;
/// Host number of the last node: the next address is the broadcast address.
const LAST: u8 = 62;
const _: () = assert!((LAST as u32) + 1 < HALF);
/// Prefix of a block's device name in the machine's own namespace. With the number of the block it stays below the 15
/// bytes of a name.
const DEVICE: &str = "madako-c";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockHalf {
    /// Traffic between nodes, and from clients to nodes: affected by faults.
    Data,
    /// Beyond the reach of faults.
    Admin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddressBlock(u32);

impl AddressBlock {
    /// Numbers that differ by a multiple of `BLOCKS` give the same block.
    pub(super) fn with_number(number: u32) -> Self {
        Self(number % BLOCKS)
    }

    pub(super) fn address_of(self, half: BlockHalf, host: u8) -> Ipv4Addr {
        let half = match half {
            BlockHalf::Data => 0,
            BlockHalf::Admin => HALF,
        };
        Ipv4Addr::from(u32::from(RANGE) + self.0 * 2 * HALF + half + u32::from(host))
    }

    /// The machine's device to the block. The kernel gives a name only once, so that the device reserves the block.
    pub(super) fn device_name(self) -> String {
        format!("{DEVICE}{}", self.0)
    }
}

/// Host numbers of nodes, in order.
pub(super) fn host_numbers() -> impl Iterator<Item = u8> {
    FIRST..=LAST
}

/// True if only namespaces of a run can have the address.
pub(crate) fn is_in_run_range(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => overlaps_range(address, RANGE_BITS),
        IpAddr::V6(_) => false,
    }
}

fn overlaps_range(network: Ipv4Addr, bits: u32) -> bool {
    let different = u32::from(network) ^ u32::from(RANGE);
    different.checked_shr(32 - bits.min(RANGE_BITS)).unwrap_or(0) == 0
}

/// A route into the range that belongs to no run, among the output of `ip -oneline`. An unreadable route counts.
pub(super) fn find_foreign_route(routes: &str) -> Option<&str> {
    routes.lines().map(str::trim).filter(|line| !line.is_empty()).find(|line| {
        let ours = line.split_whitespace().skip_while(|word| *word != "dev").nth(1);
        let ours = ours.is_some_and(|device| device.starts_with(DEVICE));
        !ours && parse_destination(line).is_none_or(|(network, bits)| overlaps_range(network, bits))
    })
}

fn parse_destination(route: &str) -> Option<(Ipv4Addr, u32)> {
    let mut words = route.split_whitespace();
    let mut word = words.next()?;
    // A route other than a unicast one begins with its type.
    if word.starts_with(|first: char| first.is_ascii_alphabetic()) {
        word = words.next()?;
    }
    let (network, bits) = word.split_once('/').unwrap_or((word, "32"));
    Some((network.parse().ok()?, bits.parse().ok().filter(|bits| *bits <= 32)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_blocks_fill_the_range_and_do_not_overlap() {
        let (first, last) = (AddressBlock::with_number(0), AddressBlock::with_number(BLOCKS - 1));
        assert_eq!(first.address_of(BlockHalf::Data, OUTSIDE).to_string(), "198.18.0.1");
        assert_eq!(first.address_of(BlockHalf::Admin, OUTSIDE).to_string(), "198.18.0.65");
        assert_eq!(last.address_of(BlockHalf::Admin, LAST).to_string(), "198.19.255.254");
        assert_eq!(AddressBlock::with_number(BLOCKS + 1), AddressBlock::with_number(1));
        assert!(
            AddressBlock::with_number(1).address_of(BlockHalf::Data, 0)
                > first.address_of(BlockHalf::Admin, LAST)
        );
        assert!(last.device_name().len() <= 15, "{}", last.device_name());
        assert_eq!(host_numbers().count(), 61);
    }

    #[test]
    fn only_addresses_of_the_benchmark_range_belong_to_runs() {
        for (address, apart) in [
            ("198.18.0.0", true),
            ("198.19.255.255", true),
            ("198.17.255.255", false),
            ("198.20.0.0", false),
            ("127.0.0.1", false),
            ("::1", false),
        ] {
            assert_eq!(is_in_run_range(address.parse().unwrap()), apart, "{address}");
        }
    }

    #[test]
    fn foreign_routes_into_the_range_are_found() {
        for (route, is_foreign) in [
            ("198.18.0.0/26 dev madako-c0 proto kernel scope link src 198.18.0.1 linkdown", false),
            ("local 198.18.0.1 dev madako-c0 table local proto kernel scope host src 198.18.0.1", false),
            ("198.51.100.0/24 dev eth0 proto kernel scope link src 198.51.100.2", false),
            ("198.18.7.0/24 dev eth1 proto kernel scope link src 198.18.7.2", true),
            ("198.19.0.0/16 via 192.0.2.1 dev eth0", true),
            ("198.18.0.9 via 192.0.2.1 dev eth0", true),
            ("blackhole 198.18.0.0/15", true),
            ("198.0.0.0/8 via 192.0.2.1 dev eth0", true),
            ("local 198.18.3.1 dev lo table local proto kernel scope host src 198.18.3.1", true),
            ("what is this", true),
            ("", false),
        ] {
            assert_eq!(find_foreign_route(route), is_foreign.then_some(route), "{route}");
        }
        let both = "198.51.100.0/24 dev eth0\n198.18.7.0/24 dev eth1\n";
        assert_eq!(find_foreign_route(both), Some("198.18.7.0/24 dev eth1"));
    }
}
