//! The encryption of Secrets by the simulated API servers, and the store of its keys: the port [`KubernetesSecrets`].
//!
//! An API server encrypts with the first key of the file that it had at its start, and reads no Secret whose key that file lacks.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use madako_domain::component::Component;
use madako_domain::resource::ResourceKey;
use madako_protocol::authorities::IssuedCertificate;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::kubernetes_secrets::{EncryptionKeyChange, KubernetesSecretError, KubernetesSecrets};
use madako_protocol::node::FileContent;
use madako_protocol::permit::Permit;
use madako_protocol::secret::Secret;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::SimulatedNodes;
use super::limits::LATENCY;
use super::world::World;

/// Path of the API servers' file.
const FILE: &str = "/etc/kubernetes/apiserver/encryption.yml";

/// The stored keys, and the keys of the stored Secrets.
#[derive(Debug)]
pub(crate) struct Encryption {
    /// Names and texts, the first key first.
    keys: Vec<(String, String)>,
    /// The key with which each Secret is encrypted.
    of_secrets: BTreeMap<ResourceKey, String>,
}

impl Default for Encryption {
    fn default() -> Self {
        let first = ("2024-01-01T00:00:00Z".to_owned(), "a2V5".to_owned());
        Self { keys: vec![first], of_secrets: BTreeMap::new() }
    }
}

/// The keys of an API server's file, the first one first.
pub(super) fn keys_of_file(files: &BTreeMap<String, FileContent>) -> Vec<String> {
    let Some(FileContent::Private(text)) = files.get(FILE) else { return Vec::new() };
    let key = |line: &str| Some(line.trim().strip_prefix("secret: ")?.trim_matches('"').to_owned());
    text.reveal().lines().filter_map(key).collect()
}

impl World {
    /// The keys with which an API server runs; `None` for one outside of the nodes, which encrypts nothing.
    fn keys_of_server(&self, address: &str) -> Option<&[String]> {
        let server = self.nodes.get(address)?.containers.get(Component::ApiServer.name())?;
        Some(&server.encryption_keys)
    }

    fn can_decrypt(&self, address: &str, with: &String) -> bool {
        self.keys_of_server(address).is_none_or(|keys| keys.contains(with))
    }

    /// Refuses to read a Secret whose key an API server lacks.
    pub(super) fn check_readable(&self, object: &ResourceKey, address: &str) -> Result<(), KubernetesError> {
        match self.encryption.of_secrets.get(object) {
            Some(with) if !self.can_decrypt(address, with) => Err(KubernetesError::Refused {
                what: object.to_string(),
                status: 500,
                why: "no matching key was found for the provided AES transformer".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Notes that an API server wrote an object.
    pub(super) fn note_written(&mut self, object: &ResourceKey, address: &str) {
        if object.kind == "Secret" {
            let first = self.keys_of_server(address).and_then(|keys| keys.first().cloned());
            match first {
                Some(first) => drop(self.encryption.of_secrets.insert(object.clone(), first)),
                None => self.forget_written(object),
            }
        }
    }

    pub(super) fn forget_written(&mut self, object: &ResourceKey) {
        self.encryption.of_secrets.remove(object);
    }
}

impl SimulatedNodes {
    /// Secrets that a healthy API server cannot read, and those that it could not read if another one wrote them now.
    #[must_use]
    pub fn unreadable_secrets(&self) -> BTreeSet<String> {
        self.with_world(|world| {
            let all = world.nodes.keys();
            let healthy: Vec<&String> =
                all.filter(|address| world.is_healthy(Component::ApiServer, address)).collect();
            let first = |address: &&String| {
                let key = world.keys_of_server(address)?.first()?;
                Some((format!("a new Secret of {address}"), key))
            };
            let written = world.encryption.of_secrets.iter().map(|(object, key)| (object.to_string(), key));
            let mut unreadable = BTreeSet::new();
            for (what, key) in written.chain(healthy.iter().filter_map(first)) {
                let blind = healthy.iter().filter(|address| !world.can_decrypt(address, key));
                unreadable.extend(blind.map(|address| format!("{what} at {address}")));
            }
            unreadable
        })
    }

    /// The keys with which Secrets are encrypted.
    #[must_use]
    pub fn keys_of_secrets(&self) -> BTreeSet<String> {
        self.with_world(|world| world.encryption.of_secrets.values().cloned().collect())
    }

    /// The keys with which the API server of a node runs.
    #[must_use]
    pub fn keys_of_server(&self, address: &str) -> Vec<String> {
        self.with_world(|world| world.keys_of_server(address).unwrap_or_default().to_vec())
    }
}

#[async_trait]
impl KubernetesSecrets for SimulatedNodes {
    async fn service_account(&self, permit: &Permit) -> Result<IssuedCertificate, KubernetesSecretError> {
        permit.check(Instant::now())?;
        let certificate = "certificate of service accounts".to_owned();
        Ok(IssuedCertificate { certificate, private_key: Secret::new("key of service accounts") })
    }

    async fn encryption_keys(&self, permit: &Permit) -> Result<Secret, KubernetesSecretError> {
        permit.check(Instant::now())?;
        let keys = self.with_world(|world| world.encryption.keys.clone());
        let keys: Vec<_> =
            keys.into_iter().map(|(name, secret)| json!({"name": name, "secret": secret})).collect();
        Ok(Secret::new(json!({"keys": keys}).to_string()))
    }

    async fn change_encryption_keys(
        &self,
        permit: &Permit,
        change: &EncryptionKeyChange,
    ) -> Result<(), KubernetesSecretError> {
        sleep(2 * LATENCY).await;
        permit.check(Instant::now())?;
        let make = |name: &str| Ok((name.to_owned(), format!("key of {name}")));
        let changed =
            self.with_world(|world| change.apply(&mut world.encryption.keys, |(name, _)| name, make));
        let failed = |why| KubernetesSecretError::Stored { what: "the encryption keys", why };
        changed.map(drop).map_err(failed)
    }
}
