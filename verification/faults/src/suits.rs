//! The table of fault acts and the targets that suit each. A test compares it with docs/chaos.md.

use std::time::Duration;

use crate::fault::{Act, TargetKind};

/// Delay that [`Act::Delay`] adds in each direction: a link to another continent, or a full queue. Far below every
/// deadline, so that order and timing fail, not the request; a longer delay is a pause or a cut.
pub const DELAY: Duration = Duration::from_millis(200);
/// Percentage of packets or messages that [`Act::Loss`] drops: a bad cable. Enough to stall single requests beyond
/// their deadlines, too little to look like a cut.
pub const LOSS_PERCENT: u32 = 10;
/// Advance of a clock during [`Act::ClockJump`]: a wrong time zone, the commonest of such mistakes. It exceeds every
/// lease, wait and age that the service compares times with. At the end of the fault the clock jumps back.
pub const CLOCK_JUMP: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultLength {
    /// Until `for` is over, or until the faults of the run stop.
    While,
    /// Strikes once; there is no `for`.
    Once,
}

/// The targets that an act suits. Reasons for the exclusions:
/// - The registry and the nodes on machines are all that the service sees of them: a machine has no clock, no wrong answer
///   and no lost packet of its own.
/// - An actor has neither process, connection nor disk of its own.
/// - A component of Kubernetes ends alone; its machine has the faults of the network and of the disk.
/// - Only a target that stores data has a disk to fill.
/// - The store's members compare no wall clocks, and providers are not asked for times.
/// - Answers of instances and the store are never corrupted: a wrong byte that passes TCP's checksum is not a fault of
///   this world.
#[must_use]
pub fn suitable_targets(act: Act) -> &'static [TargetKind] {
    use TargetKind::{Actor, Address, ApiServer, Instance, Kubelet, Provider, Rack, Registry, Store};
    match act {
        Act::Kill => &[Rack, Address, Instance, Store, Registry, Provider, Actor, Kubelet, ApiServer],
        Act::Cut => &[Rack, Address, Instance, Store, Registry, Provider],
        Act::Pause | Act::Delay | Act::Reset => &[Rack, Address, Instance, Store, Registry, Provider],
        Act::Loss => &[Instance, Store, Registry, Provider],
        Act::Panic => &[Actor],
        Act::DiskFull => &[Rack, Address, Store],
        Act::Compact => &[Store],
        Act::ClockJump => &[Instance, Registry],
        Act::Corrupt => &[Registry, Provider],
    }
}

/// True if the act strikes only the nodes on machines: the registry shows nothing of it, so that it needs a world with
/// operations on nodes.
#[must_use]
pub fn needs_nodes(act: Act, target: TargetKind) -> bool {
    matches!(target, TargetKind::Rack | TargetKind::Address)
        && matches!(act, Act::Delay | Act::Reset | Act::DiskFull)
}

/// A killed actor is restarted by its supervisor, and a killed component of Kubernetes by the service, so that nothing lasts.
#[must_use]
pub fn fault_length(act: Act, target: TargetKind) -> FaultLength {
    match (act, target) {
        (Act::Panic | Act::Reset | Act::Compact, _)
        | (Act::Kill, TargetKind::Actor | TargetKind::Kubelet | TargetKind::ApiServer) => FaultLength::Once,
        _ => FaultLength::While,
    }
}

pub(crate) fn words_of_suitable_targets(act: Act) -> String {
    let kinds: Vec<String> = suitable_targets(act).iter().map(ToString::to_string).collect();
    match kinds.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{}, or {last}", rest.join(", ")),
        _ => kinds.concat(),
    }
}

pub(crate) fn acts_on(kind: TargetKind) -> String {
    let acts = Act::ALL.iter().filter(|act| suitable_targets(**act).contains(&kind)).map(ToString::to_string);
    acts.collect::<Vec<_>>().join(", ")
}
