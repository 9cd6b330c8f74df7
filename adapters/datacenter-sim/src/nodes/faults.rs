//! Faults of simulated nodes, each with the number of its causes: a fault ends with its last cause.

use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodePlace {
    Address(String),
    Rack(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeFault {
    /// No power: all containers end. Afterwards the node starts, with its disk.
    Kill,
    /// No network beyond the place: nodes of a cut rack reach each other.
    Cut,
    /// The node stands still and keeps its connections.
    Pause,
    /// The network to and from the node is slow.
    Delay,
    /// Nothing can be written. etcd ends.
    DiskFull,
    /// The container engine does not work. All containers end.
    EngineDown,
    /// The container engine answers nothing until the end of the fault. All containers run on and serve.
    EngineHangs,
}

/// A part of the network whose nodes reach each other. Clients are on the mainland.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NetworkIsland {
    Mainland,
    Of(NodePlace),
}

#[derive(Debug, Default)]
pub(crate) struct NodeFaults(BTreeMap<(NodePlace, NodeFault), u32>);

impl NodeFaults {
    pub(crate) fn begin(&mut self, place: NodePlace, fault: NodeFault) {
        *self.0.entry((place, fault)).or_default() += 1;
    }

    pub(crate) fn end(&mut self, place: NodePlace, fault: NodeFault) {
        let key = (place, fault);
        if let Some(causes) = self.0.get_mut(&key) {
            *causes -= 1;
            if *causes == 0 {
                self.0.remove(&key);
            }
        }
    }

    pub(crate) fn has_fault(&self, address: &str, rack: u32, fault: NodeFault) -> bool {
        self.0.contains_key(&(NodePlace::Address(address.to_owned()), fault))
            || self.0.contains_key(&(NodePlace::Rack(rack), fault))
    }

    pub(crate) fn island_of(&self, address: &str, rack: u32) -> NetworkIsland {
        let places = [NodePlace::Address(address.to_owned()), NodePlace::Rack(rack)];
        let cut = places.into_iter().find(|place| self.0.contains_key(&(place.clone(), NodeFault::Cut)));
        cut.map_or(NetworkIsland::Mainland, NetworkIsland::Of)
    }
}
