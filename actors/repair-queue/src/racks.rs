//! Which machines stand in which rack, by what the registry says of them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

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

/// What addresses are looked up by. One of IPv4 is its number, as that has one spelling only and is compared at once; ten
/// thousand of a site differ in their last characters. Another, which somebody may have stored, is its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key<'a> {
    V4(u32),
    Text(&'a str),
}

impl<'a> From<&'a str> for Key<'a> {
    fn from(address: &'a str) -> Self {
        ipv4(address).map_or(Self::Text(address), Self::V4)
    }
}

/// An IPv4 address as a number.
pub(crate) fn ipv4(address: &str) -> Option<u32> {
    address.parse::<Ipv4Addr>().ok().map(Ipv4Addr::to_bits)
}

/// Reports told apart by rack.
pub(crate) struct Groups<'a> {
    /// Each rack with the places of its reports.
    pub(crate) racks: Vec<(Cow<'a, str>, Vec<usize>)>,
    /// Which of them the report at each place is of.
    pub(crate) of: Vec<Option<usize>>,
}

impl<'a> Groups<'a> {
    pub(crate) fn of(machines: &'a [Machine], label: &Label) -> Self {
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        enum Rack<'a> {
            Number(i64),
            Text(&'a str),
        }
        let mut groups = Self { racks: Vec::new(), of: Vec::with_capacity(machines.len()) };
        let mut known: BTreeMap<Rack<'a>, usize> = BTreeMap::new();
        for (place, machine) in machines.iter().enumerate() {
            let rack = match label {
                Label::Rack => Some(Rack::Number(machine.spec.rack)),
                Label::Named(_) => match label.value(machine) {
                    Some(Cow::Borrowed(value)) => Some(Rack::Text(value)),
                    _ => None,
                },
            };
            let rack = rack.map(|rack| {
                *known.entry(rack).or_insert_with(|| {
                    let name = match rack {
                        Rack::Number(number) => number.to_string().into(),
                        Rack::Text(value) => value.into(),
                    };
                    groups.racks.push((name, Vec::new()));
                    groups.racks.len() - 1
                })
            });
            if let Some(rack) = rack {
                groups.racks[rack].1.push(place);
            }
            groups.of.push(rack);
        }
        groups
    }
}

/// Which of the addresses that are asked about stand in a held rack, and in which: those of machines that hold it, of those
/// that the registry's answers know, and of nodes of the cluster. What is kept for another label than the one of the settings
/// holds nothing.
#[must_use]
pub fn held_addresses<'a>(
    asked: impl IntoIterator<Item = &'a str>,
    holds: impl IntoIterator<Item = (&'a str, &'a Hold)>,
    answers: &[&Racks],
    nodes: impl IntoIterator<Item = &'a Node>,
    settings: Option<&HoldSettings>,
) -> BTreeMap<String, String> {
    let none = BTreeMap::new();
    let Some(settings) = settings else { return none };
    let is_held = |(_, hold): &(&str, &Hold)| hold.is_held() && hold.label == settings.label;
    let racks: BTreeMap<&str, &Hold> = holds.into_iter().filter(is_held).collect();
    if racks.is_empty() {
        return none;
    }
    let asked = asked.into_iter().filter(|address| !address.is_empty());
    let mut asked: Vec<(Key<'_>, &str, Option<&str>)> =
        asked.map(|address| (Key::from(address), address, None)).collect();
    asked.sort_unstable();
    asked.dedup();
    let place = |asked: &[(Key<'_>, &str, Option<&str>)], address: &str| {
        let key = Key::from(address);
        asked.binary_search_by(|(known, ..)| known.cmp(&key)).ok()
    };
    for (rack, hold) in &racks {
        let holding = hold.events.iter().flat_map(|event| &event.machines).map(|machine| &machine.address);
        let known = answers.iter().filter_map(|answer| answer.0.get(*rack)).flatten();
        for address in holding.chain(known) {
            if let Some(place) = place(&asked, address) {
                asked[place].2 = Some(rack);
            }
        }
    }
    let label = match &settings.label {
        Label::Rack => NODE_RACK.to_owned(),
        Label::Named(name) => format!("{NODE_LABELS}{name}"),
    };
    for node in nodes {
        let rack = node.labels.get(&label).and_then(|rack| racks.get_key_value(rack.as_str()));
        if let Some((rack, _)) = rack
            && let Some(place) = place(&asked, &node.address)
        {
            asked[place].2 = Some(rack);
        }
    }
    let held = asked.into_iter().filter_map(|(_, address, rack)| Some((address, rack?)));
    held.map(|(address, rack)| (address.to_owned(), rack.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use madako_messages::repair::hold::Holds;

    use super::*;
    use crate::machines::{holds_at, machine, now};

    fn named_spec(address: &str) -> madako_messages::machine::MachineSpec {
        let mut spec = machine(9, 3, 9.0).spec;
        spec.ipv4 = vec![address.to_owned()];
        spec
    }

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
        let machines = (1..=9).map(|id| format!("10.0.0.{id}"));
        let all: Vec<String> = machines.chain((1..=3).map(|id| format!("10.1.0.{id}"))).collect();
        let all = || all.iter().map(String::as_str);
        let held = held_addresses(all(), stored(), &[&reported, &observed], &nodes, Some(&settings));
        assert_eq!(
            held.keys().map(String::as_str).collect::<Vec<_>>(),
            ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.7", "10.0.0.9", "10.1.0.1"]
        );
        assert!(held.values().all(|rack| rack == "3"));
        let other = HoldSettings { label: Label::from("feed".to_owned()), ..settings };
        assert!(held_addresses(all(), stored(), &[&reported], &nodes, Some(&other)).is_empty());
        assert!(held_addresses(all(), stored(), &[&reported], &nodes, None).is_empty());
        // Only who is asked about, also twice, and by a name that is no address.
        let named = Racks::of(&[Machine { spec: named_spec("name"), ..machine(9, 3, 9.0) }], label);
        let asked = ["name", "10.0.0.2", "10.0.0.2", "", "10.0.0.6"];
        let held = held_addresses(asked, stored(), &[&named], &nodes, Some(&settings));
        assert_eq!(held.keys().map(String::as_str).collect::<Vec<_>>(), ["10.0.0.2", "name"]);
    }
}
