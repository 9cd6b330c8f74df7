//! Tests of `madako config example`, `config check` and `template example`: each example is accepted unchanged.

use serde_json::Value;

use crate::program::{Files, madako};

#[tokio::test]
async fn each_example_of_a_configuration_is_valid() {
    let files = Files::new();
    for (purpose, parts) in [
        ("single", ["Store       embedded, in /var/lib/madako\n", "Placement   off\n"]),
        ("etcd", ["Store       etcd at http://127.0.0.1:2379\n", "Operations  off\n"]),
        ("placement", ["Store       embedded, in /var/lib/madako\n", "Placement   on\n"]),
        ("repair", ["API server  none\n", "Placement   off\n"]),
    ] {
        let example = madako(&["config", "example", "--for", purpose]).await.calm();
        assert!(example.starts_with("# "), "an example begins with its purpose: {example}");
        let file = files.write("config.yml", &example);
        let output = madako(&["config", "check", &file]).await.calm();
        assert!(output.starts_with(&format!("{file} is valid.\n")), "{output}");
        for part in parts {
            assert!(output.contains(part), "{purpose}: {part:?} in {output}");
        }
        // A commented setting may be uncommented: the key is known.
        for line in example.lines().filter_map(|line| line.trim_start().strip_prefix("#   ")) {
            let key = line.split(':').next().unwrap();
            let documented = include_str!("../../../../docs/GUIDE.md");
            let known = documented.contains(&format!("`{key}`")) || documented.contains(&format!("`{key}."));
            assert!(known || documented.contains(&format!(".{key}.")), "{key} in {purpose}");
        }
    }
    assert_eq!(
        madako(&["config", "example"]).await.calm(),
        madako(&["config", "example", "--for", "single"]).await.calm()
    );
}

#[tokio::test]
async fn a_check_names_every_problem() {
    let files = Files::new();
    let file = files.write("config.yml", "prefix: [3]\nendpoint: [a]\ntimeout: 0s\n");
    let message = madako(&["config", "check", &file]).await.refused(2);
    for field in ["prefix", "endpoint", "timeout"] {
        assert!(message.contains(field), "{field} in {message}");
    }
    let message = madako(&["config", "check", &files.path("missing.yml")]).await.refused(2);
    assert!(message.contains("cannot read the configuration file"), "{message}");
    let file = files.write("config.yml", "username: u\n");
    let answer = madako(&["config", "check", &file]).await;
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.err.contains("warning: "), "{answer:?}");
}

#[tokio::test]
async fn each_example_of_a_template_gives_a_cluster() {
    let files = Files::new();
    let machine = |index: u32, role: &str| {
        serde_json::json!({
            "spec": {
                "serial": format!("s{index}"), "rack": index % 3, "indexInRack": index, "role": role,
                "ipv4": [format!("10.0.0.{index}")], "registerDate": "2026-01-01T00:00:00Z",
                "retireDate": "2031-01-01T00:00:00Z", "bmc": {"bmcType": "IPMI-2.0"},
            },
            "status": {"state": "HEALTHY", "duration": 1000.0},
        })
    };
    let machines: Vec<Value> =
        (1..=9).map(|index| machine(index, if index > 6 { "storage" } else { "compute" })).collect();
    let machines = files.write("machines.json", serde_json::to_string(&machines).unwrap());
    let constraints = files.write("constraints.yml", "control-plane-count: 3\nminimum-workers: 3\n");
    for (purpose, procedures) in [("cluster", 0), ("repair", 1), ("simulated", 1)] {
        let example = madako(&["template", "example", "--for", purpose]).await.calm();
        if let Some(at) = example.find("# Procedures for repairs") {
            assert!(
                include_str!("../../../../docs/GUIDE.md").contains(&example[at..]),
                "the guide has the section"
            );
        }
        let template = files.write("template.yml", &example);
        let args = [
            "plan",
            "--template",
            &template,
            "--machines",
            &machines,
            "--constraints",
            &constraints,
            "-o",
            "json",
        ];
        let answer = madako(&args).await;
        assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{answer:?}");
        let cluster = &answer.json()["cluster"];
        assert_eq!(cluster["nodes"].as_array().unwrap().len(), 6, "{cluster}");
        let found = cluster["repair"]["repair_procedures"].as_array().map_or(0, Vec::len);
        assert_eq!(found, procedures, "{cluster}");
    }
}

/// The health check of the example runs as the service runs it: with the address as its last argument.
#[tokio::test]
async fn the_commands_of_the_example_are_shell_that_runs() {
    let example = madako(&["template", "example", "--for", "repair"]).await.calm();
    let template: Value = serde_saphyr::from_str(&example).unwrap();
    let operation = &template["repair"]["repair_procedures"][0]["repair_operations"][0];
    let steps = operation["repair_steps"].as_array().unwrap();
    let commands =
        steps.iter().map(|step| &step["repair_command"]).chain([&operation["health_check_command"]]);
    for command in commands {
        let words: Vec<&str> =
            command.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        if let ["sh", "-c", script] = words.as_slice() {
            let checked =
                std::process::Command::new("sh").args(["-n", "-c", script, "10.0.0.1"]).output().unwrap();
            assert!(checked.status.success(), "{script}: {checked:?}");
            assert!(script.contains("\"$0\""), "the address is used: {script}");
        }
    }
}

#[tokio::test]
async fn the_health_check_of_the_example_needs_a_listener_and_fails_without_its_tools() {
    let example = madako(&["template", "example", "--for", "repair"]).await.calm();
    let template: Value = serde_saphyr::from_str(&example).unwrap();
    let operation = &template["repair"]["repair_procedures"][0]["repair_operations"][0];
    let script = operation["health_check_command"][2].as_str().unwrap();
    let check = |port: u16, path: &str| {
        let script = script.replace("/22'", &format!("/{port}'"));
        assert!(script.contains(&port.to_string()), "{script}");
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", &script, "127.0.0.1"]).env("PATH", path).output().unwrap()
    };
    let tools = std::env::var("PATH").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    assert_eq!(String::from_utf8_lossy(&check(port, &tools).stdout), "true\n");
    let without_tools = check(port, "/nowhere");
    assert!(!without_tools.status.success() && without_tools.stdout.is_empty(), "{without_tools:?}");
    drop(listener);
    assert_eq!(String::from_utf8_lossy(&check(port, &tools).stdout), "false\n");
}
