//! Tests of the removal guard on a running system, and its confirmation by the operator.

use madako_datacenter_sim::Fault;
use serde_json::Value;

use super::embedded::site_on_embedded;
use super::keys::Cluster;
use super::site::{MACHINES, QUICK, Site, WORKERS};
use super::stage::{Serve, eventually};

/// An interval that no test waits for: only events cause polls.
const NEVER: &str = "1h";

/// Causes a poll now: changed variables are a new question, even with the same meaning.
async fn ask_anew(site: &Site, service: &Serve, nth: usize) {
    let text = format!("{{\"having\":null,{}\"notHaving\":{{\"roles\":[\"boot\"]}}}}", " ".repeat(nth));
    let file = site.files.write("variables.json", text);
    let before = service.metric("madako_polls_total", &["outcome=\"answered\""]).await;
    let answer = site.run(&["sabakan", "set-variables", &file]).await;
    assert_eq!(answer.code, 0, "{}", answer.err);
    service.until_metric("madako_polls_total", &["outcome=\"answered\""], before + 1.0).await;
}

/// The removal that the guard holds.
async fn held(site: &Site) -> Option<(Vec<String>, u64)> {
    let stored = site.keys.get("madako/removal-guard").await?;
    let value: Value = serde_json::from_slice(stored.value()).unwrap();
    let vanished = value["vanished"].as_array().unwrap();
    let mut vanished: Vec<String> =
        vanished.iter().map(|address| address.as_str().unwrap().to_owned()).collect();
    vanished.sort();
    Some((vanished, value["agreed"].as_u64().unwrap()))
}

/// Removes the machines of these nodes from the registry.
fn remove_machines(site: &Site, addresses: &[String]) {
    for machine in site.registry.list_machines() {
        if machine.address().is_some_and(|address| addresses.iter().any(|gone| gone == address)) {
            site.registry.remove(&machine.spec.serial).unwrap();
        }
    }
}

/// Two workers of nine nodes, which is more than a tenth.
fn some_workers(cluster: &Cluster) -> Vec<String> {
    cluster.workers[..2].to_vec()
}

fn gone_and_replaced(before: &Cluster, after: &Cluster, gone: &[String]) {
    assert_eq!(after.control_plane, before.control_plane);
    assert_eq!(after.workers.len(), before.workers.len());
    for address in &before.workers {
        assert_eq!(after.workers.contains(address), !gone.contains(address), "{address}: {after:?}");
    }
}

#[tokio::test]
async fn a_list_that_shrinks_is_held_back_until_an_operator_confirms() {
    let site = site_on_embedded(4, &MACHINES).await;
    let service = site.serve("60s", NEVER).await;
    site.equip().await;
    let before = site.first_cluster().await;

    // Half of the list is missing once, and present again.
    site.registry.faults().set(Fault::ShrinkList(60));
    ask_anew(&site, &service, 0).await;
    let (vanished, agreed) = eventually("the guard holds", async || held(&site).await).await;
    assert!(vanished.len() > 1 && vanished.iter().all(|address| before.nodes().contains(address)));
    assert_eq!(agreed, 1);
    service.until_metric("madako_planner_blocked", &["reason=\"removal-guard\""], 1.0).await;
    site.ask_for(WORKERS + 1).await;
    site.registry.faults().clear_all();
    ask_anew(&site, &service, 1).await;
    let grown = site.until_workers(WORKERS + 1).await;
    assert_eq!(grown.version, 2, "the change requested meanwhile is made");
    assert!(before.nodes().iter().all(|node| grown.nodes().contains(node)), "no node was removed");
    assert_eq!(held(&site).await, None);

    // Two machines are gone for good.
    let gone = some_workers(&grown);
    remove_machines(&site, &gone);
    ask_anew(&site, &service, 2).await;
    eventually("the guard holds", async || (held(&site).await == Some((gone.clone(), 1))).then_some(()))
        .await;
    assert_eq!(service.metric("madako_removal_guard_vanished", &[]).await, 2.0);
    ask_anew(&site, &service, 3).await;
    eventually("the second agrees", async || (held(&site).await == Some((gone.clone(), 2))).then_some(()))
        .await;
    site.unchanged(&grown, "it is held back").await;
    let shown = site.run(&["sabakan", "confirm-removal", "--dry-run"]).await.calm();
    assert!(gone.iter().all(|address| shown.contains(address)), "{shown}");
    assert!(shown.contains("2 of 3 polls agree"), "{shown}");
    site.unchanged(&grown, "to look is not to confirm").await;

    site.run(&["sabakan", "confirm-removal"]).await.calm();
    let after = eventually("the machines' nodes leave", async || {
        site.keys.cluster().await.filter(|cluster| cluster.version > grown.version)
    })
    .await;
    gone_and_replaced(&grown, &after, &gone);
    assert_eq!(after.version, 3, "one change, one write");
    assert_eq!(held(&site).await, None, "a confirmation counts once");
    service.until_log("an operator confirmed that the nodes are gone").await;
    assert_eq!(service.metric("madako_removal_guard_vanished", &[]).await, 0.0);
}

#[tokio::test]
async fn three_polls_that_agree_need_no_operator() {
    let site = site_on_embedded(4, &MACHINES).await;
    let service = site.serve("60s", QUICK).await;
    site.equip().await;
    let before = site.first_cluster().await;
    let gone = some_workers(&before);
    remove_machines(&site, &gone);
    let after = eventually("the machines' nodes leave", async || {
        site.keys.cluster().await.filter(|cluster| cluster.version > 1)
    })
    .await;
    gone_and_replaced(&before, &after, &gone);
    assert!(service.told("the removal guard holds back an observation") >= 2);
    service.until_log("enough polls in a row agreed").await;
    assert_eq!(held(&site).await, None);
    assert_eq!(site.grow_to(WORKERS + 1).await.version, 3);
}
