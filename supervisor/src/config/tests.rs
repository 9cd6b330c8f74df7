//! Tests of configuration files: texts with their meaning or their errors.

use std::fs::Permissions;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use madako_domain::repair::hold::{HoldSettings, Label};
use madako_operation_runner::{KubernetesMode, MinorUpgrade};
use rcgen::{CertifiedKey, generate_simple_self_signed};

use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("c.yml"), Some(0o100_600))
}

/// The whole error message of an invalid text, including its cause.
fn refusal(text: &str) -> String {
    parse(text).map(|config| panic!("{text:?} gave {config:?}")).unwrap_err().to_string()
}

fn pair() -> (String, String) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    (cert.pem(), signing_key.serialize_pem())
}

fn block(key: &str, pem: &str) -> String {
    let lines: String = pem.lines().map(|line| format!("  {line}\n")).collect();
    format!("{key}: |\n{lines}")
}

#[test]
fn without_anything_the_embedded_store_serves_loopback() {
    for text in ["", "# nothing\n", "{}", "prefix: /cke/\n"] {
        let config = parse(text).unwrap();
        assert_eq!(config.store, StoreChoice::Embedded(Embedded::without_configuration()), "{text:?}");
        assert_eq!(config.client_endpoints(), ["http://127.0.0.1:2379"]);
        assert_eq!(config.prefix, "/cke/");
        assert_eq!(config.timeout, Duration::from_secs(2));
        assert!(config.clients.username.is_empty() && config.clients.tls_ca.is_none());
        assert_eq!(config.warnings.len(), 1, "that it does not act on nodes: {:?}", config.warnings);
    }
    let embedded = Embedded::without_configuration();
    assert_eq!(embedded.listen, DEFAULT_LISTEN);
    assert!(embedded.explain_taken().contains("endpoints: [http://127.0.0.1:2379]"));
}

#[test]
fn a_file_of_cke_means_an_external_store() {
    let config = parse(
        "endpoints:\n  - http://10.1.2.3:2379\n  - http://10.11.12.13:2379\nprefix: \"/key-prefix/\"\n\
         timeout: \"1500ms\"\nusername: \"etcd-user-name\"\npassword: \"etcd-password\"\n",
    )
    .unwrap();
    assert_eq!(config.store, StoreChoice::External);
    assert_eq!(config.client_endpoints(), ["http://10.1.2.3:2379", "http://10.11.12.13:2379"]);
    assert_eq!(config.prefix, "/key-prefix/");
    assert_eq!(config.timeout, Duration::from_millis(1500));
    assert_eq!(config.clients.username, "etcd-user-name");
    assert_eq!(config.clients.password.reveal(), "etcd-password");
    // JSON is YAML, too.
    let config = parse(r#"{"endpoints": ["127.0.0.1:2379"], "prefix": ""}"#).unwrap();
    assert_eq!((config.client_endpoints().len(), config.prefix.as_str()), (1, ""));
}

#[test]
fn values_are_read_as_cke_reads_them() {
    // A number in place of a text is that text; octal as in YAML 1.1; null and "" mean not given.
    let config = parse("username: 42\npassword: 0123\ntls-ca:\ntls-cert-file: ''\nprefix: null\n").unwrap();
    assert_eq!((config.clients.username.as_str(), config.clients.password.reveal()), ("42", "83"));
    assert_eq!(config.prefix, "/cke/");
    assert!(parse("username: ''\npassword: ''\n").is_ok());
}

#[test]
fn an_embedded_section_is_the_store_and_endpoints_beside_it_are_for_clients() {
    let config = parse("embedded:\n  data-dir: /srv/m\n  listen: 127.0.0.1:12379\n").unwrap();
    let StoreChoice::Embedded(embedded) = &config.store else { panic!("{config:?}") };
    assert_eq!(embedded.data_dir, PathBuf::from("/srv/m"));
    assert_eq!(embedded.listen, SocketAddr::from(([127, 0, 0, 1], 12379)));
    assert_eq!(embedded.origin, EmbeddedOrigin::Section);
    assert_eq!(config.client_endpoints(), ["http://127.0.0.1:12379"]);

    let config = parse("embedded:\nendpoints: [http://10.0.0.1:2379]\n").unwrap();
    let StoreChoice::Embedded(embedded) = &config.store else { panic!("{config:?}") };
    assert_eq!((embedded.listen, embedded.origin), (DEFAULT_LISTEN, EmbeddedOrigin::Section));
    assert_eq!(config.client_endpoints(), ["http://10.0.0.1:2379"]);

    let config = parse("embedded: {listen: 'localhost:99'}").unwrap();
    assert_eq!(config.client_endpoints(), ["http://127.0.0.1:99"]);
    let config = parse("embedded: {listen: '[::1]:99'}").unwrap();
    assert_eq!(config.client_endpoints(), ["http://[::1]:99"]);
}

#[test]
fn every_wrong_field_is_named_in_one_message() {
    let message = refusal(
        "endpoint: [a]\nendpoints: [ftp://x:1, http://h, 7]\ntimeout: 2\nusername: [x]\npassword: {a: b}\n\
         tls_ca: x\nembedded: {dataDir: /x, listen: ':2379', data-dir: rel, 5: 6}\npods: {}\nprefix: [/cke/]\n",
    );
    for part in [
        "configuration file c.yml is not valid",
        "; line 1: endpoint: got an unknown field, expected a known field such as \"endpoints\"",
        "endpoints[0]: got \"ftp://x:1\", expected http, https or unix",
        "endpoints[1]: got \"http://h\", expected a port",
        "endpoints[2]: got the number 7, expected a text: put it in quotes",
        "timeout: got \"2\", expected a duration from 1ms to 10m, such as 2s",
        "username: got a list, expected a text",
        "password: got an object, expected a text",
        "line 6: tls_ca: got an unknown field, expected a known field such as \"tls-ca\"",
        "embedded.dataDir: got an unknown field, expected a known field such as \"data-dir\"",
        "embedded.listen: got \":2379\", expected an IP address and a port",
        "embedded.data-dir: got \"rel\", expected an absolute path",
        "embedded.5: got an unknown field",
        "line 8: pods: got an unknown field, expected one of endpoints, prefix, ",
        "line 9: prefix: got a list, expected a text",
    ] {
        assert!(message.contains(part), "{part:?} is not in {message}");
    }
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn wrong_values_are_refused_one_by_one() {
    for (text, part) in [
        ("endpoints: []", "endpoints: got an empty list"),
        (
            "endpoints: http://127.0.0.1:2379",
            "endpoints: got \"http://127.0.0.1:2379\", expected a list of texts",
        ),
        ("endpoints:", "endpoints: got nothing, expected a list of texts"),
        ("endpoints: ['http://u:p@h:1']", "endpoints[0]: got \"http://h:1\", expected"),
        ("timeout: 0s", "timeout: got \"0s\", expected a duration from 1ms to 10m"),
        ("timeout: 1h", "timeout: got \"1h\", expected a duration from 1ms to 10m"),
        ("timeout: -1s", "timeout: got \"-1s\", expected a duration"),
        ("timeout: yes", "timeout: got true, expected a duration"),
        ("password: yes\nusername: u", "password: got a boolean, expected a text: put it in quotes"),
        ("tls-ca: nonsense", "tls-ca: got another value, expected certificates in PEM"),
        (
            "tls-ca-file: /nonexistent/ca",
            "tls-ca-file: got \"/nonexistent/ca\", expected a file that can be read",
        ),
        ("embedded: /var/lib/madako", "embedded: got \"/var/lib/madako\", expected an object"),
        ("embedded: {listen: '127.0.0.1:0'}", "embedded.listen: got \"127.0.0.1:0\", expected an IP address"),
        ("embedded: {listen: 2379}", "embedded.listen: got \"2379\", expected an IP address"),
        ("- a", "expected a mapping of settings, got a list"),
        ("a: b: c", "is not valid YAML"),
        ("prefix: /a/\nprefix: /b/", "is not valid YAML: \"prefix\" for the second time at line 2, column 1"),
        ("<<: {a: 1}", "line 1: a: got an unknown field"),
    ] {
        let message = refusal(text);
        assert!(message.contains(part), "{text:?}: {part:?} is not in {message}");
        assert_eq!(message.lines().count(), 1, "{text:?}: {message}");
    }
    let long = format!("prefix: {}", "p".repeat(MAX_PREFIX + 1));
    assert!(refusal(&long).contains("expected a text of at most 1024 bytes"));
}

#[test]
fn outside_loopback_the_embedded_store_needs_certificates_of_both_sides() {
    let message = refusal("embedded: {listen: '0.0.0.0:2379'}");
    for field in ["tls-cert-file", "tls-key-file", "tls-ca-file"] {
        assert!(message.contains(&format!("embedded.{field}: expected")), "{message}");
    }
    assert!(message.contains("0.0.0.0:2379 is not loopback"), "{message}");
    // On loopback certificates are optional, but must be complete.
    let message = refusal("embedded: {listen: '127.0.0.1:1', tls-cert: x}");
    assert!(message.contains("embedded.tls-cert: got another value"), "{message}");
    assert!(!message.contains("tls-key"), "nothing else is asked for yet: {message}");

    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = pair();
    let (cert_path, key_path) = (dir.path().join("cert"), dir.path().join("key"));
    std::fs::write(&cert_path, &cert).unwrap();
    std::fs::write(&key_path, &key).unwrap();
    std::fs::set_permissions(&key_path, Permissions::from_mode(0o644)).unwrap();
    let text = format!(
        "operations: {{mode: off}}\n\
         embedded:\n  listen: 0.0.0.0:2379\n  tls-cert-file: {cert}\n  tls-key-file: {key}\n  tls-ca-file: {cert}\n",
        cert = cert_path.display(),
        key = key_path.display(),
    );
    let config = parse(&text).unwrap();
    let StoreChoice::Embedded(Embedded { tls: Some(tls), .. }) = &config.store else { panic!("{config:?}") };
    assert_eq!(
        (&tls.certificate, tls.key.reveal(), tls.client_ca.as_ref()),
        (&cert, key.as_str(), Some(&cert))
    );
    assert_eq!(config.client_endpoints(), ["https://127.0.0.1:2379"]);
    assert_eq!(
        config.warnings,
        ["`embedded.tls-key-file`: other users can read the private key (chmod o-r)"]
    );
}

#[test]
fn certificates_come_as_text_or_as_files_and_in_pairs() {
    let (cert, key) = pair();
    let (_, other_key) = pair();
    let base = "endpoints: [https://127.0.0.1:2379]\n";
    let config = parse(&format!(
        "{base}{}{}{}",
        block("tls-ca", &cert),
        block("tls-cert", &cert),
        block("tls-key", &key)
    ))
    .unwrap();
    assert_eq!(config.clients.tls_ca.as_deref(), Some(cert.as_str()));
    assert_eq!(config.clients.tls_cert.as_deref(), Some(cert.as_str()));
    assert_eq!(config.clients.tls_key.as_ref().unwrap().reveal(), key);

    for (text, part) in [
        (block("tls-cert", &cert), "tls-key: expected the private key of `tls-cert`"),
        (block("tls-key", &key), "tls-cert: expected the certificate of `tls-key`"),
        (format!("{}{}", block("tls-cert", &cert), block("tls-key", &other_key)), "tls-key: got another key"),
        (format!("{}{}", block("tls-cert", &cert), block("tls-key", &cert)), "tls-key: got another value"),
    ] {
        let message = refusal(&text);
        assert!(message.contains(part), "{part:?} is not in {message}");
        assert_eq!(
            message.matches("tls-key: ").count() + message.matches("tls-cert: ").count(),
            1,
            "{message}"
        );
    }

    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(cert.as_bytes()).unwrap();
    let named =
        format!("{base}tls-ca-file: {}\n{}", file.path().display(), block("tls-ca", "not looked at\n"));
    // The file wins over the text, as in etcdutil.
    assert_eq!(parse(&named).unwrap().clients.tls_ca, Some(cert.clone()));
    let mixed = format!("tls-cert-file: {}\n{}", file.path().display(), block("tls-key", &key));
    assert!(refusal(&mixed).contains("tls-key: got another form than `tls-cert-file`"));
}

#[test]
fn a_file_with_a_secret_must_not_be_open_to_others() {
    let parse_with = |text: &str, mode| Config::parse(text, Path::new("c.yml"), mode);
    let (cert, key) = pair();
    let with_password = "username: u\npassword: hunter2\n".to_owned();
    let with_key = format!("{}{}", block("tls-cert", &cert), block("tls-key", &key));
    let lines: String = with_key.lines().map(|line| format!("  {line}\n")).collect();
    let with_embedded_key = format!("embedded:\n{lines}");
    for (text, field) in
        [(with_password, "password"), (with_key, "tls-key"), (with_embedded_key, "embedded.tls-key")]
    {
        for mode in [0o644, 0o604, 0o602, 0o100_666] {
            let message = parse_with(&text, Some(mode)).unwrap_err().to_string();
            assert!(message.contains(&format!("it holds `{field}`")), "{message}");
        }
        for mode in [Some(0o600), Some(0o640), Some(0o400), None] {
            parse_with(&text, mode).unwrap();
        }
    }
    // A secret counts as secret even if it is invalid or has no effect.
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(key.as_bytes()).unwrap();
    let beside = format!("tls-key-file: {}\n{}", file.path().display(), block("tls-key", &key));
    for (text, field) in [
        ("password: p\n".to_owned(), "password"),
        (
            block(
                "tls-key",
                "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            ),
            "tls-key",
        ),
        (beside, "tls-key"),
    ] {
        let message = parse_with(&text, Some(0o644)).unwrap_err().to_string();
        assert!(message.contains(&format!("it holds `{field}`")), "{message}");
    }
    parse_with("prefix: /x/", Some(0o644)).unwrap();
}

#[test]
fn incomplete_login_is_ignored_with_a_warning_like_cke() {
    for (text, warning) in [
        ("username: u", "`username` has no effect without `password`"),
        ("password: p", "`password` has no effect without `username`"),
        ("username: u\npassword: ''", "`username` has no effect without `password`"),
    ] {
        let config = parse(&format!("{text}\noperations: {{mode: off}}\n")).unwrap();
        assert_eq!(config.warnings, [warning], "{text:?}");
        assert!(
            config.clients.username.is_empty() && config.clients.password.reveal().is_empty(),
            "{text:?}"
        );
    }
}

#[test]
fn secrets_are_in_no_message() {
    let (cert, key) = pair();
    let secret_line = key.lines().nth(1).unwrap();
    let config = parse(&format!(
        "username: u\npassword: hunter2\n{}{}",
        block("tls-cert", &cert),
        block("tls-key", &key)
    ));
    let shown = format!("{:?}", config.unwrap());
    assert!(!shown.contains("hunter2") && !shown.contains(secret_line), "{shown}");
    for text in [
        "password: [hunter2]\n".to_owned(),
        "password: {hunter2: x}\n".to_owned(),
        "password: hunter2\nfield\n".to_owned(),
        "password 'hunter2'\n".to_owned(),
        "password: 'hunter2\n".to_owned(),
        "password: \"hunter2\\q\"\n".to_owned(),
        "password: hunter2: x\n".to_owned(),
        "password: *hunter2\n".to_owned(),
        "password: hunter2\npassword: hunter2\n".to_owned(),
        "password: !!int hunter2\n".to_owned(),
        block("tls-key", "hunter2"),
        block("tls-key", "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n"),
    ] {
        let message = refusal(&text);
        assert!(!message.contains("hunter2"), "{text:?}: {message}");
    }
}

#[test]
fn a_missing_file_is_an_error_only_if_it_was_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yml");
    let error = Config::load(Some(&path)).unwrap_err();
    assert!(matches!(&error, ConfigError::Read { source, .. } if source.kind() == io::ErrorKind::NotFound));
    assert!(error.to_string().contains("config.yml"));

    std::fs::write(&path, "prefix: /x/\n").unwrap();
    assert_eq!(Config::load(Some(&path)).unwrap().prefix, "/x/");
    std::fs::write(&path, "username: u\npassword: p\n").unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    assert!(Config::load(Some(&path)).unwrap_err().to_string().contains("0644"));
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(Config::load(Some(&path)).unwrap().clients.password.reveal(), "p");

    std::fs::write(&path, "#".repeat(usize::try_from(MAX_FILE).unwrap() + 1)).unwrap();
    assert!(matches!(Config::load(Some(&path)), Err(ConfigError::Read { .. })));
    assert!(matches!(Config::load(Some(dir.path())), Err(ConfigError::Read { .. })));
}

#[test]
fn the_api_server_is_reached_by_a_kubeconfig() {
    assert!(parse("").unwrap().kubernetes.is_none());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let section = format!("kubernetes: {{kubeconfig: {}}}\n", path.display());
    let gone = refusal(&section);
    assert!(gone.contains("kubernetes.kubeconfig") && gone.contains("can be read"), "{gone}");

    let kubeconfig = |user: &str| {
        format!(
            "current-context: a\ncontexts: [{{name: a, context: {{cluster: b, user: c}}}}]\n\
             clusters: [{{name: b, cluster: {{server: 'https://10.0.0.1:6443'}}}}]\nusers: [{{name: c, user: {user}}}]\n"
        )
    };
    std::fs::write(&path, kubeconfig("{token: hunter2}")).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let config = parse(&section).unwrap();
    assert_eq!(config.kubernetes.as_ref().unwrap().server(), "https://10.0.0.1:6443");
    assert!(!format!("{config:?}").contains("hunter2"));

    // All problems at once, with the fields of both files.
    std::fs::write(&path, kubeconfig("{exec: {command: hunter2}, tokenFile: gone}")).unwrap();
    let both = refusal(&format!("{section}timeout: soon\n"));
    for found in ["timeout", "kubernetes.kubeconfig", "users[c].user.exec", "users[c].user.tokenFile"] {
        assert!(both.contains(found), "{found} is not in: {both}");
    }
    assert!(!both.contains("hunter2"), "{both}");

    for (text, found) in [
        ("kubernetes: {}", "kubernetes.kubeconfig: expected the path of a kubeconfig, or `mode`"),
        ("kubernetes: {mode: watch}", "kubernetes.mode: got \"watch\", expected one of off, observe, act"),
        (
            "kubernetes: {minor_upgrade: never}",
            "kubernetes.minor_upgrade: got \"never\", expected one of drain, in-place, on-reboot",
        ),
        (
            "kubernetes: {mode: act}",
            "kubernetes.mode: got act, expected off, because operations on nodes are off",
        ),
        ("operations: {mode: off}\nkubernetes: {mode: observe}", "kubernetes.mode: got observe"),
        ("kubernetes: {kubeconfig: kubeconfig}", "an absolute path"),
        ("kubernetes: {kubeconfg: /a}", "kubernetes.kubeconfg"),
        ("kubernetes: /a", "an object"),
    ] {
        let message = refusal(text);
        assert!(message.contains(found), "{found} is not in: {message}");
    }
}

#[test]
fn components_of_kubernetes_are_left_to_cke_unless_the_mode_says_otherwise() {
    let mode = |text: &str| {
        let config = parse(&format!("operations: {{mode: act}}\n{text}")).unwrap();
        assert!(config.kubernetes.is_none(), "{text}");
        let keeps = config.operations.settings.kubernetes != KubernetesMode::Off;
        assert_eq!(config.reaches_kubernetes(), keeps, "{text}");
        config.operations.settings.kubernetes
    };
    assert_eq!(mode(""), KubernetesMode::Off);
    for (text, expected) in
        [("act", KubernetesMode::Act), ("observe", KubernetesMode::Observe), ("off", KubernetesMode::Off)]
    {
        assert_eq!(mode(&format!("kubernetes: {{mode: {text}}}")), expected);
    }
    let treatment = |text: &str| parse(text).unwrap().operations.settings.minor_upgrade;
    assert_eq!(treatment("kubernetes: {mode: off}"), MinorUpgrade::Drain);
    let in_place = "kubernetes: {mode: off, minor_upgrade: in-place}";
    assert_eq!(treatment(in_place), MinorUpgrade::InPlace);
}

#[test]
fn hold_settings_are_read_completely_and_enabled_by_default() {
    let hold = |text: &str| parse(text).unwrap().repair.hold;
    let by_default = HoldSettings::default();
    for text in ["", "repair: {}", "repair: {hold: {}}", "repair: {hold: {enabled: true}}"] {
        assert_eq!(hold(text).as_ref(), Some(&by_default), "{text:?}");
    }
    assert_eq!((by_default.count, by_default.within), (3, Duration::from_secs(600)));
    let off = "repair: {hold: {enabled: false, label: feed, count: 7, within: 1s}}";
    assert_eq!(hold(off), None);
    let settings = parse(off).unwrap().repair.settings;
    assert_eq!(
        (settings.label, settings.count),
        (Label::from("feed".to_owned()), 7),
        "commands that request holds use the label and the count"
    );
    let all = hold("repair: {hold: {label: feed, count: 2, within: 24h}}").unwrap();
    let label = Label::from("feed".to_owned());
    assert_eq!(all, HoldSettings { label, count: 2, within: Duration::from_secs(24 * 3600) });
}

#[test]
fn every_invalid_hold_setting_is_named() {
    let long = "x".repeat(64);
    let message = refusal(&format!(
        "repair: {{hold: {{enable: true, With-In: 5m, label: {long}, count: 1, within: 25h}}, holds: 1}}"
    ));
    for part in [
        "repair.holds: got an unknown field, expected a known field such as \"hold\"",
        "repair.hold.enable: got an unknown field, expected a known field such as \"enabled\"",
        "repair.hold.With-In: got an unknown field, expected a known field such as \"within\"",
        "..., expected `rack`, or the name of a label with at most 63 bytes",
        "repair.hold.count: got the number 1, expected a whole number from 2 to 1000000",
        "repair.hold.within: got \"25h\", expected a duration from 1s to 24h",
    ] {
        assert!(message.contains(part), "{part:?} is not in {message}");
    }
    for (text, part) in [
        ("repair: 7", "repair: got the number 7, expected an object"),
        ("repair: {hold: true}", "repair.hold: got true, expected an object"),
        ("repair: {hold: {enabled: 'yes'}}", "repair.hold.enabled: got \"yes\", expected"),
        ("repair: {hold: {label: ''}}", "repair.hold.label: got \"\", expected"),
        (
            "repair: {hold: {label: [rack]}}",
            "repair.hold.label: got a list, expected `rack`, or the name of a label",
        ),
        ("repair: {hold: {count: 0}}", "repair.hold.count: got the number 0, expected"),
        ("repair: {hold: {count: -3}}", "repair.hold.count: got the number -3, expected"),
        ("repair: {hold: {count: 2.5}}", "repair.hold.count: got the number 2.5, expected"),
        ("repair: {hold: {count: 1000001}}", "repair.hold.count: got the number 1000001, expected"),
        ("repair: {hold: {within: 600}}", "repair.hold.within: got \"600\", expected a duration"),
        (
            "repair: {hold: {within: 0s}}",
            "repair.hold.within: got \"0s\", expected a duration from 1s to 24h",
        ),
        ("repair: {hold: {within: soon}}", "repair.hold.within: got \"soon\", expected a duration"),
    ] {
        let message = refusal(text);
        assert!(message.contains(part), "{part:?} is not in {message}");
    }
}
