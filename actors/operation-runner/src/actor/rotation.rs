//! The execution of the commands that rotate the encryption key.

use std::collections::BTreeSet;

use madako_effects::PERMIT_PAUSE;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::kubernetes_secrets::{EncryptionKeyChange, KubernetesSecretError};
use madako_protocol::permit::Permit;

use super::execute::{Basis, Executor, Failure};
use crate::limits::MOST_REFUSALS_SHOWN;

impl Executor {
    /// Changes the encryption keys, and begins anew if the permit ends meanwhile.
    pub(super) async fn change_encryption_keys(&self, change: &EncryptionKeyChange) -> Result<(), Failure> {
        loop {
            let permit = self.permits.get().await;
            match self.secrets.change_encryption_keys(&permit, change).await {
                Err(KubernetesSecretError::Permit(_)) => tokio::time::sleep(PERMIT_PAUSE).await,
                changed => return Ok(changed?),
            }
        }
    }

    /// Lets an API server write all Secrets. Secrets of a later time have the new key already. A Secret that is refused costs no
    /// other one.
    pub(super) async fn rewrite_secrets(&self, key: &str, basis: &Basis) -> Result<(), Failure> {
        self.change_encryption_keys(&EncryptionKeyChange::CheckFirst(key.to_owned())).await?;
        let mut refused = Vec::new();
        for secret in self.components.list_secrets(&basis.servers).await? {
            let secret = &secret;
            let rewrite = |permit: Permit| async move {
                self.components.rewrite_secret(&permit, &basis.servers, secret).await
            };
            match self.permits.try_effect(rewrite).await {
                Err(error @ KubernetesError::Refused { .. }) => refused.push(error.to_string()),
                rewritten => rewritten?,
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        let shown = &refused[..refused.len().min(MOST_REFUSALS_SHOWN)];
        let why = format!("{} Secrets cannot be rewritten, first: {}", refused.len(), shown.join("; "));
        Err(Failure { nodes: BTreeSet::new(), why, is_hold: false })
    }
}
