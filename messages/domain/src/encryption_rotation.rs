//! The rotation of the key with which API servers encrypt Secrets (`madako/kubernetes/encryption-rotation`). The next leader
//! goes on with it.
//!
//! The state has the name of the new key. The key itself stands where the keys are stored, and nowhere else.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The last step of a rotation that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum RotationStage {
    /// An operator asked for the rotation.
    Requested,
    /// The new key is the second one: API servers decrypt with it.
    Added,
    /// The new key is the first one: API servers encrypt with it.
    First,
    /// All Secrets are encrypted with the new key.
    Rewritten,
    /// The new key is the only one.
    Dropped,
}

/// The state of a rotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncryptionRotation {
    /// The last step that is done.
    pub stage: RotationStage,
    /// Name of the new key: the time of the request in RFC 3339.
    pub key: String,
    /// Addresses of the nodes whose API servers started after the last change of the keys.
    #[serde(default)]
    pub started: BTreeSet<String>,
}

impl EncryptionRotation {
    /// A rotation before its first step.
    #[must_use]
    pub fn new(key: &str) -> Self {
        Self { stage: RotationStage::Requested, key: key.to_owned(), started: BTreeSet::new() }
    }

    /// True if the API server of a node runs with earlier keys, as far as the rotation knows.
    #[must_use]
    pub fn has_earlier_keys(&self, address: &str) -> bool {
        self.stage != RotationStage::Requested && !self.started.contains(address)
    }

    /// The rotation after the starts of API servers, each with the keys as they are in this stage. `None`: nothing changes.
    #[must_use]
    pub fn with_started(&self, addresses: &[String]) -> Option<Self> {
        let mut after = self.clone();
        after.started.extend(addresses.iter().filter(|address| self.has_earlier_keys(address)).cloned());
        (after != *self).then_some(after)
    }

    /// The rotation after a restore of etcd from a snapshot, whose Secrets may have the earlier key. `None`: nothing changes.
    #[must_use]
    pub fn after_restore(&self) -> Option<Self> {
        let is_rewritten = self.stage == RotationStage::Rewritten;
        is_rewritten.then(|| Self { stage: RotationStage::First, ..self.clone() })
    }

    /// The rotation after its next step; `None`: it is over.
    #[must_use]
    pub fn advance(&self) -> Option<Self> {
        let (stage, changes_keys) = match self.stage {
            RotationStage::Requested => (RotationStage::Added, true),
            RotationStage::Added => (RotationStage::First, true),
            RotationStage::First => (RotationStage::Rewritten, false),
            RotationStage::Rewritten => (RotationStage::Dropped, true),
            RotationStage::Dropped => return None,
        };
        let started = if changes_keys { BTreeSet::new() } else { self.started.clone() };
        Some(Self { stage, key: self.key.clone(), started })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(of: &[&str]) -> Vec<String> {
        of.iter().map(|address| (*address).to_owned()).collect()
    }

    #[test]
    fn each_change_of_the_keys_makes_all_api_servers_start_again() {
        let mut rotation = EncryptionRotation::new("k");
        assert!(!rotation.has_earlier_keys("a"), "nothing has changed");
        assert_eq!(rotation.with_started(&addresses(&["a"])), None);
        let mut stages = Vec::new();
        while let Some(next) = rotation.advance() {
            let restarts = next.has_earlier_keys("a");
            stages.push(format!("{}: {restarts}", next.stage));
            rotation = next.with_started(&addresses(&["a"])).unwrap_or(next);
            assert_eq!(rotation.with_started(&addresses(&["a"])), None, "it is known");
            assert!(!rotation.has_earlier_keys("a") && rotation.has_earlier_keys("b"));
        }
        assert_eq!(stages, ["added: true", "first: true", "rewritten: false", "dropped: true"]);
    }

    #[test]
    fn secrets_of_a_restored_snapshot_are_written_anew() {
        let mut rotation = EncryptionRotation::new("k");
        let mut stages = Vec::new();
        while let Some(next) = rotation.advance() {
            rotation = next;
            stages.extend(rotation.after_restore().map(|after| (rotation.stage, after.stage)));
        }
        assert_eq!(stages, [(RotationStage::Rewritten, RotationStage::First)]);
    }

    #[test]
    fn the_stored_form_is_stable() {
        let rotation =
            EncryptionRotation::new("k").advance().and_then(|it| it.with_started(&addresses(&["a"])));
        let text = serde_json::to_string(&rotation).unwrap();
        assert_eq!(text, r#"{"stage":"added","key":"k","started":["a"]}"#);
        assert_eq!(serde_json::from_str::<Option<EncryptionRotation>>(&text).unwrap(), rotation);
        let requested: EncryptionRotation =
            serde_json::from_str(r#"{"stage":"requested","key":"k"}"#).unwrap();
        assert_eq!(requested, EncryptionRotation::new("k"));
    }
}
