//! Tests of `madako machine list` and `machine show`: the registry and the store, in each output format.

use madako_domain::machine::MachineState;
use serde_json::{Value, json};

use crate::program::{Etcd, TEMPLATE};
use crate::running::registry;
use crate::terminal::Terminal;

/// A cluster that the planner made of the registry's machines, with one failed worker and its repair.
async fn planned() -> Option<(Etcd, madako_datacenter_sim::SimulatedRegistry, String)> {
    let etcd = Etcd::start().await?;
    let (registry, url) = registry().await;
    etcd.run(&["sabakan", "set-template", &etcd.file("template.yml", TEMPLATE)]).await.calm();
    etcd.run(&["sabakan", "set-url", &url]).await.calm();
    etcd.run(&["constraints", "set", "minimum-workers", "3"]).await.calm();
    etcd.run(&["constraints", "set", "control-plane-count", "3"]).await.calm();
    let plan = etcd.run(&["plan", "-o", "json"]).await.json();
    etcd.put("cluster", plan["cluster"].to_string()).await;
    etcd.put("cluster-revision", etcd.revision_of("sabakan/template").await.to_string()).await;
    let about_nodes = plan["reasons"].as_array()?.iter().filter(|reason| reason["address"].is_string());
    let choices: serde_json::Map<String, Value> = about_nodes
        .map(|reason| {
            let choice = json!({"at": "2026-11-21T12:00:00Z", "why": reason["why"]});
            (reason["address"].as_str().unwrap().to_owned(), choice)
        })
        .collect();
    etcd.put("madako/decisions/choices", Value::from(choices).to_string()).await;
    let worker = plan["cluster"]["nodes"].as_array()?.iter().find(|node| node["control_plane"] != true)?;
    let address = worker["address"].as_str()?.to_owned();
    let machine = registry.list_machines().into_iter().find(|it| it.address() == Some(&address))?;
    registry.set_state(&machine.spec.serial, MachineState::Unreachable).unwrap();
    let entry = json!({
        "index": "3", "address": address, "nodename": "n", "machine_type": "bmc", "operation": "unreachable",
        "status": "processing", "step": 1, "step_status": "watching", "deleted": false,
        "last_transition_time": "2026-11-21T11:00:00Z",
    });
    etcd.put("repairs/data/0000000000000003", entry.to_string()).await;
    Some((etcd, registry, address))
}

#[tokio::test]
async fn each_machine_has_its_part_its_repair_and_the_reason() {
    let Some((etcd, registry, address)) = planned().await else { return };
    let text = etcd.run(&["machine", "list"]).await.calm();
    let heading: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(heading, ["ADDRESS", "RACK", "ROLE", "STATE", "SINCE", "PART", "REPAIR", "NEXT", "WHY"]);
    assert_eq!(text.lines().count(), 1 + 24, "{text}");
    let line = text.lines().find(|line| line.starts_with(&format!("{address} "))).unwrap();
    for part in ["UNREACHABLE", "worker", "#3 processing 1 watching", "chosen as worker"] {
        assert!(line.contains(part), "{part:?} in {line}");
    }
    assert!(text.contains("spare: fit"), "{text}");
    // The constraints ask for more healthy workers than there are: the next plan adds one.
    assert_eq!(text.lines().filter(|line| line.contains("  add  ")).count(), 1, "{text}");

    // On a terminal of 80 columns each machine has one line, with its whole address.
    let (code, written) =
        Terminal::start(&["machine", "list", "--config", etcd.config()], 80, 24).end().await;
    assert_eq!((code, written.lines().count()), (0, 1 + 24), "{written}");
    assert!(written.lines().all(|line| line.chars().count() <= 80), "{written}");
    let line = written.lines().find(|line| line.starts_with(&format!("{address} "))).unwrap();
    assert!(line.contains("UNREACHABLE") && line.contains("worker"), "{written}");

    let shown = etcd.run(&["machine", "list", "-o", "json"]).await.json();
    let machines = shown.as_array().expect("a list is one array");
    let one = machines.iter().find(|machine| machine["address"] == *address).unwrap();
    assert_eq!((&one["state"], &one["part"]), (&json!("UNREACHABLE"), &json!("worker")));
    assert_eq!(one["repair"]["index"], "3", "{one}");
    assert_eq!(one["decided"], "2026-11-21T12:00:00Z", "the reason is stored: {one}");
    let spare = machines.iter().find(|machine| machine["part"].is_null()).unwrap();
    assert_eq!(spare["decided"], Value::Null, "the reason holds now: {spare}");
    time::OffsetDateTime::parse(
        one["since"].as_str().unwrap(),
        &time::format_description::well_known::Rfc3339,
    )
    .unwrap();
    let racks: Vec<&Value> = machines.iter().map(|machine| &machine["rack"]).collect();
    assert!(racks.is_sorted_by_key(|rack| rack.as_i64()), "{racks:?}");

    for (filter, expected) in [
        (&["--rack", "1"][..], machines.iter().filter(|it| it["rack"] == 1).count()),
        (&["--part", "control-plane"], 3),
        (&["--state", "unreachable"], 1),
        (&["--role", "storage", "--part", "none"], {
            machines.iter().filter(|it| it["role"] == "storage" && it["part"].is_null()).count()
        }),
        (&["--state", "MISSING"], 0),
    ] {
        let found = etcd.run(&[&["machine", "list", "-o", "json"], filter].concat()).await.json();
        assert_eq!(found.as_array().unwrap().len(), expected, "{filter:?}");
        assert!(expected > 0 || filter.contains(&"MISSING"), "{filter:?} selects something");
    }
    let csv = etcd.run(&["machine", "list", "-o", "csv", "--sort-by", "state"]).await.calm();
    let last = csv.lines().last().unwrap();
    assert!(csv.starts_with("address,rack,role,state,since,part,"), "{csv}");
    assert!(last.contains(",UNREACHABLE,20") && last.starts_with(&address), "{last}");
    assert!(last.ends_with(",2026-11-21T12:00:00Z") && !csv.contains(",-"), "{csv}");
    let message = etcd.run(&["machine", "list", "--sort-by", "size"]).await.refused(2);
    assert!(message.contains("no column \"size\": expected one of address, rack"), "{message}");
    let message = etcd.run(&["machine", "list", "--state", "BROKEN"]).await.refused(2);
    assert!(message.contains("expected one of UNINITIALIZED, HEALTHY"), "{message}");
    etcd.run(&["machine", "list", "-o", "json", "--watch"]).await.refused(2);

    // A node whose machine vanished stays on the list.
    let serial = registry
        .list_machines()
        .iter()
        .find(|it| it.address() == Some(&address))
        .unwrap()
        .spec
        .serial
        .clone();
    let text = etcd.run(&["machine", "show", &serial]).await.calm();
    for part in [
        format!("Serial    {serial}\n"),
        format!("Address   {address}\n"),
        "Part      worker, node ".to_owned(),
        "Why       chosen as worker".to_owned(),
        " ago, by an earlier plan\n".to_owned(),
        "#3 processing 1 watching  unreachable  bmc".to_owned(),
    ] {
        assert!(text.contains(&part), "{part:?} in\n{text}");
    }
    etcd.put("sabakan/query-variables", r#"{"having":{"states":["HEALTHY"]}}"#).await;
    let shown = etcd.run(&["machine", "list", "--state", "missing", "-o", "json"]).await.json();
    assert_eq!(shown[0]["address"], *address, "{shown}");
    let all = etcd.run(&["machine", "list", "--all", "-o", "json", "--state", "MISSING"]).await.json();
    assert_eq!(all, json!([]), "--all ignores the variables");
    let one = etcd.run(&["machine", "show", &serial, "-o", "json"]).await.json();
    assert_eq!(one["state"], "UNREACHABLE", "a machine that the query excludes is found: {one}");
    let message = etcd.run(&["machine", "show", "nobody"]).await.refused(2);
    assert!(message.contains("no machine of the registry has the serial or address nobody"), "{message}");
}

#[tokio::test]
async fn exported_machines_are_an_input_of_plans() {
    let Some((etcd, _registry, address)) = planned().await else { return };
    let file = etcd.file("machines.json", "");
    let answer = etcd.run(&["machine", "list", "--export", &file]).await;
    assert_eq!((answer.code, answer.out.as_str()), (0, ""));
    assert!(answer.err.contains("wrote 24 machines to "), "{}", answer.err);
    let template = etcd.file("template.yml", TEMPLATE);
    let constraints = etcd.file("constraints.yml", "minimum-workers: 3\n");
    let args =
        ["plan", "--template", &template, "--machines", &file, "--constraints", &constraints, "-o", "json"];
    let plan = crate::program::madako(&args).await;
    assert_eq!(plan.code, 0, "{plan:?}");
    assert_eq!(plan.json()["action"], "initialize");
    assert!(!plan.json()["changes"].to_string().contains(&address), "it is unreachable");
    let some = etcd.run(&["machine", "list", "--part", "control-plane", "--export", "-"]).await.json();
    assert_eq!(some.as_array().unwrap().len(), 3);
    assert_eq!(some[0]["status"]["state"], "HEALTHY");
    etcd.run(&["machine", "list", "--export", &file, "-o", "json"]).await.refused(2);
}

#[tokio::test]
async fn missing_inputs_are_named() {
    let Some(etcd) = Etcd::start().await else { return };
    let message = etcd.run(&["machine", "list"]).await.refused(1);
    assert!(message.contains("no URL of the registry is stored (madako sabakan set-url"), "{message}");
    let (_registry, url) = registry().await;
    etcd.run(&["sabakan", "set-url", &url]).await.calm();
    let text = etcd.run(&["machine", "list"]).await.calm();
    assert!(text.contains("no template is stored, so no machine is chosen"), "{text}");
}
