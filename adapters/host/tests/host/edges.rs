//! Tests of the interfaces between the service, the watcher process and the command.

use std::io::Read as _;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use madako_host::CommandsOnHost;
use madako_protocol::host::{Host as _, HostCommand, HostError};
use madako_protocol::permit::{Permit, PermitEnded};
use tokio::time::Instant;

use crate::{LONG, TRIAL, Trial};

#[tokio::test]
async fn without_a_valid_permit_nothing_happens() {
    let trial = Trial::new();
    let host = CommandsOnHost::with_watcher(TRIAL, LONG);
    let command = HostCommand { words: trial.words("touch $TRIAL/done"), deadline: LONG };
    let ended = Permit::give(9, Instant::now());
    assert_eq!(host.run(&ended, command).await, Err(HostError::Permit(PermitEnded { epoch: 9 })));
    assert!(!trial.path("done").exists());
}

#[tokio::test]
async fn a_permit_that_ended_before_the_command_could_begin_stops_it() {
    let trial = Trial::new();
    let (mut told, to_watcher) = std::io::pipe().unwrap();
    // Same arguments as from a watcher, with a start time in the past.
    let status = Command::new(TRIAL)
        .args(["__start-command", "1"])
        .args(trial.words("touch $TRIAL/done"))
        .stdin(to_watcher)
        .status()
        .unwrap();
    let mut why = String::new();
    told.read_to_string(&mut why).unwrap();
    assert_eq!((why.as_str(), status.success()), ("\"too-late\"", false));
    assert!(!trial.path("done").exists());
}

#[tokio::test]
async fn a_watcher_without_an_order_does_nothing() {
    for said in ["", "{\"words\":[\"touch\"]"] {
        let mut watcher = Command::new(TRIAL)
            .arg("__watch-command")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut watcher.stdin.take().unwrap(), said.as_bytes()).unwrap();
        let output = watcher.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{said}");
    }
}

#[tokio::test]
async fn a_program_that_is_not_a_watcher_is_reported() {
    let host = CommandsOnHost::with_watcher("/bin/false", LONG);
    let command = HostCommand { words: vec!["true".to_owned()], deadline: LONG };
    let error = host.run(&Permit::give(1, Instant::now() + LONG), command.clone()).await.unwrap_err();
    assert!(matches!(error, HostError::NotStarted { .. }), "{error:?}");
    let host = CommandsOnHost::with_watcher("/no/such/program", LONG);
    let error = host.run(&Permit::give(1, Instant::now() + LONG), command).await.unwrap_err();
    assert!(error.to_string().contains("its watcher does not start"), "{error}");
}

#[tokio::test]
async fn a_command_has_a_session_of_its_own_and_signals_to_its_watcher_do_no_harm() {
    let trial = Trial::new();
    let script = "
        cut -d' ' -f6 /proc/$$/stat; echo $$
        for signal in TERM INT HUP QUIT USR1 USR2 ALRM PIPE; do kill -$signal $PPID; kill -$signal -- -$PPID; done
        trap '' TERM; kill -TERM 0
        echo alive";
    let outcome = trial.run(script, LONG).await.unwrap();
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let [session, own, "alive"] = lines[..] else { panic!("{outcome:?}") };
    assert_eq!(session, own);
    assert!(outcome.succeeded(), "{outcome:?}");
}

#[tokio::test]
async fn a_command_gets_no_file_of_the_service() {
    let _socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let files = "cd /proc/$$/fd && echo *; readlink 0";
    let outcome = Trial::new().run(files, LONG).await.unwrap();
    // The starter of the tests may have left inheritable files open on purpose.
    let plain = Command::new("sh").args(["-c", files]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(outcome.stdout, String::from_utf8(plain.stdout).unwrap());
}

#[tokio::test]
async fn command_gets_the_environment_without_the_variables_of_the_service() {
    let trial = Trial::new();
    let service = trial
        .service("env", LONG, LONG)
        .envs([
            ("OS_PASSWORD", "secret"),
            ("MADAKO_TOKEN", "secret"),
            ("NOTIFY_SOCKET", "/run/secret"),
            ("CREDENTIALS_DIRECTORY", "/run/secret"),
            ("LISTEN_FDS", "3"),
            ("BMC_SITE", "kept"),
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(service.stdout).unwrap();
    assert!(text.contains("BMC_SITE=kept") && text.contains("PATH="), "{text}");
    assert!(!text.contains("secret") && !text.contains("LISTEN_FDS"), "{text}");
}

#[tokio::test]
async fn command_does_not_wait_for_an_output_held_open_by_another_process() {
    let trial = Trial::new();
    let fifo = trial.path("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    // A process that is not a descendant opens the command's standard output and keeps it.
    let holder = Command::new("sh")
        .args(["-c", "read pid <\"$0\"; exec sleep 1000 >/proc/$pid/fd/1"])
        .arg(&fifo)
        .spawn();
    let mut holder = holder.unwrap();
    let held = format!("/proc/{}/cmdline", holder.id());
    let script = format!("echo $$ >$TRIAL/fifo; until grep -q 1000 {held}; do sleep 0.02; done; echo mine");
    let outcome = trial.run(&script, Duration::from_secs(60)).await.unwrap();
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(outcome.succeeded(), "{outcome:?}");
    assert_eq!(outcome.stdout, "mine\n");
}
