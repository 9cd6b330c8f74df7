//! Finds the possible targets of faults in a copy of a running system.

use std::collections::BTreeSet;

use madako_domain::placement::kind::Kind;
use madako_faults::{Fault, Operations, Scenario, Store, Target, World};
use madako_json::input::{InputError, Problems};

use super::{CopiedSystem, Service, racks_of_machines};

/// Names or numbers that a message lists; a line holds about as many.
const LISTED: usize = 12;

/// The world of a copy, for the language of faults: with one instance, unless the scenario sets another number.
#[must_use]
pub fn world_of_copy(copied: &CopiedSystem, service: &Service) -> World {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let of = |kind: Kind| {
        let there = copied.root.keys().filter(|key| key.starts_with(kind.prefix())).count();
        if service.places { count(there) } else { 0 }
    };
    World {
        instances: 1,
        machines: count(copied.machines.len()),
        racks: racks_of_machines(&copied.machines).last().map_or(0, |last| last + 1),
        clusters: of(Kind::Cluster),
        applications: of(Kind::Application),
        store: Store::Embedded,
        // A copy has no nodes.
        operations: Operations::Off,
    }
}

/// Checks that the copy has every target of a scenario.
///
/// # Errors
/// Names each missing target, and the expected ones.
pub fn check_targets(copied: &CopiedSystem, scenario: &Scenario) -> Result<(), InputError> {
    let mut problems = Problems::default();
    let racks = racks_of_machines(&copied.machines);
    let elsewhere = copied.providers.iter().filter(|provider| provider.is_elsewhere());
    let providers: BTreeSet<&str> = elsewhere.map(|provider| provider.name.as_str()).collect();
    for Fault { target, .. } in &scenario.faults {
        let expected = match target {
            Target::Rack(rack) if !racks.contains(rack) => {
                format!("a rack with machines: {}", join_names(racks.iter()))
            }
            Target::Address(address) => {
                let address = address.to_string();
                let has = |own: &String| *own == address;
                if copied.machines.iter().any(|machine| machine.spec.ipv4.iter().any(has)) {
                    continue;
                }
                "an address that a machine of the registry has".to_owned()
            }
            Target::Provider(name) if !providers.contains(name.as_str()) => {
                let names = join_names(providers.iter());
                format!("a provider that a metric in use comes from over the network: {names}")
            }
            _ => continue,
        };
        problems.add("target", target.to_string(), expected);
    }
    problems.finish(&format!("scenario {} for what was copied", scenario.name))
}

fn join_names<T: ToString>(names: impl ExactSizeIterator<Item = T>) -> String {
    let count = names.len();
    let mut listed: Vec<String> = names.take(LISTED).map(|name| name.to_string()).collect();
    if count == 0 {
        return "there is none".to_owned();
    }
    if count > LISTED {
        listed.push(format!("and {} more", count - LISTED));
    }
    listed.join(", ")
}
