//! Writes of clients to the store, as `ckecli` makes them, for the clients of simulation and chaos.
//!
//! Does not: connect, send or draw. The caller reads, sends the transaction, and records its outcome.

use etcd_client::{Compare, CompareOp, GetResponse, KeyValue, Txn, TxnOp};
use madako_domain::keys;
use madako_domain::repair::RepairQueueEntry;
use madako_domain::store::Entry;

/// A key as a client read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadKey {
    /// The absolute key.
    key: Vec<u8>,
    /// 0: the key was absent.
    revision: i64,
    /// Empty if the key was absent.
    pub value: Vec<u8>,
}

impl From<&KeyValue> for ReadKey {
    fn from(kv: &KeyValue) -> Self {
        Self { key: kv.key().to_vec(), revision: kv.mod_revision(), value: kv.value().to_vec() }
    }
}

impl ReadKey {
    /// The answer to a read of one key.
    #[must_use]
    pub fn of_answer(key: &str, answer: &GetResponse) -> Self {
        let absent = Self { key: key.into(), revision: 0, value: Vec::new() };
        answer.kvs().first().map_or(absent, Self::from)
    }

    /// The entry of an absolute key in a list.
    #[must_use]
    pub fn of_entry(key: &str, entry: Option<&Entry>) -> Self {
        let (revision, value) =
            entry.map_or((0, Vec::new()), |entry| (entry.mod_revision, entry.value.to_vec()));
        Self { key: key.into(), revision, value }
    }

    #[must_use]
    pub fn replace_with(self, value: Vec<u8>) -> GuardedPuts {
        GuardedPuts::replace(self.key, self.revision, value)
    }

    /// Takes the next number of this counter for a new key, as `ckecli` and CKE do. `first` is the number of an absent
    /// counter; `entry` makes the absolute key and its value. `None`: the counter has no number, or there is no value.
    #[must_use]
    pub fn take_number(
        self,
        first: i64,
        entry: impl FnOnce(i64) -> Option<(String, Vec<u8>)>,
    ) -> Option<(i64, GuardedPuts)> {
        let number: i64 = match self.value.as_slice() {
            [] => first,
            value => std::str::from_utf8(value).ok()?.parse().ok()?,
        };
        let (key, value) = entry(number)?;
        let mut writes = self.replace_with((number + 1).to_string().into_bytes());
        writes.puts.push((key.into_bytes(), value));
        Some((number, writes))
    }
}

/// Puts that happen only if a key is as the client read it: a request that arrives late, after another write of the key,
/// has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedPuts {
    guard: (Vec<u8>, i64),
    puts: Vec<(Vec<u8>, Vec<u8>)>,
}

impl GuardedPuts {
    /// Puts a value if its key still has the revision.
    #[must_use]
    pub fn replace(key: impl Into<Vec<u8>>, revision: i64, value: Vec<u8>) -> Self {
        let key = key.into();
        Self { puts: vec![(key.clone(), value)], guard: (key, revision) }
    }

    /// The absolute keys.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.puts.iter().map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect()
    }
}

impl From<GuardedPuts> for Txn {
    fn from(GuardedPuts { guard: (key, revision), puts }: GuardedPuts) -> Self {
        let unchanged = Compare::mod_revision(key, CompareOp::Equal, revision);
        let puts: Vec<TxnOp> = puts.into_iter().map(|(key, value)| TxnOp::put(key, value, None)).collect();
        Self::new().when([unchanged]).and_then(puts)
    }
}

/// The index and the writes of a new entry, as `ckecli repair-queue add` makes them. `None`: the counter has no number.
#[must_use]
pub fn add_repair(prefix: &str, counter: ReadKey, entry: RepairQueueEntry) -> Option<(i64, GuardedPuts)> {
    counter.take_number(0, |index| {
        let value = serde_json::to_vec(&RepairQueueEntry { index, ..entry }).ok()?;
        Some((format!("{prefix}{}", keys::repair(index)), value))
    })
}

/// As `ckecli repair-queue reset-backoff`: an abandoned drain need not wait for hours.
pub fn reset_back_off(entry: &mut RepairQueueEntry) {
    entry.drain_backoff_count = 0;
    entry.drain_backoff_expire = None;
}

/// Transactions to be sent in this order, each with whether all of its conditions hold. They write a key below
/// `prefix`, where no other client writes.
#[must_use]
pub fn conditional_transactions(prefix: &str) -> [(Txn, bool); 4] {
    let key = |name: &str| format!("{prefix}{name}");
    let absent = |name: &str| Compare::create_revision(key(name), CompareOp::Equal, 0);
    let there = |name: &str| Compare::create_revision(key(name), CompareOp::Greater, 0);
    [
        (vec![absent("a"), absent("b")], true),
        (vec![there("a"), there("b")], false),
        (vec![there("a"), absent("b"), absent("a")], false),
        (vec![absent("a"), there("a")], false),
    ]
    .map(|(conditions, held)| (Txn::new().when(conditions).and_then([TxnOp::put(key("a"), "", None)]), held))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(value: &str) -> ReadKey {
        ReadKey { key: b"/cke/counter".to_vec(), revision: 4, value: value.into() }
    }

    #[test]
    fn a_new_repair_takes_the_next_index_and_compares_the_counter() {
        let added = |value| add_repair("/cke/", counter(value), RepairQueueEntry::new("o", "t", "10.0.0.1"));
        for (value, next, text) in [("", 0, "1"), ("7", 7, "8")] {
            let (index, writes) = added(value).unwrap();
            assert_eq!(index, next);
            assert_eq!(writes.guard, (b"/cke/counter".to_vec(), 4));
            assert_eq!(writes.keys(), ["/cke/counter".to_owned(), format!("/cke/{}", keys::repair(next))]);
            assert_eq!(writes.puts[0].1, text.as_bytes());
            let entry: RepairQueueEntry = serde_json::from_slice(&writes.puts[1].1).unwrap();
            assert_eq!((entry.index, &*entry.address), (next, "10.0.0.1"));
        }
        assert_eq!(added("many"), None);
    }
}
