//! Tests that all processes of a command end at the deadline, and with the service.

use std::fs;
use std::io::Read as _;
use std::time::Duration;

use madako_host::CommandsOnHost;
use madako_protocol::host::{Host as _, HostCommand, HostEnd, HostError};
use rustix::process::{Signal, kill_process};

use crate::{LONG, TRIAL, Trial, id, permit};

/// A deadline that passes while the command runs.
const SHORT: Duration = Duration::from_millis(700);

/// Writes `began` and never ends.
const ENDLESS: &str = "touch $TRIAL/began; sleep 1000";

/// Forks twice, each time into its own session.
const AWAY: &str = "setsid sh -c 'setsid sh -c \"touch \\$TRIAL/began; sleep 1000\" & exit 0' & exit 0";

#[tokio::test]
async fn at_the_deadline_a_command_is_killed() {
    for script in [
        "sleep 1000",
        "trap '' TERM INT HUP QUIT; while :; do sleep 1000; done",
        "sleep 1000 | sleep 1000 | sleep 1000",
        "exec >&- 2>&- <&-; sleep 1000",
        "kill -STOP $$",
        "yes",
        "(sleep 1000; true) & wait",
    ] {
        let trial = Trial::new();
        let outcome = trial.run(script, SHORT).await.unwrap();
        assert_eq!(outcome.end, HostEnd::Deadline, "{script}");
        assert!(outcome.took >= SHORT, "{script}: {:?}", outcome.took);
        assert_eq!(trial.processes(), 0, "{script}");
    }
}

#[tokio::test]
async fn output_before_the_deadline_is_returned() {
    let outcome = Trial::new().run("echo first; echo second >&2; sleep 1000", SHORT).await.unwrap();
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("first\n", "second\n"));
}

#[tokio::test]
async fn detached_processes_are_killed_at_the_deadline_and_the_exit_code_is_kept() {
    let trial = Trial::new();
    let outcome = trial.run(AWAY, Duration::from_secs(3)).await.unwrap();
    assert_eq!(outcome.end, HostEnd::Exited { code: 0 });
    assert!(trial.path("began").exists());
    assert_eq!(trial.processes(), 0);
}

#[tokio::test]
async fn a_tree_that_grows_is_killed() {
    let trial = Trial::new();
    // 2^8 processes below each other, half of them in sessions of their own.
    let script = r#"
        grow() {
            [ "$1" -gt 0 ] || exec sleep 1000
            grow $(($1 - 1)) &
            grow $(($1 - 1)) &
            touch $TRIAL/began
            sleep 1000
        }
        grow 7"#;
    let outcome = trial.run(script, SHORT).await.unwrap();
    assert_eq!(outcome.end, HostEnd::Deadline);
    assert!(trial.path("began").exists());
    assert_eq!(trial.processes(), 0);
}

#[tokio::test]
async fn a_chain_of_processes_that_each_start_the_next_and_end_is_killed() {
    let trial = Trial::new();
    // Would run for a minute if it were not killed.
    let script = r#"
        LINK='if [ "$1" -gt 0 ]; then sh -c "$LINK" link $(($1 - 1)) & fi; exit 0'
        export LINK; sh -c "$LINK" link 100000"#;
    let outcome = trial.run(script, SHORT).await.unwrap();
    assert_eq!(outcome.end, HostEnd::Exited { code: 0 });
    assert!(outcome.took >= SHORT, "it was still going on: {outcome:?}");
    assert_eq!(trial.processes(), 0);
}

#[tokio::test]
async fn dropping_the_future_kills_the_command() {
    for script in [ENDLESS, AWAY] {
        let trial = Trial::new();
        let host = CommandsOnHost::with_watcher(TRIAL, LONG);
        let permit = permit();
        let run = host.run(&permit, HostCommand { words: trial.words(script), deadline: LONG });
        tokio::select! {
            biased;
            outcome = run => panic!("{script}: {outcome:?}"),
            () = trial.file_is_there("began") => {}
        }
        trial.nothing_is_left().await;
    }
}

#[tokio::test]
async fn every_end_of_the_service_kills_its_commands() {
    for (script, signal) in [(ENDLESS, Signal::KILL), (AWAY, Signal::KILL), (ENDLESS, Signal::TERM)] {
        let trial = Trial::new();
        let mut service = trial.service(script, LONG, LONG).spawn().unwrap();
        trial.file_is_there("began").await;
        kill_process(id(&service), signal).unwrap();
        service.wait().unwrap();
        trial.nothing_is_left().await;
    }
}

#[tokio::test]
async fn commands_of_a_stalled_service_are_killed() {
    let trial = Trial::new();
    let mut service = trial.service(ENDLESS, LONG, Duration::from_secs(2)).spawn().unwrap();
    trial.file_is_there("began").await;
    kill_process(id(&service), Signal::STOP).unwrap();
    trial.nothing_is_left().await;
    kill_process(id(&service), Signal::CONT).unwrap();
    let mut text = String::new();
    service.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    service.wait().unwrap();
    assert!(text.contains("Lost") && text.contains("no heartbeat"), "{text}");
}

#[tokio::test]
async fn commands_of_a_live_service_continue() {
    let trial = Trial::new();
    // Several times the allowed silence.
    let service = trial.service("sleep 4; echo done", LONG, Duration::from_secs(1)).output().unwrap();
    let text = String::from_utf8(service.stdout).unwrap();
    assert!(text.contains("done") && text.contains("code: 0"), "{text}");
}

#[tokio::test]
async fn a_watcher_that_is_killed_takes_its_command_along() {
    let trial = Trial::new();
    let error = trial.run("kill -9 $PPID; exec sleep 1000", LONG).await.unwrap_err();
    assert!(matches!(error, HostError::Lost { .. }), "{error:?}");
    trial.nothing_is_left().await;
}

/// Processes that move to their own session before the watcher is killed: a child of the command, and a chain below it.
const ORPHANS: &str = "setsid sh -c 'echo $$ >$TRIAL/away; sleep 1000 & sleep 1001' & (sleep 1002 &); \
    until test -s $TRIAL/away; do sleep 0.01; done; echo $PPID >$TRIAL/watcher; touch $TRIAL/began; ";

#[tokio::test]
async fn death_of_the_watcher_kills_all_processes_of_its_command() {
    let (trial, other) = (Trial::new(), Trial::new());
    let killed = async {
        let error = trial.run(&format!("{ORPHANS} kill -9 $PPID; sleep 1000"), LONG).await.unwrap_err();
        assert!(matches!(error, HostError::Lost { .. }), "{error:?}");
        // All processes must have ended when the error is returned, so that no new command overlaps with them.
        assert_eq!(trial.processes(), 0);
        fs::write(other.path("go"), "").unwrap();
    };
    // A command that runs meanwhile is not an orphan; neither are its processes.
    let script = "setsid sh -c 'until test -e $TRIAL/go; do sleep 0.01; done; echo done' & wait";
    let (outcome, ()) = tokio::join!(other.run(script, LONG), killed);
    let outcome = outcome.unwrap();
    assert_eq!((outcome.end, outcome.stdout.as_str()), (HostEnd::Exited { code: 0 }, "done\n"));
}

#[tokio::test]
async fn processes_of_a_killed_watcher_are_killed_after_the_request_is_dropped() {
    let trial = Trial::new();
    let host = CommandsOnHost::with_watcher(TRIAL, LONG);
    let permit = permit();
    let script = format!("{ORPHANS} sleep 1000");
    let run = host.run(&permit, HostCommand { words: trial.words(&script), deadline: LONG });
    tokio::select! {
        biased;
        outcome = run => panic!("{outcome:?}"),
        () = trial.file_is_there("began") => {
            // Stop it first, so that it cannot kill when the future is dropped.
            let watcher: i32 = fs::read_to_string(trial.path("watcher")).unwrap().trim().parse().unwrap();
            for signal in [Signal::STOP, Signal::KILL] {
                kill_process(rustix::process::Pid::from_raw(watcher).unwrap(), signal).unwrap();
            }
        }
    }
    trial.nothing_is_left().await;
}
