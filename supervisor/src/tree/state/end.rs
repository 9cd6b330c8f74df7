//! Handles the end of a child: a requested stop, a final end by itself, and the end of its supervisor.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::slot::{ChildEnd, Phase, Task};
use super::{State, report_child};
use crate::tree::actor::ChildReportKind;
use crate::tree::event::{Meltdown, StopOutcome, TreeEvent};
use crate::tree::handle::{AddError, Mode, Reply, StopError};
use crate::tree::roster::{HaltOnDrop, LiveChild};
use crate::tree::spec::{BudgetAction, ChildId};

impl State {
    pub(in crate::tree) fn stop(
        &mut self,
        id: &ChildId,
        mode: Mode,
        reply: Option<Reply<Result<StopOutcome, StopError>>>,
    ) {
        let order = self.by_id.get(id).copied();
        let Some((order, slot)) = order.and_then(|o| Some((o, self.slots.get_mut(&o)?))) else {
            if let Some(reply) = reply {
                let _ = reply.send(Err(StopError::Unknown(Arc::clone(id))));
            }
            return;
        };
        slot.stopped.extend(reply);
        if mode == Mode::Now {
            slot.hurry.send_replace(true);
        }
        match slot.phase {
            Phase::Waiting => self.remove(order, StopOutcome::Stopped),
            Phase::Starting => {
                slot.phase = Phase::Cancelling;
                slot.cancel.send_replace(true);
            }
            Phase::Running | Phase::Backoff(_) => self.begin_stop(order),
            Phase::Cancelling | Phase::Stopping | Phase::Ending(_) => {}
        }
    }

    /// Forgets the slot's actor: it and everything below it is gone.
    pub(super) fn forget_live(&mut self, order: u64) {
        if let Some(live) = self.slots.get_mut(&order).and_then(|s| s.live.take()) {
            self.by_actor.remove(&live.cell.get_id());
            self.control.remove(live.cell.get_id());
        }
    }

    pub(super) fn remove(&mut self, order: u64, outcome: StopOutcome) {
        if outcome != StopOutcome::Stuck {
            self.forget_live(order);
        }
        let Some(slot) = self.slots.remove(&order) else { return };
        self.by_id.remove(&slot.spec.id);
        let child = slot.spec.id;
        if outcome == StopOutcome::Stuck {
            tracing::error!(supervisor = %self.spec.id, %child, "an actor did not end after a kill");
        }
        let supervisor = Arc::clone(&self.spec.id);
        self.emit(TreeEvent::ChildStopped { supervisor, child: Arc::clone(&child), outcome });
        if let Some(reply) = slot.added {
            let _ = reply.send(Err(AddError::Removed(child)));
        }
        for reply in slot.stopped {
            let _ = reply.send(Ok(outcome));
        }
    }

    pub(super) fn end(&mut self, order: u64) {
        self.forget_live(order);
        let Some(slot) = self.slots.remove(&order) else { return };
        self.by_id.remove(&slot.spec.id);
        let supervisor = Arc::clone(&self.spec.id);
        match slot.phase {
            Phase::Ending(ChildEnd::Normal(reason)) => {
                self.emit(TreeEvent::ChildEnded { supervisor, child: slot.spec.id, reason });
            }
            Phase::Ending(ChildEnd::GivenUp(exceeded)) => {
                tracing::error!(%supervisor, %exceeded, "an actor exceeded its restart budget");
                self.emit(TreeEvent::ChildGivenUp { supervisor, exceeded: exceeded.clone() });
                if let Some((_, BudgetAction::Report(report))) = &slot.spec.own {
                    report(exceeded);
                }
            }
            _ => {}
        }
        for reply in slot.stopped {
            let _ = reply.send(Ok(StopOutcome::Stopped));
        }
    }

    pub(super) fn begin_stop(&mut self, order: u64) {
        let supervisor = self.myself.clone();
        let grace = self.spec.kill_grace;
        let ended = self.has_ended(order);
        let Some((slot, generation)) = self.begin_phase(order, Phase::Stopping) else { return };
        slot.up = None;
        let live = slot.live.clone();
        let deadline = slot.spec.stop_deadline;
        let mut hurry = slot.hurry.subscribe();
        slot.task = Some(Task(tokio::spawn(async move {
            let outcome = match live {
                Some(live) => live.stop(deadline, &mut hurry, grace).await,
                None => StopOutcome::Stopped,
            };
            report_child(&supervisor, order, generation, ChildReportKind::Stopped(outcome.with_end(ended)));
        })));
    }

    /// True if the slot's last actor ended before the request to stop.
    pub(super) fn has_ended(&self, order: u64) -> bool {
        self.slots.get(&order).is_some_and(|s| matches!(s.phase, Phase::Backoff(_) | Phase::Ending(_)))
    }

    /// Stops every child in reverse order and waits. Returns the meltdown that caused the end, if any.
    pub(in crate::tree) async fn close(&mut self) -> Option<Meltdown> {
        let grace = self.spec.kill_grace;
        let mut hurry = self.control.watch_end_request();
        for slot in self.slots.values_mut() {
            // Its tasks end; this function stops what they stopped or started.
            slot.task = None;
        }
        // A start that blocks its thread must not prevent the stop of the other children.
        let _ = timeout(grace, self.control.wait_until_no_start()).await;
        // The roster, not the slots: it includes actors whose start was not yet reported.
        for entry in self.control.roster().into_iter().rev() {
            let deadline = self.slots.get(&entry.order).map_or(Duration::ZERO, |s| s.spec.stop_deadline);
            let ended = self.has_ended(entry.order);
            // The end event of a linked child carries the child's state. The mailbox is no longer read, so the state
            // would live until the drop of the supervisor. An unlinked child drops its state at its end.
            let guard = HaltOnDrop(entry.live.clone());
            entry.live.cell.unlink(self.myself.get_cell());
            let outcome = entry.live.stop(deadline, &mut hurry, grace).await.with_end(ended);
            drop(guard);
            self.close_child(entry.order, &entry.live, outcome);
        }
        while let Some((order, _)) = self.slots.last_key_value() {
            self.remove(*order, StopOutcome::Stopped);
        }
        self.emit(TreeEvent::Stopped { supervisor: Arc::clone(&self.spec.id) });
        self.meltdown.take()
    }

    pub(super) fn close_child(&mut self, order: u64, live: &LiveChild, outcome: StopOutcome) {
        if outcome != StopOutcome::Stuck {
            self.control.remove(live.cell.get_id());
        }
        self.remove(order, outcome);
    }
}
