use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use super::*;

const LABEL_TEXT: &str =
    r#"{\"builtin\":{\"extra_args\":[\"a\"],\"extra_binds\":null,\"extra_env\":null},\"extra\":{}}"#;

fn etcd(label: &str, mounts: &str) -> String {
    format!(r#"C ["/etcd",true,"etcd:1",{label},{mounts}]"#)
}

fn own_etcd(volume: &str) -> String {
    let mounts = format!(
        r#"[{{"Type":"volume","Name":"{volume}","Source":"/x","Destination":"/var/lib/etcd","RW":true}}]"#
    );
    etcd(&format!("\"{LABEL_TEXT}\""), &mounts)
}

#[test]
fn the_last_start_of_a_container_is_read() {
    let started = |time: &str| {
        let answer = format!("C [\"/etcd\",true,\"i\",\"\",[],\"{time}\"]\nEND\n");
        parse_status(&answer, "v").unwrap().containers["etcd"].started_at.map(OffsetDateTime::unix_timestamp)
    };
    assert_eq!(started("2026-01-01T00:00:00.123456789Z"), Some(1_767_225_600));
    assert_eq!(started("0001-01-01T00:00:00Z"), None, "it never started");
    assert_eq!(started("x"), None);
}

#[test]
fn a_whole_answer_is_read() {
    let answer = format!(
        "{}\nC [\"/rivers\",false,\"tools:1\",\"\",[]]\nV my-volume\nV etcd-added-member-2\nE content\nEND\n",
        own_etcd("my-volume")
    );
    let status = parse_status(&answer, "my-volume").unwrap();
    assert!(status.reachable && status.etcd_data && !status.etcd_mark && !status.etcd_other_volume);
    assert_eq!(status.etcd_empty, Some(false));
    let own = status.own_container(Container::Etcd).unwrap();
    assert!(own.running && own.image == "etcd:1" && own.builtin.args == ["a"]);
    assert!(status.is_foreign(Container::Rivers) && !status.containers["rivers"].running);
    assert_eq!(status.containers.len(), 2);
}

#[test]
fn a_label_that_is_absent_or_no_json_makes_a_container_foreign() {
    for label in ["null", "\"\"", "\"x\"", "\"{\"", "\"[]\""] {
        let status = parse_status(&format!("{}\nEND\n", etcd(label, "[]")), "v").unwrap();
        assert!(status.is_foreign(Container::Etcd), "{label}");
        assert!(!status.etcd_other_volume);
    }
}

#[test]
fn an_incomplete_or_unknown_answer_is_an_error() {
    let etcd = own_etcd("v");
    for answer in [
        "",
        "V v\n",
        &etcd,
        "END\nV v\n",
        "END\nEND\n",
        "X\nEND\n",
        "E maybe\nEND\n",
        "F server.crt\nEND\n",
        "F server.key text\nEND\n",
        "F peer.crt a\nF peer.crt a\nEND\n",
        "C [\"/other\",true,\"i\",\"\",[]]\nEND\n",
        "C [\"/etcd\",true,\"i\",\"\"]\nEND\n",
        "C [\"/etcd\",1,\"i\",\"\",[]]\nEND\n",
        "C {}\nEND\n",
        &format!("{etcd}\n{etcd}\nEND\n"),
    ] {
        parse_status(answer, "v").unwrap_err();
    }
    parse_status("END\n", "v").unwrap();
}

#[test]
fn data_in_another_volume_are_noticed() {
    let other = |answer: &str, volume: &str| parse_status(answer, volume).unwrap().etcd_other_volume;
    assert!(other(&format!("{}\nV new\nEND\n", own_etcd("old")), "new"), "the container has it");
    assert!(!other(&format!("{}\nV new\nEND\n", own_etcd("new")), "new"));
    assert!(other("V etcd-cke\nEND\n", "new"), "the default volume is there, and the configured one is not");
    assert!(!other("V etcd-cke\nV new\nEND\n", "new"));
    assert!(!other("V etcd-cke\nEND\n", "etcd-cke"));
    assert!(!other("END\n", "new"));
}

#[test]
fn the_content_of_a_missing_volume_is_unknown() {
    assert_eq!(parse_status("V v\nE empty\nEND\n", "v").unwrap().etcd_empty, Some(true));
    assert_eq!(parse_status("V v\nE unknown\nEND\n", "v").unwrap().etcd_empty, None);
    assert_eq!(parse_status("V v\nEND\n", "v").unwrap().etcd_empty, None);
    assert_eq!(parse_status("V v2\nE empty\nEND\n", "v").unwrap().etcd_empty, None);
}

/// Runs the script with a program `docker` that answers as the text says.
fn run(docker: &str, volume: &str) -> Output {
    run_script(docker, &render(volume))
}

fn run_script(docker: &str, script: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("docker");
    std::fs::write(&path, format!("#!/bin/sh\n{docker}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let paths = format!("{}:/usr/bin:/bin", directory.path().display());
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script]).env_clear().env("PATH", paths).output().unwrap()
}

fn with_volume(look: &str) -> Option<bool> {
    with_engine(&format!("'volume inspect') {look};;"))
}

/// The content of the volume `v`, with the answers of an engine by the first two words.
fn with_engine(answers: &str) -> Option<bool> {
    let docker = format!("case \"$1 $2\" in 'volume ls') echo 'V v';; {answers} esac");
    let output = run(&docker, "v");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    parse_status(&String::from_utf8(output.stdout).unwrap(), "v").unwrap().etcd_empty
}

#[test]
fn empty_volume_is_distinguished_from_a_member_and_from_unclear_data() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path();
    let local = |data: &Path| with_volume(&format!("echo 'local 0 {}'", data.display()));
    assert_eq!(local(data), Some(true));
    assert_eq!(with_volume(&format!("echo 'local 2 {}'", data.display())), None, "perhaps not mounted");
    assert_eq!(with_volume(&format!("echo 'nfs 0 {}'", data.display())), None, "another driver");
    assert_eq!(with_volume("exit 1"), None);
    std::fs::write(data.join("backup"), "").unwrap();
    assert_eq!(local(data), None, "no member, but something");
    std::fs::create_dir(data.join("member")).unwrap();
    assert_eq!(local(data), Some(false));
    assert_eq!(local(&data.join("missing")), None);
}

#[test]
fn container_engine_decides_whether_an_unreadable_volume_is_empty() {
    let look = "'volume inspect') echo 'local 0 /nonexistent/v';;";
    let sizes = |lines: &str| with_engine(&format!("{look} 'system df') printf '{lines}';;"));
    assert_eq!(sizes("x 1kB\\nv 0B\\n"), Some(true));
    assert_eq!(sizes("v 64MB\\n"), None);
    assert_eq!(sizes("v N/A\\n"), None);
    assert_eq!(sizes("vv 0B\\nv 0B2\\n"), None);
    assert_eq!(with_engine(&format!("{look} 'system df') echo 'v 0B' >&2; exit 1;;")), None);
    let running = format!("{look} 'system df') echo 'v 0B';; 'container ls') [ $3 = --all ] || echo id;;");
    assert_eq!(with_engine(&running), None, "it is not asked while etcd runs");
}

#[test]
fn a_script_stops_at_the_first_failure() {
    let output = run("[ $1 = version ] && { echo 'no daemon' >&2; exit 1; }", "v");
    assert_eq!(output.status.code(), Some(NO_ENGINE.try_into().unwrap()));
    assert_eq!(output.stderr, b"no daemon\n");
    for words in ["container ls", "container inspect", "volume ls"] {
        let docker =
            format!("[ \"$1 $2\" = '{words}' ] && exit 3; [ \"$1 $2\" = 'container ls' ] && echo id; exit 0");
        let output = run(&docker, "v");
        assert_eq!(output.status.code(), Some(1), "{words}");
        assert!(!output.stdout.ends_with(b"END\n"));
    }
}

#[test]
fn the_script_asks_for_exact_names_and_quotes_the_volume() {
    let output = run("[ $1 = version ] || printf '%s|' \"$@\" >&2", "it's $v");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("|name=^/rivers$|--filter|name=^/etcd-rivers$|--filter|name=^/etcd$|"), "{text}");
    assert!(text.contains("|name=it's $v|"), "{text}");
}

#[test]
fn certificates_are_read_and_keys_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let pki = directory.path().to_str().unwrap();
    let script = render("v");
    let here = script.replace(ETCD_PKI, pki);
    assert_ne!(here, script);
    let write = |name: &str, content: &[u8]| std::fs::write(directory.path().join(name), content).unwrap();
    let answer = || {
        let output = run_script("exit 0", &here);
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
        String::from_utf8(output.stdout).unwrap()
    };
    let certificates = || parse_status(&answer(), "v").unwrap().etcd_certificates;
    assert!(certificates().is_empty(), "nothing is there");

    let pem = "-----BEGIN CERTIFICATE-----\nAb+/=\n-----END CERTIFICATE-----\n";
    write("server.crt", pem.as_bytes());
    write("ca-peer.crt", pem.as_bytes());
    assert_eq!(certificates().keys().collect::<Vec<_>>(), ["ca-peer.crt"], "the key is missing");
    write("server.key", b"hidden");
    write("other.crt", pem.as_bytes());
    assert_eq!(certificates().keys().collect::<Vec<_>>(), ["ca-peer.crt", "server.crt"]);
    assert_eq!(certificates()["server.crt"], NodeCertificate { text: pem.to_owned(), validity: None });
    assert!(!answer().contains("hidden"));

    write("server.crt", &[b"\0\xff\nEND\n\r\n%s\\n'\"`".as_slice(), &[b'x'; 2 * MAX_CERTIFICATE]].concat());
    std::fs::create_dir(directory.path().join("ca-client.crt")).unwrap();
    let odd = certificates();
    assert_eq!(odd.len(), 2);
    assert!(odd["server.crt"].text.starts_with("\nEND\n\n%s\\n'\"`xxx"), "{:.40}", odd["server.crt"].text);
    assert!(odd["server.crt"].text.len() < MAX_CERTIFICATE);
}

fn kubeconfig(certificate: &str) -> String {
    let data = STANDARD.encode(certificate);
    format!(
        "users:\n- name: u\n  user:\n    client-certificate-data: {data}\n    client-key-data: aGlkZGVu\n"
    )
}

#[test]
fn certificates_of_kubernetes_are_read_and_keys_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let kubernetes = directory.path().to_str().unwrap();
    let here = render("v").replace("/etc/kubernetes", kubernetes);
    for below in ["pki", "scheduler", "proxy"] {
        std::fs::create_dir(directory.path().join(below)).unwrap();
    }
    let write = |name: &str, content: &str| std::fs::write(directory.path().join(name), content).unwrap();
    let found = |docker: &str| {
        let output = run_script(docker, &here);
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
        let answer = String::from_utf8(output.stdout).unwrap();
        assert!(!answer.contains("hidden") && !answer.contains("aGlkZGVu"), "{answer}");
        parse_status(&answer.replace(kubernetes, "/etc/kubernetes"), "v").unwrap().kubernetes_certificates
    };
    assert!(found("exit 0").is_empty(), "nothing is there");

    let pem = "-----BEGIN CERTIFICATE-----\nAb+/=\n-----END CERTIFICATE-----\n";
    let certificate = NodeCertificate { text: pem.to_owned(), validity: None };
    write("pki/apiserver.crt", pem);
    write("pki/kubelet.crt", pem);
    write("pki/kubelet.key", "hidden");
    write("scheduler/kubeconfig", &kubeconfig(pem));
    let expected = ["/etc/kubernetes/pki/kubelet.crt", "/etc/kubernetes/scheduler/kubeconfig"];
    let expected = BTreeMap::from(expected.map(|path| (path.to_owned(), certificate.clone())));
    assert_eq!(found("exit 0"), expected, "the key of the API server is missing");

    // Not a file that the login can read: the engine copies it, behind the header of an archive.
    std::fs::create_dir(directory.path().join("proxy/kubeconfig")).unwrap();
    assert_eq!(found("exit 0"), expected);
    write("archive", &format!("kubeconfig\0\0ustar\0{}", kubeconfig(pem)));
    let copies =
        format!("case \"$1 $2 $3\" in 'container cp kube-proxy:'*) cat {kubernetes}/archive;; esac; exit 0");
    let copied = found(&copies);
    assert_eq!(copied.len(), 3);
    assert_eq!(copied["/etc/kubernetes/proxy/kubeconfig"], certificate);

    write("scheduler/kubeconfig", "client-certificate-data: %%%\n");
    assert_eq!(found("exit 0")["/etc/kubernetes/scheduler/kubeconfig"].text, "", "its end is not known");
}
