//! Tests that `madako status` of a running system names obstacles with time and reason; its leader keeps its settings.

use madako_datacenter_sim::Fault;
use serde_json::{Value, json};

use super::embedded::site_on_embedded;
use super::site::{MACHINES, QUICK, Site, WORKERS};
use super::stage::eventually;

/// Waits for an obstacle with this rule.
async fn until_shown(site: &Site, rule: &str) -> Value {
    eventually(&format!("status shows {rule:?}"), async || {
        let shown = site.run(&["status", "-o", "json"]).await.json();
        shown["attention"].as_array()?.iter().find(|attention| attention["rule"] == rule).cloned()
    })
    .await
}

async fn until_calm(site: &Site) {
    eventually("status is calm", async || {
        let answer = site.run(&["status", "--check"]).await;
        (answer.code == 0 && answer.out.starts_with("Calm: nothing needs attention.\n")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn stuck_state_is_shown_with_its_begin_and_written_once() {
    let site = site_on_embedded(4, &MACHINES).await;
    let service = site.serve("60s", QUICK).await;
    site.equip().await;
    site.first_cluster().await;
    until_calm(&site).await;

    site.registry.faults().set(Fault::Status(500));
    let silent = until_shown(&site, "registry-silent").await;
    let revision = site.keys.revision().await;
    service.until_grown("madako_polls_total", &["outcome=\"failed\""], 4.0).await;
    assert_eq!(site.keys.revision().await, revision, "with unchanged inputs nothing is written");
    assert_eq!(until_shown(&site, "registry-silent").await, silent, "its time stays");
    assert!(silent["since"].is_string(), "{silent}");
    assert_eq!(site.run(&["status", "--check"]).await.code, 5);
    site.registry.faults().clear_all();
    until_calm(&site).await;

    site.ask_for(1_000).await;
    let no_plan = until_shown(&site, "no-plan").await;
    assert!(no_plan["why"].as_str().unwrap().contains("1000") && no_plan["since"].is_string(), "{no_plan}");
    site.ask_for(WORKERS).await;
    until_calm(&site).await;

    for (queue, rule) in [
        ("sabakan", "integration-disabled"),
        ("repair-queue", "repair-queue-disabled"),
        ("auto-repair", "auto-repair-disabled"),
    ] {
        site.run(&[queue, "disable"]).await.calm();
        eventually(&format!("since when {rule} is"), async || {
            until_shown(&site, rule).await["since"].as_str().map(str::to_owned)
        })
        .await;
        // A switched off addition of entries is for information.
        assert_eq!(site.run(&["status", "--check"]).await.code, if queue == "auto-repair" { 0 } else { 5 });
        site.run(&[queue, "enable"]).await.calm();
        until_calm(&site).await;
    }
    eventually("nothing is kept of it", async || {
        site.keys.get("madako/obstacles").await.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn leader_stores_its_settings_and_offline_plans_use_them() {
    let site = site_on_embedded(4, &MACHINES).await;
    let service = site.serve("60s", "2s").await;
    site.equip().await;
    site.first_cluster().await;
    let stored = site.keys.get("madako/settings").await.unwrap();
    let value: Value = serde_json::from_slice(stored.value()).unwrap();
    assert_eq!(value["retire_wait_seconds"], json!(300.0), "{value}");
    assert_eq!(value["session_ttl_seconds"], json!(60.0), "{value}");
    let hold = json!({"label": "rack", "count": 3, "within_seconds": 600.0});
    assert_eq!(value["repair"]["hold"], hold, "{value}");
    assert_eq!(value["modes"], json!({"operations": "off", "kubernetes": "off"}), "{value}");
    let idle = site.run(&["kube", "rotate-encryption-key"]).await.refused(1);
    assert!(idle.contains("the leader has operations.mode: off"), "{idle}");
    let plan = site.run(&["plan"]).await;
    let reported = "retired machines leave after 300 s, as the running system has it (madako/settings)";
    assert!(plan.code == 0 && plan.err.contains(reported), "{plan:?}");
    let rehearsed = site.run(&["rehearse", "--for", "1m", "--session-ttl", "30s", "-o", "json"]).await;
    let assumed = &rehearsed.json()["assumptions"];
    let of = |what: &str| assumed[what].as_str().unwrap_or_default().to_owned();
    assert!(
        of("poll of the registry").starts_with("every 2s, as the running system has it (madako/settings)"),
        "{assumed}"
    );
    assert!(of("leader's session").starts_with("ends 30s after its leader, as the flag says"), "{assumed}");
    assert!(of("retired worker").starts_with("leaves after 5m, as the running system"), "{assumed}");
    assert!(of("held racks").starts_with("as the running system"), "{assumed}");
    assert!(service.terminate().await.success());
}
