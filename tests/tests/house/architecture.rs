//! Checks the dependencies between crates, and that the crates are those of the map in docs/ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};

use crate::repository::{Kind, Member, members, text, texts};
use crate::{nothing, one};

/// The layer of a crate. Dependencies point from a later layer to an earlier one, never sideways. Faults and the
/// console depend on the json, domain and protocol below messages/ alone, and so do effects, which are for actors.
/// Chaos judges the service from outside, so it depends on neither actors nor supervisor. Adapters share one crate, the encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    Json,
    Domain,
    Protocol,
    Effects,
    Faults,
    Judges,
    /// The ciphers that several adapters use.
    Encryption,
    Adapter,
    Actor,
    Supervisor,
    Simulation,
    Chaos,
    Console,
    Binary,
    Lab,
    Tests,
}

/// The layer of a directory; `None` if the map has no such place.
fn layer(directory: &str) -> Option<Layer> {
    match directory.split_once('/') {
        None => match directory {
            "supervisor" => Some(Layer::Supervisor),
            "tests" => Some(Layer::Tests),
            _ => None,
        },
        Some((parent, name)) if !name.contains('/') => match parent {
            "messages" => match name {
                "json" => Some(Layer::Json),
                "domain" => Some(Layer::Domain),
                "protocol" => Some(Layer::Protocol),
                "effects" => Some(Layer::Effects),
                _ => None,
            },
            "adapters" if name == "encryption" => Some(Layer::Encryption),
            "adapters" => Some(Layer::Adapter),
            "actors" => Some(Layer::Actor),
            "verification" => match name {
                "faults" => Some(Layer::Faults),
                "judges" => Some(Layer::Judges),
                "simulation" => Some(Layer::Simulation),
                "chaos" => Some(Layer::Chaos),
                _ => None,
            },
            "bin" if name == "console" => Some(Layer::Console),
            "bin" => Some(Layer::Binary),
            "tests" if name == "lab" => Some(Layer::Lab),
            _ => None,
        },
        Some(_) => None,
    }
}

/// True if a crate of layer `from` may depend on one of layer `to`.
fn may_use(from: Layer, to: Layer, kind: Kind) -> bool {
    use Layer::{
        Actor, Adapter, Binary, Chaos, Console, Domain, Effects, Encryption, Faults, Json, Judges, Lab,
        Protocol, Simulation, Supervisor, Tests,
    };
    match (from, to) {
        // The crates below messages/ have one order; every other crate may use each of them.
        (Json, _) => false,
        (Domain, to) => to == Json,
        (Protocol, to) => matches!(to, Json | Domain),
        (_, Json | Domain | Protocol) => true,
        // An actor reaches the outside only through ports, in its tests too.
        (Actor, to) => to == Effects,
        (Effects | Encryption | Faults | Console, _) => false,
        (Judges, to) => to == Faults,
        // An adapter's tests may run it against another one: the store against the embedded etcd.
        (Adapter, to) => to == Encryption || (kind == Kind::Dev && to == Adapter),
        (Supervisor, to) => matches!(to, Actor | Adapter),
        (Simulation, to) => matches!(to, Faults | Judges | Actor | Adapter | Supervisor),
        (Chaos, to) => matches!(to, Faults | Judges | Adapter),
        (Binary, to) => {
            matches!(to, Faults | Judges | Actor | Adapter | Supervisor | Simulation | Chaos | Console)
        }
        // The lab has no crate of the service in its machines; its tests may have each of them.
        (Lab, to) => kind == Kind::Dev && !matches!(to, Lab | Tests),
        (Tests, to) => to != Tests,
    }
}

/// Each dependency in the wrong direction, and each crate outside of the layers.
fn wrong_directions(members: &[Member]) -> Vec<String> {
    let layers: BTreeMap<&str, Option<Layer>> =
        members.iter().map(|member| (member.name.as_str(), layer(&member.directory))).collect();
    let mut findings = Vec::new();
    for member in members {
        let Some(from) = layers[member.name.as_str()] else {
            findings.push(format!("{} lies in {}, which is not a layer", member.name, member.directory));
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
        .map(|directory| format!("the map lists {directory}/, which is not a member"));
    missing.chain(gone).collect()
}

fn member(directory: &str, uses: &[(&str, Kind)]) -> Member {
    Member {
        name: directory.to_owned(),
        directory: directory.to_owned(),
        uses: uses.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect(),
    }
}

/// A small workspace that follows every rule.
fn valid() -> Vec<Member> {
    use Kind::{Dev, Normal};
    vec![
        member("messages/json", &[]),
        member("messages/domain", &[("messages/json", Normal)]),
        member("messages/protocol", &[("messages/json", Normal), ("messages/domain", Normal)]),
        member("messages/effects", &[("messages/domain", Normal), ("messages/protocol", Normal)]),
        member("verification/faults", &[("messages/protocol", Normal)]),
        member("verification/judges", &[("messages/protocol", Normal), ("verification/faults", Normal)]),
        member("bin/console", &[("messages/protocol", Normal)]),
        member(
            "verification/chaos",
            &[("messages/protocol", Normal), ("verification/faults", Normal), ("adapters/store", Normal)],
        ),
        member(
            "bin/madako-chaos",
            &[("verification/faults", Normal), ("verification/chaos", Normal), ("bin/console", Normal)],
        ),
        member("actors/leader", &[("messages/protocol", Normal)]),
        member("actors/cluster-planner", &[("messages/protocol", Normal)]),
        member("actors/repair-queue", &[("messages/protocol", Normal), ("messages/effects", Normal)]),
        member("adapters/embedded-etcd", &[]),
        member("adapters/encryption", &[]),
        member(
            "adapters/store",
            &[
                ("messages/protocol", Normal),
                ("adapters/encryption", Normal),
                ("adapters/embedded-etcd", Dev),
            ],
        ),
        member(
            "supervisor",
            &[("messages/protocol", Normal), ("actors/leader", Normal), ("adapters/store", Normal)],
        ),
        member(
            "verification/simulation",
            &[
                ("supervisor", Normal),
                ("verification/faults", Normal),
                ("verification/judges", Normal),
                ("adapters/store", Normal),
            ],
        ),
        member(
            "bin/madako",
            &[
                ("supervisor", Normal),
                ("actors/cluster-planner", Normal),
                ("verification/simulation", Normal),
            ],
        ),
        member("tests/lab", &[("adapters/store", Dev)]),
        member("tests", &[("supervisor", Dev), ("bin/madako", Dev), ("tests/lab", Dev)]),
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
        ("messages/json", "messages/domain", Normal),
        ("messages/domain", "messages/protocol", Dev),
        ("messages/protocol", "adapters/store", Normal),
        ("messages/domain", "actors/leader", Dev),
        ("messages/protocol", "messages/effects", Dev),
        ("messages/effects", "actors/repair-queue", Dev),
        ("messages/effects", "adapters/store", Normal),
        ("adapters/store", "messages/effects", Normal),
        ("supervisor", "messages/effects", Normal),
        ("actors/leader", "actors/cluster-planner", Normal),
        ("actors/leader", "actors/cluster-planner", Dev),
        ("actors/leader", "adapters/store", Normal),
        ("actors/leader", "adapters/store", Dev),
        ("actors/leader", "supervisor", Normal),
        ("adapters/store", "actors/leader", Dev),
        ("adapters/store", "adapters/embedded-etcd", Normal),
        ("adapters/encryption", "adapters/store", Dev),
        ("actors/leader", "adapters/encryption", Normal),
        ("supervisor", "adapters/encryption", Normal),
        ("adapters/store", "supervisor", Normal),
        ("supervisor", "bin/madako", Normal),
        ("supervisor", "verification/faults", Normal),
        ("supervisor", "verification/simulation", Normal),
        ("adapters/store", "verification/simulation", Dev),
        ("verification/faults", "verification/simulation", Dev),
        ("verification/simulation", "bin/madako", Normal),
        ("verification/simulation", "bin/console", Normal),
        ("verification/simulation", "tests", Dev),
        ("supervisor", "bin/console", Normal),
        ("actors/leader", "verification/faults", Normal),
        ("verification/judges", "adapters/store", Dev),
        ("verification/judges", "actors/leader", Normal),
        ("verification/judges", "supervisor", Dev),
        ("verification/judges", "verification/simulation", Normal),
        ("supervisor", "verification/judges", Normal),
        ("messages/json", "verification/faults", Dev),
        ("verification/faults", "actors/leader", Normal),
        ("verification/faults", "adapters/store", Dev),
        ("verification/faults", "supervisor", Normal),
        ("verification/faults", "bin/console", Normal),
        ("bin/console", "verification/faults", Normal),
        ("bin/console", "supervisor", Normal),
        ("bin/madako-chaos", "bin/madako", Normal),
        ("verification/chaos", "supervisor", Normal),
        ("verification/chaos", "actors/leader", Dev),
        ("supervisor", "verification/chaos", Normal),
        ("bin/madako", "tests", Dev),
        ("bin/madako", "tests/lab", Dev),
        ("tests/lab", "adapters/store", Normal),
        ("tests/lab", "tests", Dev),
    ] {
        let mut spoilt = valid();
        let spoilt_member =
            spoilt.iter_mut().find(|member| member.name == from).expect("it is in the example");
        spoilt_member.uses.insert((to.to_owned(), kind));
        one(&wrong_directions(&spoilt), &[from, to]);
    }
}

/// Files of the service's program that use the simulation, other than those of the command `rehearse`.
fn simulating(files: &BTreeMap<String, String>) -> Vec<String> {
    let of_rehearse =
        |path: &str| path == "bin/madako/src/rehearse.rs" || path.starts_with("bin/madako/src/rehearse/");
    let others = files.iter().filter(|(path, text)| !of_rehearse(path) && text.contains("madako_simulation"));
    others.map(|(path, _)| format!("{path} uses the simulation, which is for rehearse alone")).collect()
}

#[test]
fn of_the_service_only_rehearse_uses_the_simulation() {
    let files = texts("bin/madako", ".rs");
    assert!(files["bin/madako/src/rehearse.rs"].contains("madako_simulation"), "the name is the right one");
    nothing(&simulating(&files));
}

#[test]
fn a_use_of_the_simulation_beside_rehearse_is_found() {
    let uses = "use madako_simulation::run::rehearsal::rehearse;".to_owned();
    let files = ["rehearse.rs", "rehearse/show.rs", "serve.rs"];
    let files = files.map(|file| (format!("bin/madako/src/{file}"), uses.clone()));
    one(&simulating(&files.into()), &["bin/madako/src/serve.rs"]);
}

#[test]
fn a_crate_outside_every_layer_is_found() {
    for directory in ["common", "messages", "messages/other", "actors/leader/inner", "tools/xtask"] {
        let mut spoilt = valid();
        spoilt.push(member(directory, &[]));
        one(&wrong_directions(&spoilt), &[directory, "not a layer"]);
    }
}

#[test]
fn the_map_lists_the_members() {
    nothing(&unmapped(&members(), &text("docs/ARCHITECTURE.md")));
}

#[test]
fn a_difference_between_map_and_members_is_found() {
    let members = [member("messages/domain", &[]), member("actors/leader", &[])];
    let map = "| Crate | For |\n| `messages/domain/` | words |\n| `actors/leader/` | one writer |\n";
    nothing(&unmapped(&members, map));
    one(&unmapped(&members[..1], map), &["actors/leader", "not a member"]);
    one(&unmapped(&members, "| `messages/domain/` | words |\n"), &["actors/leader", "does not list"]);
}
