//! Tests of configuration files, addresses and flags: problems are reported before anything starts.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::krakectl::{Server, json_said};
use crate::program::{CLUSTER, Etcd, Files, command, madako};
use crate::running::registry;

#[tokio::test]
async fn invalid_file_is_reported_in_one_message_before_the_start() {
    let files = Files::new();
    let data = files.path("data");
    let wrong = files.write(
        "wrong.yml",
        format!("endpoints: [x]\npassword: yes\nfoo: 1\nembedded: {{data-dir: {data}, lisen: a}}\n"),
    );
    for args in [&["leader"][..], &["serve"], &["plan"], &["what-if", "--lose", "rack=1"]] {
        let message = madako(&[&["--config", wrong.as_str()], args].concat()).await.refused(2);
        for part in [
            "endpoints[0]: got \"x\"",
            "password: got a boolean",
            "foo: got an unknown field",
            "embedded.lisen",
        ] {
            assert!(message.contains(part), "{args:?}: {part:?} is not in {message}");
        }
    }
    assert!(!std::path::Path::new(&data).exists());

    let secret = files.write("secret.yml", "username: u\npassword: hunter2\n");
    std::fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    let message = madako(&["--config", &secret, "leader"]).await.refused(2);
    assert!(message.contains("got 0644") && !message.contains("hunter2"), "{message}");

    let missing = files.path("missing.yml");
    let message = madako(&["leader", "--config", &missing]).await.refused(2);
    assert!(message.contains("missing.yml: No such file"), "{message}");
}

#[tokio::test]
async fn silent_store_is_reported() {
    // Bound without accepting: connections hang. Closed: they are refused.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = crate::program::free_port();
    for port in [hanging.local_addr().unwrap().port(), closed] {
        let files = Files::new();
        let config = files.write("c.yml", format!("endpoints: [http://127.0.0.1:{port}]\ntimeout: 300ms\n"));
        for args in [
            &["leader"][..],
            &["cluster", "get"],
            &["sabakan", "disable"],
            &["plan"],
            &["resource", "status"],
            &["reboot-queue", "explain"],
            &["vault", "enckey"],
        ] {
            let message = madako(&[&["--config", config.as_str()], args].concat()).await.refused(1);
            assert!(message.contains("that the store runs"), "{args:?}: {message}");
            assert!(message.contains(&format!("127.0.0.1:{port}")), "{args:?}: {message}");
        }
    }
}

#[tokio::test]
async fn listen_address_in_use_is_named_in_the_error() {
    let files = Files::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let data = files.path("data");
    let config = files.write("c.yml", format!("embedded: {{data-dir: {data}, listen: '{address}'}}\n"));
    let answer = madako(&["serve", "--config", &config, "--http", "127.0.0.1:0"]).await;
    assert_eq!(answer.code, 1, "{}", answer.err);
    assert!(answer.err.contains(&format!("{address} is taken by another program")), "{}", answer.err);
    assert!(!std::path::Path::new(&data).exists(), "no file is made for a store that does not start");
}

#[tokio::test]
async fn failed_start_names_the_reason_of_the_system_once() {
    let files = Files::new();
    let listen = format!("127.0.0.1:{}", crate::program::free_port());
    let below_a_file = files.write("file", "") + "/data";
    let config =
        files.write("c.yml", format!("embedded: {{data-dir: {below_a_file}, listen: '{listen}'}}\n"));
    let answer = madako(&["serve", "--config", &config, "--http", "127.0.0.1:0"]).await;
    assert_eq!(answer.code, 1, "{}", answer.err);
    assert_eq!(answer.err.matches("Not a directory").count(), 1, "{}", answer.err);

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let http = taken.local_addr().unwrap().to_string();
    let config =
        files.write("d.yml", format!("embedded: {{data-dir: {}, listen: '{listen}'}}\n", files.path("data")));
    let answer = madako(&["serve", "--config", &config, "--http", &http]).await;
    assert_eq!(answer.code, 1, "{}", answer.err);
    let expected = format!(
        "cannot serve the pages for health, version and metrics on the address of `--http`: the HTTP server \
         cannot listen on {http}: Address already in use"
    );
    assert!(answer.err.contains(&expected), "{}", answer.err);
    assert_eq!(answer.err.matches("cannot listen on").count(), 1, "{}", answer.err);
}

#[tokio::test]
async fn prefix_and_user_are_those_of_the_file() {
    let Some(etcd) = Etcd::start().await else { return };
    let text = std::fs::read_to_string(etcd.config()).unwrap();
    let other = etcd.file("other.yml", format!("{text}prefix: /other/\n"));
    madako(&["--config", &other, "sabakan", "set-url", "http://10.0.0.2"]).await.calm();
    etcd.run(&["sabakan", "get-url"]).await.refused(1);
    // With endpoints, clients ignore the section of the embedded store.
    let beside =
        etcd.file("beside.yml", format!("{text}prefix: /other/\nembedded: {{listen: '127.0.0.1:1'}}\n"));
    assert_eq!(
        madako(&["--config", &beside, "sabakan", "get-url"]).await.calm(),
        "http://10.0.0.2/graphql\n"
    );
}

#[tokio::test]
async fn usage_errors_exit_with_2_and_help_with_0() {
    for args in [
        &["no-such"][..],
        &["cluster"],
        &["cluster", "set"],
        &["leader", "extra"],
        &["serve", "--interval", "5"],
        &[],
    ] {
        let answer = madako(args).await;
        assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{args:?}");
        assert!(!answer.err.is_empty());
        // An incomplete command gets the help; a wrong one gets an error.
        let is_help = args.is_empty() || args == ["cluster"];
        assert_eq!(answer.err.starts_with("madako: "), !is_help, "{args:?}: {}", answer.err);
        assert!(!answer.err.contains("error: "), "{}", answer.err);
    }
    for args in [&["--help"][..], &["help", "sabakan", "set-variables"], &["plan", "-h"], &["--version"]] {
        let answer = madako(args).await;
        assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{args:?}");
        assert!(!answer.out.is_empty() && !answer.out.contains('\u{1b}'));
    }
}

#[tokio::test]
async fn completions_are_scripts_that_ask_the_program() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = madako(&["completion", shell]).await.calm();
        assert!(script.contains("MADAKO_COMPLETE"), "{shell}: {script}");
    }
    let files = Files::new();
    let script = files.write("completion", madako(&["completion"]).await.calm());
    let mut bash = tokio::process::Command::new("bash");
    let status = bash.args(["-n", &script]).status().await.unwrap();
    assert!(status.success());
}

/// The completions of the last word of a line, as bash requests them.
async fn completed(words: &[&str]) -> Vec<String> {
    let last = words.len().to_string();
    let mut command = command(&[&["--", "madako"], words].concat());
    command.env("MADAKO_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", last).env("_CLAP_IFS", "\n");
    command.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_COMPLETE_SPACE", "true");
    let output = command.output().await.unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.trim().to_owned()).collect()
}

#[tokio::test]
async fn words_and_live_names_are_completed() {
    assert!(completed(&["sabakan", "confirm"]).await.contains(&"confirm-removal".to_owned()));
    let constraints = completed(&["constraints", "set", "minimum-w"]).await;
    assert!(constraints.contains(&"minimum-workers".to_owned()), "{constraints:?}");
    assert_eq!(completed(&["images", "set", "etcd=a:1", "unb"]).await, ["unbound=", "unbound_exporter="]);
    assert_eq!(completed(&["machine", "list", "--state", "UNR"]).await, ["UNREACHABLE"]);
    let scenarios = completed(&["rehearse", "--scenario", "rack-p"]).await;
    assert!(scenarios.contains(&"rack-power-loss".to_owned()), "{scenarios:?}");

    assert_eq!(completed(&["machine", "list", "--sort-by", "re"]).await, ["repair", "retire-date"]);
    assert_eq!(completed(&["kube", "app", "list", "--sort-by", "sc"]).await, ["score"]);

    let items = json!({"items": [{"metadata": {"name": "echo"}}, {"metadata": {"name": "mail"}}]});
    let server = Server::answering(vec![json_said(200, &items); 3]).await;
    let config = server.files.path("krakectl.yaml");
    assert_eq!(completed(&["core", "globalmetric", "delete", "--config", &config, "e"]).await, ["echo"]);
    assert_eq!(completed(&["kube", "--config", &config, "app", "get", "e"]).await, ["echo"]);
    let clusters = completed(&["kube", "cluster", "get", "-n", "other", "--config", &config, ""]).await;
    assert!(clusters.contains(&"mail".to_owned()), "{clusters:?}");
    assert_eq!(
        server.lines(),
        [
            "GET /core/globalmetrics",
            "GET /kubernetes/namespaces/system:admin/applications",
            "GET /kubernetes/namespaces/other/clusters"
        ]
    );

    let Some(etcd) = Etcd::start().await else { return };
    etcd.run(&["cluster", "set", &etcd.file("cluster.yml", CLUSTER)]).await.calm();
    etcd.put("resource/Namespace/a", "kind: Namespace").await;
    let keys = completed(&["--config", etcd.config(), "resource", "get", "Name"]).await;
    assert_eq!(keys, ["Namespace/a"]);
    let nodes = completed(&["--config", etcd.config(), "node", "show", "10."]).await;
    assert_eq!(nodes, ["10.0.0.1", "10.0.0.2"]);
    let members = completed(&["--config", etcd.config(), "etcd", "restart", "10."]).await;
    assert_eq!(members, ["10.0.0.1"], "a control plane node");
    etcd.run_fed(&["reboot-queue", "add", "-"], b"10.0.0.2").await.calm();
    let queued = completed(&["--config", etcd.config(), "reboot-queue", "explain", "10."]).await;
    assert_eq!(queued, ["10.0.0.2"]);
    let entries = completed(&["--config", etcd.config(), "reboot-queue", "cancel", "0"]).await;
    assert_eq!(entries, ["0"]);
    etcd.put("madako/repair/holds/3", "{}").await;
    let racks = completed(&["--config", etcd.config(), "repair-queue", "release", "3"]).await;
    assert_eq!(racks, ["3"]);
    // Without an answer there are no names, and nothing disturbs the line.
    assert!(completed(&["--config", etcd.config(), "machine", "show", "1"]).await.is_empty());
    let (_registry, url) = registry().await;
    etcd.run(&["sabakan", "set-url", &url]).await.calm();
    let machines = completed(&["--config", etcd.config(), "machine", "show", "10."]).await;
    assert!(machines.len() >= 24, "the addresses: {machines:?}");
    let roles = completed(&["--config", etcd.config(), "machine", "list", "--role", "st"]).await;
    assert_eq!(roles, ["storage"]);
    let selectors = completed(&["--config", etcd.config(), "what-if", "--lose", "r"]).await;
    for selector in ["rack=1", "role=compute", "role=storage"] {
        assert!(selectors.contains(&selector.to_owned()), "{selector}: {selectors:?}");
    }
    let removed = completed(&["--config", etcd.config(), "what-if", "--remove", "10."]).await;
    // Boot servers are no nodes, so no plan loses them.
    assert!(!removed.is_empty() && removed.iter().all(|it| machines.contains(it)), "{removed:?}");
}

#[tokio::test]
async fn logs_go_where_the_flags_say() {
    let files = Files::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    let data = files.path("data");
    let config = files.write(
        "c.yml",
        format!("embedded: {{data-dir: {data}, listen: '{listen}'}}\noperations: {{mode: off}}\n"),
    );
    let log = files.path("log");
    let args = [
        "serve",
        "--config",
        &config,
        "--http",
        "127.0.0.1:0",
        "--debug-sabakan",
        "--logformat",
        "json",
        "--logfile",
        &log,
    ];
    let output = command(&args).output().await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let lines = std::fs::read_to_string(&log).unwrap();
    let warning: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!((warning["topic"].as_str(), warning["severity"].as_str()), (Some("madako"), Some("warning")));
    assert_eq!(warning["message"], "--debug-sabakan has no effect yet");
    assert_eq!(lines.matches("has no effect yet").count(), 1, "one warning: {lines}");

    let message = madako(&["leader", "--logfile", "/nonexistent/log"]).await.refused(2);
    assert!(message.contains("--logfile"), "{message}");
}
