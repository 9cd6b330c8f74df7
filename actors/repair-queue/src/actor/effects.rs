//! Sends the decisions of the repair queue to the leader, and executes the commands that they announce when the effect
//! workflow permits them.

use madako_domain::repair::change::{RepairChange, RepairWrite};
use madako_domain::state::ClusterState;
use madako_effects::{Action, EffectEvent, RemainingEffect, command_end};
use madako_protocol::actors::{CommitError, Committed, Failure, Mutation};
use madako_protocol::event::Event;
use madako_protocol::permit::Permit;
use tokio::time::Instant;
use tracing::Span;

use super::command::{AnnouncedCommand, Command};
use super::{RepairState, telemetry};
use crate::transition::is_failure;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Entry(i64),
    /// Racks and new entries, from the registry's reports.
    Reports,
    /// A record or kept data that belongs to no entry.
    Upkeep,
}

pub(super) struct DecidedChange {
    pub(super) change: RepairChange,
    pub(super) subject: Subject,
    /// Text of the event after the commit; used for entries only.
    pub(super) event_text: String,
    pub(super) then: AfterCommit,
}

impl DecidedChange {
    pub(super) fn change_without_event(change: RepairChange) -> Self {
        Self { change, subject: Subject::Upkeep, event_text: String::new(), then: AfterCommit::Nothing }
    }
}

pub(super) enum AfterCommit {
    Nothing,
    /// The change records the end of a command.
    Record,
    Drain,
    Run(Command),
}

pub(super) struct ChangeInFlight {
    what: &'static str,
    subject: Subject,
    /// Address of the entry's machine, if the entry exists.
    address: Option<String>,
    event_text: String,
    /// The change fails a step or the whole repair.
    failed: bool,
    is_drain: bool,
    /// A rejected change suspends its subject until the next tick.
    suspends_subject: bool,
    /// Indexes of new entries.
    added: Vec<i64>,
    span: Span,
}

impl RepairState {
    pub(super) fn write(&mut self, state: &ClusterState, decided: DecidedChange) {
        let DecidedChange { change, subject, event_text, then } = decided;
        let address = match subject {
            Subject::Entry(index) => state.repair.entries.get(&index).map(|item| item.value.address.clone()),
            Subject::Reports | Subject::Upkeep => None,
        };
        let added = |write: &RepairWrite| match write {
            RepairWrite::Added(entry) => Some(entry.index),
            _ => None,
        };
        let added = change.writes.iter().filter_map(added).collect();
        let failed = is_failure(&change);
        let (what, span) = (change.what, self.traces.begin_decision(subject, change.what));
        let _decision = span.clone().entered();
        let is_drain = matches!(then, AfterCommit::Drain);
        let is_shunned = subject != Subject::Upkeep && !matches!(then, AfterCommit::Record);
        let (on, now) = (state.revision, Instant::now());
        let action = match then {
            AfterCommit::Nothing | AfterCommit::Drain => self.effects.send_change(change, on, now),
            AfterCommit::Record => self.effects.record(change, None, on, now),
            AfterCommit::Run(command) => {
                self.effects.announce(change, AnnouncedCommand { command, span: span.clone() }, on, now)
            }
        };
        // `newest` returns only states that allow decisions, and only one command is announced at a time.
        let Some(action) = action else { return };
        self.writing = Some(ChangeInFlight {
            what,
            subject,
            address,
            event_text,
            failed,
            is_drain,
            suspends_subject: is_shunned,
            added,
            span,
        });
        self.perform(vec![action]);
    }

    /// Performs actions of the workflow. Returns whether the newest state is to be evaluated.
    pub(super) fn perform(&mut self, actions: Vec<Action<RepairChange, AnnouncedCommand>>) -> bool {
        let mut decides = false;
        for action in actions {
            match action {
                Action::Commit { number, change } => {
                    self.runner.commit(number, Mutation::Repair(Box::new(change)));
                }
                Action::Answered { result } => self.note_commit_result(result),
                Action::Ask { number, effect } => effect.span.in_scope(|| self.runner.ask(number)),
                Action::Start { number, attempt, effect, permit } => {
                    self.start(number, attempt, effect, permit);
                }
                Action::Pause { number, effect } => self.pause(number, effect),
                Action::Abort => self.runner.abort(),
                Action::Record { effect, took } => {
                    let end = self.effects.conclusion().map(|(_, conclusion)| command_end(conclusion));
                    if let Some(end) = end {
                        let kind = effect.command.kind.name();
                        telemetry::madako_repair_command_seconds(kind, end.how.name()).record(took);
                    }
                }
                Action::Decide => decides = true,
                Action::Report { effect: AnnouncedCommand { command, .. }, left } => {
                    let (entry, record) = (command.index, command.record);
                    let left = match left {
                        RemainingEffect::NotBegun => "the command did not begin",
                        RemainingEffect::Unknown => "the command was ended; its effect is unknown",
                        RemainingEffect::NotRecorded => "the command ended; its end is not recorded",
                    };
                    tracing::warn!(entry, record, left, "the next leader cancels the record of a command");
                }
            }
        }
        self.runner.wake_at(self.effects.wake());
        decides
    }

    fn note_commit_result(&mut self, result: Result<Committed, CommitError>) {
        let Some(writing) = self.writing.take() else { return };
        match result {
            Ok(_) => self.committed_as(writing),
            Err(error) => {
                self.given.events.emit(Event::CommitFailed { what: writing.what, why: error.to_string() });
                if error.failure_class() == Failure::Rejected && writing.suspends_subject {
                    self.suspended.insert(writing.subject);
                    self.effects.clear_refusal();
                }
            }
        }
    }

    fn committed_as(&mut self, writing: ChangeInFlight) {
        let ChangeInFlight { what, subject, address, event_text, failed, is_drain, added, span, .. } =
            writing;
        telemetry::madako_repair_operations_total(what).increment(1);
        let Subject::Entry(index) = subject else { return self.traces.note_commit(added, &span) };
        self.traces.note_commit(added.into_iter().chain([index]), &span);
        if let Some(address) = address {
            let repaired = Event::Repaired { index, address, operation: what, what: event_text, failed };
            self.given.events.emit(repaired);
        }
        if is_drain {
            self.begun.insert(index, span);
        }
    }

    fn start(&mut self, number: u64, attempt: u32, announced: AnnouncedCommand, permit: Permit) {
        let Some(host) = self.given.host.clone() else { return };
        let AnnouncedCommand { command, span } = announced;
        let _decision = span.entered();
        self.runner.carry_out(async move {
            EffectEvent::Ended { number, end: command.run_attempt(&*host, permit, attempt).await }
        });
    }

    fn pause(&mut self, number: u64, announced: AnnouncedCommand) {
        let Some(host) = self.given.host.clone() else { return };
        let (permits, interval) = (self.runner.permits().clone(), self.given.interval);
        let AnnouncedCommand { command, span } = announced;
        let _decision = span.entered();
        self.runner.carry_out(async move {
            EffectEvent::Paused { number, against: command.pause(host, permits, interval).await }
        });
    }
}
