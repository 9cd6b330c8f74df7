//! The journal sends every event of an instance to the log, if enabled, and to all listeners.
//!
//! A slow listener loses the oldest events and receives their number; it delays nothing.

use std::sync::Arc;

use madako_domain::repair::refusal::{Reason, Refusal, ReportNews};
use madako_protocol::event::{Event, EventSink, PlanBlockedBy};
use tokio::sync::broadcast;

use crate::limits::{JOURNAL_BEHIND, MOST_NAMED};

/// Event sink of one instance.
#[derive(Debug, Clone)]
pub struct Journal {
    instance: Arc<str>,
    logs: bool,
    listeners: broadcast::Sender<Arc<Event>>,
}

impl Journal {
    /// `instance` is the name in log lines.
    #[must_use]
    pub fn new(instance: &str) -> Self {
        Self { instance: instance.into(), logs: true, listeners: broadcast::Sender::new(JOURNAL_BEHIND) }
    }

    #[must_use]
    pub fn without_log(instance: &str) -> Self {
        Self { logs: false, ..Self::new(instance) }
    }

    #[must_use]
    pub fn listen(&self) -> broadcast::Receiver<Arc<Event>> {
        self.listeners.subscribe()
    }
}

impl EventSink for Journal {
    fn emit(&self, event: Event) {
        if self.logs {
            log_event(&self.instance, &event);
        }
        // An error means that there are no listeners.
        let _ = self.listeners.send(Arc::new(event));
    }
}

fn log_event(instance: &str, event: &Event) {
    use tracing::{debug, error, info, warn};
    match event {
        Event::Waiting { leader } => info!(instance, leader, "the instance waits as a candidate"),
        Event::Elected { epoch } => info!(instance, epoch, "the instance became the leader"),
        Event::Lost { epoch, why } => warn!(instance, epoch, why, "the instance lost leadership"),
        Event::StoreInterrupted { why } => warn!(instance, why, "the store cannot be reached"),
        Event::StoreBack => info!(instance, "the store answers again"),
        Event::StateFaults { faults } if faults.is_empty() => {
            info!(instance, "every stored value can be used again");
        }
        Event::StateFaults { faults } => {
            for fault in faults {
                error!(instance, key = fault.key, why = fault.why, "a stored value cannot be used");
            }
        }
        Event::RecordCancelled { id } => {
            warn!(instance, id, "the leader cancelled an operation that its predecessor left unfinished");
        }
        Event::PlacementHeld { owner } => {
            warn!(
                instance,
                owner, "another prefix owns placement: this instance makes no placement decisions"
            );
        }
        Event::PlacementOwned => info!(instance, "the instance makes placement decisions"),
        // The scheduler logs it with its fields.
        Event::Decided { .. } => {}
        Event::Observed { machines, left_out } => {
            debug!(instance, machines, left_out, "the registry answered");
        }
        Event::SharedAddresses(shared) if shared.is_empty() => {
            info!(instance, "each address belongs to one machine again");
        }
        Event::SharedAddresses(shared) => {
            let named = shared.iter().take(MOST_NAMED).map(|(address, serials)| {
                let serials: Vec<_> = serials.iter().map(String::as_str).collect();
                format!("{address} by {}", serials.join(" and "))
            });
            let claims = named.collect::<Vec<_>>().join(", ");
            warn!(instance, addresses = shared.len(), claims, "several machines claim the same address");
        }
        Event::PollFailed { why } => warn!(instance, why, "a poll of the registry failed"),
        Event::Reported { machines } => {
            debug!(instance, machines, "the registry reported the machines to repair");
        }
        Event::ReportsFailed { why } => {
            warn!(instance, why, "a poll of the registry for machines to repair failed");
        }
        Event::Reports(news) => report_news(instance, news),
        Event::Held(guard) => warn!(
            instance,
            vanished = guard.vanished.len(),
            agreed = guard.agreed,
            "the removal guard holds back an observation"
        ),
        Event::Released { why } => info!(instance, why, "the removal guard lets observations through"),
        Event::TaintsKnown { nodes } => {
            info!(instance, nodes, "the taints of the Kubernetes nodes are known");
        }
        Event::TaintsUnknown { why, age } => warn!(
            instance,
            why,
            seconds = age.map(|age| age.as_secs()),
            "the taints of the Kubernetes nodes are unknown: plans ignore them"
        ),
        // Every epoch begins in this state; an unavailable store or registry has its own events.
        Event::Blocked(why @ (PlanBlockedBy::NoState | PlanBlockedBy::NoObservation)) => {
            info!(instance, reason = why.name(), %why, "the planner makes no plan yet");
        }
        Event::Blocked(why) => warn!(instance, reason = why.name(), %why, "the planner makes no plan"),
        Event::Calm { .. } => debug!(instance, "the planner found nothing to change"),
        Event::Planned { plan, took } => info!(
            instance,
            action = plan.action.map_or("none", |action| action.name()),
            changes = plan.changes.len(),
            took_seconds = took.as_secs_f64(),
            "the planner made a plan"
        ),
        Event::PlanFailed(error) => {
            warn!(instance, kind = error.kind.name(), why = error.message, "no plan can be made");
        }
        Event::Committed { what, revision, epoch, action } => info!(
            instance,
            what,
            revision,
            epoch,
            action = action.map_or("none", |action| action.name()),
            "the leader committed a change"
        ),
        Event::CommitFailed { what, why } => warn!(instance, what, why, "a commit failed"),
        Event::Violated(violations) => {
            for violation in violations {
                error!(instance, %violation, "the leader refused a change that breaks an invariant");
            }
        }
        Event::Repaired { index, address, operation, what, failed: true } => {
            warn!(instance, entry = index, address, operation, what, "a step of a repair failed");
        }
        Event::Repaired { index, address, operation, what, failed: false } => {
            info!(instance, entry = index, address, operation, what, "a repair advanced");
        }
        Event::Operation { id, operation, what, failed: true } => {
            warn!(instance, record = id, operation, what, "a command of an operation failed");
        }
        Event::Operation { id, operation, what, failed: false } => {
            info!(instance, record = id, operation, what, "an operation advanced");
        }
        Event::EtcdBackup { file, size, proved } => {
            info!(instance, file, bytes = size, proved, "etcd has a new backup");
        }
        Event::EtcdBackupFailed { why } => warn!(instance, why, "a backup of etcd failed"),
        Event::OperationsHeld { held } if held.is_empty() => info!(instance, "no operation is held"),
        Event::OperationsHeld { held } => {
            for held in held {
                warn!(instance, held, "an operation is held");
            }
        }
        Event::RepairWaits { index, address, reason: "", why } => {
            info!(instance, entry = index, address, why, "a repair no longer waits");
        }
        Event::RepairWaits { index, address, reason, why } => {
            warn!(instance, entry = index, address, reason, why, "a repair waits");
        }
        Event::Rebooted { index, node, operation, what, failed: true } => {
            warn!(instance, entry = index, node, operation, what, "a step of a reboot failed");
        }
        Event::Rebooted { index, node, operation, what, failed: false } => {
            info!(instance, entry = index, node, operation, what, "a reboot advanced");
        }
        Event::RebootWaits { index, node, reason: "", why } => {
            info!(instance, entry = index, node, why, "a reboot no longer waits");
        }
        Event::RebootWaits { index, node, reason, why } => {
            warn!(instance, entry = index, node, reason, why, "a reboot waits");
        }
        Event::RepairTrouble { why } if why.is_empty() => {
            info!(instance, "Kubernetes requests of the repair queue succeed again");
        }
        Event::RepairTrouble { why } => {
            warn!(instance, why, "a Kubernetes request of the repair queue failed")
        }
        Event::ActorFailed { actor, why, restart_in } => error!(
            instance,
            actor,
            why,
            restart_in_seconds = restart_in.map(|pause| pause.as_secs_f64()),
            "an actor failed"
        ),
        Event::ActorRestarted { actor, restarts } => {
            info!(instance, actor, restarts, "an actor runs again");
        }
        Event::Meltdown { pause } => error!(
            instance,
            pause_seconds = pause.as_secs_f64(),
            "the leader's actors failed too often; the instance gives up leadership for a while"
        ),
    }
}

/// Logs news of reports: one line for each reason and rack, independent of the number of machines.
fn report_news(instance: &str, news: &ReportNews) {
    use tracing::{info, warn};

    let named = |serials: &mut dyn Iterator<Item = &str>| -> String {
        serials.take(MOST_NAMED).collect::<Vec<_>>().join(", ")
    };
    for (rack, machines) in &news.held {
        let serials = named(&mut machines.iter().map(String::as_str));
        let machines = machines.len();
        warn!(
            instance,
            rack, machines, serials, "the leader holds back repairs in a rack: its machines failed together"
        );
    }
    for rack in &news.released {
        info!(instance, rack, "the leader no longer holds back repairs in a rack");
    }
    for &name in Reason::NAMES {
        let of_name: Vec<&Refusal> =
            news.refused.iter().filter(|refusal| refusal.reason.name() == name).collect();
        let Some(first) = of_name.first() else { continue };
        let serials = named(&mut of_name.iter().map(|refusal| refusal.serial.as_str()));
        let (machines, why) = (of_name.len(), &first.reason);
        warn!(instance, reason = name, machines, serials, %why, "reported machines are not repaired");
    }
    if !news.cleared.is_empty() {
        let serials = named(&mut news.cleared.iter().map(String::as_str));
        let machines = news.cleared.len();
        info!(instance, machines, serials, "nothing prevents repairs of these machines any more");
    }
}
