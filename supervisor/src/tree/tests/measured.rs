//! Tests of the metrics of a supervision tree.

use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;

#[test]
fn restarts_running_actors_and_meltdowns_are_counted_by_label() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let shown = recorder.handle();
    let has = |line: &str| {
        let text = shown.render();
        assert!(text.lines().any(|l| l == line), "no {line} in:\n{text}");
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let stage = TestTree::new("measured");
            let spec = stage.supervisor("root").with_budget(Budget { restarts: 1, ..Budget::DEFAULT });
            let spec = spec
                .with_child(stage.worker("a").with_label("node"))
                .with_child(stage.worker("b").with_label("node"));
            let tree = start(spec).await;
            has("madako_actor_restarts_total{actor=\"node\"} 0");
            has("madako_actor_up{actor=\"node\"} 2");
            stage.say("a", Say::Fail);
            stage.until_told("a failed: cannot reach the store: refused; again in 100").await;
            has("madako_actor_up{actor=\"node\"} 1");
            stage.until_told("restarted a #1").await;
            has("madako_actor_restarts_total{actor=\"node\"} 1");
            has("madako_actor_up{actor=\"node\"} 2");
            stage.say("a", Say::Fail);
            tree.wait_for_end().await.expect("a meltdown");
            has("madako_actor_up{actor=\"node\"} 0");
            has("madako_actor_meltdowns_total{supervisor=\"root\"} 1");
        });
    });
}
