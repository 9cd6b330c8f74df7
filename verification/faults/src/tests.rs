//! Tests of the scenario language: accepted and refused texts, and the equivalence of its forms.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::*;

mod forms;
mod refused;
mod schedules;

/// A scenario with every field of the language.
const WHOLE: &str = "\
# Shows all of the language.
name: all-of-it
world: {instances: 3, machines: 130, racks: 13, clusters: 2, applications: 20, store: etcd}
clients:
- {kind: placement, rate: 2}
- {kind: etcd-watch, rate: 0.5}
faults:
- {at: 2h, do: kill, target: rack=12, for: 30m}
- {every: 10m, do: pause, target: instance=leader, for: 1m30s}
- random: {mean: 1d12h}
  do: panic
  target: actor=app-scheduler
expect:
  calm_within: 20m
  at_least: {leader_changes: 3, commits: 10}
";

#[test]
fn the_scenario_for_long_runs_has_each_kind_of_fault_that_processes_can_have() {
    let scenario = find_shipped("processes-fail-at-times").unwrap().parse_scenario().unwrap();
    let there: BTreeSet<Act> = scenario.faults.iter().map(|fault| fault.act).collect();
    let all = Act::ALL.iter().copied().filter(|act| *act != Act::Panic);
    assert_eq!(there, all.collect());
}

fn generator(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

#[test]
fn a_whole_scenario_is_read() {
    let scenario = Scenario::parse(WHOLE).unwrap();
    let lines: Vec<String> = scenario.faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "kill rack=12 at 2h for 30m",
            "pause instance=leader every 10m for 1m30s",
            "panic actor=app-scheduler random mean 1d12h",
        ]
    );
    let world = World {
        instances: 3,
        machines: 130,
        racks: 13,
        clusters: 2,
        applications: 20,
        store: Store::Etcd,
        operations: Operations::Off,
    };
    assert_eq!((scenario.name.as_str(), scenario.world), ("all-of-it", world));
    let clients = [
        Client { kind: ClientKind::Placement, rate: Rate::per_thousand_seconds(2_000) },
        Client { kind: ClientKind::EtcdWatch, rate: Rate::per_thousand_seconds(500) },
    ];
    assert_eq!(scenario.clients, clients);
    let at_least = Counts { leader_changes: 3, commits: 10, ..Counts::default() };
    assert_eq!(scenario.expect, Expectations { calm_within: Some(Span::from_seconds(1200)), at_least });
}

#[test]
fn a_scenario_with_only_a_name_is_valid() {
    let scenario = Scenario::parse("name: nothing").unwrap();
    assert_eq!(scenario.world, World::default());
    assert_eq!(
        (scenario.clients, scenario.faults, scenario.expect),
        (vec![], vec![], Expectations::default())
    );
    let few = Scenario::parse("name: few\nworld: {machines: 4}").unwrap();
    assert_eq!(few.world.racks, 4, "no more racks than machines where nothing is said of racks");
}

#[test]
fn the_scenarios_that_ship_are_valid_and_have_one_name_each() {
    let names: BTreeSet<&str> = SHIPPED.iter().map(|shipped| shipped.name).collect();
    assert_eq!(names.len(), SHIPPED.len(), "each name is there once: {names:?}");
    for one in SHIPPED {
        let scenario = one.parse_scenario().unwrap_or_else(|error| panic!("{}: {error}", one.name));
        assert_eq!(scenario.name, one.name, "a file has its scenario's name");
        assert_eq!(find_shipped(one.name), Some(&one));
        assert!(one.purpose_text().split(' ').count() >= 5, "{}: a comment gives its purpose", one.name);
        assert!(
            !scenario.expect.at_least.is_empty(),
            "{}: a run in which nothing happened is not a pass",
            one.name
        );
    }
    assert_eq!(find_shipped("none"), None);
}

#[test]
fn every_scenario_file_ships() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let files = std::fs::read_dir(directory).unwrap();
    let names: BTreeSet<String> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    let shipped: BTreeSet<String> = SHIPPED.iter().map(|shipped| format!("{}.yml", shipped.name)).collect();
    assert_eq!(names, shipped);
}

#[test]
fn the_scenarios_that_ship_use_every_act_and_every_kind_of_target() {
    let faults: Vec<Fault> =
        SHIPPED.iter().flat_map(|shipped| shipped.parse_scenario().unwrap().faults).collect();
    for act in Act::ALL {
        assert!(faults.iter().any(|fault| fault.act == *act), "no scenario has {act}");
    }
    for kind in TargetKind::ALL {
        assert!(faults.iter().any(|fault| fault.target.kind() == *kind), "no scenario has {kind}");
    }
    for actor in ACTORS {
        assert!(faults.iter().any(|fault| fault.target == Target::Actor(actor)), "no scenario has {actor}");
    }
}

#[test]
fn shipped_scenarios_can_reach_their_expected_faults_in_their_length() {
    for one in SHIPPED {
        // The project runs each seed for two simulated hours; some scenarios state their own length.
        let length = match one.name {
            "short-storm" => Span::from_seconds(120),
            "long-day" => Span::from_days(1),
            "upgrade" => Span::from_seconds(4 * 3600),
            "upgrade-of-500-nodes" => Span::from_seconds(12 * 3600),
            _ => Span::from_seconds(2 * 3600),
        };
        let scenario = one.parse_scenario().unwrap();
        for seed in 0..50 {
            let schedule = schedule(&scenario.faults, length, &mut generator(seed)).unwrap();
            let (got, asked) = (schedule.injections.len() as u64, scenario.expect.at_least.faults);
            assert!(got >= asked, "{}, seed {seed}: {got} faults, {asked} are asked for", one.name);
        }
    }
}

#[test]
fn each_actor_panics_in_the_scenario_of_panics() {
    let scenario = find_shipped("panics-of-each-actor").unwrap().parse_scenario().unwrap();
    let targets = scenario.faults.iter().filter_map(|fault| match fault.target {
        Target::Actor(actor) => Some(actor),
        _ => None,
    });
    assert_eq!(targets.collect::<BTreeSet<_>>(), BTreeSet::from(ACTORS));
}

#[test]
fn a_scenario_is_played_in_another_world_with_its_own_number_of_instances() {
    let copy = World {
        instances: 1,
        machines: 40,
        racks: 21,
        clusters: 0,
        applications: 0,
        store: Store::Embedded,
        operations: Operations::Off,
    };
    let text = |world: &str, target: &str| {
        format!("name: a\n{world}faults:\n- {{do: kill, target: {target}, at: 1m}}\n")
    };
    let instances = |world: &str| Scenario::parse_in(&text(world, "rack=20"), &copy).unwrap().world;
    assert_eq!(instances(""), copy);
    assert_eq!(instances("world: {machines: 60, racks: 6}\n"), copy);
    assert_eq!(instances("world: {instances: 2, store: etcd}\n"), World { instances: 2, ..copy });
    for (world, target) in [
        ("", "rack=21"),
        ("world: {racks: 60}\n", "rack=21"),
        ("world: {store: etcd}\n", "store=2"),
        ("", "instance=2"),
        ("", "provider=one"),
        ("world: {clusters: 4}\n", "actor=app-scheduler"),
    ] {
        assert!(Scenario::parse_in(&text(world, target), &copy).is_err(), "{world}{target}");
    }
}
