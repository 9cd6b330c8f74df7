//! The ports of operations on nodes, on the real adapters.

use std::sync::Arc;

use madako_etcd_members::{BackupsOnHost, CLIENT_PORT, EtcdMembers};
use madako_operation_runner::RunnerPorts;
use madako_pki::BuiltInAuthorities;
use madako_protocol::authorities::Authorities;
use madako_protocol::host::Host;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_ssh::{SshDriver, SshOptions};

use crate::config::Operations;
use crate::nodes::{BackupPorts, OperationsPorts};

/// The ports that a configuration asks for. Backups need the host. `None`: operations are off.
pub fn ports(
    operations: &Operations,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    host: Option<&Arc<dyn Host>>,
    seed: u64,
) -> Option<OperationsPorts> {
    // The configuration has both keys unless the mode is off.
    let (mode, ssh, pki) = (operations.mode?, operations.ssh.as_ref()?, operations.pki.as_ref()?);
    let authorities: Arc<dyn Authorities> = Arc::new(BuiltInAuthorities::new(store, pki.clone(), clock));
    let etcd = Arc::new(EtcdMembers::new(Arc::clone(&authorities), CLIENT_PORT));
    let backups = operations.backup.clone().zip(host).map(|(schedule, host)| BackupPorts {
        schedule,
        backups: Arc::new(BackupsOnHost::new(Arc::clone(&etcd), Arc::clone(host))),
    });
    Some(OperationsPorts {
        mode,
        driver: Arc::new(SshDriver::new(ssh.key.clone(), SshOptions::default(), seed)),
        host_keys: ssh.host_keys,
        settings: operations.settings.clone(),
        runner: RunnerPorts { etcd, authorities },
        backups,
    })
}
