//! Promises about restores of etcd, and about the data that a restore replaces.

use std::collections::BTreeMap;

use madako_domain::keys;
use madako_domain::restore::Restored;

use crate::fact::{EtcdFact, Fact};
use crate::observed_world::WrittenKey;
use crate::oracle::{Context, FactJudgement, Predicate};

/// Clusters of etcd that were formed, and whether a restore has begun since then: it replaces them.
#[derive(Debug, Default)]
pub(crate) struct FormerClusters(BTreeMap<u64, bool>);

impl FormerClusters {
    pub(crate) fn observe(&mut self, fact: &Fact, written: &[WrittenKey]) {
        match fact {
            Fact::Etcd(EtcdFact::Formed { cluster }) => {
                self.0.entry(*cluster).or_insert(false);
            }
            Fact::Stored { .. } if restore_begun(written).is_some() => {
                self.0.values_mut().for_each(|is_former| *is_former = true);
            }
            _ => {}
        }
    }

    pub(crate) fn was_replaced(&self, cluster: u64) -> bool {
        self.0.get(&cluster).is_some_and(|is_former| *is_former)
    }
}

fn restore_begun(written: &[WrittenKey]) -> Option<Restored> {
    let (before, after) = written.iter().find(|write| write.key == keys::ETCD_RESTORED)?.read::<Restored>();
    let is_same = |before: Restored, after: &Restored| before.requested_at == after.requested_at;
    after.filter(|after| !before.is_some_and(|before| is_same(before, after)))
}

/// Clusters that were formed, and whether a majority of their members runs.
#[derive(Default)]
pub(crate) struct LossProved {
    runs: BTreeMap<u64, bool>,
    former: FormerClusters,
}

impl Predicate for LossProved {
    fn observe(&mut self, Context { fact, written, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        match fact {
            Fact::Etcd(EtcdFact::Formed { cluster } | EtcdFact::Kept { cluster, .. }) => {
                self.runs.insert(*cluster, true);
            }
            Fact::Etcd(EtcdFact::Silent { cluster }) => {
                self.runs.insert(*cluster, false);
            }
            Fact::Stored { .. } => {
                if let Some(restored) = restore_begun(written) {
                    let mut living = self
                        .runs
                        .iter()
                        .filter(|(cluster, runs)| **runs && !self.former.was_replaced(**cluster));
                    let living = living.next().map(|(cluster, _)| *cluster);
                    ruling.require(living.is_none(), || {
                        format!("the restore on {} began while etcd {living:x?} runs", restored.address)
                    });
                }
            }
            _ => {}
        }
        self.former.observe(fact, written);
    }
}
