//! Tests of restart budgets: their counts, their limits, and the consequences.

use super::*;

const TWO: Budget = Budget { restarts: 2, window: Duration::from_secs(10) };

/// Fails a worker each time it runs, until the last event.
async fn fail_until(stage: &TestTree, id: &'static str, last: &str) {
    let mut restarts = 0;
    loop {
        stage.say(id, Say::Fail);
        restarts += 1;
        let back = format!("restarted {id} #{restarts}");
        stage.until(|events| events.iter().any(|e| [last, &back].contains(&tell(e).as_str()))).await;
        if stage.lines().iter().any(|line| line.ends_with(last)) {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_melts_down_when_its_budget_is_exceeded() {
    let stage = TestTree::new("budget-meltdown");
    let spec = stage.supervisor("root").with_budget(TWO);
    let tree =
        start(spec.with_child(stage.worker("a")).with_child(stage.worker("b")).with_child(stage.worker("c")))
            .await;
    fail_until(&stage, "b", "meltdown root").await;
    let meltdown = tree.wait_for_end().await.expect("a meltdown");
    assert_eq!(
        meltdown.to_string(),
        "the supervisor root ended, because an actor failed too often: the actor b needed more than 2 restarts \
         within 10s; last exit: failed: cannot reach the store: refused"
    );
    let lines: Vec<String> = stage.take().into_iter().skip_while(|l| !l.contains("never again")).collect();
    assert_eq!(
        lines,
        [
            "300 b failed: cannot reach the store: refused; never again",
            "300 meltdown root",
            "300 c post_stop",
            "300 c gone",
            "300 removed c Stopped",
            "300 removed b Stopped",
            "300 a post_stop",
            "300 a gone",
            "300 removed a Stopped",
            "300 stopped root",
        ]
    );
    assert!(tree.root().read_status().await.is_err());
    assert!(matches!(tree.root().add_child(stage.worker("d")).await, Err(AddError::Ended { .. })));
    assert!(matches!(tree.root().stop_child("a", Mode::Now).await, Err(StopError::Ended { .. })));
}

#[tokio::test(start_paused = true)]
async fn failures_of_different_children_count_together() {
    let stage = TestTree::new("budget-together");
    let spec = stage.supervisor("root").with_budget(TWO);
    let tree =
        start(spec.with_child(stage.worker("a")).with_child(stage.worker("b")).with_child(stage.worker("c")))
            .await;
    for id in ["a", "b", "c"] {
        stage.say(id, Say::Fail);
    }
    let meltdown = tree.wait_for_end().await.expect("a meltdown");
    assert_eq!(&*meltdown.exceeded.child, "c");
}

#[tokio::test(start_paused = true)]
async fn two_children_that_fail_together_are_each_restarted_once() {
    let stage = TestTree::new("budget-two");
    let tree =
        start(stage.supervisor("root").with_child(stage.worker("a")).with_child(stage.worker("b"))).await;
    stage.say("a", Say::Fail);
    stage.say("b", Say::Panic);
    stage.until_told("restarted b #1").await;
    tokio::time::sleep(QUIET).await;
    let lines = stage.take();
    let restarts: Vec<&String> = lines.iter().filter(|l| l.contains("restarted")).collect();
    assert_eq!(restarts, ["100 restarted a #1", "100 restarted b #1"]);
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn failures_far_apart_never_exceed_the_budget_and_back_off_shortly() {
    let stage = TestTree::new("budget-apart");
    let tree = start(stage.supervisor("root").with_budget(TWO).with_child(stage.worker("a"))).await;
    for n in 1..=20 {
        tokio::time::sleep(QUIET).await;
        stage.say("a", Say::Fail);
        stage.until_told(&format!("restarted a #{n}")).await;
    }
    let waits = stage.lines().iter().filter(|l| l.ends_with("again in 100")).count();
    assert_eq!(waits, 20);
    assert_eq!(tree.stop(PATIENCE).await, StopOutcome::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_always_fails_exceeds_the_budget_too() {
    let stage = TestTree::new("budget-start");
    let tree =
        start(stage.supervisor("root").with_budget(TWO).with_child(stage.starting("a", |_| Start::Fails)))
            .await;
    let meltdown = tree.wait_for_end().await.expect("a meltdown");
    assert!(matches!(meltdown.exceeded.reason, ChildExit::StartFailed(_)));
    assert_eq!(stage.began.elapsed().as_millis(), 300);
}

#[tokio::test(start_paused = true)]
async fn a_child_with_a_budget_of_its_own_does_not_charge_its_supervisors() {
    let stage = TestTree::new("budget-own");
    let own = Budget { restarts: 5, window: Duration::from_secs(60) };
    let a = stage.worker("a").own_budget(own, BudgetAction::Escalate);
    let spec = stage.supervisor("root").with_budget(Budget { restarts: 0, ..TWO });
    let tree = start(spec.with_child(a).with_child(stage.worker("b"))).await;
    fail_until(&stage, "a", "restarted a #5").await;
    stage.say("a", Say::Fail);
    let meltdown = tree.wait_for_end().await.expect("a meltdown");
    assert_eq!((&*meltdown.exceeded.child, meltdown.exceeded.restarts), ("a", 5));
}

#[tokio::test(start_paused = true)]
async fn a_child_that_reports_is_removed_and_may_be_added_again() {
    let stage = TestTree::new("budget-report");
    let reports = watch::Sender::new(Vec::new());
    let reported = reports.clone();
    let report = BudgetAction::Report(Arc::new(move |exceeded| {
        reported.send_modify(|r: &mut Vec<_>| r.push(exceeded))
    }));
    let a = stage.worker("a").own_budget(TWO, report);
    let tree = start(stage.supervisor("root").with_child(a.clone()).with_child(stage.worker("b"))).await;
    let b = stage.cell("b").get_id();
    fail_until(&stage, "a", "given up a").await;
    let exceeded = reports.borrow()[0].clone();
    assert_eq!((&*exceeded.child, exceeded.restarts, exceeded.window), ("a", 2, TWO.window));
    assert_eq!(stage.cell("b").get_id(), b, "the supervisor goes on");
    let status = tree.root().read_status().await.unwrap();
    assert_eq!(status.children.iter().map(|c| &*c.id).collect::<Vec<_>>(), ["b"]);

    assert!(matches!(tree.root().add_child(a).await, Ok(FirstStart::Running(_))), "with a fresh budget");
    stage.say("a", Say::Fail);
    stage.until_told("restarted a #1").await;
    assert_eq!(reports.borrow().len(), 1);
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn status_shows_restarts_waits_and_the_last_error() {
    let stage = TestTree::new("budget-status");
    let bad = stage.starting("a", |_| Start::Fails);
    let slow = stage.starting("c", |_| Start::Takes(Duration::from_secs(5)));
    let tree = start(stage.supervisor("root").with_child(bad).with_child(stage.worker("b"))).await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    let root = tree.root().clone();
    let adding = tokio::spawn(async move { root.add_child(slow).await });
    tokio::task::yield_now().await;
    let status = tree.root().read_status().await.unwrap();
    let shown: Vec<_> = status
        .children
        .iter()
        .map(|c| (&*c.id, c.state, c.restarts, c.last_error.as_deref().unwrap_or("")))
        .collect();
    let error = "not started: the start of the actor failed: cannot reach the store: refused";
    assert_eq!(
        shown,
        [
            ("a", ChildState::Backoff(Duration::from_millis(150)), 1, error),
            ("b", ChildState::Running, 0, ""),
            ("c", ChildState::Starting, 0, ""),
        ]
    );
    tree.stop(PATIENCE).await;
    assert!(matches!(adding.await.unwrap(), Err(AddError::Removed(_))));
}
