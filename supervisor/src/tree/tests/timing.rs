//! Tests that equal seeds give equal histories, and that a restart follows its back-off without delay.

use super::*;

/// The log of a run with failures of every kind, random waits, removals and a meltdown.
fn history(instance: &'static str, seed: u64) -> Vec<String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let stage = TestTree::new(instance);
        let with_chance = Backoff { jitter: 0.5, ..EXACT };
        let supervisor =
            |id: &str| SupervisorSpec::new(stage.instance, id, seed, stage.sink()).with_backoff(with_chance);
        let flaky = stage.starting("flaky", |n| if n % 2 == 0 { Start::Fails } else { Start::Good });
        let inner =
            supervisor("reign").with_child(flaky).with_child(stage.worker("a")).with_child(stage.worker("b"));
        let tree = start(
            supervisor("root").with_child(ChildSpec::for_supervisor(inner)).with_child(stage.worker("c")),
        )
        .await;
        for round in 0..6 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            for (id, say) in [("a", Say::Panic), ("b", Say::Fail), ("c", Say::End), ("flaky", Say::Fail)] {
                // A child in its back-off has no actor.
                if let Some(cell) = ractor::registry::where_is(actor_name(instance, id)) {
                    let _ = cell.send_message(say);
                }
            }
            if round == 3 {
                tree.root().stop_child("c", Mode::Graceful).await.unwrap();
                tree.root().add_child(stage.worker("d")).await.unwrap();
            }
        }
        tokio::time::sleep(QUIET).await;
        tree.stop(PATIENCE).await;
        stage.take()
    })
}

#[test]
fn one_seed_gives_one_history() {
    let first = history("time-history", 1);
    assert_eq!(first, history("time-history", 1));
    assert_ne!(first, history("time-history", 2));
    for needed in ["meltdown reign", "restarted reign #1", "removed c", "started d", "not started"] {
        assert!(first.iter().any(|l| l.contains(needed)), "{needed} did not happen: {first:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn restart_happens_exactly_after_the_announced_pause() {
    let stage = TestTree::new("time-exact");
    let spec = SupervisorSpec::new(stage.instance, "root", 3, stage.sink()).with_child(stage.worker("a"));
    let tree = start(spec).await;
    for n in 1..=8 {
        let failed = Instant::now();
        stage.say("a", Say::Panic);
        stage.until_told(&format!("restarted a #{n}")).await;
        let events = stage.events.borrow().clone();
        let reported = events.iter().rev().find_map(|e| match e {
            TreeEvent::ChildFailed { restart_in, .. } => *restart_in,
            _ => None,
        });
        // Tokio's timers have a granularity of a millisecond, and are never early.
        let late = failed.elapsed().checked_sub(reported.unwrap()).expect("not early");
        assert!(late <= Duration::from_millis(1), "{late:?}");
    }
    tree.stop(PATIENCE).await;
}

/// In real time: the requirement is 50 ms beyond the back-off.
#[tokio::test]
async fn an_actor_that_panics_is_back_within_50_ms_of_its_backoff() {
    const ROUNDS: u32 = 20;
    let stage = TestTree::new("time-real").in_real_time();
    let quick = Backoff { first: Duration::from_millis(5), max: Duration::from_millis(5), ..EXACT };
    let spec = stage
        .supervisor("root")
        .with_backoff(quick)
        .with_budget(Budget { restarts: ROUNDS, ..Budget::DEFAULT });
    let tree = start(spec.with_child(stage.worker("a"))).await;
    let mut late = Vec::new();
    for n in 1..=ROUNDS {
        let failed = Instant::now();
        stage.say("a", Say::Panic);
        stage.until_told(&format!("restarted a #{n}")).await;
        late.push(failed.elapsed().saturating_sub(quick.first));
    }
    late.sort();
    println!("back after its backoff: median {:?}, worst {:?}", late[late.len() / 2], late[late.len() - 1]);
    assert!(late[late.len() / 2] < Duration::from_millis(50), "{late:?}");
    tree.stop(REAL_PATIENCE).await;
}
