//! Who decides about placement: at most one prefix of an etcd, however many instances serve its API.
//!
//! The owner's prefix stands in a key at the root, on the lease of the leader that claimed it, and every write that
//! placement decides compares that key. Pure.

use bytes::Bytes;

use crate::store::{Condition, Entry, Epoch, Transaction, Write};

/// The key at the root of etcd.
pub const KEY: &str = "/madako/placement-owner";

/// Who owns placement, as far as this instance knows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Ownership {
    /// Nobody knows yet, or this instance does not lead: nothing is decided.
    #[default]
    Unknown,
    /// This instance's prefix, in this epoch.
    Ours {
        /// Mod revision of the key.
        revision: i64,
    },
    /// Another prefix: nothing is decided until it gives up, or its lease ends.
    Theirs {
        /// That prefix.
        prefix: String,
    },
}

impl Ownership {
    /// What every write that placement decides compares. `None`: placement decides nothing now.
    #[must_use]
    pub fn condition(&self) -> Option<Condition> {
        match self {
            Self::Ours { revision } => {
                Some(Condition::Unchanged { key: KEY.to_owned(), revision: *revision })
            }
            Self::Unknown | Self::Theirs { .. } => None,
        }
    }
}

/// What a leader that wants to decide does about the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing: this is how it is.
    Settled(Ownership),
    /// Claim it by this transaction, at the root: nobody owns it, or an earlier leader of the same prefix.
    Claim(Transaction),
}

/// The fence of an epoch of a prefix, at the root.
#[must_use]
pub fn fence(prefix: &str, epoch: &Epoch) -> Condition {
    Condition::Created { key: format!("{prefix}{}", epoch.key), revision: epoch.number }
}

/// Looks at the key as it is now.
#[must_use]
pub fn step(owner: Option<&Entry>, prefix: &str, epoch: &Epoch) -> Step {
    match owner {
        Some(owner) if owner.value != prefix.as_bytes() => {
            Step::Settled(Ownership::Theirs { prefix: String::from_utf8_lossy(&owner.value).into_owned() })
        }
        Some(owner) if owner.lease == epoch.lease => {
            Step::Settled(Ownership::Ours { revision: owner.mod_revision })
        }
        _ => Step::Claim(Transaction {
            conditions: vec![
                fence(prefix, epoch),
                Condition::Unchanged {
                    key: KEY.to_owned(),
                    revision: owner.map_or(0, |owner| owner.mod_revision),
                },
            ],
            writes: vec![Write::Put {
                key: KEY.to_owned(),
                value: Bytes::copy_from_slice(prefix.as_bytes()),
                lease: epoch.lease,
            }],
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(prefix: &str, lease: i64) -> Entry {
        let value = Bytes::copy_from_slice(prefix.as_bytes());
        Entry { value, create_revision: 3, mod_revision: 4, lease }
    }

    #[test]
    fn what_nobody_owns_or_an_earlier_leader_of_the_prefix_is_claimed_and_nothing_else() {
        let epoch = Epoch { number: 9, key: "leader//1f".into(), lease: 0x1f };
        let claimed = |seen: Option<&Entry>| match step(seen, "/a/", &epoch) {
            Step::Claim(transaction) => Some(transaction),
            Step::Settled(_) => None,
        };
        let claim = claimed(None).unwrap();
        assert_eq!(
            claim.conditions,
            [
                Condition::Created { key: "/a/leader//1f".into(), revision: 9 },
                Condition::Unchanged { key: KEY.into(), revision: 0 }
            ]
        );
        assert_eq!(
            claim.writes,
            [Write::Put { key: KEY.into(), value: Bytes::from_static(b"/a/"), lease: 0x1f }]
        );
        let again = claimed(Some(&owner("/a/", 0x2f))).unwrap();
        assert_eq!(again.conditions[1], Condition::Unchanged { key: KEY.into(), revision: 4 });

        let ours = Ownership::Ours { revision: 4 };
        assert_eq!(ours.condition(), Some(Condition::Unchanged { key: KEY.into(), revision: 4 }));
        assert_eq!(step(Some(&owner("/a/", 0x1f)), "/a/", &epoch), Step::Settled(ours));
        let theirs = Ownership::Theirs { prefix: "/b/".into() };
        assert_eq!((theirs.condition(), Ownership::Unknown.condition()), (None, None));
        assert_eq!(step(Some(&owner("/b/", 0x1f)), "/a/", &epoch), Step::Settled(theirs));
    }
}
