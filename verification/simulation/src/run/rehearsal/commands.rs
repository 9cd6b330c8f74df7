//! Simulates the commands of an operator's repair procedures: a health check reports the state of its machine, a
//! success command does not change it, and any other command may heal it.

use std::collections::BTreeSet;

use async_trait::async_trait;
use madako_datacenter_sim::host::{HEALTH_CHECK, RESET, SUCCESS, SimulatedHost};
use madako_domain::cluster::Cluster;
use madako_domain::repair::config::RepairConfig;
use madako_protocol::host::{Host, HostCommand, HostError, HostOutcome};
use madako_protocol::permit::Permit;

pub(super) struct Commands {
    host: SimulatedHost,
    checks: BTreeSet<Vec<String>>,
    successes: BTreeSet<Vec<String>>,
}

impl Commands {
    /// Classifies commands by the repair procedures of these clusters.
    pub(super) fn for_clusters<'c>(host: SimulatedHost, clusters: impl Iterator<Item = &'c Cluster>) -> Self {
        let (mut checks, mut successes) = (BTreeSet::new(), BTreeSet::new());
        // The service runs no command of an invalid section.
        for config in clusters.filter_map(|cluster| RepairConfig::read(&cluster.repair).ok()) {
            for operation in config.procedures.into_iter().flat_map(|procedure| procedure.operations) {
                checks.extend(operation.health_check.map(|command| command.words));
                successes.extend(operation.success.map(|command| command.words));
            }
        }
        Self { host, checks, successes }
    }

    fn simulated_program(&self, words: &[String]) -> &'static str {
        if self.checks.contains(words) {
            HEALTH_CHECK
        } else if self.successes.contains(words) {
            SUCCESS
        } else {
            RESET
        }
    }
}

#[async_trait]
impl Host for Commands {
    async fn run(&self, permit: &Permit, command: HostCommand) -> Result<HostOutcome, HostError> {
        let HostCommand { words, deadline } = command;
        // The machine's address is the last word.
        let (address, words) = words.split_last().ok_or_else(|| HostError::NotStarted {
            program: String::new(),
            why: "there are no words".to_owned(),
        })?;
        let words = vec![self.simulated_program(words).to_owned(), address.clone()];
        self.host.run(permit, HostCommand { words, deadline }).await
    }
}
