//! Addresses by rack and index: sabakan's scheme (its `docs/ipam.md`).
//!
//! Each rack has one range of `2^bits` addresses for each address of a machine. A machine's index within the rack is
//! its offset in each range. An address depends only on rack and index, not on the machine.

use std::net::Ipv4Addr;

/// Index of a rack's boot machine; the other machines follow it. The value is that of the example in sabakan's
/// documents.
pub(crate) const BOOT_INDEX: u32 = 3;
/// Offset of the gateway in a range, as in sabakan's example.
const GATEWAY_OFFSET: u32 = 1;
/// Smallest range of node addresses, in bits, as in sabakan's example.
const MIN_NODE_BITS: u32 = 6;
/// Smallest range of BMC addresses, in bits, as in sabakan's example.
const MIN_BMC_BITS: u32 = 5;
/// Mask length of BMC addresses, as in sabakan's example.
const BMC_MASK_BITS: u32 = 20;
/// First node address, and the size of the pool in bits.
const NODE_POOL: (u32, u32) = (0x0a00_0000, 24);
/// First BMC address, and the size of the pool in bits.
const BMC_POOL: (u32, u32) = (0xac10_0000, 20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressPlan {
    pub(crate) places_per_rack: u32,
    addresses_per_machine: u32,
    node_bits: u32,
    bmc_bits: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nic {
    pub(crate) address: Ipv4Addr,
    pub(crate) mask_bits: u32,
    pub(crate) gateway: Ipv4Addr,
}

impl Nic {
    fn new(address: u32, mask_bits: u32) -> Self {
        let network = address & network_mask(mask_bits);
        Self { address: address.into(), mask_bits, gateway: (network + GATEWAY_OFFSET).into() }
    }

    /// Placeholder for an interface that the copied registry did not show.
    pub(crate) fn placeholder() -> Self {
        Self { address: Ipv4Addr::UNSPECIFIED, mask_bits: 32, gateway: Ipv4Addr::UNSPECIFIED }
    }

    pub(crate) fn netmask(self) -> Ipv4Addr {
        network_mask(self.mask_bits).into()
    }
}

fn network_mask(bits: u32) -> u32 {
    u32::MAX.checked_shl(32 - bits).unwrap_or(0)
}

impl AddressPlan {
    /// The smallest ranges that hold `places_per_rack` machines beside the boot machine, or `None` if all
    /// racks together need more addresses than the pools have.
    pub(crate) fn new(racks: u32, places_per_rack: u32, addresses_per_machine: u32) -> Option<Self> {
        let bits = |addresses: u64| addresses.next_power_of_two().trailing_zeros();
        let to_last_index = u64::from(BOOT_INDEX) + u64::from(places_per_rack) + 1;
        // A range of node addresses is a network; its last address is the broadcast address.
        let node_bits = bits(to_last_index + 1).max(MIN_NODE_BITS);
        let bmc_bits = bits(to_last_index).max(MIN_BMC_BITS);
        let fits = |ranges: u64, bits: u32, pool: u32| {
            bits <= pool && ranges.checked_mul(1 << bits).is_some_and(|all| all <= 1 << pool)
        };
        let node_ranges = u64::from(racks) * u64::from(addresses_per_machine);
        (fits(node_ranges, node_bits, NODE_POOL.1) && fits(u64::from(racks), bmc_bits, BMC_POOL.1))
            .then_some(Self { places_per_rack, addresses_per_machine, node_bits, bmc_bits })
    }

    pub(crate) fn node_nics(self, rack: u32, index: u32) -> impl Iterator<Item = Nic> {
        let range = 1 << self.node_bits;
        let first = NODE_POOL.0 + range * self.addresses_per_machine * rack + index;
        (0..self.addresses_per_machine).map(move |nth| Nic::new(first + nth * range, 32 - self.node_bits))
    }

    /// Interface of the BMC of the machine at `index` of `rack`.
    pub(crate) fn bmc_nic(self, rack: u32, index: u32) -> Nic {
        Nic::new(BMC_POOL.0 + (rack << self.bmc_bits) + index, BMC_MASK_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the example of sabakan's `docs/ipam.md`, with this module's pools.
    #[test]
    fn addresses_are_those_of_sabakans_example() {
        let plan = AddressPlan::new(6, 28, 3).expect("it fits");
        let nodes =
            |rack, index| plan.node_nics(rack, index).map(|nic| nic.address.to_string()).collect::<Vec<_>>();
        assert_eq!(nodes(0, 4), ["10.0.0.4", "10.0.0.68", "10.0.0.132"]);
        assert_eq!(nodes(1, 5), ["10.0.0.197", "10.0.1.5", "10.0.1.69"]);
        let bmc = plan.bmc_nic(1, 5);
        assert_eq!(bmc.address.to_string(), "172.16.0.37");
        assert_eq!(bmc.netmask().to_string(), "255.255.240.0");
        assert_eq!(bmc.gateway.to_string(), "172.16.0.1");
        let last = plan.node_nics(1, 5).last().expect("there are three");
        assert_eq!(last.netmask().to_string(), "255.255.255.192");
        assert_eq!(last.gateway.to_string(), "10.0.1.65");
    }

    #[test]
    fn racks_that_do_not_fit_have_no_plan() {
        assert!(AddressPlan::new(20_000, 28, 3).is_some(), "20,000 ranges of 32 are within 2^20");
        assert!(AddressPlan::new(40_000, 28, 3).is_none(), "there are only 32,768 BMC ranges of 32");
        assert!(AddressPlan::new(1, 1 << 25, 1).is_none(), "one range is larger than the pool");
    }
}
