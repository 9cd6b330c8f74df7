//! Tests of the command line of `madako`: every command has a valid example, and docs/commands.md documents every
//! command and option.

mod reference;

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use clap::Command as Words;

use super::*;
use crate::output::Format;

/// Every command that does something, with its words.
fn leaves() -> Vec<(Vec<String>, Words)> {
    fn walk(words: Vec<String>, command: &Words, found: &mut Vec<(Vec<String>, Words)>) {
        // A group without its subcommands shows its help, unless it does something itself.
        let is_group = command.has_subcommands() && command.get_positionals().next().is_none();
        if !is_group || !command.is_arg_required_else_help_set() {
            found.push((words.clone(), command.clone()));
        }
        for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
            walk([words.clone(), vec![inner.get_name().to_owned()]].concat(), inner, found);
        }
    }
    let mut command = Cli::command();
    command.build();
    let mut found = Vec::new();
    walk(vec!["madako".to_owned()], &command, &mut found);
    found
}

/// The examples in a help text.
fn examples(command: &Words) -> Vec<String> {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix("  ")).map(str::to_owned).collect()
}

fn parsed(line: &str) -> Result<Cli, clap::Error> {
    Cli::read(line.split_whitespace())
}

#[test]
fn the_clap_definition_is_consistent() {
    accept_negative_values(Cli::command()).debug_assert();
}

#[test]
fn command_words_are_those_of_ckecli_krakectl_and_madako() {
    let words: Vec<String> = leaves().into_iter().map(|(words, _)| words[1..].join(" ")).collect();
    assert_eq!(
        words,
        [
            "serve",
            "demo",
            "plan",
            "what-if",
            "rehearse",
            "cluster get",
            "cluster set",
            "constraints show",
            "constraints set",
            "sabakan enable",
            "sabakan disable",
            "sabakan is-enabled",
            "sabakan set-url",
            "sabakan get-url",
            "sabakan set-template",
            "sabakan get-template",
            "sabakan set-variables",
            "sabakan get-variables",
            "sabakan confirm-removal",
            "repair-queue enable",
            "repair-queue disable",
            "repair-queue is-enabled",
            "repair-queue add",
            "repair-queue list",
            "repair-queue delete",
            "repair-queue delete-finished",
            "repair-queue delete-unfinished",
            "repair-queue reset-backoff",
            "repair-queue explain",
            "repair-queue release",
            "reboot-queue enable",
            "reboot-queue disable",
            "reboot-queue is-enabled",
            "reboot-queue add",
            "reboot-queue list",
            "reboot-queue cancel",
            "reboot-queue cancel-all",
            "reboot-queue reset-backoff",
            "reboot-queue explain",
            "reboot-queue forecast",
            "reboot-queue release",
            "resource list",
            "resource get",
            "resource set",
            "resource delete",
            "resource status",
            "resource diff",
            "auto-repair enable",
            "auto-repair disable",
            "auto-repair is-enabled",
            "auto-repair set-variables",
            "auto-repair get-variables",
            "auto-repair plan",
            "ops",
            "ops plan",
            "ops diff",
            "machine list",
            "machine show",
            "node list",
            "node show",
            "ca init",
            "ca get",
            "ca set",
            "etcd issue",
            "etcd root-issue",
            "etcd user-add",
            "etcd local-backup",
            "etcd restart",
            "etcd restore",
            "images",
            "images list",
            "images set",
            "images adopt",
            "vault init",
            "vault config",
            "vault ssh-privkey",
            "vault enckey",
            "ssh",
            "ssh forget",
            "ssh key set",
            "scp",
            "leader",
            "status",
            "doctor",
            "history",
            "kube app list",
            "kube app create",
            "kube app get",
            "kube app update",
            "kube app delete",
            "kube app retry",
            "kube app explain",
            "kube cluster list",
            "kube cluster register",
            "kube cluster create",
            "kube cluster get",
            "kube cluster update",
            "kube cluster delete",
            "kube cluster set-state",
            "kube issue",
            "kube status",
            "kube plan",
            "kube pause",
            "kube resume",
            "kube rotate-encryption-key",
            "infra provider list",
            "infra provider register",
            "infra provider get",
            "infra provider update",
            "infra provider delete",
            "infra globalprovider list",
            "infra globalprovider register",
            "infra globalprovider get",
            "infra globalprovider update",
            "infra globalprovider delete",
            "infra cloud list",
            "infra cloud register",
            "infra cloud get",
            "infra cloud update",
            "infra cloud delete",
            "infra globalcloud list",
            "infra globalcloud register",
            "infra globalcloud get",
            "infra globalcloud update",
            "infra globalcloud delete",
            "os project list",
            "os project create",
            "os project get",
            "os project update",
            "os project delete",
            "os cluster list",
            "os cluster create",
            "os cluster get",
            "os cluster update",
            "os cluster delete",
            "core metric list",
            "core metric create",
            "core metric get",
            "core metric update",
            "core metric delete",
            "core globalmetric list",
            "core globalmetric create",
            "core globalmetric get",
            "core globalmetric update",
            "core globalmetric delete",
            "core metricsprovider list",
            "core metricsprovider create",
            "core metricsprovider get",
            "core metricsprovider update",
            "core metricsprovider delete",
            "core globalmetricsprovider list",
            "core globalmetricsprovider create",
            "core globalmetricsprovider get",
            "core globalmetricsprovider update",
            "core globalmetricsprovider delete",
            "core role list",
            "core role create",
            "core role get",
            "core role update",
            "core role delete",
            "core rolebinding list",
            "core rolebinding create",
            "core rolebinding get",
            "core rolebinding update",
            "core rolebinding delete",
            "store verify",
            "store snapshot",
            "store restore",
            "bootstrap",
            "config example",
            "config check",
            "template example",
            "completion",
            "man",
        ]
    );
}

#[test]
fn every_command_has_an_example_and_each_is_valid() {
    for (words, command) in leaves() {
        let examples = examples(&command);
        assert!(!examples.is_empty(), "{words:?} has no example");
        for example in examples {
            // Variables of the environment may come first.
            let command = example.find("madako ").unwrap_or_default();
            let example = &example[command..];
            assert!(example.starts_with(&words.join(" ")), "{example:?} is not an example of {words:?}");
            let without_redirection = example.split(['<', '>']).next().unwrap_or(example);
            if let Err(error) = parsed(without_redirection) {
                panic!("{example:?} is not valid: {error}");
            }
        }
    }
}

#[test]
fn serve_has_the_flags_of_cke_with_its_defaults() {
    let Ok(Cli { command: Command::Serve(args), global }) = parsed("madako serve") else { panic!() };
    assert_eq!(global.config, None);
    assert_eq!(
        format!("{args:?}"),
        "ServeArgs { http: 0.0.0.0:10180, interval: 60s, session_ttl: 60s, otlp_endpoint: None, max_concurrent_updates: 10, \
         certs_gc_interval: 3600s, debug_sabakan: None, simulated: None, without_telemetry: false }"
    );
    let line = "madako serve --config=c.yml --http :80 --interval 1m30s --session-ttl 2.9s --max-concurrent-updates 3 \
                --certs-gc-interval 2h --debug-sabakan --loglevel crit --logformat logfmt --logfile l";
    let Ok(Cli { command: Command::Serve(args), global }) = parsed(line) else { panic!() };
    assert_eq!(
        format!("{args:?}"),
        "ServeArgs { http: 0.0.0.0:80, interval: 90s, session_ttl: 2.9s, otlp_endpoint: None, max_concurrent_updates: 3, \
         certs_gc_interval: 7200s, debug_sabakan: Some(true), simulated: None, without_telemetry: false }"
    );
    assert_eq!(
        format!("{:?}", global.log),
        "LogArgs { loglevel: Some(Critical), logformat: Logfmt, logfile: Some(\"l\") }"
    );
    for wrong in [
        "--interval 60",
        "--interval 0s",
        "--interval=-1s",
        "--session-ttl 900ms",
        "--max-concurrent-updates 0",
        "--max-concurrent-updates ten",
        "--certs-gc-interval 0s",
        "--http 10180",
        "--http 1.2.3.4:99999",
        "--loglevel loud",
        "--logformat xml",
        "--debug-sabakan=perhaps",
        "--otlp-endpoint collector:4317",
        "--no-such-flag",
        "argument",
    ] {
        let error = parsed(&format!("madako serve {wrong}")).expect_err(wrong);
        assert_eq!(error.exit_code(), 2, "{wrong}");
    }
}

#[test]
fn number_out_of_range_names_the_expected_range() {
    for (line, expected) in [
        ("plan --retire-wait -1", "expected a number of seconds"),
        ("history -n -1", "expected a whole number from 0 to 4294967295"),
        ("history -n many", "expected a whole number from 0 to"),
        ("demo --seed -1", "expected a whole number from 0 to 18446744073709551615"),
        ("demo --for -5s", "expected one such as 2s"),
        ("serve --interval -1s", "expected one such as 2s"),
        ("serve --interval -1", "expected one such as 2s"),
        ("serve --max-concurrent-updates 0", "expected a whole number from 1 to 4294967295"),
        ("serve --max-concurrent-updates -3", "expected a whole number from 1 to 4294967295"),
    ] {
        let error = parsed(&format!("madako {line}")).expect_err(line);
        let text = error.to_string();
        assert!(text.contains(expected) && !text.contains("unexpected"), "{line}: {text}");
        assert_eq!(error.exit_code(), 2, "{line}");
    }
    // Other text with a dash is still looked up among the flags.
    let text = parsed("madako history -x").unwrap_err().to_string();
    assert!(text.contains("unexpected argument '-x'"), "{text}");
}

#[test]
fn a_flag_without_effect_is_accepted_with_a_warning_and_sessions_count_in_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("c.yml");
    std::fs::write(&config, "operations: {mode: off}").unwrap();
    let options = |flags: &str| {
        let line = format!("madako serve --config {} {flags}", config.display());
        let Ok(Cli { command: Command::Serve(args), global }) = parsed(&line) else { panic!("{line}") };
        args.into_options(&global).unwrap()
    };
    let by_default = options("");
    assert!(by_default.warnings.is_empty());
    assert_eq!(by_default.config.operations.settings.max_concurrent_updates, 10);
    let given =
        options("--max-concurrent-updates 3 --certs-gc-interval 2h --debug-sabakan=false --session-ttl 2.9s");
    assert_eq!(given.warnings, ["--debug-sabakan has no effect yet"]);
    assert_eq!(given.config.operations.settings.max_concurrent_updates, 3);
    assert_eq!(given.config.operations.settings.certs_gc_interval, Duration::from_secs(7200));
    assert_eq!(by_default.config.operations.settings.certs_gc_interval, Duration::from_secs(3600));
    assert_eq!(given.session_ttl.as_secs_f64(), 2.0);
}

#[test]
fn operations_on_nodes_need_a_session_in_which_a_command_can_run() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let (ssh, pki) = (file("ssh", SSH_KEY), file("pki", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"));
    let options = |mode: &str, ttl: &str| {
        let text = format!(
            "operations: {{mode: {mode}}}\nssh: {{key_file: {}}}\npki: {{key_file: {}}}\n",
            ssh.display(),
            pki.display()
        );
        let line = format!("madako serve --config {} --session-ttl {ttl}", file("c.yml", &text).display());
        let Ok(Cli { command: Command::Serve(args), global }) = parsed(&line) else { panic!("{line}") };
        args.into_options(&global)
    };
    let refused = options("act", "9.9s").map(drop).unwrap_err();
    assert_eq!(refused.exit_code(), 2);
    let text = refused.message().unwrap();
    assert!(text.contains("--session-ttl 9s is too short") && text.contains("at least 10s"), "{text}");
    assert!(
        options("act", "10s").is_ok() && options("observe", "1s").is_ok() && options("off", "1s").is_ok()
    );
}

/// A key of ssh-keygen for this test.
const SSH_KEY: &str = "-----BEGIN OPENSSH PRIVATE KEY-----\n\
    b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n\
    QyNTUxOQAAACDBGymq6p0Mjal+nlsgItFUuAk4LvYLTdWUINOKeLAbvQAAAIib0FYim9BW\n\
    IgAAAAtzc2gtZWQyNTUxOQAAACDBGymq6p0Mjal+nlsgItFUuAk4LvYLTdWUINOKeLAbvQ\n\
    AAAEAvlo1nmO2Wor4E+QbRgdlwc89DZAPtK3ObeiTLAVqFVsEbKarqnQyNqX6eWyAi0VS4\n\
    CTgu9gtN1ZQg04p4sBu9AAAAAAECAwQF\n\
    -----END OPENSSH PRIVATE KEY-----\n";

#[test]
fn the_last_one_counts_when_an_option_is_given_twice() {
    let Ok(Cli { command: Command::Serve(args), .. }) = parsed("madako serve --interval 5s --interval 6s")
    else {
        panic!()
    };
    assert!(format!("{args:?}").contains("interval: 6s"));
    let Ok(Cli { command: Command::WhatIf(args), .. }) =
        parsed("madako what-if --lose rack=1 --lose 10.0.0.1 --remove role=gpu -o json -o yaml")
    else {
        panic!()
    };
    // An option that may be given several times keeps all values.
    let shown = format!("{args:?}");
    assert!(shown.contains("lose: [Rack(1), Address(10.0.0.1)], remove: [Role(\"gpu\")]"), "{shown}");
    assert!(shown.contains("output: Yaml"), "{shown}");
}

#[test]
fn input_files_and_values_of_plan_are_validated() {
    for wrong in [
        "madako plan --template t",
        "madako plan --machines m",
        "madako plan --current c",
        "madako plan --template-changed",
        "madako plan --constraints c --machines m",
        "madako what-if --node-taints n --lose rack=1",
        "madako plan --template t --machines m --retire-wait -1",
        "madako plan --template t --machines m --now yesterday",
        "madako plan --template t --machines m -o xml",
        "madako what-if --lose rack=one",
    ] {
        assert_eq!(parsed(wrong).expect_err(wrong).exit_code(), 2, "{wrong}");
    }
    let line = "madako plan --template t --machines m --constraints c --current u --node-taints n \
                --now 2026-11-21T10:00:00+09:00 --retire-wait 0 --template-changed -o json";
    assert!(parsed(line).is_ok());
    // The time and wait of the running system may be overridden.
    assert!(parsed("madako plan --now 2026-11-21T10:00:00Z --retire-wait 30.5").is_ok());
}

#[test]
fn forms_are_table_json_and_yaml() {
    for (text, format) in [("table", Format::Table), ("json", Format::Json), ("yaml", Format::Yaml)] {
        let Ok(Cli { command: Command::Cluster(cluster::Command::Get(args)), .. }) =
            parsed(&format!("madako cluster get -o {text}"))
        else {
            panic!("{text}")
        };
        assert_eq!(args.output, Some(format));
    }
}

#[test]
fn rehearsal_rejects_impossible_settings() {
    for wrong in [
        "madako rehearse --for soon",
        "madako rehearse --for -1h",
        "madako rehearse --seed -1",
        "madako rehearse --heals 101",
        "madako rehearse --walk -1",
        "madako rehearse --command-takes 0s",
        "madako rehearse --command-takes 25h",
        "madako rehearse --interval 0s",
        "madako rehearse -o xml",
    ] {
        assert_eq!(parsed(wrong).expect_err(wrong).exit_code(), 2, "{wrong}");
    }
    assert!(parsed("madako rehearse --for 30d --heals 0 --walk 0 --scenario - --trace t -o yaml").is_ok());
}

#[test]
fn help_fits_a_terminal_of_eighty_columns() {
    fn check(command: &mut clap::Command, words: &str) {
        *command = std::mem::take(command).term_width(80);
        for help in [command.render_help(), command.render_long_help()] {
            // clap does not wrap the usage.
            for line in help.to_string().lines().filter(|line| !line.starts_with("Usage: ")) {
                assert!(line.chars().count() <= 80, "{words}: {line}");
            }
        }
        for inner in command.get_subcommands_mut() {
            let words = format!("{words} {}", inner.get_name());
            check(inner, &words);
        }
    }
    let mut command = Cli::command();
    command.build();
    check(&mut command, "madako");
}

#[test]
fn the_help_of_each_command_of_the_first_level_has_an_example() {
    for command in Cli::command().get_subcommands() {
        let name = command.get_name();
        let help = parsed(&format!("madako {name} --help")).unwrap_err().to_string();
        let (_, examples) = help.rsplit_once("Example").unwrap_or_else(|| panic!("{name}:\n{help}"));
        let first_words =
            |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>() == ["madako", name];
        assert!(examples.lines().any(first_words), "{name}:\n{help}");
    }
}

#[test]
fn exit_codes_have_one_meaning_in_the_help_of_all_commands() {
    let mut documented = 0;
    for (words, command) in leaves() {
        let about = command.get_long_about().map(ToString::to_string).unwrap_or_default();
        let about = about.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some((_, codes)) = about.split_once("Exit codes: ") else { continue };
        documented += 1;
        for clause in codes.split("; ") {
            let Some((code, meaning)) = clause.split_once(": ") else { continue };
            let Ok(code) = code.rsplit(' ').next().unwrap_or(code).parse::<u8>() else { continue };
            assert!(EXIT_CODES.iter().any(|(known, _)| *known == code), "{words:?}: {clause}");
            // The state of the outside is never bad input.
            let is_outside = ["could not be read", "does not answer", "cannot be asked"]
                .iter()
                .any(|fault| meaning.contains(fault));
            assert!(!is_outside || code == 1, "{words:?}: {clause}");
        }
    }
    assert!(documented > 10, "only {documented} commands");
}
