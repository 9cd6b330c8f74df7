//! Tests that run the scripts of actions in a real shell, with a fake `docker` that records its arguments.

pub(super) mod fake_docker;

use std::collections::BTreeMap;

use madako_domain::containers::ServiceParams;
use madako_protocol::node::{FileContent, NodeFile};
use madako_protocol::secret::Secret;

use self::fake_docker::{FakeDocker, Outcome};
use super::*;

const OWN: &str = r#"{"builtin":{},"extra":{}}"#;
const SECONDS: u64 = 60;

fn mount(source: &str, read_only: bool, propagation: &str, selinux_label: &str) -> Mount {
    Mount {
        source: source.to_owned(),
        destination: "/in".to_owned(),
        read_only,
        propagation: propagation.to_owned(),
        selinux_label: selinux_label.to_owned(),
    }
}

fn spec() -> ContainerSpec {
    ContainerSpec {
        container: ContainerName::for_container(Container::Etcd),
        image: "etcd:1".to_owned(),
        engine_options: &[],
        volumes: vec![("etcd-cke".to_owned(), "/var/lib/etcd".to_owned())],
        builtin: ServiceParams {
            args: vec!["--name=10.0.0.1".to_owned()],
            binds: vec![mount("/etc/etcd/pki", true, "", "Z")],
            env: BTreeMap::new(),
        },
        extra: ServiceParams {
            args: vec![
                "two words".to_owned(),
                "it's $HOME `id`".to_owned(),
                "a\nb\\".to_owned(),
                String::new(),
            ],
            binds: vec![mount("/a b", false, "shared", "")],
            env: BTreeMap::from([("A".to_owned(), "'\" $(id)".to_owned())]),
        },
    }
}

fn start(restart: bool) -> NodeAction {
    NodeAction::RunContainer { spec: spec(), restart }
}

fn run_words_of(enforcing: bool) -> Vec<String> {
    let se = if enforcing { ",Z" } else { "" };
    let pki = format!("--volume=/etc/etcd/pki:/in:ro{se}");
    ["run", "--log-driver=json-file", "--log-opt=max-size=10m", "--log-opt=max-file=3", "-d", "--name=etcd"]
        .into_iter()
        .chain(["--read-only", "--network=host", "--uts=host"])
        .chain(["--mount", "type=volume,src=etcd-cke,dst=/var/lib/etcd", &pki, "--volume=/a b:/in:rw,shared"])
        .chain(["-e", "A='\" $(id)", "--label-file=/dev/stdin", "etcd:1"])
        .chain(["--name=10.0.0.1", "two words", "it's $HOME `id`", "a\nb\\", ""])
        .map(str::to_owned)
        .collect()
}

fn words(text: &[&str]) -> Vec<String> {
    text.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn a_container_starts_with_every_word_as_given_and_its_label() {
    let docker = FakeDocker::new();
    let outcome = docker.act(&start(false), SECONDS);
    assert_eq!(outcome, Outcome::success());
    assert_eq!(docker.changes(), [run_words_of(false)]);
    let spec = spec();
    let label = label::write_label(&spec.builtin, &spec.extra);
    assert_eq!(docker.stdin(), format!("com.cybozu.cke={label}\n"));
}

#[test]
fn selinux_labels_count_only_where_selinux_enforces() {
    let docker = FakeDocker::new();
    docker.program("getenforce", "echo Permissive");
    docker.act(&start(false), SECONDS);
    docker.program("getenforce", "echo Enforcing");
    docker.act(&start(false), SECONDS);
    assert_eq!(docker.changes(), [run_words_of(false), run_words_of(true)]);
}

#[test]
fn logs_go_to_journald_where_it_listens() {
    let docker = FakeDocker::new();
    let socket = docker.path().join("journal");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let script = render(&start(false), SECONDS).unwrap();
    let text = script.text.replace(JOURNAL, socket.to_str().unwrap());
    assert_ne!(text, script.text);
    assert_eq!(docker.run(&Script { text, stdin: Vec::new() }), Outcome::success());
    assert_eq!(docker.changes()[0][..3], words(&["run", "--log-driver=journald", "-d"]));
}

#[test]
fn a_running_container_stays_unless_it_is_to_restart() {
    let docker = FakeDocker::new();
    docker.container("etcd", true, OWN);
    assert_eq!(docker.act(&start(false), SECONDS), Outcome::success());
    assert_eq!(docker.changes(), Vec::<Vec<String>>::new());

    assert_eq!(docker.act(&start(true), SECONDS), Outcome::success());
    let sequence = [
        words(&["container", "kill", "--signal=TERM", "id-etcd"]),
        words(&["container", "wait", "id-etcd"]),
        words(&["container", "rm", "--force", "id-etcd"]),
        run_words_of(false),
    ];
    assert_eq!(docker.changes(), sequence);
}

#[test]
fn a_stopped_container_is_removed_before_the_start() {
    for restart in [false, true] {
        let docker = FakeDocker::new();
        docker.container("etcd", false, OWN);
        assert_eq!(docker.act(&start(restart), SECONDS), Outcome::success());
        let sequence = [words(&["container", "rm", "--force", "id-etcd"]), run_words_of(false)];
        assert_eq!(docker.changes(), sequence, "restart: {restart}");
    }
}

#[test]
fn a_kubelet_that_does_not_run_does_not_restart() {
    let kubelet = ContainerSpec { container: ContainerName::from(Component::Kubelet), ..spec() };
    for running in [None, Some(false)] {
        let docker = FakeDocker::new();
        if let Some(running) = running {
            docker.container("kubelet", running, OWN);
        }
        let outcome = docker.act(&NodeAction::RunContainer { spec: kubelet.clone(), restart: true }, SECONDS);
        assert!(outcome.code == Some(1) && outcome.stderr.contains("does not run"), "{outcome:?}");
        assert_eq!(docker.changes(), Vec::<Vec<String>>::new(), "{running:?}");
    }
}

#[test]
fn a_container_that_ignores_sigterm_is_killed_when_the_time_is_over() {
    let docker = FakeDocker::new();
    docker.container("etcd", true, OWN);
    docker.hang("wait");
    // One second of grace is left.
    assert_eq!(
        docker
            .act(&NodeAction::StopContainer(ContainerName::for_container(Container::Etcd)), AFTER_GRACE + 1),
        Outcome::success()
    );
    assert_eq!(docker.changes().last().unwrap(), &words(&["container", "rm", "--force", "id-etcd"]));
}

#[test]
fn the_grace_period_is_a_part_of_the_time_limit() {
    let etcd = ContainerName::for_container(Container::Etcd);
    for (seconds, grace) in [(3, 1), (8, 3), (15, 10), (600, 10)] {
        assert!(
            end_container(etcd, seconds).contains(&format!("timeout {grace} docker container wait")),
            "{seconds}"
        );
    }
    for rivers in [Container::Rivers, Container::EtcdRivers].map(ContainerName::for_container) {
        assert!(end_container(rivers, 600).contains("timeout 1 docker container wait"));
    }
}

#[test]
fn etcd_starts_without_first_members_only_on_data() {
    let docker = FakeDocker::new();
    let data = docker.path().join("data");
    std::fs::remove_dir(data.join("member")).unwrap();
    for other_file in [false, true] {
        if other_file {
            std::fs::create_dir(data.join("lost+found")).unwrap();
        }
        for (running, restart) in
            [(None, false), (Some(false), false), (Some(false), true), (Some(true), true)]
        {
            let docker = FakeDocker::new();
            docker.place("local", &data);
            if let Some(running) = running {
                docker.container("etcd", running, OWN);
            }
            let outcome = docker.act(&start(restart), SECONDS);
            assert_eq!(outcome.code, Some(NO_DATA.try_into().unwrap()), "{running:?} {restart}");
            let text = format!("etcd was not started: its volume {} has no directory member", data.display());
            assert!(outcome.stderr.starts_with(&text), "{outcome:?}");
            assert_eq!(docker.changes(), Vec::<Vec<String>>::new(), "a member that runs goes on");
        }
    }
    docker.place("nfs", &data);
    assert_eq!(docker.act(&start(false), SECONDS), Outcome::success(), "perhaps not mounted");
    docker.place("local", &data.join("missing"));
    assert_eq!(docker.act(&start(false), SECONDS), Outcome::success(), "not readable");
    std::fs::remove_file(docker.path().join("place")).unwrap();
    let outcome = docker.act(&start(false), SECONDS);
    assert!(outcome.code == Some(1) && outcome.stderr.contains("no such volume: etcd-cke"), "{outcome:?}");
}

#[test]
fn first_members_rivers_and_another_directory_of_data_need_no_data_in_the_volume() {
    let etcd = spec();
    let mut first = etcd.clone();
    first.builtin.args.push("--initial-cluster=10.0.0.1=https://10.0.0.1:2380".to_owned());
    let mut elsewhere = etcd.clone();
    elsewhere.extra.args.push("--data-dir=/var/lib/etcd/a".to_owned());
    let rivers = ContainerSpec {
        container: ContainerName::for_container(Container::Rivers),
        volumes: Vec::new(),
        ..etcd
    };
    for spec in [first, elsewhere, rivers] {
        let docker = FakeDocker::new();
        std::fs::remove_dir(docker.path().join("data/member")).unwrap();
        let container = spec.container;
        let outcome = docker.act(&NodeAction::RunContainer { spec, restart: false }, SECONDS);
        assert_eq!(outcome, Outcome::success(), "{container}");
    }
}

#[test]
fn a_container_of_another_program_is_never_touched() {
    for label in
        ["", "not JSON", "<no value>", "{x}", "{}", r#"{"builtin":[]}"#, r#"{"builtin":{},"extra":{}"#]
    {
        for running in [false, true] {
            let docker = FakeDocker::new();
            docker.container("etcd", running, label);
            for action in [
                start(false),
                start(true),
                NodeAction::StopContainer(ContainerName::for_container(Container::Etcd)),
                NodeAction::KillContainer(ContainerName::for_container(Container::Etcd)),
            ] {
                let outcome = docker.act(&action, SECONDS);
                assert_eq!(outcome.code, Some(FOREIGN.try_into().unwrap()), "{action:?}");
                assert!(outcome.stderr.starts_with("the container etcd belongs to another program"));
            }
            assert_eq!(docker.changes(), Vec::<Vec<String>>::new());
        }
    }
}

#[test]
fn stop_and_kill_remove_the_container_and_succeed_without_one() {
    let docker = FakeDocker::new();
    let [stop, kill] = [NodeAction::StopContainer, NodeAction::KillContainer]
        .map(|action| action(Container::EtcdRivers.into()));
    for action in [&stop, &kill] {
        docker.container("etcd-rivers", true, OWN);
        assert_eq!(docker.act(action, SECONDS), Outcome::success());
        assert_eq!(docker.act(action, SECONDS), Outcome::success(), "there is none");
    }
    let removed = words(&["container", "rm", "--force", "id-etcd-rivers"]);
    assert_eq!(
        docker.changes(),
        [
            words(&["container", "kill", "--signal=TERM", "id-etcd-rivers"]),
            words(&["container", "wait", "id-etcd-rivers"]),
            removed.clone(),
            removed,
        ]
    );
}

#[test]
fn a_container_is_asked_once_to_end_and_removed_after_its_end() {
    let docker = FakeDocker::new();
    let end = |ask| NodeAction::EndContainer { container: Container::Etcd.into(), ask };
    assert_eq!(docker.act(&end(true), SECONDS), Outcome::success(), "there is none");
    docker.container("etcd", true, OWN);
    for ask in [true, false] {
        let outcome = docker.act(&end(ask), SECONDS);
        assert_eq!((outcome.code, outcome.stdout.trim()), (Some(0), RUNNING));
    }
    std::fs::write(docker.path().join("containers/etcd/running"), "false\n").unwrap();
    assert_eq!(docker.act(&end(false), SECONDS), Outcome::success());
    let wait = words(&["container", "wait", "id-etcd"]);
    assert_eq!(
        docker.changes(),
        [
            words(&["container", "kill", "--signal=TERM", "id-etcd"]),
            wait.clone(),
            wait.clone(),
            wait,
            words(&["container", "rm", "id-etcd"]),
        ]
    );
}

#[test]
fn an_engine_that_fails_fails_the_action() {
    for (word, action) in [
        ("ls", start(false)),
        ("inspect", start(false)),
        ("rm", NodeAction::KillContainer(ContainerName::for_container(Container::Etcd))),
        ("rm", NodeAction::StopContainer(ContainerName::for_container(Container::Etcd))),
        ("create", NodeAction::CreateVolume { name: "v".to_owned() }),
        ("ls", NodeAction::RemoveVolume { name: "v".to_owned() }),
        ("run", NodeAction::ImageVersion { image: "i".to_owned(), program: None, pull: true }),
    ] {
        let docker = FakeDocker::new();
        docker.container("etcd", true, OWN);
        docker.fail(word);
        let outcome = docker.act(&action, SECONDS);
        assert_ne!(outcome.code, Some(0), "{word}: {action:?}");
        assert!(outcome.stderr.contains("the engine fails"), "{outcome:?}");
    }
}

#[test]
fn a_volume_is_removed_by_its_exact_name() {
    let docker = FakeDocker::new();
    docker.volumes(&["etcd-cke-2", "my volume"]);
    for name in ["etcd-cke", "volume", "my.volume", "x"] {
        assert_eq!(
            docker.act(&NodeAction::RemoveVolume { name: name.to_owned() }, SECONDS),
            Outcome::success()
        );
    }
    assert_eq!(docker.changes(), Vec::<Vec<String>>::new());
    docker.act(&NodeAction::RemoveVolume { name: "my volume".to_owned() }, SECONDS);
    docker.act(&NodeAction::CreateVolume { name: "a'b".to_owned() }, SECONDS);
    let expected = [words(&["volume", "rm", "--", "my volume"]), words(&["volume", "create", "--", "a'b"])];
    assert_eq!(docker.changes(), expected);
}

#[test]
fn an_image_is_pulled_unless_it_is_there() {
    let docker = FakeDocker::new();
    docker.program("sleep", "echo \"$@\" >>\"$FAKE/slept\"");
    let pull = NodeAction::PullImage { image: "a b:1".to_owned() };
    assert_eq!(docker.act(&pull, SECONDS), Outcome::success());
    assert_eq!(docker.changes(), [words(&["image", "pull", "--quiet", "a b:1"])]);
    docker.image("a b:1");
    assert_eq!(docker.act(&pull, SECONDS), Outcome::success());
    assert_eq!(docker.changes().len(), 1);

    let docker = FakeDocker::new();
    docker.program("sleep", "echo \"$@\" >>\"$FAKE/slept\"");
    docker.fail("pull");
    let outcome = docker.act(&pull, SECONDS);
    assert_ne!(outcome.code, Some(0));
    assert_eq!(docker.changes().len(), 3, "three tries");
    assert_eq!(std::fs::read_to_string(docker.path().join("slept")).unwrap(), "10\n10\n");
}

#[test]
fn private_files_are_only_in_the_standard_input() {
    let docker = FakeDocker::new();
    let files = vec![
        NodeFile { path: "/etc/a b/key".to_owned(), content: FileContent::Private(Secret::new("hidden")) },
        NodeFile { path: "/etc/a b/crt".to_owned(), content: FileContent::Public("shown".to_owned()) },
    ];
    let action = NodeAction::WriteFiles {
        tools: "tools:1".to_owned(),
        directory: "/etc/a b".to_owned(),
        files: files.clone(),
    };
    assert_eq!(docker.act(&action, SECONDS), Outcome::success());
    assert_eq!(docker.stdin().as_bytes(), tar::write_archive("/etc/a b", &files).unwrap());
    let expected = words(&[
        "run",
        "--log-driver=json-file",
        "--log-opt=max-size=10m",
        "--log-opt=max-file=3",
        "--rm",
        "-i",
        "--network=host",
        "--uts=host",
        "--read-only",
        "--volume=/etc/a b:/mnt/etc/a b:rw",
        "tools:1",
        "write_files",
        "/mnt",
    ]);
    assert_eq!(docker.changes(), [expected]);
    assert!(!render(&action, SECONDS).unwrap().text.contains("hidden"));
}

#[test]
fn the_version_of_an_image_is_the_output() {
    let docker = FakeDocker::new();
    docker.output("run", "etcd Version: 3.5.15\nGit SHA: x\n");
    for pull in [true, false] {
        let action = NodeAction::ImageVersion { image: "etcd:1".to_owned(), program: None, pull };
        let outcome = docker.act(&action, SECONDS);
        assert_eq!((outcome.code, outcome.stdout.lines().next()), (Some(0), Some("etcd Version: 3.5.15")));
    }
    for (words, pulls) in docker.changes().iter().zip([true, false]) {
        assert!(words[0] == "run" && words.contains(&"--rm".to_owned()));
        assert_eq!(words.contains(&"--pull=never".to_owned()), !pulls);
        assert_eq!(words[words.len() - 2..], ["etcd:1", "--version"]);
    }
}

#[test]
fn one_program_of_an_image_gives_its_version() {
    let docker = FakeDocker::new();
    let program = Some(Component::ApiServer);
    let action = NodeAction::ImageVersion { image: "kubernetes:1".to_owned(), program, pull: false };
    assert_eq!(docker.act(&action, SECONDS).code, Some(0));
    let words = &docker.changes()[0];
    assert_eq!(words[words.len() - 3..], ["kubernetes:1", "kube-apiserver", "--version"]);
}

#[test]
fn each_argument_is_quoted_as_one_shell_word() {
    for text in ["", "a b", "'", "''", "\\'", "$HOME", "a\nb", "`id`", "*", "-n", "é \u{1}"] {
        let output = std::process::Command::new("/bin/sh")
            .arg("-c")
            .arg(format!("printf '[%s]' {}", quote(text)))
            .output();
        assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), format!("[{text}]"));
    }
}
