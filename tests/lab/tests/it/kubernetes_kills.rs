//! SIGKILL of the leader while a command on Kubernetes' components or of a reboot is recorded as running: the next leader
//! reaches the same end.

use std::collections::BTreeSet;

use madako_lab::{KUBERNETES_IMAGE, NEXT_KUBERNETES_IMAGE, OPTIONS};
use serde_json::Value;
use tokio::time::sleep;

use crate::components::{MACHINES, runs_all_components, status};
use crate::fleet::Fleet;
use crate::kills::Kills;
use crate::power::{add_reboot, power_cycle_or_lost, reboot_commands};
use crate::rolls::{ROLL_PAUSE, within_a_roll};

/// The components of three control plane nodes.
const COMPONENTS: usize = 15;
/// The machine that reboots.
const REBOOTED: usize = 1;

/// All components are healthy with the image, and nothing is due.
async fn is_done(fleet: &Fleet, image: &str) -> bool {
    sleep(ROLL_PAUSE).await;
    let Some(status) = status(fleet).await else { return false };
    let is_good = |row: &Value| row["state"] == "good" && row["image"] == image;
    status["components"].as_array().is_some_and(|rows| rows.len() == COMPONENTS && rows.iter().all(is_good))
        && fleet.is_settled(&MACHINES).await
}

fn assert_killed_at(kills: &Kills, places: &[(&str, &str)]) {
    kills.print();
    for (operation, command) in places {
        let commands: BTreeSet<&str> = kills.commands(operation).into_iter().map(|(name, _)| name).collect();
        assert!(commands.contains(command), "{operation}: {commands:?}");
    }
}

#[tokio::test]
#[ignore = "minutes: each kill costs a part of a bootstrap or a roll (make test-long)"]
async fn a_leader_killed_at_each_command_of_a_bootstrap_a_roll_and_a_reboot_has_a_successor_that_ends_it() {
    let Some(fleet) = Fleet::start_kubernetes(MACHINES.len()).await else { return };
    let mut kills = Kills::default();
    let begin = fleet.set_options(&MACHINES, &[], OPTIONS);
    kills.until(&fleet, begin, async || is_done(&fleet, KUBERNETES_IMAGE).await).await;
    runs_all_components(&fleet).await;
    assert_killed_at(
        &kills,
        &[
            ("kube-apiserver-restart", "run-container"),
            ("kube-controller-manager-bootstrap", "run-container"),
            ("kube-scheduler-bootstrap", "run-container"),
            ("kubelet-bootstrap", "run-container"),
            ("kube-proxy-bootstrap", "run-container"),
            ("resource-apply", "apply-resource"),
        ],
    );

    fleet.lab().load_next_kubernetes().await.unwrap();
    let mut kills = Kills::default();
    let begin = async {
        let next = format!("kubernetes={NEXT_KUBERNETES_IMAGE}");
        fleet.madako(&["images", "set", &next, "--force"]).await.unwrap();
    };
    let is_upgraded = async || is_done(&fleet, NEXT_KUBERNETES_IMAGE).await;
    kills.until(&fleet, begin, is_upgraded).await;
    assert_killed_at(
        &kills,
        &[
            ("kube-apiserver-restart", "stop-container"),
            ("kube-apiserver-restart", "run-container"),
            ("kubelet-restart", "run-container"),
            ("kube-proxy-restart", "run-container"),
        ],
    );

    // The starts of the machine's components after its boot are places of kills, too.
    let mut kills = Kills::default();
    let begin = async {
        let reboots = reboot_commands(&fleet);
        fleet.service.set_cluster_with(&MACHINES, &[], OPTIONS, &reboots).await.unwrap();
        add_reboot(&fleet, REBOOTED).await;
    };
    let reboot = kills.until(&fleet, begin, async || fleet.service.path("over").exists());
    let power = async {
        let is_lost = async || {
            let of_command = |record: &&Value| record["operation"] == "reboot-reboot";
            let Ok(history) = fleet.read_history().await else { return false };
            let mut errors = history.iter().filter(of_command).map(|record| record["error"].to_string());
            errors.any(|error| error.contains("outcome unknown"))
        };
        power_cycle_or_lost(&fleet, REBOOTED, is_lost).await;
        within_a_roll(&fleet, "all is as before", async || is_upgraded().await.then_some(())).await;
        std::fs::write(fleet.service.path("over"), "").unwrap();
    };
    tokio::join!(reboot, power);
    runs_all_components(&fleet).await;
    assert_killed_at(
        &kills,
        &[("reboot-prepare", "rebootPrepareCommand"), ("reboot-reboot", "rebootRebootCommand")],
    );
}
