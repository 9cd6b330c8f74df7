//! `madako serve --simulated`: a simulated data center in the place of sabakan, for people without machines.
//!
//! Guarantees: the URL of another registry in the store is never replaced. Repairs and reboots reach simulated machines alone.

mod cluster;

use std::net::SocketAddr;
use std::sync::Arc;

use madako_datacenter_sim::{Datacenter, DatacenterConfig, GRAPHQL_PATH, RoleCount, SimulatedRegistry};
use madako_domain::keys;
use madako_domain::state::ClusterState;
use madako_domain::store::{Condition, Transaction, Write};
use madako_protocol::feed::Task;
use madako_protocol::latest::Subscriber;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_supervisor::clock::SystemClock;
use madako_supervisor::config::{Config, StoreChoice};
use madako_supervisor::service::{CommandRunner, SimulatedCluster};
use tokio::net::TcpListener;

use self::cluster::ClusterOnMachines;
use crate::access::get_entry;
use crate::demo_args::SEED;
use crate::failure::Failure;

/// The query of the cluster's machines that is stored with the URL: all but boot servers.
const VARIABLES: &str = r#"{"having": null, "notHaving": {"roles": ["boot"]}}"#;

/// Those of `madako template example`. A node whose machine is replaced by one of a role without a template blocks every plan.
fn roles() -> Vec<RoleCount> {
    [("compute", 40), ("storage", 20)]
        .map(|(role, machines)| RoleCount { role: role.to_owned(), machines })
        .to_vec()
}

/// A running simulated registry.
pub(super) struct SimulatedSite {
    url: String,
    cluster: ClusterOnMachines,
    _server: Task,
}

impl SimulatedSite {
    /// # Errors
    /// The store is not the embedded one, or the address cannot be used.
    pub(super) async fn start(address: SocketAddr, config: &Config) -> Result<Self, Failure> {
        if config.store == StoreChoice::External {
            return Err(Failure::bad_input(
                "--simulated needs the embedded store, but the configuration file has endpoints: other instances on \
                 that etcd would keep a cluster of simulated machines",
            ));
        }
        let clock = Arc::new(SystemClock);
        let config = DatacenterConfig { roles: roles(), ..DatacenterConfig::for_demo(SEED, clock.now()) };
        let datacenter = Datacenter::new(config).map_err(|error| Failure::Failed(error.into()))?;
        let clock = clock as Arc<dyn Clock>;
        let registry = SimulatedRegistry::new(datacenter, Arc::clone(&clock));
        let cluster = ClusterOnMachines::new(registry.clone(), clock);
        let listener = TcpListener::bind(address).await.map_err(|error| {
            Failure::failed(format_args!(
                "the simulated registry cannot listen on {address}: {error}; give --simulated=ADDRESS:PORT"
            ))
        })?;
        let url = format!("http://{}{GRAPHQL_PATH}", listener.local_addr()?);
        let server = Task::start(async move {
            if let Err(error) = registry.serve_tcp(listener).await {
                tracing::error!(error = &error as &dyn std::error::Error, "the simulated registry ended");
            }
        });
        Ok(Self { url, cluster, _server: server })
    }

    pub(super) fn command_runner(&self) -> CommandRunner {
        self.cluster.command_runner()
    }

    pub(super) fn cluster_ports(&self) -> SimulatedCluster {
        self.cluster.ports()
    }

    /// Lets the simulated Kubernetes and etcd follow the committed cluster until the task is dropped.
    pub(super) fn follow(&self, states: Subscriber<Arc<ClusterState>>) -> Task {
        self.cluster.follow(states)
    }

    /// Stores the registry's URL and the query of the cluster's machines, if there is no URL yet.
    ///
    /// # Errors
    /// The store has the URL of another registry, or does not answer.
    pub(super) async fn store_url(&self, store: &dyn Store) -> Result<(), Failure> {
        match get_entry(store, keys::SABAKAN_URL).await? {
            None => {}
            Some(stored) if stored.value == self.url.as_bytes() => return Ok(()),
            Some(stored) => {
                return Err(Failure::bad_input(format_args!(
                    "--simulated would replace the registry {} in the store: use another embedded.data-dir, or madako \
                     sabakan set-url {}",
                    String::from_utf8_lossy(&stored.value),
                    self.url
                )));
            }
        }
        let values = [(keys::SABAKAN_URL, self.url.as_str()), (keys::SABAKAN_VARIABLES, VARIABLES)];
        let put = |(key, value): (&str, &str)| Write::Put {
            key: key.to_owned(),
            value: value.to_owned().into(),
            lease: 0,
        };
        let conditions = vec![Condition::Unchanged { key: keys::SABAKAN_URL.to_owned(), revision: 0 }];
        // Another client that stored a URL at the same moment wins.
        store.commit(Transaction { conditions, writes: values.map(put).to_vec() }).await?;
        Ok(())
    }
}
