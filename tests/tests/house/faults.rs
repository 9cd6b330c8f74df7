//! Compares docs/chaos.md with the fault language in the code: the world and its bounds, suitable targets and
//! durations, all names, and the scenarios that ship.

use std::collections::BTreeSet;

use madako_faults::{
    ACTORS, Act, CLOCK_JUMP, ClientKind, Count, DELAY, FaultLength, LOSS_PERCENT, SHIPPED, Scenario,
    TargetKind, World, fault_length, suitable_targets,
};
use madako_supervisor::http::{HTTP, PLACEMENT_API};
use madako_supervisor::instance::{
    BACKUP, FETCHER, LEADER, PLANNER, POLLER, REBOOT, REIGN, REPAIR, SCHEDULER,
};
use madako_supervisor::nodes::{NODE, NODES, ROSTER, RUNNER};

use crate::repository::text;
use crate::{nothing, one};

/// The rows of the table whose heading begins with these cells, each row as its cells without the marks of code.
fn rows(document: &str, heading: &[&str]) -> Vec<Vec<String>> {
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect()
    };
    let mut lines = document.lines();
    let found = lines.find(|line| {
        line.starts_with('|')
            && cells(line).iter().zip(heading).filter(|(cell, name)| cell == *name).count() == heading.len()
    });
    found.map_or_else(Vec::new, |_| {
        lines.skip(1).take_while(|line| line.starts_with('|')).map(cells).collect()
    })
}

/// The expected columns "Suits" and "Takes `for`" of an act.
fn reported(act: Act) -> [String; 3] {
    let kinds = suitable_targets(act);
    let names = |kinds: &[TargetKind]| kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let (once, held): (Vec<TargetKind>, Vec<TargetKind>) =
        kinds.iter().partition(|kind| fault_length(act, **kind) == FaultLength::Once);
    let takes = match (once.is_empty(), held.is_empty()) {
        (true, _) => "yes".to_owned(),
        (false, true) => "no".to_owned(),
        (false, false) => format!("yes, but not for {}", names(&once)),
    };
    [act.to_string(), names(kinds), takes]
}

/// The amount that the row of an act must name.
fn amount(act: Act) -> Option<String> {
    match act {
        Act::Delay => Some(format!("{} ms", DELAY.as_millis())),
        Act::Loss => Some(format!("{LOSS_PERCENT} %")),
        Act::ClockJump => Some(format!("{} h", CLOCK_JUMP.as_secs() / 3600)),
        _ => None,
    }
}

/// True if the world of a scenario may have this number.
fn possible(field: &str, number: i64) -> bool {
    // The rest of the world is large, so that only this number decides.
    let machines = if field == "machines" { "" } else { "machines: 10000, " };
    Scenario::parse(&format!("name: a\nworld: {{{machines}{field}: {number}}}")).is_ok()
}

/// The problem of a row of the world's table: field, default, least, greatest.
fn wrong_bounds(row: &[String]) -> Option<String> {
    let [field, default, least, greatest, _] = row else {
        return Some(format!("no row of the world: {row:?}"));
    };
    let world = World::default();
    let usual = match field.as_str() {
        "instances" => world.instances,
        "machines" => world.machines,
        "racks" => world.racks,
        "clusters" => world.clusters,
        "applications" => world.applications,
        _ => return Some(format!("{field}: the world has no such number")),
    };
    let (Ok(least), Ok(greatest)) = (least.parse(), greatest.parse::<i64>()) else {
        return Some(format!("{field}: from {least} to {greatest} is not a range"));
    };
    let holds = possible(field, least)
        && possible(field, greatest)
        && !possible(field, least - 1)
        && !possible(field, greatest + 1);
    if *default != usual.to_string() {
        Some(format!("{field}: the default is {usual}, not {default}"))
    } else {
        (!holds).then(|| format!("{field}: the range is not {least} to {greatest}"))
    }
}

/// The differences between the names of a table and those of the code.
fn names(document: &str, heading: &[&str], code: &[String]) -> Vec<String> {
    let reported: Vec<String> = rows(document, heading).into_iter().map(|row| row[0].clone()).collect();
    if reported == code {
        Vec::new()
    } else {
        vec![format!("{heading:?}: the table has {reported:?}, the code {code:?}")]
    }
}

fn all<T: ToString>(names: &[T]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

/// The differences between the document and the code.
fn differences(document: &str) -> Vec<String> {
    let mut findings: Vec<String> =
        rows(document, &["Field", "Default"]).iter().filter_map(|row| wrong_bounds(row)).collect();
    let fields = ["instances", "machines", "racks", "clusters", "applications"];
    findings.extend(names(document, &["Field", "Default"], &all(&fields)));
    findings.extend(names(document, &["kind"], &all(ClientKind::ALL)));
    findings.extend(names(document, &["target"], &all(TargetKind::ALL)));
    findings.extend(names(document, &["do"], &all(Act::ALL)));
    findings.extend(names(document, &["Count"], &all(Count::ALL)));
    findings.extend(names(document, &["Name", "Shows"], &all(&SHIPPED.map(|shipped| shipped.name))));
    for (row, act) in rows(document, &["do"]).iter().zip(Act::ALL) {
        let reported = reported(*act);
        if row[..3] != reported {
            findings.push(format!("{act}: the table has {:?}, the code {reported:?}", &row[..3]));
        }
        if let Some(amount) = amount(*act).filter(|amount| !row[3].contains(amount)) {
            findings.push(format!("{act}: the table does not tell its amount, {amount}"));
        }
    }
    for (row, shipped) in rows(document, &["Name", "Shows"]).iter().zip(SHIPPED) {
        if row[1] != shipped.purpose_text() {
            findings.push(format!(
                "{}: the table says \"{}\", the file \"{}\"",
                shipped.name,
                row[1],
                shipped.purpose_text()
            ));
        }
    }
    let row =
        rows(document, &["target"]).into_iter().find(|row| row[0].starts_with("actor=")).unwrap_or_default();
    let words: BTreeSet<&str> =
        row.iter().flat_map(|cell| cell.split([' ', ','])).filter(|word| !word.is_empty()).collect();
    findings.extend(
        ACTORS
            .iter()
            .filter(|actor| !words.contains(*actor))
            .map(|actor| format!("no word of the actor {actor}")),
    );
    findings
}

#[test]
fn document_describes_the_scenario_language_of_the_code() {
    nothing(&differences(&text("docs/chaos.md")));
}

#[test]
fn a_difference_between_page_and_code_is_found() {
    let page = text("docs/chaos.md");
    for (line, instead, found) in [
        ("| `machines` | 60 |", "| `machines` | 61 |", "the default is 60"),
        ("| `machines` | 60 | 1 | 10000 |", "| `machines` | 60 | 0 | 10000 |", "the range is not 0 to 10000"),
        ("| `instances` | 3 | 1 | 9 |", "| `instances` | 3 | 1 | 8 |", "the range is not 1 to 8"),
        ("| `etcd-watch` | watch", "| `watch` | watch", "etcd-watch"),
        ("| `registry` | the registry of", "| `sabakan` | the registry of", "sabakan"),
        ("`cluster-planner`, `repair-queue`", "`repair-queue`", "no word of the actor cluster-planner"),
        (
            "an IP address, `store=N` | yes | The disk",
            "an IP address, `store=N` | no | The disk",
            "disk-full",
        ),
        ("| `panic` | `actor=NAME` |", "| `panic` | `rack=N` |", "panic"),
        ("takes 200 ms longer", "takes 100 ms longer", "200 ms"),
        ("10 % are lost", "15 % are lost", "10 %"),
        ("clock is 1 h ahead", "clock is 2 h ahead", "1 h"),
        ("| `commits` | writes", "| `writes` | writes", "commits"),
        ("| No fault occurs while", "| A fault occurs while", "calm-day"),
    ] {
        assert!(page.contains(line), "the page has no {line:?} any more");
        one(&differences(&page.replacen(line, instead, 1)), &[found]);
    }
}

#[test]
fn the_actors_that_can_be_targets_are_those_of_the_tree() {
    let tree = [
        HTTP,
        PLACEMENT_API,
        LEADER,
        POLLER,
        PLANNER,
        ROSTER,
        NODE,
        RUNNER,
        BACKUP,
        REPAIR,
        REBOOT,
        FETCHER,
        SCHEDULER,
    ];
    assert_eq!(ACTORS, tree, "a supervisor's child that is not a supervisor can be a target");
    // The map shows no other actors in the tree, apart from two supervisors.
    let map = text("docs/ARCHITECTURE.md");
    let drawn =
        map.lines().filter_map(|line| line.trim_start().trim_start_matches("│  ").strip_prefix(['├', '└']));
    let mut drawn: BTreeSet<&str> =
        drawn.filter_map(|line| line.strip_prefix("─ ")?.split(' ').next()).collect();
    for supervisor in [REIGN, NODES] {
        assert!(drawn.remove(supervisor), "{drawn:?}");
    }
    assert_eq!(drawn, BTreeSet::from(ACTORS));
}
