//! Maps machines to racks by the registry's answers.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use madako_domain::cluster::Node;
use madako_domain::machine::Machine;
use madako_domain::repair::hold::{Hold, HoldSettings, Label};

/// Node label with the rack number (CKE).
const NODE_RACK: &str = "cke.cybozu.com/rack";
/// Prefix of a machine's labels on its node (CKE).
const NODE_LABELS: &str = "sabakan.cke.cybozu.com/";

/// Racks by machine address. Built once for each answer of the registry, which has every machine of a site.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Racks {
    names: Vec<String>,
    /// Index into `names` for each IPv4 address, sorted for binary search; `None`: the machine is in no rack.
    numbers: Vec<(u32, Option<usize>)>,
    /// The same for addresses that are not IPv4.
    texts: BTreeMap<String, Vec<Option<usize>>>,
}

impl Racks {
    /// Groups machines by a label. Machines without the label are in no rack.
    #[must_use]
    pub fn from_machines(machines: &[Machine], label: &Label) -> Self {
        let groups = Groups::from_machines(machines, label);
        let mut racks = Self {
            names: groups.racks.into_iter().map(|(name, _)| name.into_owned()).collect(),
            ..Self::default()
        };
        for (machine, rack) in machines.iter().zip(groups.of) {
            for address in &machine.spec.ipv4 {
                match parse_ipv4(address) {
                    Some(number) => racks.numbers.push((number, rack)),
                    None => racks.texts.entry(address.clone()).or_default().push(rack),
                }
            }
        }
        racks.numbers.sort_unstable();
        racks
    }

    /// Racks of the machines with this address; `None`: the machine is in no rack.
    fn racks_of(&self, address: Key<'_>) -> impl Iterator<Item = Option<usize>> {
        let (number, text) = match address {
            Key::V4(number) => (Some(number), None),
            Key::Text(text) => (None, self.texts.get(text)),
        };
        let first = number
            .map_or(self.numbers.len(), |number| self.numbers.partition_point(|(known, _)| *known < number));
        let numbers = self.numbers[first..].iter().take_while(move |(known, _)| Some(*known) == number);
        numbers.map(|(_, rack)| *rack).chain(text.into_iter().flatten().copied())
    }
}

/// Racks by the registry's answers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Answers<'a> {
    /// Machines reported for repair; `None`: the registry has not answered yet.
    pub reported: Option<&'a Racks>,
    /// All machines that the registry is asked for; `None`: the registry has not answered yet.
    pub observed: Option<&'a Racks>,
}

#[derive(Debug, Clone, Default)]
pub struct KeptRacks<'a> {
    pub holds: Vec<(&'a str, &'a Hold)>,
    /// Racks whose hold cannot be read: they count as held.
    pub unreadable: Vec<&'a str>,
}

/// Machines whose repairs are held back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldBack {
    /// The held rack of each such machine, by the machine's address.
    pub racks: BTreeMap<String, String>,
    /// Racks that count as held because their hold cannot be read.
    pub unreadable: BTreeSet<String>,
    /// Machines that may be in a held rack, because their rack is not known yet.
    pub unplaced: BTreeSet<String>,
}

/// Lookup key of an address. An IPv4 address is a number: it has one spelling only and compares fast, while ten
/// thousand addresses of a site differ only in their last characters. Any other stored address is its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key<'a> {
    V4(u32),
    Text(&'a str),
}

impl<'a> From<&'a str> for Key<'a> {
    fn from(address: &'a str) -> Self {
        parse_ipv4(address).map_or(Self::Text(address), Self::V4)
    }
}

pub(crate) fn parse_ipv4(address: &str) -> Option<u32> {
    address.parse::<Ipv4Addr>().ok().map(Ipv4Addr::to_bits)
}

#[derive(Default)]
pub(crate) struct Groups<'a> {
    /// Each rack with the positions of its reports.
    pub(crate) racks: Vec<(Cow<'a, str>, Vec<usize>)>,
    /// Index into `racks` of each report.
    pub(crate) of: Vec<Option<usize>>,
}

impl<'a> Groups<'a> {
    pub(crate) fn from_machines(machines: &'a [Machine], label: &Label) -> Self {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RackLocation<'a> {
    Unknown,
    Elsewhere,
    Held(&'a str),
}

/// Finds the given addresses whose machines are in a held rack. Sources are the machines that hold the rack, the
/// registry's answers, and the nodes of the cluster. A hold for another label than the configured one holds nothing;
/// a hold that cannot be read may be for any label.
///
/// While a rack is held and no answer about every machine has arrived, a machine with no known rack may be in the
/// held one. A machine that is missing from an answer about every machine is in no known rack.
#[must_use]
pub fn held_back<'a>(
    addresses: impl IntoIterator<Item = &'a str>,
    kept: &KeptRacks<'a>,
    answers: Answers<'a>,
    nodes: impl IntoIterator<Item = &'a Node>,
    settings: Option<&HoldSettings>,
) -> HeldBack {
    let Some(settings) = settings else { return HeldBack::default() };
    let ours = || kept.holds.iter().filter(|(_, hold)| hold.label == settings.label);
    let mut racks: BTreeMap<&str, Option<&Hold>> =
        ours().filter(|(_, hold)| hold.is_held()).map(|(rack, hold)| (*rack, Some(*hold))).collect();
    racks.extend(kept.unreadable.iter().map(|rack| (*rack, None)));
    if racks.is_empty() {
        return HeldBack::default();
    }
    let mut addresses = Addresses::new(addresses);
    for (rack, hold) in &racks {
        let events = hold.iter().flat_map(|hold| &hold.events);
        for machine in events.flat_map(|event| &event.machines) {
            addresses.locate(&machine.address, RackLocation::Held(rack));
        }
    }
    for answer in [answers.reported, answers.observed].into_iter().flatten() {
        addresses.locate_by(answer, &racks);
    }
    let label = match &settings.label {
        Label::Rack => NODE_RACK.to_owned(),
        Label::Named(name) => format!("{NODE_LABELS}{name}"),
    };
    for node in nodes {
        let Some(rack) = node.labels.get(&label) else { continue };
        match racks.get_key_value(rack.as_str()) {
            Some((rack, _)) => addresses.locate(&node.address, RackLocation::Held(rack)),
            None if answers.observed.is_none() => addresses.locate(&node.address, RackLocation::Elsewhere),
            None => {}
        }
    }
    if answers.observed.is_none() {
        for report in ours().flat_map(|(_, hold)| &hold.released) {
            addresses.locate(&report.address, RackLocation::Elsewhere);
        }
    }
    let mut held = HeldBack {
        unreadable: kept.unreadable.iter().map(|rack| (*rack).to_owned()).collect(),
        ..HeldBack::default()
    };
    for (_, address, stands) in addresses.0 {
        match stands {
            RackLocation::Held(rack) => {
                held.racks.insert(address.to_owned(), rack.to_owned());
            }
            RackLocation::Unknown if answers.observed.is_none() => {
                held.unplaced.insert(address.to_owned());
            }
            RackLocation::Unknown | RackLocation::Elsewhere => {}
        }
    }
    held
}

/// The addresses in question, sorted.
struct Addresses<'a>(Vec<(Key<'a>, &'a str, RackLocation<'a>)>);

impl<'a> Addresses<'a> {
    fn new(addresses: impl IntoIterator<Item = &'a str>) -> Self {
        let addresses = addresses.into_iter().filter(|address| !address.is_empty());
        let mut addresses: Vec<_> =
            addresses.map(|address| (Key::from(address), address, RackLocation::Unknown)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Self(addresses)
    }

    fn locate_by(&mut self, answer: &Racks, held: &BTreeMap<&'a str, Option<&Hold>>) {
        let held = |name: &String| held.get_key_value(name.as_str()).map(|(rack, _)| *rack);
        let held: Vec<Option<&'a str>> = answer.names.iter().map(held).collect();
        for (key, _, known) in &mut self.0 {
            for rack in answer.racks_of(*key) {
                let stands =
                    rack.and_then(|rack| held[rack]).map_or(RackLocation::Elsewhere, RackLocation::Held);
                *known = stands.max(*known);
            }
        }
    }

    /// Sets a location. A held rack by one source overrides all other sources.
    fn locate(&mut self, address: &str, stands: RackLocation<'a>) {
        let key = Key::from(address);
        if let Ok(place) = self.0.binary_search_by(|(known, ..)| known.cmp(&key)) {
            let known = &mut self.0[place].2;
            *known = stands.max(*known);
        }
    }
}

#[cfg(test)]
mod tests {
    use madako_domain::repair::hold::Holds;

    use super::*;
    use crate::machines::{holds_at, machine, now};

    fn named_spec(address: &str) -> madako_domain::machine::MachineSpec {
        let mut spec = machine(9, 3, 9.0).spec;
        spec.ipv4 = vec![address.to_owned()];
        spec
    }

    #[test]
    fn rack_of_a_machine_comes_from_the_hold_the_answer_or_the_node() {
        let reports: Vec<Machine> = (1..=3).map(|id| machine(id, 3, 9.0)).collect();
        let settings = HoldSettings::default();
        let holds = holds_at(&reports, Some(&settings), &Holds::new(), now());
        let stored = || KeptRacks {
            holds: holds.iter().map(|(rack, hold)| (rack.as_str(), &**hold)).collect(),
            ..KeptRacks::default()
        };
        let node = |address: &str, rack: Option<&str>| Node {
            address: address.to_owned(),
            labels: rack.map(|rack| (NODE_RACK.to_owned(), rack.to_owned())).into_iter().collect(),
            ..Node::default()
        };
        let nodes = [node("10.1.0.1", Some("3")), node("10.1.0.2", Some("4")), node("10.1.0.3", None)];
        let label = &settings.label;
        let reported = Racks::from_machines(&[machine(9, 3, 9.0), machine(8, 4, 9.0)], label);
        // A healthy machine that is neither reported nor a node.
        let observed = Racks::from_machines(&[machine(7, 3, 1e6), machine(6, 5, 1e6)], label);
        let answers = Answers { reported: Some(&reported), observed: Some(&observed) };
        let machines = (1..=9).map(|id| format!("10.0.0.{id}"));
        let all: Vec<String> = machines.chain((1..=3).map(|id| format!("10.1.0.{id}"))).collect();
        let all = || all.iter().map(String::as_str);
        let held = held_back(all(), &stored(), answers, &nodes, Some(&settings));
        assert_eq!(
            held.racks.keys().map(String::as_str).collect::<Vec<_>>(),
            ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.7", "10.0.0.9", "10.1.0.1"]
        );
        assert!(held.racks.values().all(|rack| rack == "3"));
        assert!(held.unplaced.is_empty() && held.unreadable.is_empty());
        let other = HoldSettings { label: Label::from("feed".to_owned()), ..settings.clone() };
        assert_eq!(held_back(all(), &stored(), answers, &nodes, Some(&other)), HeldBack::default());
        assert_eq!(held_back(all(), &stored(), answers, &nodes, None), HeldBack::default());
        // Only the addresses in question count, also twice, and also one that is not an IP address.
        let named =
            Racks::from_machines(&[Machine { spec: named_spec("name"), ..machine(9, 3, 9.0) }], label);
        let addresses = ["name", "10.0.0.2", "10.0.0.2", "", "10.0.0.6"];
        let answers = Answers { observed: Some(&named), ..answers };
        let held = held_back(addresses, &stored(), answers, &nodes, Some(&settings));
        assert_eq!(held.racks.keys().map(String::as_str).collect::<Vec<_>>(), ["10.0.0.2", "name"]);

        // Without an answer about every machine, machines that are neither reported nor nodes with a rack have no
        // known place.
        let answers = Answers { reported: Some(&reported), observed: None };
        let unplaced = held_back(all(), &stored(), answers, &nodes, Some(&settings)).unplaced;
        let expected = ["10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7", "10.1.0.3"];
        assert_eq!(unplaced.iter().map(String::as_str).collect::<Vec<_>>(), expected);
        let none = KeptRacks::default();
        assert_eq!(held_back(all(), &none, Answers::default(), &nodes, Some(&settings)), HeldBack::default());
    }

    #[test]
    fn rack_is_held_while_its_hold_cannot_be_read() {
        let settings = HoldSettings::default();
        let mut released = holds_at(
            &(1..=3).map(|id| machine(id, 4, 9.0)).collect::<Vec<_>>(),
            Some(&settings),
            &Holds::new(),
            now(),
        );
        std::sync::Arc::make_mut(released.get_mut("4").unwrap()).release();
        let kept = KeptRacks { holds: vec![("4", &released["4"])], unreadable: vec!["3"] };
        let reported = Racks::from_machines(&[machine(9, 3, 9.0)], &settings.label);
        let answers = Answers { reported: Some(&reported), observed: None };
        let held = held_back(["10.0.0.1", "10.0.0.9", "10.0.0.8"], &kept, answers, [], Some(&settings));
        assert_eq!(held.racks, [("10.0.0.9".to_owned(), "3".to_owned())].into());
        assert_eq!(held.unreadable, ["3".to_owned()].into());
        assert_eq!(held.unplaced, ["10.0.0.8".to_owned()].into(), "the first was reported in another rack");
    }
}
