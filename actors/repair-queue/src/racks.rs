//! Which machines stand in which rack, by what the registry says of them.

use std::collections::BTreeMap;

use madako_messages::cluster::Node;
use madako_messages::machine::Machine;
use madako_messages::repair::hold::{Hold, HoldSettings, Label};

/// Label of a node that has the number of its rack (CKE).
const NODE_RACK: &str = "cke.cybozu.com/rack";
/// What the labels of a machine begin with on its node (CKE).
const NODE_LABELS: &str = "sabakan.cke.cybozu.com/";

/// The addresses of machines by rack. It is made once of an answer of the registry, as that has every machine of a site.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Racks(BTreeMap<String, Vec<String>>);

impl Racks {
    /// The racks of these machines, told apart by a label. Machines without the label stand in none.
    #[must_use]
    pub fn of(machines: &[Machine], label: &Label) -> Self {
        let mut racks: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for machine in machines {
            let Some(rack) = label.value(machine) else { continue };
            let addresses = machine.spec.ipv4.iter().cloned();
            match racks.get_mut(&*rack) {
                Some(known) => known.extend(addresses),
                None => {
                    racks.insert(rack.into_owned(), addresses.collect());
                }
            }
        }
        Self(racks)
    }
}

/// Which addresses stand in a held rack, and in which: of machines that hold it, of those that the registry's answers know, and
/// of nodes of the cluster. What is kept for another label than the one of the settings holds nothing.
#[must_use]
pub fn held_addresses<'a>(
    holds: impl IntoIterator<Item = (&'a str, &'a Hold)>,
    answers: &[&Racks],
    nodes: impl IntoIterator<Item = &'a Node>,
    settings: Option<&HoldSettings>,
) -> BTreeMap<String, String> {
    let mut held = BTreeMap::new();
    let Some(settings) = settings else { return held };
    let is_held = |(_, hold): &(&str, &Hold)| hold.is_held() && hold.label == settings.label;
    let racks: BTreeMap<&str, &Hold> = holds.into_iter().filter(is_held).collect();
    if racks.is_empty() {
        return held;
    }
    for (rack, hold) in &racks {
        let holding = hold.machines().into_values().map(|machine| &machine.address);
        let known = answers.iter().filter_map(|answer| answer.0.get(*rack)).flatten();
        let addresses = holding.chain(known).filter(|address| !address.is_empty());
        held.extend(addresses.map(|address| (address.clone(), (*rack).to_owned())));
    }
    let label = match &settings.label {
        Label::Rack => NODE_RACK.to_owned(),
        Label::Named(name) => format!("{NODE_LABELS}{name}"),
    };
    for node in nodes {
        if let Some(rack) = node.labels.get(&label).filter(|rack| racks.contains_key(rack.as_str())) {
            held.insert(node.address.clone(), rack.clone());
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use madako_messages::repair::hold::Holds;

    use super::*;
    use crate::machines::{holds_at, machine, now};

    #[test]
    fn a_held_rack_is_known_of_machines_that_hold_it_of_answers_and_of_nodes() {
        let reports: Vec<Machine> = (1..=3).map(|id| machine(id, 3, 9.0)).collect();
        let settings = HoldSettings::default();
        let holds = holds_at(&reports, Some(&settings), &Holds::new(), now());
        let stored = || holds.iter().map(|(rack, hold)| (rack.as_str(), hold));
        let node = |address: &str, rack: Option<&str>| Node {
            address: address.to_owned(),
            labels: rack.map(|rack| (NODE_RACK.to_owned(), rack.to_owned())).into_iter().collect(),
            ..Node::default()
        };
        let nodes = [node("10.1.0.1", Some("3")), node("10.1.0.2", Some("4")), node("10.1.0.3", None)];
        let label = &settings.label;
        let reported = Racks::of(&[machine(9, 3, 9.0), machine(8, 4, 9.0)], label);
        // A healthy machine that is neither reported nor a node.
        let observed = Racks::of(&[machine(7, 3, 1e6), machine(6, 5, 1e6)], label);
        let held = held_addresses(stored(), &[&reported, &observed], &nodes, Some(&settings));
        assert_eq!(
            held.keys().map(String::as_str).collect::<Vec<_>>(),
            ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.7", "10.0.0.9", "10.1.0.1"]
        );
        assert!(held.values().all(|rack| rack == "3"));
        let other = HoldSettings { label: Label::from("feed".to_owned()), ..settings };
        assert!(held_addresses(stored(), &[&reported], &nodes, Some(&other)).is_empty());
        assert!(held_addresses(stored(), &[&reported], &nodes, None).is_empty());
    }
}
