//! Tests of supervisors below supervisors, as `reign` below `root`.

use super::*;

const TWO: Budget = Budget { restarts: 2, window: Duration::from_secs(10) };

fn reign(stage: &TestTree) -> SupervisorSpec {
    stage
        .supervisor("reign")
        .with_budget(TWO)
        .with_child(stage.worker("poller"))
        .with_child(stage.worker("planner"))
}

/// Fails the planner once more than its budget allows.
async fn melt(stage: &TestTree) {
    for n in 1..=2 {
        stage.say("planner", Say::Fail);
        stage.until_told(&format!("restarted planner #{n}")).await;
    }
    stage.say("planner", Say::Fail);
}

#[tokio::test(start_paused = true)]
async fn an_inner_supervisor_that_melts_down_is_restarted_with_its_children() {
    let stage = TestTree::new("nest-melt");
    let spec = stage
        .supervisor("root")
        .with_child(stage.worker("http"))
        .with_child(ChildSpec::for_supervisor(reign(&stage)));
    let tree = start(spec).await;
    stage.until_told("started planner").await;
    let http = stage.cell("http").get_id();
    stage.take();
    melt(&stage).await;
    stage.until_told("restarted reign #1").await;
    stage.until(|events| events.iter().filter(|e| tell(e) == "started planner").count() == 2).await;
    let lines: Vec<String> = stage.take().into_iter().skip_while(|l| !l.contains("never again")).collect();
    assert_eq!(
        lines,
        [
            "300 planner failed: cannot reach the store: refused; never again",
            "300 meltdown reign",
            "300 removed planner Stopped",
            "300 poller post_stop",
            "300 poller gone",
            "300 removed poller Stopped",
            "300 stopped reign",
            "300 reign the supervisor reign ended, because an actor failed too often: the actor planner needed more \
             than 2 restarts within 10s; last exit: failed: cannot reach the store: refused; again in 100",
            "400 restarted reign #1",
            "400 started poller",
            "400 started planner",
        ]
    );
    assert_eq!(stage.cell("http").get_id(), http);
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_melts_down_too_often_is_reported_and_the_root_continues() {
    let stage = TestTree::new("nest-report");
    let reports = watch::Sender::new(0);
    let reported = reports.clone();
    let report = BudgetAction::Report(Arc::new(move |_| reported.send_modify(|n| *n += 1)));
    let own = Budget { restarts: 1, window: Duration::from_secs(600) };
    let bad =
        stage.supervisor("reign").with_budget(TWO).with_child(stage.starting("planner", |_| Start::Fails));
    let tree = start(stage.supervisor("root").with_child(stage.worker("http"))).await;
    let added = tree.root().add_child(ChildSpec::for_supervisor(bad).own_budget(own, report)).await;
    assert!(matches!(added, Ok(FirstStart::Running(_))));
    stage.until_told("given up reign").await;
    assert_eq!(*reports.borrow(), 1);
    // 300 ms for each of two meltdowns, 100 ms between them.
    assert_eq!(stage.began.elapsed().as_millis(), 700);
    let status = tree.root().read_status().await.unwrap();
    assert_eq!(status.children.len(), 1, "only http is left: {status:?}");

    let again = tree.root().add_child(ChildSpec::for_supervisor(reign(&stage))).await;
    assert!(matches!(again, Ok(FirstStart::Running(_))), "it can be tried again later");
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_report_the_root_melts_down_after_it() {
    let stage = TestTree::new("nest-escalate");
    let bad =
        stage.supervisor("reign").with_budget(TWO).with_child(stage.starting("planner", |_| Start::Fails));
    let root = stage.supervisor("root").with_budget(Budget { restarts: 1, ..TWO });
    let tree = start(root.with_child(stage.worker("http")).with_child(ChildSpec::for_supervisor(bad))).await;
    let meltdown = tree.wait_for_end().await.expect("a meltdown");
    assert_eq!(&*meltdown.exceeded.child, "reign");
    assert!(matches!(meltdown.exceeded.reason, ChildExit::Meltdown(_)));
}

#[tokio::test(start_paused = true)]
async fn a_graceful_stop_of_an_inner_supervisor_stops_its_children_in_reverse_and_waits() {
    let stage = TestTree::new("nest-stop");
    let slow = stage.starting("slow", |_| Start::StopTakes(Duration::from_secs(2)));
    let tree = start(stage.supervisor("root")).await;
    tree.root().add_child(ChildSpec::for_supervisor(reign(&stage).with_child(slow))).await.unwrap();
    SupervisorRef::find("nest-stop", "reign").unwrap().wait_until_ready().await.unwrap();
    stage.take();
    assert_eq!(tree.root().stop_child("reign", Mode::Graceful).await, Ok(StopOutcome::Stopped));
    let removed: Vec<String> = stage.take().into_iter().filter(|l| l.contains("removed")).collect();
    assert_eq!(
        removed,
        [
            "2000 removed slow Stopped",
            "2000 removed planner Stopped",
            "2000 removed poller Stopped",
            "2000 removed reign Stopped",
        ]
    );
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn lost_leadership_stops_the_actors_of_the_leader_immediately() {
    let stage = TestTree::new("nest-now");
    let inner = stage.supervisor("nodes").with_child(stage.worker("node"));
    let hangs = stage.starting("hangs", |_| Start::Freezes);
    let spec = reign(&stage).with_child(ChildSpec::for_supervisor(inner)).with_child(hangs);
    let tree = start(stage.supervisor("root").with_child(ChildSpec::for_supervisor(spec))).await;
    stage.until_told("started node").await;
    for id in ["poller", "planner", "node"] {
        stage.say(id, Say::Freeze);
    }
    tokio::task::yield_now().await;
    stage.take();
    assert_eq!(tree.root().stop_child("reign", Mode::Now).await, Ok(StopOutcome::Killed));
    assert_eq!(stage.began.elapsed(), Duration::ZERO);
    let lines = stage.take();
    for id in ["poller", "planner", "node"] {
        assert!(lines.contains(&format!("0 {id} gone")), "{lines:?}");
        assert_eq!(ractor::registry::where_is(actor_name("nest-now", id)), None);
    }
    assert!(!lines.iter().any(|l| l.contains("post_stop")), "{lines:?}");
    assert_eq!(lines.last().unwrap(), "0 removed reign Killed");
    assert!(matches!(
        tree.root().add_child(ChildSpec::for_supervisor(reign(&stage))).await,
        Ok(FirstStart::Running(_))
    ));
    SupervisorRef::find("nest-now", "reign").unwrap().wait_until_ready().await.unwrap();
    let reported = stage.take();
    assert!(!reported.iter().any(|l| l.contains("not started")), "all names are free: {reported:?}");
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn an_immediate_stop_hurries_an_inner_supervisor() {
    let stage = TestTree::new("nest-hurry");
    let slow = || stage.starting("slow", |_| Start::StopTakes(PATIENCE)).stop_deadline(PATIENCE);
    let spec = stage.supervisor("reign").with_child(slow()).with_child(stage.worker("planner"));
    let reign = ChildSpec::for_supervisor(spec).stop_deadline(PATIENCE);
    let tree = start(stage.supervisor("root").with_child(reign)).await;
    SupervisorRef::find("nest-hurry", "reign").unwrap().wait_until_ready().await.unwrap();
    let root = tree.root().clone();
    let graceful = tokio::spawn(async move { root.stop_child("reign", Mode::Graceful).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(tree.root().stop_child("reign", Mode::Now).await, Ok(StopOutcome::Killed));
    assert_eq!(graceful.await.unwrap(), Ok(StopOutcome::Killed));
    assert_eq!(stage.began.elapsed(), Duration::from_secs(1));
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn killed_inner_supervisor_is_restarted_after_its_children_have_ended() {
    let stage = TestTree::new("nest-kill");
    let tree = start(stage.supervisor("root").with_child(ChildSpec::for_supervisor(reign(&stage)))).await;
    SupervisorRef::find("nest-kill", "reign").unwrap().wait_until_ready().await.unwrap();
    stage.cell("reign").kill();
    stage.until(|events| events.iter().filter(|e| tell(e) == "started planner").count() == 2).await;
    let lines = stage.take();
    assert!(lines.contains(&"0 reign killed; again in 100".to_string()), "{lines:?}");
    assert!(!lines.iter().any(|l| l.contains("not started")), "{lines:?}");
    tree.stop(PATIENCE).await;
}

/// On threads, in real time. The name of the blocked child stays taken: an early restart would fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_waits_for_a_child_of_the_former_supervisor_that_still_runs() {
    let stage = TestTree::new("nest-wait").in_real_time();
    let tree = start(stage.supervisor("root").with_child(ChildSpec::for_supervisor(reign(&stage)))).await;
    SupervisorRef::find("nest-wait", "reign").unwrap().wait_until_ready().await.unwrap();
    let (unblock, until) = std::sync::mpsc::channel();
    stage.say("planner", Say::Block(until));
    stage.until_blocked("planner").await;
    stage.cell("reign").kill();
    stage.until_told("reign killed; again in 100").await;
    // Longer than the back-off: only the running child delays its restart.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(SupervisorRef::find("nest-wait", "reign").is_none());
    drop(unblock);
    stage.until_told("restarted reign #1").await;
    SupervisorRef::find("nest-wait", "reign").unwrap().wait_until_ready().await.unwrap();
    assert!(!stage.lines().iter().any(|l| l.contains("not started")), "{:?}", stage.lines());
    tree.stop(REAL_PATIENCE).await;
}

/// On threads, in real time: a start that blocks its thread cannot be cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_waits_for_a_start_of_the_former_supervisor_that_still_runs() {
    let stage = TestTree::new("nest-start").in_real_time();
    let (unblock, until) = std::sync::mpsc::channel::<()>();
    let (until, starting) = (Mutex::new(Some(until)), stage.clone());
    let blocks = ChildSpec::new("blocks", move |_| {
        let (until, stage) = (until.lock().unwrap().take(), starting.clone());
        async move {
            // The second start does not block.
            if let Some(until) = until {
                // In a separate poll, as in the worker.
                tokio::time::sleep(Duration::from_millis(1)).await;
                stage.write("blocks blocks".into());
                let _ = until.recv();
                stage.write("blocks no more".into());
            }
            Err(StartError::Cancelled)
        }
    });
    let reign = ChildSpec::for_supervisor(stage.supervisor("reign").with_child(blocks));
    let tree = start(stage.supervisor("root").with_child(reign)).await;
    stage.until_blocked("blocks").await;
    stage.cell("reign").kill();
    stage.until_told("reign killed; again in 100").await;
    // Longer than the back-off: only the running start delays the restart.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(SupervisorRef::find("nest-start", "reign").is_none());
    drop(unblock);
    stage.until_told("restarted reign #1").await;
    tree.stop(REAL_PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn the_status_shows_the_whole_tree() {
    let stage = TestTree::new("nest-status");
    let spec = stage
        .supervisor("root")
        .with_child(stage.worker("http"))
        .with_child(ChildSpec::for_supervisor(reign(&stage)));
    let tree = start(spec).await;
    SupervisorRef::find("nest-status", "reign").unwrap().wait_until_ready().await.unwrap();
    let status = tree.root().read_status().await.unwrap();
    let below = status.children[1].below.as_ref().expect("reign answers");
    assert_eq!(below.children.iter().map(|c| &*c.id).collect::<Vec<_>>(), ["poller", "planner"]);
    assert_eq!(status.children[0].below, None);
    assert!(SupervisorRef::find("nest-status", "http").is_none(), "not every actor is a supervisor");
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn two_instances_live_side_by_side() {
    let (one, two) = (TestTree::new("nest-one"), TestTree::new("nest-two"));
    let first = start(one.supervisor("root").with_child(ChildSpec::for_supervisor(reign(&one)))).await;
    let second = start(two.supervisor("root").with_child(ChildSpec::for_supervisor(reign(&two)))).await;
    one.until_told("started planner").await;
    two.until_told("started planner").await;
    first.stop(PATIENCE).await;
    assert!(ractor::registry::where_is("nest-one/planner").is_none());
    assert!(ractor::registry::where_is("nest-two/planner").is_some());
    second.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn an_inner_supervisor_that_is_killed_while_it_stops_takes_its_children_along() {
    let stage = TestTree::new("nest-kill-stop");
    let slow = stage.starting("slow", |_| Start::StopTakes(PATIENCE)).stop_deadline(PATIENCE);
    let spec = stage.supervisor("reign").with_child(stage.worker("planner")).with_child(slow);
    let reign = ChildSpec::for_supervisor(spec).stop_deadline(PATIENCE);
    let tree = start(stage.supervisor("root").with_child(reign)).await;
    let inner = SupervisorRef::find("nest-kill-stop", "reign").unwrap();
    inner.wait_until_ready().await.unwrap();
    let root = tree.root().clone();
    let graceful = tokio::spawn(async move { root.stop_child("reign", Mode::Graceful).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    inner.cell().kill();
    assert_eq!(graceful.await.unwrap(), Ok(StopOutcome::Stopped));
    assert_eq!(stage.began.elapsed(), Duration::from_secs(1));
    assert!(stage.lines().contains(&"1000 slow gone".to_string()), "{:?}", stage.lines());
    tree.stop(PATIENCE).await;
}
