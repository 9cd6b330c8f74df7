//! Tests of stops: graceful ones, their deadlines, kills, and children that do not end at all.

use std::sync::mpsc;

use super::*;

const DEADLINE: Duration = Duration::from_secs(3);

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_child() {
    let stage = TestTree::new("stop-waits");
    let slow = stage.starting("a", |_| Start::StopTakes(Duration::from_secs(2))).stop_deadline(DEADLINE);
    let tree = start(stage.supervisor("root").with_child(slow)).await;
    assert_eq!(tree.root().stop_child("a", Mode::Graceful).await, Ok(StopOutcome::Stopped));
    assert_eq!(stage.take(), ["0 started a", "0 a post_stop", "2000 a gone", "2000 removed a Stopped"]);
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn a_frozen_child_is_killed_at_its_deadline() {
    let stage = TestTree::new("stop-frozen");
    let tree = start(stage.supervisor("root").with_child(stage.worker("a").stop_deadline(DEADLINE))).await;
    stage.say("a", Say::Freeze);
    tokio::task::yield_now().await;
    assert_eq!(tree.root().stop_child("a", Mode::Graceful).await, Ok(StopOutcome::Killed));
    assert_eq!(stage.take(), ["0 started a", "3000 a gone", "3000 removed a Killed"]);
    assert_eq!(ractor::registry::where_is("stop-frozen/a"), None);
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn a_child_whose_stop_hangs_is_killed_at_its_deadline() {
    let stage = TestTree::new("stop-hangs");
    let slow = stage.starting("a", |_| Start::StopTakes(PATIENCE)).stop_deadline(DEADLINE);
    let tree = start(stage.supervisor("root").with_child(slow).with_child(stage.worker("b"))).await;
    assert_eq!(tree.stop(PATIENCE).await, StopOutcome::Stopped, "the root itself is not killed");
    let lines = stage.take();
    assert!(lines.contains(&"3000 removed a Killed".to_string()), "{lines:?}");
    assert_eq!(lines.last().unwrap(), "3000 stopped root");
}

#[tokio::test(start_paused = true)]
async fn an_immediate_stop_cancels_a_running_handler() {
    let stage = TestTree::new("stop-now");
    let tree = start(stage.supervisor("root").with_child(stage.worker("a"))).await;
    stage.say("a", Say::Freeze);
    tokio::task::yield_now().await;
    assert_eq!(tree.root().stop_child("a", Mode::Now).await, Ok(StopOutcome::Killed));
    assert_eq!(stage.take(), ["0 started a", "0 a gone", "0 removed a Killed"]);
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn an_immediate_stop_hurries_a_graceful_stop_and_answers_both_callers() {
    let stage = TestTree::new("stop-hurry");
    let slow = stage.starting("a", |_| Start::StopTakes(PATIENCE)).stop_deadline(PATIENCE);
    let tree = start(stage.supervisor("root").with_child(slow)).await;
    let root = tree.root().clone();
    let graceful = tokio::spawn(async move { root.stop_child("a", Mode::Graceful).await });
    tokio::time::sleep(DEADLINE).await;
    assert_eq!(tree.root().stop_child("a", Mode::Now).await, Ok(StopOutcome::Killed));
    assert_eq!(graceful.await.unwrap(), Ok(StopOutcome::Killed));
    assert_eq!(stage.began.elapsed(), DEADLINE);
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_to_stop_does_not_wait() {
    let stage = TestTree::new("stop-request");
    let tree = start(stage.supervisor("root").with_child(stage.worker("a"))).await;
    tree.root().request_stop("a", Mode::Graceful).unwrap();
    tree.root().request_stop("nobody", Mode::Graceful).unwrap();
    stage.until_told("removed a Stopped").await;
    tree.stop(PATIENCE).await;
    assert_eq!(tree.root().request_stop("a", Mode::Now), Err(SupervisorEnded));
}

#[tokio::test(start_paused = true)]
async fn a_tree_that_is_stopped_cancels_starts_and_restarts() {
    let stage = TestTree::new("stop-starts");
    let starting = stage.clone();
    let hangs = ChildSpec::new("a", move |_| {
        let given_up = OnDrop(starting.clone(), "start of a given up");
        async move {
            std::future::pending::<()>().await;
            drop(given_up);
            Err(StartError::Cancelled)
        }
    });
    let fails = stage.starting("b", |_| Start::Fails);
    let tree = start(stage.supervisor("root").with_child(fails)).await;
    stage.take();
    let root = tree.root().clone();
    let adding = tokio::spawn(async move { root.add_child(hangs).await });
    tokio::task::yield_now().await;
    assert_eq!(tree.stop(PATIENCE).await, StopOutcome::Stopped);
    assert!(matches!(adding.await.unwrap(), Err(AddError::Removed(_))));
    tokio::time::sleep(QUIET).await;
    assert_eq!(
        stage.lines(),
        ["0 start of a given up", "0 removed a Stopped", "0 removed b Stopped", "0 stopped root"]
    );
}

#[tokio::test(start_paused = true)]
async fn tree_is_killed_immediately_and_after_its_deadline() {
    let stage = TestTree::new("stop-kill");
    let spec = || {
        stage
            .supervisor("root")
            .with_child(stage.starting("a", |_| Start::StopTakes(PATIENCE)).stop_deadline(PATIENCE))
    };
    let tree = start(spec()).await;
    assert_eq!(tree.kill().await, StopOutcome::Killed);
    assert_eq!(stage.began.elapsed(), Duration::ZERO);
    let tree = start(spec()).await;
    assert_eq!(tree.stop(DEADLINE).await, StopOutcome::Killed);
    assert_eq!(stage.began.elapsed(), DEADLINE);
    assert_eq!(ractor::registry::where_is("stop-kill/a"), None);
}

/// On threads, in real time: only a thread can be blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_blocks_its_thread_is_given_up_and_reported() {
    const GRACE: Duration = Duration::from_millis(50);
    let stage = TestTree::new("stop-stuck").in_real_time();
    let a = stage.worker("a").stop_deadline(GRACE);
    let tree =
        start(stage.supervisor("root").kill_grace(GRACE).with_child(a).with_child(stage.worker("b"))).await;
    let (unblock, until) = mpsc::channel();
    stage.say("a", Say::Block(until));
    let again = stage.cell("a");
    // Before the worker has taken the message, a stop would find it idle.
    stage.until_blocked("a").await;
    assert_eq!(tree.root().stop_child("a", Mode::Graceful).await, Ok(StopOutcome::Stuck));
    let status = tree.root().read_status().await.unwrap();
    assert_eq!(status.children.iter().map(|c| &*c.id).collect::<Vec<_>>(), ["b"], "the others go on");

    drop(unblock);
    again.wait(Some(REAL_PATIENCE)).await.expect("it ends when it returns to the runtime");
    assert_eq!(tree.stop(REAL_PATIENCE).await, StopOutcome::Stopped);
}
