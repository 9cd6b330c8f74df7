//! Properties over random histories of a model: nodes join, leave, fail and return, containers stop, data are lost, and
//! operations are cut off in the middle.
//!
//! The model itself checks that no operation does harm (see [`super::model`]).

use std::collections::BTreeSet;

use madako_domain::containers::Container;
use madako_domain::status::OperationPhase;
use proptest::prelude::*;

use super::model::{Cut, Model, ModelNode};
use crate::held::BlockedBy;
use crate::operation::OperationName;

/// Histories of each property in each run.
const HISTORIES: u32 = 3_000;
/// Environment variable that selects the long form, with 20 times as many.
const LONG: &str = "MADAKO_TEST_LONG";
/// Passes in which a fleet without faults reaches its configuration: each of seven nodes may need ten.
const ROUNDS: usize = 80;

fn histories() -> ProptestConfig {
    let times = if std::env::var_os(LONG).is_some() { 20 } else { 1 };
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(HISTORIES * times) }
}

#[derive(Debug, Clone)]
enum Event {
    Stop {
        node: usize,
        container: Container,
    },
    /// Everything stops.
    PowerLoss,
    Outdate {
        node: usize,
        container: Container,
    },
    LoseMark {
        node: usize,
    },
    /// The machine is installed again, if etcd survives that.
    Wipe {
        node: usize,
    },
    Absent {
        node: usize,
        absent: bool,
    },
    Promote {
        node: usize,
    },
    Demote {
        node: usize,
    },
    /// The node leaves the configuration.
    Leave {
        node: usize,
    },
    /// A machine joins as a worker, a new one or one that left.
    Join {
        node: usize,
    },
    Passes {
        cuts: Vec<Cut>,
    },
}

fn container() -> impl Strategy<Value = Container> {
    prop::sample::select(Container::ALL.to_vec())
}

fn event() -> impl Strategy<Value = Event> {
    let node = 0..9_usize;
    let cut = prop_oneof![2 => Just(None), 1 => (0..11_usize, 0..4_usize).prop_map(Some)];
    prop_oneof![
        6 => prop::collection::vec(cut, 1..8).prop_map(|cuts| Event::Passes { cuts }),
        1 => (node.clone(), container()).prop_map(|(node, container)| Event::Stop { node, container }),
        1 => Just(Event::PowerLoss),
        1 => (node.clone(), container()).prop_map(|(node, container)| Event::Outdate { node, container }),
        1 => node.clone().prop_map(|node| Event::LoseMark { node }),
        2 => node.clone().prop_map(|node| Event::Wipe { node }),
        2 => (node.clone(), any::<bool>()).prop_map(|(node, absent)| Event::Absent { node, absent }),
        2 => node.clone().prop_map(|node| Event::Promote { node }),
        2 => node.clone().prop_map(|node| Event::Demote { node }),
        1 => node.clone().prop_map(|node| Event::Leave { node }),
        1 => node.prop_map(|node| Event::Join { node }),
    ]
}

/// Runs passes; each operation of a pass is cut off as the next entry of `cuts` says.
fn run_pass(model: &mut Model, cut: Cut) {
    for operation in model.decide().operations {
        if !model.carry_out(&operation, cut) {
            break;
        }
    }
}

fn happen(model: &mut Model, event: &Event) {
    let address = |node: usize| format!("10.0.0.{}", 11 + node);
    // Nodes of an unfinished bootstrap stay.
    let is_settled = model.is_bootstrapped();
    match event {
        Event::Passes { cuts } => cuts.iter().for_each(|cut| run_pass(model, *cut)),
        Event::PowerLoss => {
            for node in model.nodes.values_mut() {
                node.containers.values_mut().for_each(|container| container.running = false);
            }
        }
        Event::Stop { node, container } | Event::Outdate { node, container } => {
            let node = model.nodes.get_mut(&address(*node));
            if let Some(container) = node.and_then(|node| node.containers.get_mut(container)) {
                match event {
                    Event::Stop { .. } => container.running = false,
                    _ => container.image.push('x'),
                }
            }
        }
        Event::LoseMark { node } => {
            model.nodes.entry(address(*node)).and_modify(|node| node.mark = false);
        }
        Event::Wipe { node } => {
            let address = address(*node);
            if is_settled && model.nodes.contains_key(&address) && model.can_lose(&address) {
                let absent = model.nodes[&address].absent;
                model.nodes.insert(address, ModelNode { absent, ..ModelNode::default() });
            }
        }
        Event::Absent { node, absent } => {
            model.nodes.entry(address(*node)).and_modify(|node| node.absent = *absent);
        }
        Event::Join { node } if is_settled => {
            let address = address(*node);
            model.nodes.entry(address.clone()).or_default();
            if !model.cluster.nodes.iter().any(|node| node.address == address) {
                let node = madako_domain::cluster::Node { address, ..Default::default() };
                model.cluster.nodes.push(node);
            }
        }
        Event::Promote { node } | Event::Demote { node } | Event::Leave { node } if is_settled => {
            reconfigure(model, event, &address(*node));
        }
        Event::Join { .. } | Event::Promote { .. } | Event::Demote { .. } | Event::Leave { .. } => {}
    }
}

/// Changes the part of a node. A control plane node goes only while invariant I2 allows that.
fn reconfigure(model: &mut Model, event: &Event, address: &str) {
    let Some(place) = model.cluster.nodes.iter().position(|node| node.address == address) else { return };
    let goes = model.cluster.nodes[place].control_plane && !matches!(event, Event::Promote { .. });
    if goes && (!model.can_lose(address) || model.cluster.control_plane().count() == 1) {
        return;
    }
    match event {
        Event::Leave { .. } => drop(model.cluster.nodes.remove(place)),
        _ => model.cluster.nodes[place].control_plane = !goes && matches!(event, Event::Promote { .. }),
    }
}

proptest! {
    #![proptest_config(histories())]

    /// When all nodes answer and nothing is cut off any more, the fleet reaches its configuration: every control plane
    /// node, and nothing else, is a member in sync. Only the restart of one of two members may be left.
    #[test]
    fn the_fleet_reaches_its_configuration(
        control_plane in 1..6_usize,
        workers in 0..3_usize,
        events in prop::collection::vec(event(), 0..20),
    ) {
        let mut model = Model::new(control_plane, workers);
        for event in &events {
            happen(&mut model, event);
        }
        model.nodes.values_mut().for_each(|node| node.absent = false);
        let mut decision = model.decide();
        for _ in 0..ROUNDS {
            if decision.phase == OperationPhase::Completed {
                break;
            }
            run_pass(&mut model, None);
            decision = model.decide();
        }
        prop_assert_eq!(&decision.phase, &OperationPhase::Completed, "{:?}\n{:?}", decision, model);
        for held in &decision.held {
            let is_manual = matches!(held.reason, BlockedBy::FewMembers { .. });
            prop_assert!(is_manual && held.what == OperationName::EtcdRestart, "{:?}", held);
        }
        let wanted: BTreeSet<&str> = model.cluster.control_plane().map(|node| node.address.as_str()).collect();
        prop_assert_eq!(model.sound_members(), wanted);
        prop_assert!(model.has_auth);
        for node in model.cluster.nodes.iter().filter(|node| node.control_plane) {
            prop_assert!(model.nodes[&node.address].mark, "{} has no mark", node.address);
        }
    }
}
