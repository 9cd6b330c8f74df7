//! The port [`EtcdCluster`] on the simulated etcd, and a client of etcd that writes.

use std::collections::BTreeMap;

use async_trait::async_trait;
use madako_domain::node_status::{EtcdMember, EtcdStatus};
use madako_protocol::etcd::{EtcdCluster, EtcdError};
use madako_protocol::permit::Permit;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::SimulatedNodes;
use super::etcd::{Change, ChangeResult, Request};
use super::limits::{ETCD_DEADLINE, LATENCY};
use super::log::Effect;
use super::world::World;

const STATUS: &str = "status";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcknowledgedWrite {
    pub cluster: u64,
    /// Number of the write, from 1.
    pub number: u64,
}

fn unavailable_error(what: &'static str) -> EtcdError {
    EtcdError::Unavailable { what, why: format!("no answer within {ETCD_DEADLINE:?}") }
}

struct Done {
    members: Vec<EtcdMember>,
    cluster: u64,
    writes: u64,
}

impl SimulatedNodes {
    /// Writes as `kube-apiserver` below `/registry/`. Judges know afterwards that etcd must keep the write.
    pub async fn write(&self, addresses: &[String]) -> Result<AcknowledgedWrite, EtcdError> {
        let done = self.ask(None, addresses, Change::Write).await?;
        Ok(AcknowledgedWrite { cluster: done.cluster, number: done.writes })
    }

    /// Sends a request, and waits for its answer.
    async fn ask(
        &self,
        permit: Option<&Permit>,
        addresses: &[String],
        change: Change,
    ) -> Result<Done, EtcdError> {
        let sent = Instant::now();
        if let Some(permit) = permit {
            permit.check(sent)?;
        }
        let what = change.name();
        let deadline = sent + ETCD_DEADLINE;
        let until = permit.map_or(deadline, |permit| deadline.min(permit.expires_at()));
        let (reply, answer) = oneshot::channel();
        let effect = permit.map(|permit| Effect {
            number: self.with_world(World::next_event_number),
            epoch: permit.epoch(),
            address: addresses.first().cloned().unwrap_or_default(),
            what: change.describe(),
            outlives_permit: false,
        });
        let request = Request { addresses: addresses.to_vec(), change, effect, until, reply };
        let arrives = self.with_world(|world| world.schedule_request(request));
        sleep_until(arrives).await;
        self.with_world(|_| ());
        let changed = answer.await.unwrap_or(ChangeResult::Unavailable);
        match changed {
            ChangeResult::Done { members, cluster, writes } => {
                sleep_until(arrives + (arrives - sent)).await;
                Ok(Done { members, cluster, writes })
            }
            ChangeResult::Refused(why) => Err(EtcdError::Refused { what, why }),
            ChangeResult::Unavailable | ChangeResult::Late => {
                sleep_until(until).await;
                Err(unavailable_error(what))
            }
        }
    }
}

#[async_trait]
impl EtcdCluster for SimulatedNodes {
    async fn status(&self, addresses: &[String]) -> Result<EtcdStatus, EtcdError> {
        let began = Instant::now();
        sleep_until(began + 2 * LATENCY).await;
        match self.with_world(|world| world.etcd_status(addresses)) {
            Some(status) => Ok(status),
            None => {
                sleep_until(began + ETCD_DEADLINE).await;
                Err(unavailable_error(STATUS))
            }
        }
    }

    async fn revisions(&self, addresses: &[String]) -> BTreeMap<String, i64> {
        self.with_world(|world| {
            let revision = |address: &String| {
                let machine = world.nodes.get(address).filter(|_| world.answers_requests(address))?;
                Some((address.clone(), i64::try_from(machine.member_data()?.writes).ok()?))
            };
            addresses.iter().filter_map(revision).collect()
        })
    }

    async fn add_learner(
        &self,
        permit: &Permit,
        addresses: &[String],
        peer_url: &str,
    ) -> Result<Vec<EtcdMember>, EtcdError> {
        let change = Change::AddLearner { peer_url: peer_url.to_owned() };
        Ok(self.ask(Some(permit), addresses, change).await?.members)
    }

    async fn promote(&self, permit: &Permit, addresses: &[String], id: u64) -> Result<(), EtcdError> {
        self.ask(Some(permit), addresses, Change::Promote { id }).await.map(drop)
    }

    async fn remove(&self, permit: &Permit, addresses: &[String], id: u64) -> Result<(), EtcdError> {
        self.ask(Some(permit), addresses, Change::Remove { id }).await.map(drop)
    }

    /// The simulated etcd has no leader.
    async fn move_leader(&self, permit: &Permit, _: &[String], _: &str) -> Result<(), EtcdError> {
        Ok(permit.check(Instant::now())?)
    }

    async fn set_up_auth(&self, permit: &Permit, addresses: &[String]) -> Result<(), EtcdError> {
        self.ask(Some(permit), addresses, Change::SetUpAuthentication).await.map(drop)
    }
}
