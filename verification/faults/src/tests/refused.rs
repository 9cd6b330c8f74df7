//! Tests of scenarios that are refused, with their messages.

use super::*;

/// The problems of a scenario, a line each.
fn refused(text: &str) -> Vec<String> {
    let error = Scenario::parse(text).expect_err(text);
    assert_eq!(error.subject, "scenario");
    error.problems.iter().map(ToString::to_string).collect()
}

/// The problem of a scenario with this fault.
fn refused_fault(fault: &str) -> String {
    let problems = refused(&format!("name: a\nfaults:\n- {{{fault}}}\n"));
    let [problem] = problems.as_slice() else { panic!("{fault}: one problem was expected: {problems:?}") };
    problem.strip_prefix("line 3: faults[0]").unwrap_or_else(|| panic!("{fault}: {problem}")).to_owned()
}

#[test]
fn every_problem_is_reported_with_its_line() {
    let text = "\
name: All of it
world:
  machines: 5
  racks: 50
  stores: etcd
clients:
- {kind: placement, rate: 0}
- {kind: placment, rate: fast}
faults:
- do: kil
  target: rack=1
  at: 2h
- do: kill
  target: rack=1
  at: 2
expect:
  calm_within: 1week
  at_least: {comits: 3, faults: -1}
";
    assert_eq!(
        refused(text),
        [
            "line 1: name: got \"All of it\", expected a name of at most 63 lower-case letters, digits and dashes \
             that begins with a letter and does not end with a dash",
            "line 4: world.racks: got 50, expected at most one a machine, of which there are 5",
            "line 5: world.stores: got an unknown field, expected a known field such as \"store\"",
            "line 7: clients[0].rate: got the number 0, expected requests a second, from 0.001 to 10000 in steps of 0.001",
            "line 8: clients[1].rate: got \"fast\", expected a number",
            "line 8: clients[1].kind: got \"placment\", expected one of placement, etcd-watch, registry, rivals, \
             reboots, saboteurs; \
             \"placement\", perhaps",
            "line 10: faults[0].do: got \"kil\", expected one of kill, pause, panic, cut, delay, loss, reset, disk-full, \
             clock-jump, corrupt, compact; \"kill\", perhaps",
            "line 15: faults[1].at: got the number 2, expected a duration such as 30s, 2h or 30d",
            "line 17: expect.calm_within: got \"1week\", expected a duration such as 30s, 2h or 30d",
            "line 18: expect.at_least.comits: got an unknown field, expected a known field such as \"commits\"",
            "line 18: expect.at_least.faults: got the number -1, expected a whole number from 1 to 1000000000",
        ]
    );
}

#[test]
fn a_fault_begins_in_exactly_one_way() {
    let exactly = "expected exactly one of at, every and random";
    assert_eq!(refused_fault("do: panic, target: actor=http"), format!(": {exactly}"));
    assert_eq!(
        refused_fault("do: panic, target: actor=http, at: 1m, random: {mean: 1m}"),
        format!(": got at and random, {exactly}")
    );
    assert!(
        refused_fault("do: panic, target: actor=http, random: {}")
            .starts_with(".random.mean: expected a dur")
    );
}

#[test]
fn each_duration_of_a_fault_has_its_bounds() {
    for (fault, problem) in [
        ("at: 400d, do: cut, target: registry", ".at: got \"400d\", expected from 0s to 365d"),
        ("every: 0.5s, do: reset, target: registry", ".every: got \"0.5s\", expected from 1s to 365d"),
        (
            "random: {mean: 0s}, do: reset, target: registry",
            ".random.mean: got \"0s\", expected from 1s to 365d",
        ),
        ("at: 1m, do: cut, target: registry, for: 1ms", ".for: got \"1ms\", expected from 0.1s to 365d"),
    ] {
        assert_eq!(refused_fault(fault), problem);
    }
}

#[test]
fn repeated_fault_needs_a_shorter_length_and_an_instant_fault_has_none() {
    for (fault, problem) in [
        (
            "every: 1m, do: cut, target: registry",
            ".for: expected a duration such as 30s, 2h or 30d, since a fault that repeats must end",
        ),
        (
            "random: {mean: 1m}, do: cut, target: registry",
            ".for: expected a duration such as 30s, 2h or 30d, since a fault that repeats must end",
        ),
        (
            "every: 1m, do: cut, target: registry, for: 60s",
            ".for: got 1m, expected less than 1m, after which it begins again",
        ),
        (
            "at: 1m, do: reset, target: registry, for: 1s",
            ".for: got 1s, expected no such field: reset of registry strikes once and is over",
        ),
        (
            "at: 1m, do: kill, target: actor=http, for: 1s",
            ".for: got 1s, expected no such field: kill of actor=http strikes once and is over",
        ),
    ] {
        assert_eq!(refused_fault(fault), problem);
    }
}

#[test]
fn unsuitable_target_is_refused_with_the_suitable_ones() {
    let example = |kind: TargetKind| match kind {
        TargetKind::Rack => "rack=1",
        TargetKind::Address => "10.0.0.4",
        TargetKind::Instance => "instance=1",
        TargetKind::Store => "store=1",
        TargetKind::Registry => "registry",
        TargetKind::Provider => "provider=prometheus",
        TargetKind::Actor => "actor=http",
        TargetKind::Kubelet => "kubelet=10.0.0.4",
        TargetKind::ApiServer => "kube-apiserver=10.0.0.4",
    };
    let mut pairs = 0;
    for act in Act::ALL {
        assert!(!suitable_targets(*act).is_empty(), "{act} suits nothing");
        for kind in TargetKind::ALL {
            let target = example(*kind);
            let line = format!("{act} {target} at 1m");
            if suitable_targets(*act).contains(kind) {
                assert_eq!(Fault::parse(&line).unwrap().to_string(), line);
                pairs += 1;
            } else {
                let error = Fault::parse(&line).unwrap_err().to_string();
                for fits in suitable_targets(*act) {
                    assert!(error.contains(&fits.to_string()), "{error}");
                }
            }
        }
    }
    assert_eq!(pairs, 46, "a change of the table is deliberate");
    assert_eq!(
        refused_fault("at: 1m, do: panic, target: rack=1"),
        ".target: got rack=1, expected actor=NAME for panic (to rack=N suits kill, pause, cut, delay, reset, disk-full)"
    );
}

#[test]
fn a_target_beyond_the_world_is_refused() {
    for (world, fault, problem) in [
        ("{}", "do: kill, target: rack=6", "got rack=6, expected a rack of this world, rack=0 to rack=5"),
        (
            "{}",
            "do: kill, target: instance=0",
            "got instance=0, expected an instance of this world, instance=1 to instance=3",
        ),
        (
            "{instances: 1}",
            "do: kill, target: instance=2",
            "got instance=2, expected an instance of this world, which is instance=1 alone",
        ),
        (
            "{}",
            "do: kill, target: store=2",
            "got store=2, expected a member of this world's store, which is store=1 alone",
        ),
        (
            "{store: etcd}",
            "do: kill, target: store=4",
            "got store=4, expected a member of this world's store, store=1 to store=3",
        ),
        (
            "{clusters: 0, applications: 0}",
            "do: panic, target: actor=app-scheduler",
            "got actor=app-scheduler, expected clusters or applications in this world: without them this actor does not run",
        ),
        (
            "{}",
            "do: panic, target: actor=operation-runner",
            "got actor=operation-runner, expected operations: act in this world: without operations on nodes this actor \
             does not run",
        ),
        (
            "{operations: none}",
            "do: disk-full, target: rack=1",
            "got rack=1, expected operations: act in this world: without nodes, disk-full of machines has no effect",
        ),
        (
            "{operations: act}",
            "do: disk-full, target: rack=6",
            "got rack=6, expected a rack of this world, rack=0 to rack=5",
        ),
        (
            "{operations: act}",
            "do: kill, target: kubelet=10.0.0.4",
            "got kubelet=10.0.0.4, expected operations: kubernetes in this world: otherwise no component of Kubernetes runs \
             on a node",
        ),
        (
            "{clusters: 0, applications: 0}",
            "do: corrupt, target: provider=p",
            "got provider=p, expected clusters or applications in this world: without them no metrics are asked for",
        ),
    ] {
        let text = format!("name: a\nworld: {world}\nfaults:\n- {{at: 1m, {fault}}}\n");
        assert_eq!(refused(&text), [format!("line 4: faults[0].target: {problem}")]);
    }
    // With an invalid world there is nothing to compare with.
    assert_eq!(
        refused("name: a\nworld: {racks: none}\nfaults: [{at: 1m, do: kill, target: rack=900}]").len(),
        1
    );
    let mut scenario = Scenario::parse("name: a").unwrap();
    let fault: Fault = "kill rack=6 at 1m".parse().unwrap();
    let error = scenario.add(fault).unwrap_err().to_string();
    assert!(
        error.contains("\"kill rack=6 at 1m\" is not valid; target: got rack=6, expected a rack"),
        "{error}"
    );
    assert!(scenario.faults.is_empty());
    scenario.world.racks = 0;
    let error = scenario.add("kill rack=0 at 1m".parse().unwrap()).unwrap_err().to_string();
    assert!(error.contains("expected a rack of this world, which has none"), "{error}");
    scenario.world.racks = 6;
    scenario.add("kill rack=5 at 1m".parse().unwrap()).unwrap();
}

#[test]
fn words_that_are_not_targets_are_refused_with_a_hint() {
    for (target, expected) in [
        ("rak=1", "actor=NAME, kubelet=ADDRESS, kube-apiserver=ADDRESS; \"rack\", perhaps"),
        ("kubelet=4", "kubelet=ADDRESS, such as kubelet=10.0.0.4"),
        ("kube-apiserver", "kube-apiserver=ADDRESS, such as kube-apiserver=10.0.0.4"),
        ("rack", "rack=N, such as rack=12"),
        ("rack=01", "rack=N, such as rack=12"),
        ("rack=+1", "rack=N, such as rack=12"),
        ("rack=4294967296", "rack=N, such as rack=12"),
        ("instance=follower", "instance=leader, or instance=N"),
        ("actor=scheduler", "app-scheduler"),
        ("actor=leadr", "\"leader\", perhaps"),
        ("provider=Prometheus", "provider=NAME with a name of at most 63"),
        ("10.0.0.256", "one of rack=N, an IP address"),
        ("registry=1", "one of rack=N"),
    ] {
        let problem = refused_fault(&format!("at: 1m, do: kill, target: {target}"));
        assert!(problem.starts_with(".target: got \"") && problem.contains(expected), "{target}: {problem}");
    }
}

#[test]
fn expectations_that_nothing_could_meet_are_refused() {
    assert_eq!(
        refused("name: a\nexpect: {at_least: {faults: 1, failed_client_calls: 2}}"),
        [
            "line 2: expect.at_least.faults: got 1, expected faults in the scenario",
            "line 2: expect.at_least.failed_client_calls: got 2, expected clients in the scenario, whose calls could fail",
        ]
    );
}

#[test]
fn lists_are_bounded_and_a_kind_of_clients_is_there_once() {
    let many = "- {at: 1s, do: reset, target: registry}\n".repeat(101);
    assert_eq!(
        refused(&format!("name: a\nfaults:\n{many}")),
        ["line 2: faults: got 101 of them, expected at most 100"]
    );
    assert_eq!(
        refused("name: a\nclients:\n- {kind: registry, rate: 1}\n- {kind: registry, rate: 2}\n"),
        ["line 4: clients[1].kind: got registry, expected a kind that no other entry has"]
    );
    let long = format!("name: a\n#{}", " ".repeat(MAX_BYTES));
    assert!(refused(&long)[0].contains("bytes, expected at most 262144 bytes"));
}

#[test]
fn malformed_scenario_is_refused_with_its_line() {
    assert!(refused("name: a\nfaults: [\n")[0].contains("line"), "{:?}", refused("name: a\nfaults: [\n"));
    let twice = refused("name: a\nname: b\n");
    assert_eq!(
        twice,
        ["got \"name\" for the second time at line 2, column 1, expected one YAML or JSON document"]
    );
}

#[test]
fn a_line_of_another_form_is_refused_with_the_form() {
    for text in [
        "",
        "kill",
        "kill rack=1",
        "kill rack=1 1h",
        "kill rack=1 random 1h",
        "kill rack=1 at 1h 30m",
        "kill rack=1 at 1h for",
    ] {
        let error = Fault::parse(text).unwrap_err().to_string();
        assert!(error.contains("expected DO TARGET at|every DURATION [for DURATION]"), "{text}: {error}");
    }
    let error = Fault::parse("kil rack=x every 1h for 2h").unwrap_err();
    let fields: Vec<&str> = error.problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(fields, ["do", "target"]);
    assert!(Fault::parse(&"kill ".repeat(1_000)).is_err());
}
