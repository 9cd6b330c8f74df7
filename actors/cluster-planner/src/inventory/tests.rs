use std::slice::from_ref;

use madako_domain::cluster::Node;
use madako_domain::machine::MachineState::{Healthy, Retired};

use super::*;
use crate::testing::{MachineWith as _, machine};

fn of_serial(address: &str, serial: &str) -> Cluster {
    let annotations = BTreeMap::from([(ANNOTATION_SERIAL.to_owned(), serial.to_owned())]);
    let node = Node { address: address.to_owned(), annotations, ..Node::default() };
    Cluster { nodes: vec![node], ..Cluster::default() }
}

#[test]
fn ids_follow_the_number_of_the_address_and_odd_addresses_come_last() {
    let machines = ["10.0.0.10", "fd00::1", "10.0.0.9", "", "9.255.0.1"].map(|ip| machine(ip, 0, "a"));
    let inventory = Inventory::new(&machines, None);
    let addresses: Vec<&str> = inventory.entries().iter().map(|entry| entry.address).collect();
    assert_eq!(addresses, ["9.255.0.1", "10.0.0.9", "10.0.0.10", "", "fd00::1"]);
    for (id, address) in addresses.iter().enumerate() {
        assert_eq!(inventory.find(address), Some(id));
    }
    assert_eq!(inventory.find("10.0.0.11"), None);
    assert_eq!(inventory.find("10.0.0.09"), None);
    let own: Vec<bool> = inventory.entries().iter().map(Entry::has_own_address).collect();
    assert_eq!(own, [true, true, true, false, false]);
}

#[test]
fn a_machine_without_an_address_is_left_out() {
    let mut without = machine("10.0.0.1", 0, "a");
    without.spec.ipv4.clear();
    assert!(Inventory::new(&[without], None).entries().is_empty());
}

#[test]
fn a_machine_that_is_listed_twice_is_one_machine() {
    let one = machine("10.0.0.1", 0, "a");
    let machines = [one.clone(), one];
    let inventory = Inventory::new(&machines, None);
    assert!(inventory.entry(0).has_own_address());
    assert_eq!(inventory.duplicates(), []);
}

#[test]
fn repeated_serial_at_one_address_is_one_machine() {
    let at = |serial: &str, state| machine("10.0.0.1", 0, "a").serial(serial).state(state);
    let mut machines = vec![at("s1", Retired), at("s1", Healthy)];
    for _ in 0..2 {
        machines.reverse();
        let inventory = Inventory::new(&machines, None);
        assert!(inventory.entry(0).has_own_address() && inventory.entry(0).is_healthy());
        assert_eq!(inventory.duplicates(), []);
        let repeats: Vec<_> =
            inventory.repeats().iter().map(|repeat| (repeat.id, repeat.times, repeat.machine)).collect();
        assert_eq!(repeats, [(0, 2, inventory.machine(0))]);
    }
    machines.push(at("s2", Healthy));
    let inventory = Inventory::new(&machines, None);
    assert_eq!(inventory.duplicates()[0].serials, ["s1", "s2"]);
}

#[test]
fn duplicate_address_is_resolved_to_the_nodes_machine_then_a_healthy_machine_then_the_first_serial() {
    let at = |serial: &str, state| machine("10.0.0.1", 0, "a").serial(serial).state(state);
    let cases = [
        (Some("s1"), [Retired, Healthy, Healthy], "s1"),
        (Some("s3"), [Healthy, Healthy, Retired], "s3"),
        (Some("gone"), [Retired, Healthy, Healthy], "s2"),
        (None, [Retired, Retired, Healthy], "s3"),
        (None, [Retired, Retired, Retired], "s1"),
    ];
    for (serial_in_use, states, expected) in cases {
        let current = serial_in_use.map(|serial| of_serial("10.0.0.1", serial));
        let mut machines: Vec<Machine> =
            ["s1", "s2", "s3"].into_iter().zip(states).map(|(serial, state)| at(serial, state)).collect();
        for _ in 0..2 {
            machines.reverse();
            let inventory = Inventory::new(&machines, current.as_ref());
            assert_eq!(inventory.machine(0).spec.serial, expected);
            assert!(!inventory.entry(0).has_own_address());
            let duplicate = DuplicateAddress {
                address: "10.0.0.1".to_owned(),
                serials: ["s1", "s2", "s3"].map(str::to_owned).to_vec(),
                in_use: current.is_some(),
            };
            assert_eq!(inventory.duplicates(), from_ref(&duplicate));
        }
    }
}
