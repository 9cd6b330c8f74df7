//! Tests of commands that end by themselves, and of their output.

use std::time::Duration;

use madako_protocol::host::{HostEnd, HostError, MAX_OUTPUT};

use crate::{LONG, Trial, run};

#[tokio::test]
async fn command_gets_its_arguments_and_returns_its_outputs() {
    let words = ["sh", "-c", "cat; echo \"$0|$1\"; echo bad >&2", "a b", "10.0.0.1"];
    let outcome = run(words.map(str::to_owned).to_vec(), LONG).await.unwrap();
    assert!(outcome.succeeded(), "{outcome:?}");
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("a b|10.0.0.1\n", "bad\n"));
    assert!(!outcome.cut && outcome.took < LONG);
}

#[tokio::test]
async fn exit_codes_and_signals_are_distinguished() {
    for (script, end) in [
        ("exit 3", HostEnd::Exited { code: 3 }),
        ("exit 255", HostEnd::Exited { code: 255 }),
        ("kill -9 $$", HostEnd::Signalled { signal: 9 }),
        ("kill -TERM $$", HostEnd::Signalled { signal: 15 }),
    ] {
        assert_eq!(Trial::new().run(script, LONG).await.unwrap().end, end, "{script}");
    }
}

#[tokio::test]
async fn command_that_cannot_be_started_reports_not_started() {
    for (words, why) in [
        (vec!["/no/such/program"], "No such file"),
        (vec!["no-such-program-in-path"], "No such file"),
        (vec!["/etc/passwd"], "denied"),
        (vec!["/"], "denied"),
        (vec!["echo", "a\0b"], "nul"),
        (vec![], "no command"),
    ] {
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let error = run(words.clone(), LONG).await.unwrap_err();
        let HostError::NotStarted { why: told, .. } = &error else { panic!("{words:?}: {error:?}") };
        assert!(told.contains(why), "{words:?}: {told}");
    }
    let error = run(vec!["echo".to_owned(), "x".repeat(2 << 20)], LONG).await.unwrap_err();
    assert!(matches!(error, HostError::NotStarted { .. }), "{error:?}");
    // Short enough for an order, too long for the system.
    let error = run(vec!["echo".to_owned(), "x".repeat(200 << 10)], LONG).await.unwrap_err();
    assert!(matches!(error, HostError::NotStarted { .. }), "{error:?}");
}

#[tokio::test]
async fn a_script_without_an_interpreter_line_is_run_by_the_shell() {
    use std::os::unix::fs::PermissionsExt as _;
    let trial = Trial::new();
    let script = trial.path("script");
    std::fs::write(&script, "echo $1\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let words = vec![script.display().to_string(), "10.0.0.1".to_owned()];
    assert_eq!(run(words, LONG).await.unwrap().stdout, "10.0.0.1\n");
}

#[tokio::test]
async fn a_gibibyte_on_each_output_neither_blocks_nor_is_kept() {
    let script = "head -c 1073741824 /dev/zero >&2 & head -c 1073741824 /dev/zero; wait; exit 4";
    let outcome = Trial::new().run(script, LONG).await.unwrap();
    assert_eq!(outcome.end, HostEnd::Exited { code: 4 });
    assert!(outcome.cut);
    assert_eq!((outcome.stdout.len(), outcome.stderr.len()), (MAX_OUTPUT, MAX_OUTPUT));
}

#[tokio::test]
async fn command_may_close_its_outputs_and_continue() {
    let trial = Trial::new();
    let outcome =
        trial.run("echo a; exec >&- 2>&-; sleep 0.2; touch $TRIAL/done; exit 5", LONG).await.unwrap();
    assert_eq!((outcome.end, outcome.stdout.as_str()), (HostEnd::Exited { code: 5 }, "a\n"));
    assert!(trial.path("done").exists());
}

#[tokio::test]
async fn command_ends_only_after_its_background_jobs() {
    let trial = Trial::new();
    let script = "(sleep 0.3; echo later; touch $TRIAL/done) & exit 6";
    let outcome = trial.run(script, LONG).await.unwrap();
    assert_eq!((outcome.end, outcome.stdout.as_str()), (HostEnd::Exited { code: 6 }, "later\n"));
    assert!(trial.path("done").exists());
}

#[tokio::test]
async fn command_waits_for_background_jobs_of_another_session() {
    let trial = Trial::new();
    let script = "setsid sh -c 'sleep 0.3; touch $TRIAL/done' >/dev/null 2>&1 & exit 0";
    assert!(trial.run(script, LONG).await.unwrap().succeeded());
    assert!(trial.path("done").exists());
}

#[tokio::test]
async fn several_commands_run_concurrently() {
    let trial = Trial::new();
    // Each command ends when all four have begun.
    let script = |name: &str| {
        format!(
            "touch $TRIAL/{name}; until [ -e $TRIAL/a -a -e $TRIAL/b -a -e $TRIAL/c -a -e $TRIAL/d ]; do sleep 0.02; done; echo {name}"
        )
    };
    let [a, b, c, d] = ["a", "b", "c", "d"].map(script);
    let deadline = Duration::from_secs(60);
    let ends = tokio::join!(
        trial.run(&a, deadline),
        trial.run(&b, deadline),
        trial.run(&c, deadline),
        trial.run(&d, deadline)
    );
    for (end, name) in [(ends.0, "a\n"), (ends.1, "b\n"), (ends.2, "c\n"), (ends.3, "d\n")] {
        assert_eq!(end.unwrap().stdout, name);
    }
}
