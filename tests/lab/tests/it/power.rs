//! The power control of the lab: the reboot queue's commands ask a test by files.

use std::path::PathBuf;

use serde_json::Value;

use crate::eventually;
use crate::fleet::Fleet;

/// The file that a command writes or looks for, for a node.
fn file(fleet: &Fleet, name: &str, machine: usize) -> PathBuf {
    fleet.service.path(&format!("{name}-{}", fleet.address(machine)))
}

/// The section `reboot` of a cluster, whose commands [`power_cycle`] answers.
pub(crate) fn reboot_commands(fleet: &Fleet) -> String {
    let [asked, booted] = ["asked", "booted"].map(|name| fleet.service.path(name).display().to_string());
    let [command, check] =
        [format!("touch {asked}-$1"), format!("test -e {booted}-$1 && echo true || echo false")]
            .map(|script| serde_json::json!(["sh", "-c", script, "sh"]));
    format!("reboot: {{reboot_command: {command}, boot_check_command: {check}}}\n")
}

pub(crate) async fn add_reboot(fleet: &Fleet, machine: usize) {
    fleet.service.write("reboot.txt", &format!("{}\n", fleet.address(machine))).unwrap();
    fleet.madako(&["reboot-queue", "add", "reboot.txt"]).await.unwrap();
}

/// Waits for the reboot command of a machine.
pub(crate) async fn is_asked_to_reboot(fleet: &Fleet, machine: usize) {
    let asked = file(fleet, "asked", machine);
    eventually("the leader reboots the machine", async || asked.exists().then_some(())).await;
}

/// Reboots a machine once its reboot command has run, and waits until its entry has left the queue.
pub(crate) async fn power_cycle(fleet: &Fleet, machine: usize) {
    is_asked_to_reboot(fleet, machine).await;
    std::fs::remove_file(file(fleet, "asked", machine)).unwrap();
    boot(fleet, machine).await;
}

/// The same, where a leader may have been killed in the reboot command, and the command with it: `is_lost` tells it.
pub(crate) async fn power_cycle_or_lost(fleet: &Fleet, machine: usize, is_lost: impl AsyncFn() -> bool) {
    let asked = file(fleet, "asked", machine);
    let decided = async || (asked.exists() || is_lost().await).then_some(());
    eventually("the leader reboots the machine", decided).await;
    boot(fleet, machine).await;
}

async fn boot(fleet: &Fleet, machine: usize) {
    fleet.machine(machine).power_off().await.unwrap();
    fleet.machine(machine).power_on().await.unwrap();
    let booted = file(fleet, "booted", machine);
    std::fs::write(&booted, "").unwrap();
    let is_over = async || queue(fleet).await.filter(Vec::is_empty).map(drop);
    eventually("the entry has left the queue", is_over).await;
    std::fs::remove_file(booted).unwrap();
}

/// The entries of the reboot queue.
pub(crate) async fn queue(fleet: &Fleet) -> Option<Vec<Value>> {
    let entries = fleet.madako(&["reboot-queue", "list", "-o", "json"]).await.ok()?;
    serde_json::from_str::<Value>(&entries).ok()?.as_array().cloned()
}
