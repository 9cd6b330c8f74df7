//! Which addresses a place in a rack has: sabakan's scheme (its `docs/ipam.md`).
//!
//! Each rack has one range of `2^bits` addresses for each address of a machine; a machine's index within
//! the rack is its offset in each of them. Equal places have equal addresses, whichever machine is there.

use std::net::Ipv4Addr;

/// Index of a rack's boot machine; others follow it. The example in sabakan's documents has this number.
pub(crate) const BOOT_INDEX: u32 = 3;
/// Offset of the gateway in a range, as in that example.
const GATEWAY_OFFSET: u32 = 1;
/// Smallest range of node addresses, in bits, as in that example.
const MIN_NODE_BITS: u32 = 6;
/// Smallest range of BMC addresses, in bits, as in that example.
const MIN_BMC_BITS: u32 = 5;
/// Mask of BMC addresses, as in that example.
const BMC_MASK_BITS: u32 = 20;
/// Where node addresses begin, and how many bits there are for them.
const NODE_POOL: (u32, u32) = (0x0a00_0000, 24);
/// Where BMC addresses begin, and how many bits there are for them.
const BMC_POOL: (u32, u32) = (0xac10_0000, 20);

/// The ranges of a data center.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressPlan {
    pub(crate) places_per_rack: u32,
    addresses_per_machine: u32,
    node_bits: u32,
    bmc_bits: u32,
}

/// One network interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nic {
    pub(crate) address: Ipv4Addr,
    pub(crate) mask_bits: u32,
    pub(crate) gateway: Ipv4Addr,
}

impl Nic {
    fn new(address: u32, mask_bits: u32) -> Self {
        let network = address & mask(mask_bits);
        Self { address: address.into(), mask_bits, gateway: (network + GATEWAY_OFFSET).into() }
    }

    pub(crate) fn netmask(self) -> Ipv4Addr {
        mask(self.mask_bits).into()
    }
}

fn mask(bits: u32) -> u32 {
    u32::MAX.checked_shl(32 - bits).unwrap_or(0)
}

impl AddressPlan {
    /// The smallest ranges that hold `places_per_rack` machines beside the boot machine, or `None` if all
    /// racks together need more addresses than the pools have.
    pub(crate) fn new(racks: u32, places_per_rack: u32, addresses_per_machine: u32) -> Option<Self> {
        // The last index, and the broadcast address of its range.
        let needed = u64::from(BOOT_INDEX) + u64::from(places_per_rack) + 2;
        let bits = needed.next_power_of_two().trailing_zeros();
        let node_bits = bits.max(MIN_NODE_BITS);
        let bmc_bits = bits.max(MIN_BMC_BITS);
        let fits = |ranges: u64, bits: u32, pool: u32| {
            bits <= pool && ranges.checked_mul(1 << bits).is_some_and(|all| all <= 1 << pool)
        };
        let node_ranges = u64::from(racks) * u64::from(addresses_per_machine);
        (fits(node_ranges, node_bits, NODE_POOL.1) && fits(u64::from(racks), bmc_bits, BMC_POOL.1))
            .then_some(Self { places_per_rack, addresses_per_machine, node_bits, bmc_bits })
    }

    /// Interfaces of the machine at `index` of `rack`.
    pub(crate) fn nodes(self, rack: u32, index: u32) -> impl Iterator<Item = Nic> {
        let range = 1 << self.node_bits;
        let first = NODE_POOL.0 + range * self.addresses_per_machine * rack + index;
        (0..self.addresses_per_machine).map(move |nth| Nic::new(first + nth * range, 32 - self.node_bits))
    }

    /// Interface of its management controller.
    pub(crate) fn bmc(self, rack: u32, index: u32) -> Nic {
        Nic::new(BMC_POOL.0 + (rack << self.bmc_bits) + index, BMC_MASK_BITS)
    }
}
