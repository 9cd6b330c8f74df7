//! Tests of the program `madako-chaos` from outside: its output and its exit codes.

#![allow(clippy::unwrap_used, reason = "tests: clippy.toml's exceptions do not reach their helpers")]

mod started;

use std::io::Write as _;

use serde_json::Value;
use started::{Ended, program, start};

/// Exit code, standard output and standard error of a run with this input.
fn run(args: &[&str], input: &str) -> (i32, String, String) {
    let mut program = program();
    program.args(args);
    let Ended { code, out, errors } = start(program, input).ended();
    (code, out, errors)
}

#[test]
fn the_scenarios_that_ship_are_listed() {
    let (code, table, errors) = run(&["scenarios", "--list"], "");
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(table.starts_with("NAME ") && table.contains("\nrack-power-loss "), "{table}");
    let (code, json, _) = run(&["scenarios", "--list", "-o", "json"], "");
    let json: Value = serde_json::from_str(&json).unwrap();
    let listed = json.as_array().unwrap();
    assert_eq!((code, listed.len()), (0, table.lines().count() - 1));
    for one in listed {
        assert!(table.contains(one["shows"].as_str().unwrap()), "{one}");
        // The listed text is a valid scenario.
        let (code, again, errors) =
            run(&["scenarios", "--check", "-", "-o", "json"], &one["scenario"].to_string());
        assert_eq!((code, errors.as_str()), (0, ""));
        assert_eq!(serde_json::from_str::<Value>(&again).unwrap(), one["scenario"]);
    }
}

#[test]
fn a_valid_scenario_file_is_printed_as_parsed() {
    let text = "name: mine\nworld: {store: etcd}\nclients: [{kind: etcd-watch, rate: 0.5}]\n\
                faults:\n- {every: 90s, do: kill, target: instance=leader, for: 30s}\n\
                expect: {at_least: {leader_changes: 2}}\n";
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let (code, out, errors) = run(&["scenarios", "--check", file.path().to_str().unwrap()], "");
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(
        out,
        "PART                            IS\n\
         name                            mine\n\
         world.instances                 3\n\
         world.machines                  60 in 6 racks\n\
         world.applications              30 for 4 clusters\n\
         world.store                     etcd, members: 3\n\
         clients[0]                      etcd-watch, 0.5 requests a second\n\
         faults[0]                       kill instance=leader every 1m30s for 30s\n\
         expect.calm_within              as the settings allow\n\
         expect.at_least.leader_changes  2\n"
    );
}

#[test]
fn an_invalid_scenario_file_is_refused_with_its_lines() {
    let text = "name: mine\nfaults:\n- {at: 1h, do: panic, target: rack=12}\n- {at: 1h, do: kill, target: rack=12}\n";
    let (code, out, errors) = run(&["scenarios", "--check", "-"], text);
    assert_eq!((code, out.as_str()), (2, ""));
    assert_eq!(
        errors,
        "madako-chaos: standard input: scenario is not valid:\n  \
         line 3: faults[0].target: got rack=12, expected actor=NAME for panic (to rack=N suits kill, pause, cut, delay, reset, disk-full)\n  \
         line 4: faults[1].target: got rack=12, expected a rack of this world, rack=0 to rack=5\n"
    );
    let (code, out, errors) = run(&["scenarios", "--check", "-"], "name: [");
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(errors.contains("line 1"), "{errors}");
}

#[test]
fn unreadable_files_and_unknown_flags_are_bad_input() {
    for args in [
        &["scenarios", "--check", "/nowhere/at-all.yml"][..],
        &["scenarios"],
        &["simulate", "--sede"],
        &["--sede"],
    ] {
        let (code, out, errors) = run(args, "");
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {errors}");
        assert!(errors.starts_with("madako-chaos: ") && !errors.contains("panicked"), "{args:?}: {errors}");
    }
    let (code, _, errors) = run(&["scenarios", "--check", "-"], &"#".repeat(1 << 19));
    assert_eq!(
        (code, errors.as_str()),
        (2, "madako-chaos: standard input cannot be read: longer than 262144 bytes\n")
    );
    let (code, help, _) = run(&["help", "scenarios"], "");
    assert!(code == 0 && help.contains("madako-chaos scenarios --list"), "{help}");
    // Without a command the program prints its help as an error.
    let (code, _, _) = run(&[], "");
    assert_eq!(code, 2);
}

#[test]
fn exit_code_and_report_of_a_simulation_agree() {
    /// A world that exercises every invariant, with further lines.
    fn scenario(more: &str) -> String {
        format!(
            "name: small\nworld: {{instances: 2, machines: 20, racks: 4, clusters: 2, applications: 5}}\n{more}"
        )
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let simulate = |more: &str, words: &[&str]| {
        let words = [&["simulate", "--scenario", "-", "--for", "5m", "--shrink-for", "0s"], words].concat();
        run(&words, &scenario(more))
    };

    let (trace, report) = (path("trace"), path("report"));
    let (code, text, errors) = simulate("", &["--seed", "5", "--trace", &trace, "--report", &report]);
    assert_eq!(code, 0, "{text}{errors}");
    assert!(text.starts_with("passed: 5m of scenario small, seed 5\n"), "{text}");
    let lines = std::fs::read_to_string(&trace).unwrap().lines().count();
    assert!(lines > 50, "{lines} lines of trace");
    assert!(std::fs::read_dir(&report).unwrap().count() > 0, "there is a report");

    // One fault is drawn and reported, which is too few.
    let little =
        "faults:\n- {random: {mean: 30s}, do: reset, target: registry}\nexpect: {at_least: {faults: 100}}\n";
    let (code, text, errors) = simulate(little, &["--seed", "5"]);
    assert_eq!(code, 1, "{text}{errors}");
    assert!(text.contains("drawn: faults[0] pauses for "), "{text}");
    assert!(text.contains("Repeat with: madako-chaos simulate --scenario - --seed 5 --for 5m\n"), "{text}");

    let away = "faults:\n- {at: 1m, do: kill, target: provider=influx, for: 30s}\n";
    let (code, json, errors) = simulate(away, &["--seed", "5", "-o", "json"]);
    assert_eq!(code, 3, "{errors}");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["passed"], &json["seed"]), (&false.into(), &5.into()));
}
