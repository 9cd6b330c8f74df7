//! Tests of the reasons of a plan: as data, as JSON and as sentences.

use std::net::Ipv4Addr;

use madako_domain::machine::MachineState;
use madako_domain::plan::{Action, Choice, Outcome, Part, PlanReason, RunnerUp, Score, Source};
use serde_json::json;

use crate::testing::{MachineWith as _, Site, machine, outcome, reasons_of};

#[test]
fn a_choice_names_score_share_and_runner_up() {
    let machines = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| machine(ip, 0, "a")).to_vec();
    let site = Site::new(machines).with_template("", &[("a", "2.5")]);
    let plan = site.plan().unwrap();
    let chosen = |reason: &&madako_domain::plan::Reason| matches!(reason.why, PlanReason::Chosen(_));
    let chosen: Vec<_> = plan.reasons.iter().filter(chosen).collect();
    let rival = |last, score| Some(RunnerUp { address: Ipv4Addr::new(10, 0, 0, last), score });
    let choice = |part, role: Option<&str>, weight, considered, runner_up| {
        let role = role.map(std::sync::Arc::from);
        let score = Score { rack_points: 1_000, ..Score::default() };
        let from = Source::Unused;
        PlanReason::Chosen(Choice { part, from, role, workers: 0, weight, considered, score, runner_up })
    };
    assert_eq!(chosen.len(), 2);
    assert_eq!((chosen[0].address.as_deref(), chosen[0].score), (Some("10.0.0.1"), Some(1_000)));
    assert_eq!(chosen[0].why, choice(Part::ControlPlane, None, 0.0, 3, rival(2, 1_000)));
    assert_eq!(chosen[1].why, choice(Part::Worker, Some("a"), 2.5, 2, rival(3, 1_000)));
    assert_eq!(
        chosen[1].why.to_string(),
        "chosen as worker, the best of 2 unused machines of role \"a\" \
         (its share is the smallest: 0 workers for weight 2.5); \
         score: 1000 for 0 such nodes in its rack, 0 for 0 days until its retire date; \
         next was 10.0.0.3 with 1000 too, and the lowest address decides"
    );
}

#[test]
fn score_is_explained_by_its_parts() {
    let mut machines = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| machine(ip, 7, "a")).to_vec();
    machines[0] = machines[0].clone().due_in(time::Duration::days(1_001));
    machines[1] = machines[1].clone().due_in(time::Duration::days(-300)).state(MachineState::Unhealthy);
    let site = Site::new(machines);
    let plan = site.plan().unwrap();
    let chosen = plan.reasons.iter().find(|reason| matches!(reason.why, PlanReason::Chosen(_))).unwrap();
    assert_eq!(chosen.score, Some(1_003));
    let text = chosen.why.to_string();
    assert!(
        text.contains("1000 for 0 such nodes in its rack, 3 for 1001 days until its retire date"),
        "{text}"
    );
    assert!(text.ends_with("next was 10.0.0.3 with 1000"), "{text}");

    let plan = site.with_cluster(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], &[]).plan().unwrap();
    let parts = plan.reasons.iter().filter_map(|reason| match &reason.why {
        PlanReason::Deselected(deselection) => Some((reason.score.unwrap(), deselection.score)),
        _ => None,
    });
    let parts: Vec<(i64, Score)> = parts.collect();
    let rest = Score { health_points: 0, in_rack: 3, rack_points: 970, days: -300, lifetime_points: -1 };
    assert_eq!(parts[0], (969, rest));
    assert_eq!(parts[1].1, Score { health_points: 1_000, in_rack: 2, rack_points: 980, ..Score::default() });
    assert!(parts.iter().all(|(score, parts)| *score == parts.total()));
}

#[test]
fn promotion_explains_why_no_unused_machine_is_taken() {
    let machines = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| machine(ip, 0, "a")).to_vec();
    let mut site =
        Site::new(machines).with_constraints(2, 1, 0).with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3"]);
    let plan = site.plan().unwrap();
    let reasons: Vec<String> = reasons_of(&plan.reasons, Action::IncreaseControlPlane)
        .iter()
        .map(|reason| reason.why.to_string())
        .collect();
    assert_eq!(
        reasons[1],
        "workers beyond minimum-workers are promoted: no healthy machine is available as control plane node \
         (1 of 2): of 3 machines, 3 in the cluster"
    );
    // A worker that cannot be promoted is reported as well.
    site.machine("10.0.0.2").status.state = MachineState::Updating;
    site.taint("10.0.0.3", "broken");
    let error = site.plan().unwrap_err();
    assert_eq!(
        error.message,
        "no healthy machine is available as control plane node (1 of 2): of 3 machines, 3 in the cluster; \
         of 2 workers none can be promoted: 1 not healthy, 1 with a taint that is not tolerated"
    );

    let machines = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"].map(|ip| machine(ip, 0, "a")).to_vec();
    let mut site = Site::new(machines)
        .with_constraints(3, 1, 1)
        .with_cluster(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], &["10.0.0.4"]);
    site.machine("10.0.0.2").status.state = MachineState::Unhealthy;
    let plan = site.plan().unwrap();
    assert!(reasons_of(&plan.reasons, Action::ReplaceControlPlane).iter().any(|reason| {
        reason.why == PlanReason::Exchange { maximum: 1 } && reason.address.as_deref() == Some("10.0.0.2")
    }));
}

#[test]
fn every_rule_explains_why_it_did_not_fire() {
    let site = Site::new(["10.0.0.1", "10.0.0.2"].map(|ip| machine(ip, 0, "a")).to_vec())
        .with_cluster(&["10.0.0.1"], &["10.0.0.2"]);
    let plan = site.plan().unwrap();
    let reasons: Vec<(Action, String)> =
        plan.reasons.iter().map(|reason| (reason.rule, reason.why.to_string())).collect();
    let expected = [
        "there is a cluster already",
        "all 2 nodes have a machine in the list",
        "the control plane has 1 node, control-plane-count is 1",
        "the control plane has 1 node, control-plane-count is 1",
        "none of 1 control plane node is in a bad state or has a taint that is not tolerated",
        "1 of 1 worker is healthy, minimum-workers is 1 and there is no maximum-workers",
        "no worker is retired",
        "all 2 nodes have the taint that belongs to their machine's state",
        "the template has not changed",
    ];
    let expected: Vec<(Action, String)> =
        Action::ALL.iter().copied().zip(expected.map(str::to_owned)).collect();
    assert_eq!(reasons, expected);
    assert!(plan.reasons.iter().all(|reason| reason.outcome == Outcome::NotFired));
}

#[test]
fn a_plan_in_json_has_the_four_fields_and_sentences_for_reasons() {
    let mut site = Site::new(["10.0.0.1", "10.0.0.2"].map(|ip| machine(ip, 0, "a")).to_vec())
        .with_cluster(&["10.0.0.1"], &["10.0.0.2"]);
    let nothing = serde_json::to_value(site.plan().unwrap()).unwrap();
    assert_eq!(nothing["action"], json!(null));
    assert_eq!(nothing["cluster"], json!(null));
    assert_eq!(nothing["changes"], json!([]));
    assert_eq!(nothing.as_object().unwrap().len(), 4);

    site.machine("10.0.0.1").status.state = MachineState::Retiring;
    let plan = serde_json::to_value(site.plan().unwrap()).unwrap();
    assert_eq!(plan["action"], json!("taint-nodes"));
    assert_eq!(plan["cluster"]["nodes"][0]["taints"][0]["value"], json!("retiring"));
    assert_eq!(plan["changes"], json!([{"change": "taint", "address": "10.0.0.1", "part": "control-plane"}]));
    let fired: Vec<_> =
        plan["reasons"].as_array().unwrap().iter().filter(|reason| reason["outcome"] == "fired").collect();
    assert_eq!(
        fired,
        [&json!({
            "rule": "taint-nodes",
            "outcome": "fired",
            "why": "the machine is RETIRING, but the node's state taint is not retiring:NoExecute",
            "address": "10.0.0.1",
        })]
    );
    assert_eq!(
        plan["reasons"][0],
        json!({"rule": "initialize", "outcome": "not-fired", "why": "there is a cluster already"})
    );
}

#[test]
fn an_error_in_json_has_kind_and_message_and_its_reasons_are_all_there() {
    let site = Site::new(vec![machine("10.0.0.1", 0, "a")]).with_cluster(&["10.0.0.9"], &["10.0.0.1"]);
    let error = site.plan().unwrap_err();
    assert_eq!(
        serde_json::to_value(&error).unwrap(),
        json!({"error": {
            "kind": "too-many-non-existent",
            "message": "1 of 1 control plane nodes no longer exist; with half or more gone the \
                        configuration must be repaired by hand",
        }})
    );
    let failed = reasons_of(&error.reasons, Action::RemoveNonExistentNodes);
    assert!(failed.len() == 2 && failed.iter().all(|reason| reason.outcome == Outcome::Failed));
    assert!(Action::ALL.iter().all(|rule| !reasons_of(&error.reasons, *rule).is_empty()));
}

#[test]
fn machine_under_repair_does_not_join_the_control_plane_and_the_plan_names_the_reason() {
    let machines = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"].map(|ip| machine(ip, 0, "a")).to_vec();
    let mut site = Site::new(machines)
        .with_constraints(2, 1, 0)
        .with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    let unhindered = site.plan().unwrap();
    site.under_repair.insert("10.0.0.1".to_owned());
    assert_eq!(site.plan().unwrap(), unhindered, "a machine of the control plane stays there under repair");
    assert_eq!(outcome(&unhindered).1, ["10.0.0.1", "10.0.0.2"]);

    site.under_repair.insert("10.0.0.2".to_owned());
    let plan = site.plan().unwrap();
    assert_eq!(outcome(&plan).1, ["10.0.0.1", "10.0.0.3"]);
    let passed_over: Vec<_> =
        plan.reasons.iter().filter(|reason| reason.why == PlanReason::UnderRepair).collect();
    assert_eq!(passed_over.len(), 1);
    assert_eq!(passed_over[0].address.as_deref(), Some("10.0.0.2"));
    assert_eq!((passed_over[0].rule, passed_over[0].outcome), (Action::IncreaseControlPlane, Outcome::Fired));

    site.under_repair.extend(["10.0.0.3", "10.0.0.4"].map(str::to_owned));
    let error = site.plan().unwrap_err();
    assert_eq!(
        error.message,
        "no healthy machine is available as control plane node (1 of 2): of 4 machines, 4 in the cluster; \
         of 3 workers none can be promoted: 3 being repaired or rebooted"
    );
    assert_eq!(error.reasons.iter().filter(|reason| reason.why == PlanReason::UnderRepair).count(), 3);
}

#[test]
fn an_unused_machine_under_repair_may_be_a_worker_but_no_control_plane_node() {
    let machines = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| machine(ip, 0, "a")).to_vec();
    let mut site = Site::new(machines).with_constraints(2, 1, 0);
    site.under_repair.insert("10.0.0.1".to_owned());
    let plan = site.plan().unwrap();
    assert_eq!(outcome(&plan), (Action::Initialize, vec!["10.0.0.2", "10.0.0.3"], vec!["10.0.0.1"]));
    site.under_repair.insert("10.0.0.2".to_owned());
    let error = site.plan().unwrap_err();
    let message = "of 3 machines, 1 in the cluster, 2 being repaired or rebooted";
    assert!(error.message.contains(message), "{}", error.message);
}

#[test]
fn a_bad_node_is_not_exchanged_for_a_worker_under_repair() {
    let mut machines =
        ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"].map(|ip| machine(ip, 0, "a")).to_vec();
    machines[0] = machines[0].clone().state(MachineState::Unreachable);
    let mut site = Site::new(machines)
        .with_constraints(3, 1, 2)
        .with_cluster(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], &["10.0.0.4", "10.0.0.5"]);
    site.under_repair.insert("10.0.0.4".to_owned());
    let plan = site.plan().unwrap();
    assert_eq!(outcome(&plan).1, ["10.0.0.2", "10.0.0.3", "10.0.0.5"]);
    let passed_over: Vec<_> = reasons_of(&plan.reasons, Action::ReplaceControlPlane)
        .into_iter()
        .filter(|reason| reason.why == PlanReason::UnderRepair)
        .filter_map(|reason| reason.address.as_deref())
        .collect();
    assert_eq!(passed_over, ["10.0.0.4"]);
}
