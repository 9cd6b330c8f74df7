//! The execution of the commands that rotate the encryption key.

use std::collections::BTreeSet;
use std::sync::{MutexGuard, PoisonError};

use madako_domain::objects::SecretVersion;
use madako_effects::PERMIT_PAUSE;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::kubernetes_secrets::{EncryptionKeyChange, KubernetesSecretError};
use madako_protocol::permit::Permit;
use tokio::time::Instant;

use super::execute::{Basis, Executor, Failure};
use crate::limits::{MOST_REFUSALS_SHOWN, REFUSALS_IN_A_ROW, REWRITES_DEADLINE};

/// The Secrets that a command with an early end has rewritten: all up to this one. A Secret of a later time has the new key already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rewritten {
    /// Name of the new key.
    key: String,
    namespace: String,
    name: String,
}

impl Rewritten {
    fn contains(&self, secret: &SecretVersion) -> bool {
        (&secret.namespace, &secret.name) <= (&self.namespace, &self.name)
    }
}

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
    /// other one. A command that ends early leaves the rest to the next one.
    pub(super) async fn rewrite_secrets(&self, key: &str, basis: &Basis) -> Result<(), Failure> {
        let before = self.rewritten().take().filter(|before| before.key == key);
        self.change_encryption_keys(&EncryptionKeyChange::CheckFirst(key.to_owned())).await?;
        let listed = self.components.list_secrets(&basis.servers).await?;
        let secrets = secrets_to_rewrite(listed, before.as_ref());
        let rewrite = |place: usize| {
            let secret = &secrets[place];
            self.permits.try_effect(move |permit: Permit| async move {
                self.components.rewrite_secret(&permit, &basis.servers, secret).await
            })
        };
        let (done, result) = rewrite_one_by_one(&secrets, rewrite).await;
        if result.is_err() {
            *self.rewritten() = progress(key, &secrets[..done], before);
        }
        result
    }

    /// Lets the next command rewrite all Secrets: those of a restored snapshot may have an earlier key.
    pub(super) fn forget_rewritten(&self) {
        *self.rewritten() = None;
    }

    fn rewritten(&self) -> MutexGuard<'_, Option<Rewritten>> {
        self.rewritten.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The Secrets that remain after earlier commands, in a fixed order.
fn secrets_to_rewrite(mut secrets: Vec<SecretVersion>, before: Option<&Rewritten>) -> Vec<SecretVersion> {
    secrets.retain(|secret| !before.is_some_and(|before| before.contains(secret)));
    secrets.sort_unstable_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    secrets
}

/// The progress after a command that rewrote these Secrets, which follow those of `before`.
fn progress(key: &str, done: &[SecretVersion], before: Option<Rewritten>) -> Option<Rewritten> {
    let Some(SecretVersion { namespace, name, .. }) = done.last() else { return before };
    Some(Rewritten { key: key.to_owned(), namespace: namespace.clone(), name: name.clone() })
}

/// Rewrites Secrets one after another, each by its place, until too many are refused in a row or [`REWRITES_DEADLINE`] is over.
/// Returns the number of the first ones that were all rewritten.
async fn rewrite_one_by_one<F>(
    secrets: &[SecretVersion],
    rewrite: impl Fn(usize) -> F,
) -> (usize, Result<(), Failure>)
where
    F: Future<Output = Result<(), KubernetesError>>,
{
    let end = Instant::now() + REWRITES_DEADLINE;
    let (mut done, mut refused, mut in_a_row) = (0, 0, 0);
    let (mut shown, mut left) = (Vec::new(), None);
    for (place, secret) in secrets.iter().enumerate() {
        let is_refused = in_a_row == REFUSALS_IN_A_ROW;
        if is_refused || Instant::now() >= end {
            let why = match is_refused {
                true => format!("{REFUSALS_IN_A_ROW} in a row were refused"),
                false => format!("the others took {REWRITES_DEADLINE:?}"),
            };
            left = Some(format!("the Secrets from {secret} on are left to the next attempt: {why}"));
            break;
        }
        match rewrite(place).await {
            Ok(()) => {
                in_a_row = 0;
                if refused == 0 {
                    done = place + 1;
                }
            }
            Err(error @ KubernetesError::Refused { .. }) => {
                (refused, in_a_row) = (refused + 1, in_a_row + 1);
                if shown.len() < MOST_REFUSALS_SHOWN {
                    shown.push(error.to_string());
                }
            }
            Err(error) => return (done, Err(error.into())),
        }
    }
    let refusals = format!("{refused} Secrets cannot be rewritten, first: {}", shown.join("; "));
    let why: Vec<String> = (refused > 0).then_some(refusals).into_iter().chain(left).collect();
    if why.is_empty() {
        return (done, Ok(()));
    }
    // Without a refusal, the next command goes on at once.
    (done, Err(Failure { nodes: BTreeSet::new(), why: why.join("; "), is_hold: refused == 0 }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn secret(namespace: &str, name: &str) -> SecretVersion {
        let [namespace, name] = [namespace, name].map(str::to_owned);
        SecretVersion { namespace, name, resource_version: "1".to_owned() }
    }

    /// The end of a command that rewrites Secrets, each in so many seconds: the number of done ones, the time, and the failure.
    async fn rewritten(
        count: usize,
        seconds: u64,
        is_refused: fn(usize) -> bool,
    ) -> (usize, u64, Option<(String, bool)>) {
        let secrets: Vec<SecretVersion> = (0..count).map(|place| secret("a", &place.to_string())).collect();
        let refused =
            || KubernetesError::Refused { what: "a".to_owned(), status: 500, why: "a webhook".to_owned() };
        let rewrite = |place: usize| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            if is_refused(place) { Err(refused()) } else { Ok(()) }
        };
        let began = Instant::now();
        let (done, result) = rewrite_one_by_one(&secrets, rewrite).await;
        (done, began.elapsed().as_secs(), result.err().map(|failure| (failure.why, failure.is_hold)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_webhook_that_refuses_secrets_ends_the_command_soon() {
        let (done, took, failure) = rewritten(1000, 4, |place| place >= 3).await;
        assert_eq!((done, took), (3, 4 * 13));
        let (why, is_hold) = failure.unwrap();
        assert!(!is_hold && why.starts_with("10 Secrets cannot be rewritten, first: "), "{why}");
        assert!(why.contains("a webhook") && why.contains("from Secret/a/13 on"), "{why}");
        // Refusals of some Secrets cost no other one.
        let (done, _, failure) = rewritten(100, 0, |place| place % 10 == 9).await;
        let (why, is_hold) = failure.unwrap();
        assert!(done == 9 && !is_hold && !why.contains("left"), "{why}");
        assert_eq!(rewritten(100, 1, |_| false).await, (100, 100, None));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_rewrites_of_secrets_are_left_to_the_next_command() {
        let (done, took, failure) = rewritten(1000, 10, |_| false).await;
        assert_eq!((done, took), (12, 120));
        let (why, is_hold) = failure.unwrap();
        assert!(is_hold && why.contains("from Secret/a/12 on"), "{why}");
    }

    #[test]
    fn the_next_command_goes_on_after_the_rewritten_secrets() {
        let all = || vec![secret("b", "x"), secret("a", "z"), secret("a-b", "y"), secret("a", "x")];
        let first = secrets_to_rewrite(all(), None);
        let names = |secrets: &[SecretVersion]| secrets.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(&first), ["Secret/a/x", "Secret/a/z", "Secret/a-b/y", "Secret/b/x"]);
        let before = progress("k", &first[..2], None);
        let second = secrets_to_rewrite(all(), before.as_ref());
        assert_eq!(names(&second), ["Secret/a-b/y", "Secret/b/x"]);
        assert_eq!(progress("k", &[], before.clone()), before, "the first of them is refused");
    }
}
