//! Tests of the embedded store within `madako serve`: committed data outlives the process.

use super::keys::Keys;
use super::site::{HOST, QUICK, Site, free_port, leader_after};
use crate::program::{Files, madako};

/// A site on an embedded store that is not started yet.
pub(crate) async fn site_on_embedded(racks: u32, machines: &[(&str, u32)]) -> Site {
    site_on(racks, machines, "").await
}

/// A site of a few machines whose embedded store has a cache of this many bytes.
pub(crate) async fn site_with_cache(bytes: u64) -> Site {
    site_on(1, &[("compute", 4)], &format!(", cache-bytes: {bytes}")).await
}

async fn site_on(racks: u32, machines: &[(&str, u32)], more: &str) -> Site {
    let files = Files::new();
    let listen = format!("{HOST}:{}", free_port());
    let config = format!("embedded: {{data-dir: {}, listen: '{listen}'{more}}}\n", files.path("data"));
    let config = files.write("config.yml", config);
    let keys = Keys::at(&format!("http://{listen}"), None);
    Site::of(files, &config, keys, racks, machines).await
}

#[tokio::test]
async fn restarted_process_resumes_after_a_kill() {
    let site = site_on_embedded(4, &super::site::MACHINES).await;
    let service = site.serve("2s", QUICK).await;
    let (_, mut epoch) = leader_after(&[&service], 0).await;
    site.equip().await;
    site.first_cluster().await;
    let mut cluster = site.grow_to(7).await;
    let mut service = Some(service);

    for round in 0..2 {
        if let Some(service) = service.take() {
            service.kill().await;
        }
        let again = site.serve("2s", QUICK).await;
        site.unchanged(&cluster, "it is there when the store answers").await;
        let (_, newer) = leader_after(&[&again], epoch).await;
        // It has polled, planned, and found nothing to do.
        again.until_grown("madako_plans_total", &["action=\"none\""], 2.0).await;
        site.unchanged(&cluster, "a start is not a reason to write").await;
        cluster = site.grow_to(8 + round).await;
        assert!(cluster.revision > newer);
        epoch = newer;
        service = Some(again);
    }

    // Another process on the same data, though at another address.
    let other = site.files.write(
        "other.yml",
        format!("embedded: {{data-dir: {}, listen: '{HOST}:{}'}}\n", site.files.path("data"), free_port()),
    );
    let message = madako(&["serve", "--config", &other, "--http", "127.0.0.1:0"]).await;
    assert_eq!(message.code, 1, "{}", message.err);
    assert!(message.err.contains("another process"), "{}", message.err);
    site.unchanged(&cluster, "the refused process changed nothing").await;
    let service = service.unwrap();
    assert_eq!(service.health().await, 200);

    // A clean stop resigns leadership, so that the next leader need not wait for the lease.
    assert_eq!(service.terminate().await.code(), Some(0));
    let service = site.serve("2s", QUICK).await;
    leader_after(&[&service], epoch).await;
    service.until_grown("madako_plans_total", &["action=\"none\""], 1.0).await;
    site.unchanged(&cluster, "a start is not a reason to write").await;
}
