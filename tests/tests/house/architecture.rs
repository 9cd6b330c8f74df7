//! Which crate may use which, and that the crates are those of the map in docs/ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};

use crate::repository::{Kind, Member, members, text};
use crate::{nothing, one};

/// Where a crate stands. Dependencies point from the later to the earlier, and never sideways; faults and the console
/// stand beside the others, on messages alone; chaos judges the service from outside, and knows neither actors nor tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    Messages,
    Faults,
    Adapter,
    Actor,
    Supervisor,
    Simulation,
    Chaos,
    Console,
    Binary,
    Tests,
}

/// The layer that a directory belongs to, or none if the map has no such place.
fn layer(directory: &str) -> Option<Layer> {
    match directory.split_once('/') {
        None => match directory {
            "messages" => Some(Layer::Messages),
            "faults" => Some(Layer::Faults),
            "supervisor" => Some(Layer::Supervisor),
            "simulation" => Some(Layer::Simulation),
            "chaos" => Some(Layer::Chaos),
            "tests" => Some(Layer::Tests),
            _ => None,
        },
        Some((parent, name)) if !name.contains('/') => match parent {
            "adapters" => Some(Layer::Adapter),
            "actors" => Some(Layer::Actor),
            "bin" if name == "console" => Some(Layer::Console),
            "bin" => Some(Layer::Binary),
            _ => None,
        },
        Some(_) => None,
    }
}

/// Whether a crate of `from` may depend on one of `to`.
fn may_use(from: Layer, to: Layer, kind: Kind) -> bool {
    use Layer::{Actor, Adapter, Binary, Chaos, Console, Faults, Messages, Simulation, Supervisor, Tests};
    match from {
        Messages => false,
        // An actor reaches the outside through ports alone, in its tests too.
        Actor | Faults | Console => to == Messages,
        // An adapter's tests may run it against another one: the store against the embedded etcd.
        Adapter => to == Messages || (kind == Kind::Dev && to == Adapter),
        Supervisor => matches!(to, Messages | Actor | Adapter),
        Simulation => matches!(to, Messages | Faults | Actor | Adapter | Supervisor),
        Chaos => matches!(to, Messages | Faults | Adapter),
        Binary => {
            matches!(to, Messages | Faults | Actor | Adapter | Supervisor | Simulation | Chaos | Console)
        }
        Tests => to != Tests,
    }
}

/// Each dependency that points the wrong way, and each crate that stands nowhere.
fn wrong_directions(members: &[Member]) -> Vec<String> {
    let layers: BTreeMap<&str, Option<Layer>> =
        members.iter().map(|member| (member.name.as_str(), layer(&member.directory))).collect();
    let mut findings = Vec::new();
    for member in members {
        let Some(from) = layers[member.name.as_str()] else {
            findings.push(format!("{} lies in {}, which is no layer", member.name, member.directory));
            continue;
        };
        for (used, kind) in &member.uses {
            if let Some(to) = layers[used.as_str()]
                && !may_use(from, to, *kind)
            {
                findings.push(format!("{} ({from:?}) may not use {used} ({to:?}), {kind:?}", member.name));
            }
        }
    }
    findings
}

/// The differences between the members and the crates that the map lists.
fn unmapped(members: &[Member], map: &str) -> Vec<String> {
    let listed: BTreeSet<&str> = map
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("/` |"))
        .map(|(directory, _)| directory)
        .collect();
    let present: BTreeSet<&str> = members.iter().map(|member| member.directory.as_str()).collect();
    let missing = present.difference(&listed).map(|directory| format!("the map does not list {directory}/"));
    let gone = listed
        .difference(&present)
        .map(|directory| format!("the map lists {directory}/, which is no member"));
    missing.chain(gone).collect()
}

fn member(directory: &str, uses: &[(&str, Kind)]) -> Member {
    Member {
        name: directory.to_owned(),
        directory: directory.to_owned(),
        uses: uses.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect(),
    }
}

/// A small workspace that keeps every rule.
fn valid() -> Vec<Member> {
    use Kind::{Dev, Normal};
    vec![
        member("messages", &[]),
        member("faults", &[("messages", Normal)]),
        member("bin/console", &[("messages", Normal)]),
        member("chaos", &[("messages", Normal), ("faults", Normal), ("adapters/store", Normal)]),
        member("bin/madako-chaos", &[("faults", Normal), ("chaos", Normal), ("bin/console", Normal)]),
        member("actors/leader", &[("messages", Normal)]),
        member("actors/cluster-planner", &[("messages", Normal)]),
        member("adapters/embedded-etcd", &[]),
        member("adapters/store", &[("messages", Normal), ("adapters/embedded-etcd", Dev)]),
        member("supervisor", &[("messages", Normal), ("actors/leader", Normal), ("adapters/store", Normal)]),
        member("simulation", &[("supervisor", Normal), ("faults", Normal), ("adapters/store", Normal)]),
        member(
            "bin/madako",
            &[("supervisor", Normal), ("actors/cluster-planner", Normal), ("simulation", Normal)],
        ),
        member("tests", &[("supervisor", Dev), ("bin/madako", Dev)]),
    ]
}

#[test]
fn dependencies_point_one_way() {
    nothing(&wrong_directions(&members()));
}

#[test]
fn a_dependency_that_points_the_wrong_way_is_found() {
    use Kind::{Dev, Normal};
    nothing(&wrong_directions(&valid()));
    for (from, to, kind) in [
        ("messages", "adapters/store", Normal),
        ("messages", "actors/leader", Dev),
        ("actors/leader", "actors/cluster-planner", Normal),
        ("actors/leader", "actors/cluster-planner", Dev),
        ("actors/leader", "adapters/store", Normal),
        ("actors/leader", "adapters/store", Dev),
        ("actors/leader", "supervisor", Normal),
        ("adapters/store", "actors/leader", Dev),
        ("adapters/store", "adapters/embedded-etcd", Normal),
        ("adapters/store", "supervisor", Normal),
        ("supervisor", "bin/madako", Normal),
        ("supervisor", "faults", Normal),
        ("supervisor", "simulation", Normal),
        ("adapters/store", "simulation", Dev),
        ("faults", "simulation", Dev),
        ("simulation", "bin/madako", Normal),
        ("simulation", "bin/console", Normal),
        ("simulation", "tests", Dev),
        ("supervisor", "bin/console", Normal),
        ("actors/leader", "faults", Normal),
        ("messages", "faults", Dev),
        ("faults", "actors/leader", Normal),
        ("faults", "adapters/store", Dev),
        ("faults", "supervisor", Normal),
        ("faults", "bin/console", Normal),
        ("bin/console", "faults", Normal),
        ("bin/console", "supervisor", Normal),
        ("bin/madako-chaos", "bin/madako", Normal),
        ("chaos", "supervisor", Normal),
        ("chaos", "actors/leader", Dev),
        ("supervisor", "chaos", Normal),
        ("bin/madako", "tests", Dev),
    ] {
        let mut spoilt = valid();
        let spoilt_member =
            spoilt.iter_mut().find(|member| member.name == from).expect("it is in the example");
        spoilt_member.uses.insert((to.to_owned(), kind));
        one(&wrong_directions(&spoilt), &[from, to]);
    }
}

#[test]
fn a_crate_outside_every_layer_is_found() {
    for directory in ["common", "actors/leader/inner", "tools/xtask"] {
        let mut spoilt = valid();
        spoilt.push(member(directory, &[]));
        one(&wrong_directions(&spoilt), &[directory, "no layer"]);
    }
}

#[test]
fn the_map_lists_the_members() {
    nothing(&unmapped(&members(), &text("docs/ARCHITECTURE.md")));
}

#[test]
fn a_difference_between_map_and_members_is_found() {
    let members = [member("messages", &[]), member("actors/leader", &[])];
    let map = "| Crate | For |\n| `messages/` | words |\n| `actors/leader/` | one writer |\n";
    nothing(&unmapped(&members, map));
    one(&unmapped(&members[..1], map), &["actors/leader", "no member"]);
    one(&unmapped(&members, "| `messages/` | words |\n"), &["actors/leader", "does not list"]);
}
