//! Scripted histories of small data centers with golden output of the planner.
//!
//! Each line of a script is a command; `#` starts a comment. Machines of rack 3 have the addresses 10.0.3.1 and so
//! on. After an intended change, `INSTA_UPDATE=always cargo test` rewrites the golden output.

use std::fmt::Write as _;

use madako_domain::machine::MachineState;
use madako_domain::plan::Plan;
use madako_domain::template::Template;

use crate::render::{end_table, error_table, plan_table, step_table};
use crate::testing::{Site, layout, machine, template};
use crate::{LeaderStage, WhatIfEnd};

/// Maximum plans of `settle`: a longer script is hard to read.
const MOST_STEPS: usize = 12;

fn run(script: &str) -> String {
    let mut site = Site::new(Vec::new());
    let mut text = String::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let _ = writeln!(text, "> {line}");
        let words: Vec<&str> = line.split_whitespace().collect();
        text.push_str(&command(&mut site, &words));
        text.push('\n');
    }
    text
}

fn command(site: &mut Site, words: &[&str]) -> String {
    match words {
        ["#", ..] => {}
        ["template", control_plane, workers @ ..] => set_template(site, control_plane, workers),
        ["constraints", control_plane, minimum, maximum] => {
            site.constraints.control_plane_count = control_plane.parse().unwrap();
            site.constraints.minimum_workers = minimum.parse().unwrap();
            site.constraints.maximum_workers = maximum.parse().unwrap();
        }
        ["machines", rack, role, first, last] => {
            let rack: i64 = rack.parse().unwrap();
            let numbers = first.parse::<u8>().unwrap()..=last.parse().unwrap();
            site.machines.extend(numbers.map(|index| machine(&format!("10.0.{rack}.{index}"), rack, role)));
        }
        ["state", state, seconds, addresses @ ..] => {
            let named = |known: &MachineState| known.name() == *state;
            let state = MachineState::ALL.iter().copied().find(named).unwrap();
            for address in addresses {
                site.machine(address).status.state = state;
                site.machine(address).status.duration = seconds.parse().unwrap();
            }
        }
        ["gone", addresses @ ..] => addresses.iter().for_each(|address| site.remove(address)),
        ["duplicate", address, serial] => {
            let mut copy = site.machine(address).clone();
            (*serial).clone_into(&mut copy.spec.serial);
            site.machines.push(copy);
        }
        ["taint", address, key] => site.taint(address, key),
        ["leader", "starts"] => site.moment = LeaderStage::LeaderStart,
        ["leader", "runs"] => site.moment = LeaderStage::Running,
        ["plan"] => {
            return match site.plan() {
                Ok(plan) => {
                    site.commit(&plan);
                    plan_table(&plan, layout)
                }
                Err(error) => error_table(&error, layout),
            };
        }
        ["settle"] => return settle(site),
        ["what-if", rest @ ..] => {
            let after = |flag: &str| {
                let given = rest.chunks(2).filter(|pair| pair[0] == flag);
                given.map(|pair| pair[1]).collect::<Vec<_>>()
            };
            return table(&site.what_if(&after("--lose"), &after("--remove")));
        }
        other => panic!("no such command: {other:?}"),
    }
    String::new()
}

fn set_template(site: &mut Site, control_plane: &str, workers: &[&str]) {
    let role = |word: &str| if word == "-" { String::new() } else { word.to_owned() };
    let workers: Vec<(String, &str)> = workers
        .iter()
        .map(|worker| worker.split_once(':').unwrap_or((worker, "")))
        .map(|(name, weight)| (role(name), weight))
        .collect();
    let workers: Vec<(&str, &str)> = workers.iter().map(|(role, weight)| (&**role, *weight)).collect();
    site.template = Template::new(template(&role(control_plane), &workers)).unwrap();
    site.template_changed = site.current.is_some();
}

fn settle(site: &mut Site) -> String {
    // The clock and the machines stay: the answer to "what if nothing more happens".
    let answer = site.what_if(&[], &[]);
    assert!(answer.0.len() <= MOST_STEPS);
    if let Some(plan) = answer.0.last() {
        site.commit(plan);
    }
    table(&answer)
}

fn table((plans, end): &(Vec<Plan>, WhatIfEnd)) -> String {
    let steps = plans.iter().zip(1..).map(|(plan, number)| step_table(number, plan, layout));
    steps.chain(std::iter::once(end_table(plans.len(), end, layout))).collect()
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            let script = include_str!(concat!("scenarios/", stringify!($name), ".txt"));
            insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
                insta::assert_snapshot!(stringify!($name), run(script));
            });
        }
    )*};
}

scenarios! {
    a_site_from_its_first_day_to_its_last_machine,
    a_rack_is_lost,
    maintenance_asks_what_if,
    roles_come_and_go,
    too_little_is_left,
}
