//! The drill of a run: operators switch the integration and the repair queue off and on again, change the template, retire
//! a worker, and send transactions of which some conditions do not hold. So the run tests the promises about these.
//!
//! Guarantees: a round begins and ends in the first half of a run whose store answers, so that the repairs that a
//! disabled queue held back end before the run waits for calm. Whatever fails, a drill ends with both switches on,
//! unless the store answers no request for [`LAST_WITHIN`] after the faults.

use std::net::SocketAddr;
use std::time::Duration;

use etcd_client::Client;
use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_domain::machine::MachineState;
use madako_faults::{ClientKind, Scenario, Span};
use madako_judges::workload::conditional_transactions;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::datacenter::ListedMachine;
use crate::history::{AcknowledgedWrite, Event, History};
use crate::operators::{AGAIN, OperatorWrite, WITHIN, add_entry, commit_puts, connect, read_stored};
use crate::registrar::{list_machines, set_machine_state};
use crate::world::{POLL, terms_of_settings};

/// Minimum length of a run with a drill: its first half has room for a round.
const SHORTEST: Span = Span::from_seconds(120);
/// Time for which the integration or the queue is off: the service would have acted in it several times.
const OFF: Duration = Duration::from_secs(3 * POLL.as_secs());
/// Time from a switch to the change that it holds back, so that observers have them at different times.
const THEN: Duration = Duration::from_secs(1);
/// Time after the faults within which a switch is on again: leases have ended, and etcd has a leader.
const LAST_WITHIN: Duration = Duration::from_secs(60);
/// Prefix of the keys of transactions, which no other client writes.
const CONDITIONS: &str = "/chaos/conditions/";

/// True if a run has a drill: it is long enough, and has the clients whose work the switches hold back, as in a
/// simulation.
pub(crate) fn is_held(scenario: &Scenario, length: Span) -> bool {
    let kinds = [ClientKind::Placement, ClientKind::EtcdWatch, ClientKind::Registry];
    let has_clients = |kind| scenario.clients.iter().any(|client| client.kind == kind);
    length >= SHORTEST && scenario.world.places_applications() && kinds.into_iter().all(has_clients)
}

#[derive(Debug, Clone, Copy)]
enum DrillWrite {
    Switch {
        key: &'static str,
        disabled: bool,
    },
    /// Changes an annotation of the template's first node to this number.
    Template(u32),
    /// Asks for the repair of a broken machine, the one with this number.
    Repair(u32),
    Conditions,
}

pub(crate) struct Drill {
    members: Vec<SocketAddr>,
    /// The control API of the registry.
    registry: SocketAddr,
    history: History,
    /// True after the last fault.
    stopped: watch::Receiver<bool>,
    /// Requests so far, which go to the members in turn.
    requests: usize,
    /// The worker that retires.
    retires: Option<ListedMachine>,
}

impl Drill {
    pub(crate) fn new(
        members: Vec<SocketAddr>,
        registry: SocketAddr,
        history: History,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        Self { members, registry, history, stopped, requests: 0, retires: None }
    }

    /// Plays rounds in the first half of a run of this length.
    pub(crate) async fn run(mut self, length: Span) {
        let (began, length) = (Instant::now(), length.duration());
        let pause = terms_of_settings().reaction_time();
        sleep(length / 8).await;
        for round in 1.. {
            let begins = Instant::now();
            self.write(DrillWrite::Conditions).await;
            self.switch(keys::SABAKAN_DISABLED, DrillWrite::Template(round)).await;
            sleep(pause).await;
            self.retire().await;
            self.switch(keys::REPAIRS_DISABLED, DrillWrite::Repair(round)).await;
            sleep(pause).await;
            if began.elapsed() + begins.elapsed() > length / 2 {
                return;
            }
        }
    }

    /// Switches a part of the service off, makes the change that this holds back, and switches the part on again.
    async fn switch(&mut self, key: &'static str, change: DrillWrite) {
        self.write(DrillWrite::Switch { key, disabled: true }).await;
        let off = Instant::now();
        sleep(THEN).await;
        self.write(change).await;
        sleep(OFF.saturating_sub(off.elapsed())).await;
        // Also after a write that the store has not acknowledged: this one makes the other ineffective, if it is late.
        self.write(DrillWrite::Switch { key, disabled: false }).await;
    }

    /// Sets a healthy worker to retiring at the first call with an answer, and to retired at a later one.
    async fn retire(&mut self) {
        if let Some(machine) = &self.retires {
            return set_machine_state(self.registry, machine, MachineState::Retired).await;
        }
        self.requests += 1;
        let asked = async {
            let mut client = connect(self.members[self.requests % self.members.len()]).await?;
            read_stored(&mut client, keys::CLUSTER).await
        };
        // Without an answer the next round tries again.
        let (Ok(Ok(stored)), Some(machines)) =
            (timeout(WITHIN, asked).await, list_machines(self.registry).await)
        else {
            return;
        };
        let Ok(cluster) = serde_json::from_slice::<Cluster>(&stored.value) else { return };
        let is_worker = |address: &str| cluster.workers().any(|node| node.address == address);
        self.retires = machines.into_iter().find(|machine| {
            machine.state == MachineState::Healthy && machine.address.as_deref().is_some_and(is_worker)
        });
        if let Some(machine) = &self.retires {
            set_machine_state(self.registry, machine, MachineState::Retiring).await;
        }
    }

    /// Repeats a write until the store has acknowledged it, or until [`LAST_WITHIN`] after the faults.
    async fn write(&mut self, write: DrillWrite) {
        let mut given_up = None;
        loop {
            let why = match timeout(WITHIN, self.send(write)).await {
                Ok(Ok(true)) => return,
                // Another client was first.
                Ok(Ok(false)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("no answer within {WITHIN:?}")),
            };
            if let Some(why) = why {
                self.history.note(Event::Unwritten { why });
            }
            let stopped = *self.stopped.borrow();
            if stopped && Instant::now() > *given_up.get_or_insert_with(|| Instant::now() + LAST_WITHIN) {
                return;
            }
            sleep(AGAIN).await;
        }
    }

    /// Sends a write to the next member. Returns false if it must be sent again.
    async fn send(&mut self, write: DrillWrite) -> Result<bool, etcd_client::Error> {
        self.requests += 1;
        let mut client = connect(self.members[self.requests % self.members.len()]).await?;
        let written = match write {
            DrillWrite::Conditions => {
                self.send_conditions(&mut client).await?;
                return Ok(true);
            }
            DrillWrite::Switch { key, disabled } => {
                let stored = read_stored(&mut client, key).await?;
                commit_puts(&mut client, stored.replace_with(disabled.to_string().into_bytes())).await?
            }
            DrillWrite::Template(number) => change_template(&mut client, number).await?,
            // A number that is even, and no multiple of four, draws a broken machine and a command without a drain.
            DrillWrite::Repair(number) => add_entry(&mut client, self.registry, 4 * number + 2).await?,
        };
        let done = written.is_some() || matches!(write, DrillWrite::Repair(_));
        self.history.note(Event::AcknowledgedWrite(AcknowledgedWrite { written }));
        Ok(done)
    }

    /// Each attempt has keys of its own: a transaction of an earlier one may still arrive.
    async fn send_conditions(&self, client: &mut Client) -> Result<(), etcd_client::Error> {
        for (transaction, held) in conditional_transactions(&format!("{CONDITIONS}{}/", self.requests)) {
            let written = client.txn(transaction).await?.succeeded();
            self.history.note(Event::Transacted { held, written });
        }
        Ok(())
    }
}

async fn change_template(client: &mut Client, number: u32) -> Result<OperatorWrite, etcd_client::Error> {
    let stored = read_stored(client, keys::SABAKAN_TEMPLATE).await?;
    let Ok(mut template) = serde_json::from_slice::<Value>(&stored.value) else { return Ok(None) };
    let Some(node) = template.pointer_mut("/nodes/0") else { return Ok(None) };
    node["annotations"]["drill"] = number.to_string().into();
    commit_puts(client, stored.replace_with(template.to_string().into_bytes())).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_run_with_all_clients_has_a_drill() {
        let of = |clients: &str| Scenario::parse(&format!("name: a\nclients: [{clients}]\n")).unwrap();
        let all = "{kind: placement, rate: 1}, {kind: etcd-watch, rate: 1}, {kind: registry, rate: 1}";
        assert!(is_held(&of(all), SHORTEST));
        assert!(!is_held(&of(all), Span::from_seconds(119)));
        assert!(!is_held(&of("{kind: placement, rate: 1}, {kind: registry, rate: 1}"), SHORTEST));
        let bare = format!("name: a\nworld: {{clusters: 0, applications: 0}}\nclients: [{all}]\n");
        assert!(!is_held(&Scenario::parse(&bare).unwrap(), SHORTEST));
    }

    /// The time of a round of writes that the store acknowledges at once.
    #[test]
    fn a_round_fits_into_the_first_half_of_the_shortest_run() {
        let round = (OFF + terms_of_settings().reaction_time()) * 2;
        assert!(SHORTEST.duration() / 8 + round < SHORTEST.duration() / 2, "{round:?}");
    }
}
