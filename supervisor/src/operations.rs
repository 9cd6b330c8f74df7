//! Connects the ports of operations on nodes to the real adapters: SSH, etcd, Vault.

use std::sync::Arc;

use madako_etcd_members::{BackupsOnHost, CLIENT_PORT, EtcdMembers};
use madako_kubernetes::{ApiServerAccess, ConnectError, ControlPlane, NodeComponents};
use madako_operation_runner::RunnerPorts;
use madako_pki::vault::Vault;
use madako_pki::{BuiltInAuthorities, ChosenAuthorities, Keys, LoginKeySources, SharedSecrets};
use madako_protocol::authorities::Authorities;
use madako_protocol::host::Host;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_ssh::{SshDriver, SshOptions};

use crate::config::Operations;
use crate::nodes::{BackupPorts, OperationsPorts};
use crate::vault::VaultTransports;

/// The components of Kubernetes on the nodes of a store. Their users share the certificate and the watch of nodes. `kubeconfig`:
/// objects are read and changed at its API server alone.
///
/// # Errors
/// The client of the kubeconfig cannot be created.
pub fn node_components(
    operations: &Operations,
    store: &Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    kubeconfig: Option<&ApiServerAccess>,
    seed: u64,
) -> Result<Arc<NodeComponents>, ConnectError> {
    let authorities = choose_authorities(&vault_client(store), operations.pki.as_ref(), store, clock);
    let components = NodeComponents::new(authorities, seed);
    Ok(Arc::new(match kubeconfig {
        Some(access) => components.with_server(access)?,
        None => components,
    }))
}

/// The ports that a configuration asks for. Backups need the host. `None`: operations are off.
pub fn operations_ports(
    operations: &Operations,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    components: Arc<NodeComponents>,
    host: Option<&Arc<dyn Host>>,
    seed: u64,
) -> Option<OperationsPorts> {
    let (mode, ssh) = (operations.mode?, &operations.ssh);
    let vault = vault_client(&store);
    let authorities = choose_authorities(&vault, operations.pki.as_ref(), &store, Arc::clone(&clock));
    let keys = Arc::new(login_keys(&vault, operations.pki.as_ref(), &store));
    let etcd = Arc::new(EtcdMembers::new(Arc::clone(&authorities), CLIENT_PORT));
    let pki = operations.pki.clone().unwrap_or_default();
    let secrets =
        Arc::new(SharedSecrets::new(vault, Arc::clone(&authorities), Arc::clone(&store), pki, clock));
    let backups = operations.backup.clone().zip(host).map(|(schedule, host)| BackupPorts {
        schedule,
        backups: Arc::new(BackupsOnHost::new(Arc::clone(&etcd), Arc::clone(host))),
    });
    Some(OperationsPorts {
        mode,
        driver: Arc::new(SshDriver::with_source(keys, ssh.key.clone(), SshOptions::default(), seed)),
        host_keys: ssh.host_keys,
        settings: operations.settings.clone(),
        runner: RunnerPorts { etcd, authorities, components, secrets },
        backups,
    })
}

/// The API servers of the stored cluster, for drains, forecasts and taints of nodes without a kubeconfig. `None`: operations do
/// not keep Kubernetes.
pub fn control_plane_port(
    operations: &Operations,
    store: &Arc<dyn Store>,
    components: &Arc<NodeComponents>,
) -> Option<Arc<ControlPlane>> {
    let reach = || Arc::new(ControlPlane::new(Arc::clone(components), Arc::clone(store)));
    operations.keeps_kubernetes().then(reach)
}

/// The Vault that the key `vault` of a store names.
#[must_use]
pub fn vault_client(store: &Arc<dyn Store>) -> Arc<Vault> {
    Arc::new(Vault::new(Arc::clone(store), Arc::new(VaultTransports)))
}

/// The authorities of a store: Vault where the store has access to it, else those that `pki` decrypts.
#[must_use]
pub fn choose_authorities(
    vault: &Arc<Vault>,
    pki: Option<&Keys>,
    store: &Arc<dyn Store>,
    clock: Arc<dyn Clock>,
) -> Arc<dyn Authorities> {
    let own = BuiltInAuthorities::new(Arc::clone(store), pki.cloned().unwrap_or_default(), clock);
    Arc::new(ChosenAuthorities::new(Arc::clone(vault), Arc::new(own), pki.is_some()))
}

#[must_use]
pub fn login_keys(vault: &Arc<Vault>, pki: Option<&Keys>, store: &Arc<dyn Store>) -> LoginKeySources {
    LoginKeySources::new(Arc::clone(vault), Arc::clone(store), pki.cloned().unwrap_or_default())
}
