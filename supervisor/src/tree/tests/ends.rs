//! Tests of a child's end: one for each way in which an actor can end.

use super::*;

/// Starts one worker, ends it, and returns the log up to its restart.
async fn restarted_after(instance: &'static str, end: impl FnOnce(&TestTree)) -> Vec<String> {
    let stage = TestTree::new(instance);
    let tree =
        start(stage.supervisor("root").with_child(stage.worker("a")).with_child(stage.worker("b"))).await;
    assert_eq!(stage.take(), ["0 started a", "0 started b"]);
    let b = stage.cell("b").get_id();
    end(&stage);
    stage.until_told("restarted a #1").await;
    let lines = stage.take();
    assert_eq!(stage.cell("b").get_id(), b, "the sibling is not touched");
    assert!(stage.cell("a").get_status() < ractor::ActorStatus::Stopping);
    assert_eq!(tree.stop(PATIENCE).await, StopOutcome::Stopped);
    lines
}

#[tokio::test(start_paused = true)]
async fn end_by_a_panic_in_a_handler() {
    let lines = restarted_after("end-panic", |stage| stage.say("a", Say::Panic)).await;
    assert_eq!(lines, ["0 a gone", "0 a failed: boom; again in 100", "100 restarted a #1"]);
}

#[tokio::test(start_paused = true)]
async fn error_of_a_handler_is_reported_with_its_sources() {
    let lines = restarted_after("end-error", |stage| stage.say("a", Say::Fail)).await;
    assert_eq!(
        lines,
        ["0 a gone", "0 a failed: cannot reach the store: refused; again in 100", "100 restarted a #1"]
    );
}

#[tokio::test(start_paused = true)]
async fn end_by_its_own_stop() {
    let lines = restarted_after("end-own", |stage| stage.say("a", Say::End)).await;
    assert_eq!(lines, ["0 a post_stop", "0 a ended: done; again in 100", "0 a gone", "100 restarted a #1"]);
}

#[tokio::test(start_paused = true)]
async fn end_by_a_stop_from_another_actor() {
    let lines = restarted_after("end-stop", |stage| stage.cell("a").stop(None)).await;
    assert_eq!(lines, ["0 a post_stop", "0 a ended; again in 100", "0 a gone", "100 restarted a #1"]);
}

#[tokio::test(start_paused = true)]
async fn end_by_a_drain_of_the_mailbox() {
    let lines = restarted_after("end-drain", |stage| stage.cell("a").drain().unwrap()).await;
    assert_eq!(
        lines,
        ["0 a post_stop", "0 a ended: Drained; again in 100", "0 a gone", "100 restarted a #1"]
    );
}

#[tokio::test(start_paused = true)]
async fn end_by_a_kill_of_an_idle_actor() {
    let lines = restarted_after("end-kill", |stage| stage.cell("a").kill()).await;
    assert_eq!(lines, ["0 a killed; again in 100", "0 a gone", "100 restarted a #1"]);
}

#[tokio::test(start_paused = true)]
async fn end_by_a_kill_in_the_middle_of_a_handler() {
    let stage = TestTree::new("end-kill-await");
    let tree = start(stage.supervisor("root").with_child(stage.worker("a"))).await;
    stage.say("a", Say::Freeze);
    // The worker takes the message and hangs; nothing happens until it is killed.
    tokio::time::sleep(QUIET).await;
    stage.cell("a").kill();
    stage.until_told("restarted a #1").await;
    assert_eq!(
        stage.take(),
        ["0 started a", "60000 a killed; again in 100", "60000 a gone", "60100 restarted a #1"]
    );
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn end_by_a_cancelled_task() {
    let stage = TestTree::new("end-abort");
    let handles = Arc::new(Mutex::new(Vec::new()));
    let (kept, worker) = (Arc::clone(&handles), stage.clone());
    let child = ChildSpec::new("a", move |supervisor| {
        let (kept, stage) = (Arc::clone(&kept), worker.clone());
        async move {
            let name = Some(actor_name(stage.instance, "a"));
            let actor = Worker { stage, id: "a" };
            let started = Actor::spawn_linked(name, actor, Start::Good, supervisor).await?;
            kept.lock().unwrap().push(started.1.abort_handle());
            Ok(started.into())
        }
    });
    let tree = start(stage.supervisor("root").with_child(child)).await;
    handles.lock().unwrap()[0].abort();
    stage.until_told("restarted a #1").await;
    assert!(stage.lines().contains(&"0 a killed; again in 100".to_string()), "{:?}", stage.lines());
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn stop_that_fails() {
    let stage = TestTree::new("end-post-stop");
    let child = stage.starting("a", |n| if n == 0 { Start::StopFails } else { Start::Good });
    let tree = start(stage.supervisor("root").with_child(child)).await;
    stage.cell("a").stop(None);
    stage.until_told("restarted a #1").await;
    assert!(stage.lines().contains(&"0 a failed: no post_stop; again in 100".to_string()));
    tree.stop(PATIENCE).await;
}

/// Starts a worker with two failing starts, and another worker; returns the log up to the third start.
async fn started_in_the_end(instance: &'static str, how: Start) -> Vec<String> {
    let stage = TestTree::new(instance);
    let bad = stage.starting("a", move |n| if n < 2 { how } else { Start::Good });
    let bad = bad.start_deadline(Duration::from_secs(1));
    let tree = start(stage.supervisor("root").with_child(bad).with_child(stage.worker("b"))).await;
    stage.until_told("restarted a #2").await;
    let lines = stage.take();
    tree.stop(PATIENCE).await;
    lines
}

#[tokio::test(start_paused = true)]
async fn start_that_fails() {
    assert_eq!(
        started_in_the_end("start-error", Start::Fails).await,
        [
            "0 a not started: the start of the actor failed: cannot reach the store: refused; again in 100",
            "0 started b",
            "100 a not started: the start of the actor failed: cannot reach the store: refused; again in 200",
            "300 restarted a #2",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn start_that_panics() {
    assert_eq!(
        started_in_the_end("start-panic", Start::Panics).await,
        [
            "0 a not started: the start of the actor failed: no start; again in 100",
            "0 started b",
            "100 a not started: the start of the actor failed: no start; again in 200",
            "300 restarted a #2",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn start_that_hangs() {
    assert_eq!(
        started_in_the_end("start-hang", Start::Freezes).await,
        [
            "1000 a not started: the start of the actor did not end within 1s; again in 100",
            "1000 started b",
            "2100 a not started: the start of the actor did not end within 1s; again in 200",
            "2300 restarted a #2",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn end_by_an_error_right_after_the_start() {
    let lines = started_in_the_end("start-after", Start::FailsAfter).await;
    let reported: Vec<&str> = lines.iter().map(String::as_str).filter(|l| !l.ends_with("gone")).collect();
    assert_eq!(
        reported,
        [
            "0 started a",
            "0 a failed: no post_start; again in 100",
            "0 started b",
            "100 restarted a #1",
            "100 a failed: no post_start; again in 200",
            "300 restarted a #2",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn start_function_that_panics() {
    let stage = TestTree::new("start-fn");
    let child = ChildSpec::new("a", |_| async { panic!("no function") });
    let tree = start(stage.supervisor("root").with_child(child)).await;
    assert_eq!(stage.take(), ["0 a not started: the start of the actor failed: no function; again in 100"]);
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn start_with_a_taken_name() {
    let stage = TestTree::new("start-name");
    let holder = Worker { stage: stage.clone(), id: "holder" };
    let (holder, _) = Actor::spawn(Some("start-name/a".into()), holder, Start::Good).await.unwrap();
    let tree = start(stage.supervisor("root").with_child(stage.worker("a"))).await;
    let refused = "0 a not started: the actor cannot start: another actor of this process has the name start-name/a already; again in 100";
    assert_eq!(stage.take(), [refused]);
    holder.stop(None);
    stage.until_told("restarted a #1").await;
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn unlinked_actor_is_linked_by_its_supervisor() {
    let stage = TestTree::new("start-unlinked");
    let worker = stage.clone();
    let child = ChildSpec::new("a", move |_| {
        let actor = Worker { stage: worker.clone(), id: "a" };
        async move { Ok(Actor::spawn(Some("start-unlinked/a".into()), actor, Start::Good).await?.into()) }
    });
    let tree = start(stage.supervisor("root").with_child(child)).await;
    stage.say("a", Say::Panic);
    stage.until_told("restarted a #1").await;
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn an_actor_that_ended_before_it_could_be_linked_has_failed() {
    let stage = TestTree::new("start-dead");
    let worker = stage.clone();
    let child = ChildSpec::new("a", move |_| {
        let actor = Worker { stage: worker.clone(), id: "a" };
        async move {
            let (actor, task) = Actor::spawn(None, actor, Start::Good).await?;
            actor.stop(None);
            actor.wait(None).await.expect("without a time limit");
            Ok((actor, task).into())
        }
    });
    let tree = start(stage.supervisor("root").with_child(child)).await;
    stage.until_told("a ended: before it was linked; again in 100").await;
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn a_transient_child_may_end_but_not_fail() {
    let stage = TestTree::new("end-transient");
    let a = stage.worker("a").restart(Restart::Transient);
    let tree = start(stage.supervisor("root").with_child(a)).await;
    stage.say("a", Say::Fail);
    stage.until_told("restarted a #1").await;
    stage.cell("a").kill();
    stage.until_told("restarted a #2").await;
    stage.say("a", Say::End);
    stage.until_told("ended a Some(\"done\")").await;
    assert_eq!(tree.root().read_status().await.unwrap().children, []);
    assert!(matches!(tree.root().add_child(stage.worker("a")).await, Ok(FirstStart::Running(_))));
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn a_very_long_reason_is_cut() {
    let stage = TestTree::new("end-long");
    let child = ChildSpec::new("a", |_| async { Err(StartError::Failed("ä".repeat(5000).into())) });
    let tree = start(stage.supervisor("root").with_child(child)).await;
    let status = tree.root().read_status().await.unwrap();
    let error = status.children[0].last_error.clone().unwrap();
    assert!(error.len() < 1100 && error.ends_with('…'), "{} bytes", error.len());
    tree.stop(PATIENCE).await;
}
