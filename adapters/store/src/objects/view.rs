//! The view of placement's resources at one revision, and the changes that led there. Pure.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Bound;
use std::sync::Arc;

use madako_domain::placement::kind::Kind;
use madako_domain::placement::objects::{Change, Stored, UnreadResource};
use madako_domain::state::Fault;
use madako_protocol::placement::objects::FollowerGap;

use super::decode::DecodeFault;
use super::ring::ChangeRing;

pub(super) type DecodedResource = Result<Arc<Stored>, DecodeFault>;

/// The new state of a key at a revision.
#[derive(Debug)]
pub(super) struct ObjectUpdate {
    pub(super) revision: i64,
    /// Absolute key in etcd.
    pub(super) key: String,
    /// New mod revision and value; `None` if the key was deleted.
    pub(super) value: Option<(i64, DecodedResource)>,
}

/// All resources of placement at one revision. Keys are in etcd's order: by their bytes.
#[derive(Debug, Default)]
pub(super) struct View {
    generation: u64,
    revision: i64,
    objects: BTreeMap<String, Arc<Stored>>,
    faults: BTreeMap<String, UnreadResource>,
    counts: BTreeMap<Kind, usize>,
    ring: ChangeRing,
    listed: i64,
    why: &'static str,
}

pub(super) type NewFaults = Vec<Fault>;

impl View {
    /// A view with another ring, for tests.
    #[cfg(test)]
    pub(super) fn with_ring(ring: ChangeRing) -> Self {
        Self { ring, ..Self::default() }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) fn ring(&self) -> &ChangeRing {
        &self.ring
    }

    pub(super) fn get(&self, key: &str) -> Option<Arc<Stored>> {
        self.objects.get(key).cloned()
    }

    pub(super) fn all_objects(&self) -> Vec<Arc<Stored>> {
        self.objects.values().cloned().collect()
    }

    pub(super) fn with_prefix(&self, prefix: &str) -> Vec<Arc<Stored>> {
        let from = self.objects.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.take_while(|(key, _)| key.starts_with(prefix)).map(|(_, stored)| Arc::clone(stored)).collect()
    }

    pub(super) fn unread_resource(&self, key: &str) -> Option<UnreadResource> {
        self.faults.get(key).cloned()
    }

    pub(super) fn faults(&self) -> Vec<Fault> {
        let fault =
            |(key, unread): (&String, &UnreadResource)| Fault { key: key.clone(), why: unread.why.clone() };
        self.faults.iter().map(fault).collect()
    }

    /// Number of resources by kind, in the order of [`Kind::ALL`].
    pub(super) fn counts_by_kind(&self) -> Vec<usize> {
        Kind::ALL.iter().map(|kind| self.counts.get(kind).copied().unwrap_or_default()).collect()
    }

    pub(super) fn fault_count(&self) -> usize {
        self.faults.len()
    }

    /// Replaces all contents and starts a new generation. Returns the new faults, and the old contents, so that the
    /// caller can drop them outside the lock.
    pub(super) fn replace(
        &mut self,
        revision: i64,
        values: BTreeMap<String, (i64, DecodedResource)>,
        why: &'static str,
    ) -> (NewFaults, BTreeMap<String, Arc<Stored>>) {
        let mut objects = BTreeMap::new();
        let mut faults = BTreeMap::new();
        self.counts.clear();
        for (key, (mod_revision, read)) in values {
            match read {
                Ok(stored) => {
                    *self.counts.entry(stored.key.kind).or_default() += 1;
                    objects.insert(key, stored);
                }
                Err(wrong) => drop(faults.insert(key, unreadable_resource(mod_revision, wrong))),
            }
        }
        let known = mem::replace(&mut self.faults, faults);
        let new = self.faults.iter().filter(|(key, unread)| known.get(*key) != Some(unread));
        let new = new.map(|(key, unread)| Fault { key: key.clone(), why: unread.why.clone() }).collect();
        let replaced = mem::replace(&mut self.objects, objects);
        self.generation += 1;
        self.revision = revision;
        self.listed = revision;
        self.why = why;
        self.ring.clear_until(revision);
        (new, replaced)
    }

    /// Advances to a revision. Returns the new faults, and whether followers have new changes.
    pub(super) fn advance(&mut self, revision: i64, steps: Vec<ObjectUpdate>) -> (NewFaults, bool) {
        let mut new = Vec::new();
        let end = self.ring.end_number();
        for ObjectUpdate { revision, key, value } in steps {
            let (after, unread) = match value {
                Some((_, Ok(stored))) => (Some(stored), None),
                Some((mod_revision, Err(wrong))) => (None, Some(unreadable_resource(mod_revision, wrong))),
                None => (None, None),
            };
            match unread {
                Some(unread) => {
                    new.push(Fault { key: key.clone(), why: unread.why.clone() });
                    self.faults.insert(key.clone(), unread);
                }
                None => drop(self.faults.remove(&key)),
            }
            let before = match &after {
                Some(stored) => self.objects.insert(key, Arc::clone(stored)),
                None => self.objects.remove(&key),
            };
            self.count(before.as_deref(), after.as_deref());
            // A value that was unreadable and still is causes no change.
            let either = after.as_ref().or(before.as_ref());
            if let Some(key) = either.map(|stored| stored.key.clone()) {
                self.ring.push(Arc::new(Change { revision, key, before, after }));
            }
        }
        self.revision = revision;
        (new, self.ring.end_number() > end)
    }

    fn count(&mut self, before: Option<&Stored>, after: Option<&Stored>) {
        if let Some(after) = after {
            *self.counts.entry(after.key.kind).or_default() += 1;
        }
        if let Some(count) = before.and_then(|before| self.counts.get_mut(&before.key.kind)) {
            *count -= 1;
        }
    }

    /// Number of the first change after a revision of this generation.
    pub(super) fn follow(&self, after: i64) -> Result<u64, FollowerGap> {
        if after > self.revision || after < self.listed {
            return Err(self.gap_of_relisting());
        }
        self.ring.number_after(after).ok_or_else(|| self.gap_of_lag())
    }

    /// The changes from a number of a generation on.
    pub(super) fn changes_since(&self, generation: u64, from: u64) -> Result<Vec<Arc<Change>>, FollowerGap> {
        if generation != self.generation {
            return Err(self.gap_of_relisting());
        }
        self.ring.changes_from(from).ok_or_else(|| self.gap_of_lag())
    }

    /// Ends the view: no further changes arrive.
    pub(super) fn end(&mut self) {
        self.generation += 1;
        self.why = "the reader of the store has ended";
    }

    /// The gap between a generation and the one before.
    pub(super) fn gap_of_relisting(&self) -> FollowerGap {
        let why = if self.generation == 0 { "the store was not read yet" } else { self.why };
        FollowerGap::Relisted { why: why.to_owned() }
    }

    fn gap_of_lag(&self) -> FollowerGap {
        FollowerGap::Lagged { limit: self.ring.len() }
    }
}

fn unreadable_resource(mod_revision: i64, wrong: DecodeFault) -> UnreadResource {
    let DecodeFault { why, encrypted } = wrong;
    UnreadResource { mod_revision, why, encrypted }
}

#[cfg(test)]
mod tests;
