use madako_domain::plan::{Action, PlanErrorKind};
use serde_json::json;

use super::*;
use crate::testing::{MachineWith as _, Site, machine};

fn site() -> Site {
    let machines = (0..3)
        .flat_map(|rack| (1..=3).map(move |index| machine(&format!("10.0.{rack}.{index}"), rack, "a")))
        .collect();
    Site::new(machines)
        .with_constraints(3, 3, 0)
        .with_cluster(&["10.0.0.1", "10.0.1.1", "10.0.2.1"], &["10.0.0.2", "10.0.1.2", "10.0.2.2"])
}

fn actions(answer: &(Vec<Plan>, WhatIfEnd)) -> Vec<Action> {
    answer.0.iter().map(|plan| plan.action.unwrap()).collect()
}

#[test]
fn machine_selectors_are_addresses_racks_or_roles() {
    assert_eq!("10.0.0.1".parse(), Ok(MachineSelector::Address(Ipv4Addr::new(10, 0, 0, 1))));
    assert_eq!("rack=-3".parse(), Ok(MachineSelector::Rack(-3)));
    assert_eq!("role=a=b".parse(), Ok(MachineSelector::Role("a=b".to_owned())));
    for text in ["", "rack=", "rack=x", "role=", "zone=3", "10.0.0", "host"] {
        let error = text.parse::<MachineSelector>().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{text:?} does not name machines: expected an IPv4 address, rack=NUMBER or role=ROLE")
        );
    }
    for text in ["10.0.0.1", "rack=3", "role=a"] {
        assert_eq!(text.parse::<MachineSelector>().unwrap().to_string(), text);
    }
}

#[test]
fn what_if_without_losses_plans_nothing() {
    let answer = site().what_if(&[], &[]);
    assert_eq!(answer, (Vec::new(), WhatIfEnd::AtRest));
    assert_eq!(serde_json::to_value(&answer.1).unwrap(), json!(null));
}

#[test]
fn a_lost_rack_is_replaced_plan_by_plan_until_nothing_is_left_to_do() {
    let answer = site().what_if(&["rack=1"], &[]);
    assert_eq!(actions(&answer), [Action::ReplaceControlPlane, Action::IncreaseWorkers]);
    assert_eq!(answer.1, WhatIfEnd::AtRest);
}

#[test]
fn the_number_of_plans_is_expected_before_the_first_one() {
    let expected = |site: &Site, lose: &[&str], remove: &[&str]| {
        let selectors = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        WhatIf::new(&site.input(), &selectors(lose), &selectors(remove)).unwrap().estimate_plans()
    };
    let made = |lose: &[&str], remove: &[&str]| Some(site().what_if(lose, remove).0.len());
    for (lose, remove) in [(&["rack=1"][..], &[][..]), (&["rack=1"], &["10.0.1.1", "10.0.1.2"])] {
        assert_eq!(expected(&site(), lose, remove), made(lose, remove), "{lose:?} {remove:?}");
    }
    let growing = site().with_constraints(3, 5, 0);
    assert_eq!(expected(&growing, &[], &[]), Some(2), "two workers more, one a plan");
    let beyond = site().with_constraints(3, 50, 0);
    assert_eq!(expected(&beyond, &[], &[]), Some(3), "as many as there are spare machines");
    assert_eq!(expected(&site(), &[], &[]), None, "nothing is lost");
    let empty = Site::new(vec![machine("10.0.0.1", 0, "a")]);
    assert_eq!(expected(&empty, &[], &[]), None, "there is no cluster");
}

#[test]
fn removed_machines_are_left_out_even_if_they_are_lost_too() {
    let answer = site().what_if(&["rack=1"], &["10.0.1.1", "10.0.1.2"]);
    assert_eq!(actions(&answer), [Action::RemoveNonExistentNodes]);
}

#[test]
fn missing_machines_end_the_what_if_answer() {
    let answer = site().what_if(&["role=a"], &[]);
    assert_eq!(actions(&answer), []);
    let end = serde_json::to_value(&answer.1).unwrap();
    assert_eq!(end["kind"], "not-available");
    assert!(end["message"].as_str().unwrap().contains("9 machines"), "{end}");
    let answer = site().what_if(&[], &["rack=0", "rack=1"]);
    assert!(matches!(answer.1, WhatIfEnd::NoPlan(error) if error.kind == PlanErrorKind::TooManyNonExistent));
}

#[test]
fn a_changed_template_is_applied_once() {
    let mut site = site();
    site.template_changed = true;
    site.moment = LeaderStage::LeaderStart;
    assert_eq!(actions(&site.what_if(&[], &[])), [Action::Regenerate]);
}

#[test]
fn selector_without_a_matching_machine_is_reported() {
    let site = site();
    let lose = ["10.0.0.1", "rack=9"].map(|text| text.parse().unwrap());
    let unmatched = WhatIf::new(&site.input(), &lose, &["role=b".parse().unwrap()]).unwrap_err();
    assert_eq!(
        unmatched,
        UnmatchedSelectors(vec![MachineSelector::Rack(9), MachineSelector::Role("b".to_owned())])
    );
    assert_eq!(
        unmatched.to_string(),
        "no machine in the list matches rack=9, role=b: name an IPv4 address, rack or role of the list"
    );
}

/// A cluster of long-retired workers and one healthy control plane node.
fn retired(workers: usize) -> Site {
    let addresses: Vec<String> =
        (0..=workers).map(|index| format!("10.0.{}.{}", index / 250, index % 250)).collect();
    let machines = addresses.iter().map(|address| machine(address, 0, "a").state(MachineState::Retired));
    let mut machines: Vec<Machine> = machines.collect();
    machines[0].status.state = MachineState::Healthy;
    let workers: Vec<&str> = addresses[1..].iter().map(String::as_str).collect();
    Site::new(machines).with_constraints(1, 0, 0).with_cluster(&[&addresses[0]], &workers)
}

#[test]
fn every_plan_is_shown_until_nothing_is_left_however_many_they_are() {
    let answer = retired(400).what_if(&[], &[]);
    assert_eq!((answer.0.len(), answer.1), (400, WhatIfEnd::AtRest));
}

#[test]
fn endless_planner_is_reported_as_an_error() {
    let site = retired(10);
    let mut answer = WhatIf::new(&site.input(), &[], &[]).unwrap();
    assert_eq!(answer.most, max_plans(11, 11));
    // No input is known for which the planner cycles: a small bound stands for one.
    answer.most = 3;
    for _ in 0..3 {
        answer.next_plan().unwrap();
    }
    let end = answer.next_plan().unwrap_err();
    assert_eq!(end, WhatIfEnd::NeverAtRest { plans: 3 });
    let end = serde_json::to_value(&end).unwrap();
    assert_eq!(end["kind"], "never-at-rest");
    assert!(end["message"].as_str().unwrap().contains("after 3 plans"), "{end}");
}
