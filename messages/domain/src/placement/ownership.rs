//! The ownership of placement: at most one prefix of an etcd decides, however many instances serve the API.
//!
//! A key at the root of etcd holds the owner's prefix. It is bound to the lease of the leader that claimed it, and
//! every placement write compares it. Pure.

use bytes::Bytes;

use crate::store::{Condition, Entry, Epoch, Transaction, Write};

/// The key at the root of etcd.
pub const KEY: &str = "/madako/placement-owner";

/// The owner of placement, as known to this instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Ownership {
    /// The owner is unknown, or this instance is not the leader: it decides nothing.
    #[default]
    Unknown,
    /// This instance's prefix owns placement in this epoch.
    Ours {
        /// Mod revision of the key.
        revision: i64,
    },
    /// Another prefix owns placement: this instance decides nothing until that prefix releases the key or its lease
    /// ends.
    Theirs {
        /// The key prefix whose leader decides about placement.
        prefix: String,
    },
}

impl Ownership {
    /// The condition of every placement write; `None` while placement decides nothing.
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

/// The next step of a leader that may own placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The owner is settled; nothing to do.
    Settled(Ownership),
    /// Claim the key with this transaction at the root: it has no owner, or an earlier leader of the same prefix owns
    /// it.
    Claim(Transaction),
}

/// The fence of an epoch of a prefix, with absolute keys.
#[must_use]
pub fn ownership_fence(prefix: &str, epoch: &Epoch) -> Condition {
    Condition::Created { key: format!("{prefix}{}", epoch.key), revision: epoch.number }
}

/// Computes the next step from the key's present value.
#[must_use]
pub fn next_step(owner: Option<&Entry>, prefix: &str, epoch: &Epoch) -> Step {
    match owner {
        Some(owner) if owner.value != prefix.as_bytes() => {
            Step::Settled(Ownership::Theirs { prefix: String::from_utf8_lossy(&owner.value).into_owned() })
        }
        Some(owner) if owner.lease == epoch.lease => {
            Step::Settled(Ownership::Ours { revision: owner.mod_revision })
        }
        _ => Step::Claim(Transaction {
            conditions: vec![
                ownership_fence(prefix, epoch),
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
    fn only_unowned_placement_or_that_of_an_earlier_leader_is_claimed() {
        let epoch = Epoch { number: 9, key: "leader//1f".into(), lease: 0x1f };
        let claimed = |seen: Option<&Entry>| match next_step(seen, "/a/", &epoch) {
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
        assert_eq!(next_step(Some(&owner("/a/", 0x1f)), "/a/", &epoch), Step::Settled(ours));
        let theirs = Ownership::Theirs { prefix: "/b/".into() };
        assert_eq!((theirs.condition(), Ownership::Unknown.condition()), (None, None));
        assert_eq!(next_step(Some(&owner("/b/", 0x1f)), "/a/", &epoch), Step::Settled(theirs));
    }
}
