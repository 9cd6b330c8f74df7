//! Tests of `kill -9` on a single instance with its embedded store: the next process revokes the session lease of the
//! killed one, and no other.

use std::fs;
use std::time::Duration;

use etcd_client::PutOptions;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

use super::embedded::site_on_embedded;
use super::procedure::Procedure;
use super::repair::{ADDRESS, runs};
use super::site::{MACHINES, QUICK, Site, leader_after};
use super::stage::{Serve, eventually};
use crate::program::CLUSTER;

/// A session's time to live that no test waits for.
const LONG_TTL: &str = "600s";
const LONG_TTL_SECONDS: i64 = 600;
/// Maximum time from the start of a process to its leadership: far below the time to live.
const QUICKLY: Duration = Duration::from_secs(30);
const ENDED: &str = "the session lease of the previous process is ended";

#[tokio::test]
async fn a_killed_process_does_not_keep_the_next_one_from_leading() {
    let site = site_on_embedded(4, &MACHINES).await;
    let mut service = site.serve(LONG_TTL, QUICK).await;
    let (_, mut epoch) = leader_after(&[&service], 0).await;
    let mut client = site.keys.client().await;
    let foreign = client.lease_grant(LONG_TTL_SECONDS, None).await.unwrap().id();
    client.put("theirs", "value", Some(PutOptions::new().with_lease(foreign))).await.unwrap();
    for _ in 0..2 {
        let own = site.keys.candidates().await[0].lease();
        service.kill().await;
        let began = Instant::now();
        service = site.serve(LONG_TTL, QUICK).await;
        let (_, newer) = leader_after(&[&service], epoch).await;
        assert!(began.elapsed() < QUICKLY, "{:?}", began.elapsed());
        assert_eq!(service.log().matches(ENDED).count(), 1, "{}", service.log());
        let mut client = site.keys.client().await;
        let leases = client.leases().await.unwrap();
        let leases: Vec<i64> = leases.leases().iter().map(etcd_client::LeaseStatus::id).collect();
        assert!(leases.contains(&foreign) && !leases.contains(&own) && leases.len() == 2, "{leases:?}");
        assert_eq!(site.keys.at_root("theirs").await.unwrap().lease(), foreign);
        epoch = newer;
    }
    // A clean end leaves no lease to revoke.
    assert_eq!(service.terminate().await.code(), Some(0));
    let service = site.serve(LONG_TTL, QUICK).await;
    leader_after(&[&service], epoch).await;
    assert!(!service.log().contains(ENDED), "{}", service.log());
}

/// A service that leads and runs a command; with the ids of the command and of its watcher.
async fn service_with_a_command(site: &Site, session_ttl: &str) -> (Serve, i64, String, Pid) {
    let service = site.serve(session_ttl, QUICK).await;
    let (_, epoch) = leader_after(&[&service], 0).await;
    let reset = "echo $$ $PPID > \"$D/pids.new\"; mv \"$D/pids.new\" \"$D/pids\"; sleep 3600";
    let procedure = Procedure { machine_types: &["bmc"], reset, success: None, watch_seconds: 3600 };
    let repair = procedure.written(&site.files);
    let cluster = site.files.write("cluster.yml", format!("{CLUSTER}repair: {repair}\n"));
    site.run(&["cluster", "set", &cluster]).await.calm();
    site.run(&["repair-queue", "add", "unreachable", "bmc", ADDRESS]).await.calm();
    let pids =
        eventually("the command runs", async || fs::read_to_string(site.files.path("pids")).ok()).await;
    let (command, watcher) = pids.trim().split_once(' ').unwrap();
    (service, epoch, command.to_owned(), Pid::from_raw(watcher.parse().unwrap()).unwrap())
}

#[tokio::test]
async fn the_lease_of_a_killed_process_stays_until_the_watchers_of_its_commands_have_ended() {
    let site = site_on_embedded(4, &MACHINES).await;
    let (service, epoch, command, watcher) = service_with_a_command(&site, LONG_TTL).await;
    let own = site.keys.candidates().await[0].lease();
    // The watcher is stopped, and so cannot kill for now.
    kill_process(watcher, Signal::STOP).unwrap();
    service.kill().await;
    let service = site.serve(LONG_TTL, QUICK).await;
    service.until_log("waits for the expiry of the session lease of the previous process").await;
    service.until_log("1 of its commands are being ended").await;
    assert!(runs(&command));
    let lasts = async || service.metric("madako_predecessor_lease_seconds", &[]).await;
    assert!((1.0..=600.0).contains(&lasts().await));
    // The URL of the killed process; a service on a port of its own has the same URL again.
    let url = format!("http://{}", service.address());
    site.keys.client().await.put("/cke/madako/leader-url", url, None).await.unwrap();
    let shown = site.run(&["status", "--check", "-o", "json"]).await;
    assert_eq!(shown.code, 5, "{shown:?}");
    let waits = shown.json()["waits_for"].as_str().unwrap().to_owned();
    assert!(waits.contains("the session lease of the previous process"), "{waits}");
    let screen = site.run(&["status", "-o", "table"]).await.calm();
    assert!(screen.contains("! leadership: lease-not-renewed"), "{screen}");
    assert!(screen.contains("an instance waits for the session lease"), "{screen}");
    assert_eq!(service.epoch().await, None);
    assert_eq!(site.keys.candidates().await[0].lease(), own);
    assert!(!service.log().contains(ENDED), "{}", service.log());
    kill_process(watcher, Signal::CONT).unwrap();
    leader_after(&[&service], epoch).await;
    assert!(!runs(&command), "a new leader acts");
    assert!(lasts().await < 1.0);
    assert!(service.log().contains(ENDED), "{}", service.log());
}

#[tokio::test]
async fn the_lease_of_a_process_that_was_killed_with_a_watcher_ends_by_itself() {
    let site = site_on_embedded(4, &MACHINES).await;
    let (service, epoch, _, watcher) = service_with_a_command(&site, "5s").await;
    kill_process(watcher, Signal::STOP).unwrap();
    service.kill().await;
    kill_process(watcher, Signal::KILL).unwrap();
    let service = site.serve(LONG_TTL, QUICK).await;
    service.until_log("1 of its commands without a watcher").await;
    let (_, epoch) = leader_after(&[&service], epoch).await;
    assert!(!service.log().contains(ENDED), "{}", service.log());
    // The lease is gone, and so is the note of it.
    eventually("no note is left", async || {
        (fs::read_dir(site.files.path("data/commands")).unwrap().count() == 0).then_some(())
    })
    .await;
    service.kill().await;
    let service = site.serve(LONG_TTL, QUICK).await;
    leader_after(&[&service], epoch).await;
    assert!(service.log().contains(ENDED), "{}", service.log());
}
