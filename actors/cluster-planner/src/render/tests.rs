use madako_domain::machine::MachineState;
use madako_domain::plan::Action;

use super::*;
use crate::testing::{Site, layout, machine};

fn site() -> Site {
    Site::new(["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| machine(ip, 0, "a")).to_vec())
}

#[test]
fn a_plan_shows_its_action_its_changes_and_its_reasons() {
    let text = plan_table(&site().plan().unwrap(), layout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..9],
        [
            "Action   initialize",
            "Cluster  1 control plane node, 1 worker",
            "Workers  a 1",
            "Unused   1 healthy machine",
            "",
            "CHANGE  ADDRESS   PART",
            "add     10.0.0.1  control plane",
            "add     10.0.0.2  worker",
            "",
        ]
    );
    assert!(lines[9].starts_with("RULE "), "{text}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("initialize")).count(), 3);
    assert!(Action::ALL.iter().all(|rule| lines.iter().any(|line| line.starts_with(rule.name()))));
    assert!(lines.iter().all(|line| line.trim_end() == *line));
}

#[test]
fn nothing_to_do_shows_no_changes() {
    let text = plan_table(&site().with_cluster(&["10.0.0.1"], &["10.0.0.2"]).plan().unwrap(), layout);
    assert!(
        text.starts_with("Action   nothing to do\nWorkers  a 1\nUnused   1 healthy machine\n\nRULE"),
        "{text}"
    );
}

#[test]
fn control_characters_of_the_registry_do_not_reach_the_terminal() {
    // Nodes in use with invalid labels, which are written because of their taints.
    let mut site = site().with_cluster(&["10.0.0.1"], &["10.0.0.2"]);
    site.machine("10.0.0.2").status.state = MachineState::Retiring;
    for machine in &mut site.machines {
        machine.spec.role = "a\u{1b}[2J\n".to_owned();
        machine.spec.serial = "twice\r".to_owned();
    }
    let mut copy = site.machines[2].clone();
    copy.spec.serial = "\u{7}".to_owned();
    site.machines.push(copy);
    let plan = site.plan().unwrap();
    assert_eq!(plan.action, Some(Action::TaintNodes));
    let error = site.clone().with_constraints(1, 9, 0).plan().unwrap_err();
    let end = site.clone().with_constraints(1, 9, 0).what_if(&[], &[]).1;
    for text in [
        plan_table(&plan, layout),
        error_table(&error, layout),
        step_table(1, &plan, layout),
        end_table(1, &end, layout),
    ] {
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        assert!(!text.contains("[2J\n"), "{text:?}");
    }
}

#[test]
fn endless_plans_are_reported_as_a_fault() {
    let text = end_table(7, &WhatIfEnd::NeverAtRest { plans: 7 }, layout);
    assert!(text.starts_with("After 7 plans: the planner still changes the cluster after 7 plans"), "{text}");
    assert!(text.contains("defect of the planner"), "{text}");
}
