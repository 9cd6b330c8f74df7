//! Test of `madako serve` when its embedded store fails for good.

use std::fs::OpenOptions;

use super::embedded::site_on_embedded;
use super::site::{MACHINES, QUICK, leader_after};

/// More bytes than the store's cache, so that the first value is read from the file again.
const VALUE_BYTES: usize = 1024 * 1024;
const VALUES: usize = 12;
const FAILED: &str = "madako_store_failure_timestamp_seconds";

#[tokio::test]
async fn final_failure_of_the_store_ends_the_process_with_its_reason() {
    let site = site_on_embedded(4, &MACHINES).await;
    let mut service = site.serve("2s", QUICK).await;
    leader_after(&[&service], 0).await;
    let mut client = site.keys.client().await;
    for number in 0..VALUES {
        client.put(format!("ballast/{number}"), vec![b'v'; VALUE_BYTES], None).await.unwrap();
    }
    assert_eq!(service.health().await, 200);
    assert_eq!(service.metric(FAILED, &[]).await, 0.0);
    let file = OpenOptions::new().write(true).open(site.files.path("data/etcd.redb")).unwrap();
    file.set_len(0).unwrap();
    client.get("ballast/0", None).await.expect_err("it is not there any more");
    client.put("key", "value", None).await.expect_err("nothing can be written");
    assert_ne!(service.health().await, 200, "500, or the process has ended");
    assert_eq!(service.until_ended().await.code(), Some(1));
    let log = service.log();
    assert!(log.contains("the service ended: the embedded store failed for good"), "{log}");
    // The damaged file is refused, and not changed.
    let again = crate::program::madako(&["serve", "--config", site.config(), "--http", "127.0.0.1:0"]).await;
    assert_eq!(again.code, 1);
    assert!(again.err.contains("is damaged"), "{}", again.err);
    // The first process after the replacement reports it to Prometheus.
    std::fs::remove_file(site.files.path("data/etcd.redb")).unwrap();
    let service = site.serve("2s", QUICK).await;
    assert!(service.metric(FAILED, &[]).await > 0.0);
    assert!(service.log().contains("failed for good in an earlier process"), "{}", service.log());
}
