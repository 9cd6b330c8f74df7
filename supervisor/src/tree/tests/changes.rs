//! Tests of children that are added and removed while the supervisor runs.

use super::*;

#[tokio::test(start_paused = true)]
async fn children_start_one_after_the_other_and_stop_in_reverse() {
    let stage = TestTree::new("change-order");
    let slow = stage.starting("a", |_| Start::Takes(Duration::from_secs(2)));
    let spec =
        stage.supervisor("root").with_child(slow).with_child(stage.worker("b")).with_child(stage.worker("c"));
    let tree = start(spec).await;
    tree.stop(PATIENCE).await;
    assert_eq!(
        stage.take(),
        [
            "2000 started a",
            "2000 started b",
            "2000 started c",
            "2000 c post_stop",
            "2000 c gone",
            "2000 removed c Stopped",
            "2000 b post_stop",
            "2000 b gone",
            "2000 removed b Stopped",
            "2000 a post_stop",
            "2000 a gone",
            "2000 removed a Stopped",
            "2000 stopped root",
        ]
    );
    assert_eq!(tree.wait_for_end().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_child_can_be_added_found_and_removed() {
    let stage = TestTree::new("change-add");
    let tree = start(stage.supervisor("root")).await;
    let Ok(FirstStart::Running(cell)) = tree.root().add_child(stage.worker("a")).await else {
        panic!("not added");
    };
    assert_eq!(tree.root().find_child("a").await.unwrap().unwrap().get_id(), cell.get_id());
    assert_eq!(tree.root().stop_child("a", Mode::Graceful).await, Ok(StopOutcome::Stopped));
    assert_eq!(tree.root().find_child("a").await, Ok(None));
    assert_eq!(ractor::registry::where_is("change-add/a"), None);
    assert_eq!(
        tree.root().stop_child("a", Mode::Graceful).await,
        Err(StopError::Unknown("a".into())),
        "the removal of a missing child is an error"
    );
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn a_second_child_of_one_id_is_refused_and_the_first_is_unharmed() {
    let stage = TestTree::new("change-twice");
    let tree = start(stage.supervisor("root").with_child(stage.worker("a"))).await;
    let first = stage.cell("a").get_id();
    let again = tree.root().add_child(stage.worker("a")).await;
    assert!(matches!(again, Err(AddError::Duplicate(id)) if &*id == "a"));
    stage.say("a", Say::Fail);
    stage.until_told("a failed: cannot reach the store: refused; again in 100").await;
    let again = tree.root().add_child(stage.worker("a")).await;
    assert!(matches!(again, Err(AddError::Duplicate(_))), "in its backoff too");
    stage.until_told("restarted a #1").await;
    assert_ne!(stage.cell("a").get_id(), first);
    tree.stop(PATIENCE).await;

    let twice = stage.supervisor("root").with_child(stage.worker("a")).with_child(stage.worker("a"));
    let error = Tree::start(twice).await.unwrap_err();
    assert!(error.to_string().contains("its supervisor has an actor of that name already"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_child_removed_in_its_back_off_is_not_restarted() {
    let stage = TestTree::new("change-backoff");
    let tree = start(stage.supervisor("root").with_child(stage.worker("a"))).await;
    stage.say("a", Say::Fail);
    stage.until_told("a failed: cannot reach the store: refused; again in 100").await;
    assert_eq!(tree.root().stop_child("a", Mode::Graceful).await, Ok(StopOutcome::Stopped));
    tokio::time::sleep(QUIET).await;
    assert_eq!(ractor::registry::where_is("change-backoff/a"), None);
    assert!(!stage.lines().iter().any(|l| l.contains("restarted")), "{:?}", stage.lines());
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn a_child_added_again_after_a_removal_in_its_back_off_is_started_once() {
    let stage = TestTree::new("change-again");
    let tree = start(stage.supervisor("root").with_child(stage.worker("a"))).await;
    stage.say("a", Say::Fail);
    stage.until_told("a failed: cannot reach the store: refused; again in 100").await;
    tree.root().stop_child("a", Mode::Now).await.unwrap();
    let Ok(FirstStart::Running(cell)) = tree.root().add_child(stage.worker("a")).await else {
        panic!("not added");
    };
    tokio::time::sleep(QUIET).await;
    assert_eq!(stage.cell("a").get_id(), cell.get_id(), "the former restart is void");
    let status = tree.root().read_status().await.unwrap();
    assert_eq!((status.children[0].restarts, status.children[0].last_error.clone()), (0, None));
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn a_child_removed_during_its_start_is_cancelled() {
    let stage = TestTree::new("change-starting");
    let tree = start(stage.supervisor("root")).await;
    let (root, child) = (tree.root().clone(), stage.starting("a", |_| Start::Freezes));
    let adding = tokio::spawn(async move { root.add_child(child).await });
    tokio::task::yield_now().await;
    assert_eq!(tree.root().stop_child("a", Mode::Graceful).await, Ok(StopOutcome::Stopped));
    assert_eq!(stage.began.elapsed(), Duration::ZERO, "without waiting for its deadline");
    assert!(matches!(adding.await.unwrap(), Err(AddError::Removed(_))));
    assert_eq!(ractor::registry::where_is("change-starting/a"), None);
    assert!(matches!(tree.root().add_child(stage.worker("a")).await, Ok(FirstStart::Running(_))));
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn removals_in_the_first_start_do_not_hold_up_the_others() {
    let stage = TestTree::new("change-first");
    let hangs = stage.starting("a", |_| Start::Freezes);
    let tree = Tree::start(
        stage
            .supervisor("root")
            .with_child(hangs)
            .with_child(stage.worker("b"))
            .with_child(stage.worker("c")),
    )
    .await
    .unwrap();
    let status = tree.root().read_status().await.unwrap();
    let states: Vec<ChildState> = status.children.iter().map(|c| c.state).collect();
    assert_eq!(states, [ChildState::Starting, ChildState::Waiting, ChildState::Waiting]);
    assert_eq!(tree.root().stop_child("b", Mode::Graceful).await, Ok(StopOutcome::Stopped));
    assert_eq!(tree.root().stop_child("a", Mode::Graceful).await, Ok(StopOutcome::Stopped));
    tree.root().wait_until_ready().await.unwrap();
    assert_eq!(stage.take(), ["0 removed b Stopped", "0 removed a Stopped", "0 started c"]);
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn child_that_hangs_in_its_start_delays_no_later_child() {
    let stage = TestTree::new("change-hang");
    let tree = start(stage.supervisor("root")).await;
    let (root, child) = (tree.root().clone(), stage.starting("a", |_| Start::Freezes));
    let adding = tokio::spawn(async move { root.add_child(child).await });
    tokio::task::yield_now().await;
    assert!(matches!(tree.root().add_child(stage.worker("b")).await, Ok(FirstStart::Running(_))));
    assert_eq!(stage.began.elapsed(), Duration::ZERO);
    let Ok(FirstStart::Failed(why)) = adding.await.unwrap() else { panic!("it hangs") };
    assert_eq!(why, "not started: the start of the actor did not end within 30s");
    tree.stop(PATIENCE).await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_children_come_and_go() {
    const MANY: usize = 1000;
    let stage = TestTree::new("change-many");
    let tree = start(stage.supervisor("nodes")).await;
    for n in 0..MANY {
        let worker = stage.clone();
        let child = ChildSpec::new(format!("node-{n}"), move |supervisor| {
            let (name, actor) = (format!("change-many/node-{n}"), Worker { stage: worker.clone(), id: "n" });
            async move { Ok(Actor::spawn_linked(Some(name), actor, Start::Good, supervisor).await?.into()) }
        });
        assert!(matches!(tree.root().add_child(child.with_label("node")).await, Ok(FirstStart::Running(_))));
    }
    assert_eq!(tree.root().read_status().await.unwrap().children.len(), MANY);
    for n in (0..MANY).step_by(2) {
        let stopped = tree.root().stop_child(&format!("node-{n}"), Mode::Graceful).await;
        assert_eq!(stopped, Ok(StopOutcome::Stopped));
    }
    assert_eq!(tree.root().read_status().await.unwrap().children.len(), MANY / 2);
    assert_eq!(tree.stop(PATIENCE).await, StopOutcome::Stopped);
    assert_eq!(ractor::registry::where_is("change-many/node-1"), None);
}
