//! Reads a scenario from YAML: the shape of the file, and the rules between its fields.

use std::str::FromStr;

use madako_json::input::{InputError, Problems};
use madako_json::strict::{Document, Kind, Number, Path, Schema, Tree};
use strum::VariantNames;

use crate::fault::Fault;
use crate::name::{self, OWN_NAME, is_own_name, quote_shortened};
use crate::scenario::{Client, ClientKind, Expectations, Rate, Scenario, World};
use crate::span::{Span, WRITTEN};
use crate::verdict::{Count, Counts};
use crate::words::{FaultWords, build_fault, check_target_exists, parse_span};

/// A file with some hundred commented faults has a tenth of it.
pub const MAX_BYTES: usize = 1 << 18;
/// A reader cannot survey a longer list.
pub(crate) const MAX_FAULTS: usize = 100;

/// Each instance is a process on the same machine; more than nine show nothing new of an election.
const INSTANCES: Kind = Kind::Whole(1, 9);
/// Ten times the largest data center that the project is measured with.
const MACHINES: Kind = Kind::Whole(1, 10_000);
/// Sabakan's address ranges allow this many racks of some dozens of machines.
const RACKS: Kind = Kind::Whole(1, 1_000);
/// Ten times the number that placement is measured with.
const CLUSTERS: Kind = Kind::Whole(0, 1_000);
/// Twice the number that placement is measured with.
const APPLICATIONS: Kind = Kind::Whole(0, 20_000);
/// Requests a second: from one in a quarter of an hour to the most that one core can send.
const RATES: (f64, f64) = (0.001, 10_000.0);
/// Bound of `at_least`: no run writes a billion times.
const COUNT: Kind = Kind::Whole(1, 1_000_000_000);

/// In less time nothing is observed even once.
const LEAST_CALM: Span = Span::from_seconds(1);

static SCENARIO: Schema = Schema {
    fields: &[
        ("name", Kind::Word(OWN_NAME)),
        ("world", Kind::Object(&WORLD)),
        ("clients", Kind::List(&Kind::Object(&CLIENT))),
        ("faults", Kind::List(&Kind::Object(&FAULT))),
        ("expect", Kind::Object(&EXPECT)),
    ],
};

static WORLD: Schema = Schema {
    fields: &[
        ("instances", INSTANCES),
        ("machines", MACHINES),
        ("racks", RACKS),
        ("clusters", CLUSTERS),
        ("applications", APPLICATIONS),
        ("store", Kind::Word("embedded or etcd")),
        ("operations", Kind::Word("none, act or kubernetes")),
    ],
};

static CLIENT: Schema = Schema {
    fields: &[
        ("kind", Kind::Word("placement, etcd-watch, registry, rivals, reboots or saboteurs")),
        ("rate", Kind::Number),
    ],
};

static FAULT: Schema = Schema {
    fields: &[
        ("at", Kind::Word(WRITTEN)),
        ("every", Kind::Word(WRITTEN)),
        ("random", Kind::Object(&RANDOM)),
        ("do", Kind::Word("what is done, such as kill")),
        ("target", Kind::Word("whom it is done to, such as rack=12")),
        ("for", Kind::Word(WRITTEN)),
    ],
};

static RANDOM: Schema = Schema { fields: &[("mean", Kind::Word(WRITTEN))] };

static EXPECT: Schema =
    Schema { fields: &[("calm_within", Kind::Word(WRITTEN)), ("at_least", Kind::Object(&AT_LEAST))] };

static AT_LEAST: Schema = Schema {
    fields: &[
        ("leader_changes", COUNT),
        ("commits", COUNT),
        ("refused_writes", COUNT),
        ("failed_client_calls", COUNT),
        ("faults", COUNT),
    ],
};

/// Reads a scenario. `instead` is the existing world of [`Scenario::parse_in`].
pub(crate) fn read_scenario(text: &str, instead: Option<&World>) -> Result<Scenario, InputError> {
    let document = Document::read("scenario", text, MAX_BYTES, &SCENARIO)?;
    let root = document.root();
    let mut problems = Problems::default();
    let name = read_scenario_name(root, &mut problems);
    let own = read_world(root, &mut problems);
    let world = match instead {
        None => own,
        Some(other) => {
            let given = root.get("world").is_some_and(|world| world.get("instances").is_some());
            World { instances: if given { own.instances } else { other.instances }, ..*other }
        }
    };
    let clients = read_clients(root, &mut problems);
    // A target is compared with a world only if the world is valid.
    let known = document.is_sound("world") && problems.is_empty();
    let faults = read_faults(root, known.then_some(&world), &mut problems);
    let expect = read_expectations(root, &mut problems);
    if document.is_sound("faults") && faults.is_empty() && expect.at_least.faults > 0 {
        problems.add("expect.at_least.faults", expect.at_least.faults.to_string(), "faults in the scenario");
    }
    if document.is_sound("clients") && clients.is_empty() && expect.at_least.failed_client_calls > 0 {
        let got = expect.at_least.failed_client_calls.to_string();
        problems.add(
            "expect.at_least.failed_client_calls",
            got,
            "clients in the scenario, whose calls could fail",
        );
    }
    document.finish(problems)?;
    Ok(Scenario { name, world, clients, faults, expect })
}

fn text_field<'t>(tree: &'t Tree, field: &str) -> Option<&'t str> {
    tree.get(field).and_then(Tree::text)
}

fn read_integer<N: TryFrom<i64>>(tree: &Tree, field: &str) -> Option<N> {
    match tree.get(field) {
        Some(Tree::Number(Number::Integer(number))) => N::try_from(*number).ok(),
        _ => None,
    }
}

fn read_scenario_name(root: &Tree, problems: &mut Problems) -> String {
    let name = text_field(root, "name").unwrap_or_default();
    if !is_own_name(name) {
        let got = if root.get("name").is_some() { quote_shortened(name) } else { String::new() };
        problems.add("name", got, OWN_NAME);
    }
    name.to_owned()
}

fn read_world(root: &Tree, problems: &mut Problems) -> World {
    let usual = World::default();
    let Some(given) = root.get("world") else { return usual };
    let number = |field: &str, usual: u32| read_integer(given, field).unwrap_or(usual);
    let store = read_word_field(given, "store", problems).unwrap_or(usual.store);
    let operations = read_word_field(given, "operations", problems).unwrap_or(usual.operations);
    let machines = number("machines", usual.machines);
    let racks = match (given.get("racks"), given.get("machines")) {
        // A world with few machines and no number of racks gets at most one rack for each machine.
        (None, Some(_)) => usual.racks.min(machines),
        _ => number("racks", usual.racks),
    };
    if racks > machines {
        problems.add(
            "world.racks",
            racks.to_string(),
            format!("at most one a machine, of which there are {machines}"),
        );
    }
    World {
        instances: number("instances", usual.instances),
        machines,
        racks,
        clusters: number("clusters", usual.clusters),
        applications: number("applications", usual.applications),
        store,
        operations,
    }
}

/// A field of the world that is one of a few words.
fn read_word_field<T: FromStr + VariantNames>(
    world: &Tree,
    field: &str,
    problems: &mut Problems,
) -> Option<T> {
    let given = text_field(world, field)?;
    match name::parse_name(given) {
        Ok(word) => Some(word),
        Err(expected) => {
            problems.add(format!("world.{field}"), quote_shortened(given), expected);
            None
        }
    }
}

fn read_clients(root: &Tree, problems: &mut Problems) -> Vec<Client> {
    let mut clients: Vec<Client> = Vec::new();
    let entries = root.get("clients").map(Tree::items).unwrap_or_default();
    for (index, entry) in entries.iter().enumerate() {
        let list = Path::Root.field("clients");
        let path = list.item(index);
        let kind = read_name::<ClientKind>(entry, "kind", &path, problems);
        let rate = read_rate(entry, &path, problems);
        let (Some(kind), Some(rate)) = (kind, rate) else { continue };
        if clients.iter().any(|client| client.kind == kind) {
            problems.add(path.field("kind"), kind.to_string(), "a kind that no other entry has");
        }
        clients.push(Client { kind, rate });
    }
    clients
}

fn read_name<T: FromStr + VariantNames>(
    entry: &Tree,
    field: &str,
    path: &Path<'_>,
    problems: &mut Problems,
) -> Option<T> {
    let word = text_field(entry, field);
    let expected = match name::parse_name(word.unwrap_or_default()) {
        Ok(one) => return Some(one),
        Err(expected) => expected,
    };
    problems.add(path.field(field), word.map(quote_shortened).unwrap_or_default(), expected);
    None
}

fn read_rate(entry: &Tree, path: &Path<'_>, problems: &mut Problems) -> Option<Rate> {
    let given = entry.get("rate");
    let number = match given {
        Some(Tree::Number(number)) => Some(number.to_float()),
        _ => None,
    };
    let rate = number.filter(|number| (RATES.0..=RATES.1).contains(number)).and_then(Rate::from_number);
    if rate.is_none() {
        let got = given.map(Tree::short_text).unwrap_or_default();
        let expected = format!("requests a second, from {} to {} in steps of {}", RATES.0, RATES.1, RATES.0);
        problems.add(path.field("rate"), got, expected);
    }
    rate
}

fn read_faults(root: &Tree, world: Option<&World>, problems: &mut Problems) -> Vec<Fault> {
    let entries = root.get("faults").map(Tree::items).unwrap_or_default();
    if entries.len() > MAX_FAULTS {
        problems.add("faults", format!("{} of them", entries.len()), format!("at most {MAX_FAULTS}"));
    }
    let mut faults = Vec::new();
    for (index, entry) in entries.iter().take(MAX_FAULTS).enumerate() {
        let list = Path::Root.field("faults");
        let path = list.item(index);
        let random = entry.get("random");
        let words = FaultWords {
            act: text_field(entry, "do"),
            target: text_field(entry, "target"),
            at: text_field(entry, "at"),
            every: text_field(entry, "every"),
            random: random.map(|random| text_field(random, "mean")),
            lasts: text_field(entry, "for"),
        };
        let Some(fault) = build_fault(&words, path, problems) else { continue };
        if let Some(Err(expected)) = world.map(|world| check_target_exists(&fault, world)) {
            problems.add(path.field("target"), fault.target.to_string(), expected);
        }
        faults.push(fault);
    }
    faults
}

fn read_expectations(root: &Tree, problems: &mut Problems) -> Expectations {
    let Some(given) = root.get("expect") else { return Expectations::default() };
    let path = Path::Root.field("expect");
    let calm_within = text_field(given, "calm_within")
        .and_then(|text| parse_span(text, LEAST_CALM, &path.field("calm_within"), problems));
    let mut at_least = Counts::default();
    if let Some(counts) = given.get("at_least") {
        for count in Count::ALL {
            *at_least.of_mut(*count) = read_integer(counts, count.name()).unwrap_or(0);
        }
    }
    Expectations { calm_within, at_least }
}
