//! Promises about operations: their effects on nodes and on etcd.
//!
//! Does not: judge I10 for the records of operations (`madako_domain::invariants` does).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use madako_domain::host_key::PinnedKey;
use madako_domain::keys;
use madako_domain::record::Record;

use crate::exemptions::Exemption;
use crate::fact::{EffectStage, EtcdFact, Fact, FactTime, NodeEffect, Voter};
use crate::observed_world::{StoredValue, WrittenKey};
use crate::oracle::{Context, FactJudgement, Predicate};
use crate::restores::FormerClusters;

/// Remembered announcements. The facts of nodes may be reported some commands later than the store's.
const ANNOUNCEMENTS: usize = 64;

/// Times of the checks that the service makes before effects.
#[derive(Default)]
pub(crate) struct Checks {
    /// Times of the last announcements of commands, in order.
    announced: VecDeque<FactTime>,
    /// Effects under way, with the times of their beginnings.
    began: BTreeMap<u64, FactTime>,
}

impl Checks {
    pub(crate) fn observe(&mut self, at: FactTime, fact: &Fact, written: &[WrittenKey]) {
        match fact {
            Fact::Stored { .. } if written.iter().any(is_announcement) => {
                if self.announced.len() == ANNOUNCEMENTS {
                    self.announced.pop_front();
                }
                self.announced.push_back(at);
            }
            Fact::Effect { effect, stage: EffectStage::Began } => {
                self.began.insert(effect.number, at);
            }
            Fact::Effect { effect, .. } => {
                self.began.remove(&effect.number);
            }
            _ => {}
        }
    }

    /// Beginning of an effect that is under way at `at`.
    pub(crate) fn begin_of_effect(&self, effect: &NodeEffect, at: FactTime) -> FactTime {
        *self.began.get(&effect.number).unwrap_or(&at)
    }

    /// Maximum time since the check before an effect: it follows the announcement of its command.
    pub(crate) fn age_of_effect(&self, effect: &NodeEffect, at: FactTime) -> Duration {
        let began = self.begin_of_effect(effect, at);
        let announced = self.announced.iter().rev().find(|announced| **announced <= began);
        at.saturating_sub(*announced.unwrap_or(&began))
    }
}

/// Invariant I2 of commands.
#[derive(Default)]
pub(crate) struct QuorumKept {
    checks: Checks,
    /// Node of the last restart that an operator asked for, and the beginning and end of its operation.
    restart_request: Option<(String, FactTime, Option<FactTime>)>,
    /// Last loss of a voting member by an effect, by cluster and member.
    lost: BTreeMap<(u64, u64), FactTime>,
    former: FormerClusters,
}

impl Predicate for QuorumKept {
    fn observe(
        &mut self,
        Context { at, fact, written, terms, .. }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        self.former.observe(fact, written);
        self.checks.observe(*at, fact, written);
        match fact {
            Fact::Stored { .. } => self.note_request(written, *at),
            Fact::Etcd(EtcdFact::VoterLost { effect, cluster, member, voting, others, had_quorum }) => {
                if *had_quorum && !self.is_asked(effect, *at) && !self.former.was_replaced(*cluster) {
                    let checked = self.checks.age_of_effect(effect, *at) + terms.tolerance;
                    self.judge_effect((effect, *cluster), (*voting, others), checked, *at, ruling);
                }
                self.lost.insert((*cluster, *member), *at);
            }
            _ => {}
        }
    }
}

impl QuorumKept {
    /// Notes the begin of a restart, which takes the operator's request, and the end of its record.
    fn note_request(&mut self, written: &[WrittenKey], at: FactTime) {
        let ends =
            written.iter().any(|write| write.key.starts_with(keys::RECORDS) && !is_announcement(write));
        if let Some((.., end @ None)) = self.restart_request.as_mut().filter(|_| ends) {
            *end = Some(at);
        }
        let begins = written.iter().any(is_announcement);
        let taken = written.iter().filter(|write| begins && write.after.is_none());
        if let Some(address) = taken.filter_map(|write| write.key.strip_prefix(keys::ETCD_RESTARTS)).next() {
            self.restart_request = Some((address.to_owned(), at, None));
        }
    }

    /// True if the effect belongs to a restart that an operator asked for.
    fn is_asked(&self, effect: &NodeEffect, at: FactTime) -> bool {
        let began = self.checks.begin_of_effect(effect, at);
        self.restart_request.as_ref().is_some_and(|(address, from, until)| {
            *address == effect.address && *from <= began && until.is_none_or(|until| began <= until)
        })
    }

    /// Judges an effect that was checked at most `checked` ago.
    fn judge_effect(
        &self,
        (effect, cluster): (&NodeEffect, u64),
        (voting, others): (usize, &[Voter]),
        checked: Duration,
        at: FactTime,
        ruling: &mut FactJudgement<'_>,
    ) {
        let in_sync = others.iter().filter(|voter| voter.out_of_sync.is_none()).count();
        // Members that failed after the check, except by an effect.
        let failed_since = others.iter().filter(|voter| {
            let lost = self.lost.get(&(cluster, voter.member));
            let ours = |age: Duration| lost.is_some_and(|lost| at.saturating_sub(*lost) <= age);
            voter.out_of_sync.is_some_and(|age| age <= checked && !ours(age))
        });
        let ages: Vec<Duration> = failed_since.filter_map(|voter| voter.out_of_sync).collect();
        let is_kept = in_sync * 2 > voting;
        if !is_kept && (in_sync + ages.len()) * 2 > voting {
            ruling.count_test();
            ruling.exemptions.record_use(Exemption::UnderWay, ages.into_iter().max().unwrap_or_default());
            return;
        }
        ruling.require(is_kept, || {
            let NodeEffect { what, address, .. } = effect;
            format!("after {what} on {address}, {in_sync} of {voting} voting members of etcd are in sync")
        });
    }
}

fn is_announcement(written: &WrittenKey) -> bool {
    let record = || written.after.as_ref().and_then(StoredValue::read::<Record>);
    written.key.starts_with(keys::RECORDS) && record().is_some_and(|record| record.is_unfinished())
}

#[derive(Default)]
pub(crate) struct OneEtcd {
    formed: BTreeSet<u64>,
    former: FormerClusters,
}

impl Predicate for OneEtcd {
    fn observe(&mut self, Context { fact, written, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        self.former.observe(fact, written);
        let Fact::Etcd(EtcdFact::Formed { cluster }) = fact else { return };
        self.formed.insert(*cluster);
        let living = self.formed.iter().filter(|cluster| !self.former.was_replaced(**cluster)).count();
        ruling.require(living == 1, || format!("the clusters {:x?} of etcd were formed", self.formed));
    }
}

#[derive(Default)]
pub(crate) struct InitialisedOnce(BTreeSet<(u64, u64)>);

impl Predicate for InitialisedOnce {
    fn observe(&mut self, Context { fact, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let Fact::Etcd(EtcdFact::Initialised { cluster, member, address }) = fact else { return };
        let is_first = self.0.insert((*cluster, *member));
        ruling.require(is_first, || {
            format!("the member {member:x} on {address} started on an empty volume a second time")
        });
    }
}

#[derive(Default)]
pub(crate) struct VoterDataKept(FormerClusters);

impl Predicate for VoterDataKept {
    fn observe(&mut self, Context { fact, written, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        self.0.observe(fact, written);
        let Fact::Etcd(EtcdFact::DataRemoved { effect, cluster, member, is_voting }) = fact else { return };
        ruling.require(!is_voting || self.0.was_replaced(*cluster), || {
            let NodeEffect { what, address, .. } = effect;
            format!("{what} on {address} removed the data of the voting member {member:x}")
        });
    }
}

/// The last acknowledged write, by cluster.
#[derive(Default)]
pub(crate) struct WritesKept(BTreeMap<u64, u64>);

impl Predicate for WritesKept {
    fn observe(&mut self, Context { fact, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        match fact {
            Fact::Etcd(EtcdFact::Acknowledged { cluster, write }) => {
                self.0.insert(*cluster, *write);
            }
            Fact::Etcd(EtcdFact::Kept { cluster, write }) => {
                // The next writes take the numbers of the lost ones.
                let acknowledged = self.0.insert(*cluster, *write).unwrap_or(0);
                ruling.require(*write >= acknowledged, || {
                    format!("etcd acknowledged {acknowledged} writes, and has {write} of them")
                });
            }
            _ => {}
        }
    }
}

/// The newest epoch with an effect.
#[derive(Default)]
pub(crate) struct EpochsInOrder(i64);

impl Predicate for EpochsInOrder {
    fn observe(&mut self, Context { fact, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let Fact::Effect { effect, stage: EffectStage::Happened } = fact else { return };
        if effect.outlives_permit {
            return;
        }
        let newest = self.0.max(effect.epoch);
        self.0 = newest;
        ruling.require(effect.epoch == newest, || {
            let NodeEffect { what, address, epoch, .. } = effect;
            format!("{what} on {address} of epoch {epoch} happened after an effect of epoch {newest}")
        });
    }
}

pub(crate) struct HostKeyKept;

impl Predicate for HostKeyKept {
    fn observe(&mut self, Context { written, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        for write in written.iter().filter(|write| write.key.starts_with(keys::HOST_KEYS)) {
            let (before, after) = write.read::<PinnedKey>();
            let Some(after) = after else { continue };
            let is_known = |serial: &str| !serial.is_empty();
            let is_kept = before.is_none_or(|before| {
                let is_other =
                    is_known(&before.serial) && is_known(&after.serial) && before.serial != after.serial;
                is_other || before.host_key == after.host_key
            });
            ruling.require(is_kept, || format!("{} has another key of the same machine", write.key));
        }
    }
}
