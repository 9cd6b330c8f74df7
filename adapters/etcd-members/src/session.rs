//! Finds a member that knows the present state of etcd; without one, the best known list of members.

use std::future::Future;
use std::sync::Arc;

use etcd_client::{Client, Member};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use madako_domain::node_status::EtcdMember;
use tokio::time::{Instant, sleep, timeout_at};

use crate::connections::Connections;
use crate::failure::Failure;
use crate::limits::{LEASE_TTL, NEXT_ADDRESS, REQUEST};

/// A member that granted a lease.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) lease: i64,
    pub(crate) revision: i64,
    pub(crate) members: Vec<EtcdMember>,
}

pub(crate) enum Answer {
    /// A majority of the members works.
    Granted(Box<Session>),
    /// No address granted a lease. The members as one that answered knows them.
    Listed(Vec<EtcdMember>, Failure),
}

enum AddressAnswer {
    Granted(Box<Session>),
    Listed(u64, Vec<EtcdMember>, Failure),
    Failed(Failure),
}

/// Awaits a request until `by`. A late answer may come from a half-open connection, which is closed.
pub(crate) async fn request_member<T>(
    connections: &Connections,
    address: &str,
    by: Instant,
    sent: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, Failure> {
    let limit = by.saturating_duration_since(Instant::now());
    match timeout_at(by, sent).await {
        Ok(answer) => answer.map_err(Failure::from),
        Err(_) => {
            connections.forget(address);
            Err(Failure::Unavailable(format!(
                "the member of etcd on {address} did not answer within {limit:?}"
            )))
        }
    }
}

/// Asks all addresses, each a moment after the one before, until one grants a lease.
pub(crate) async fn find_member(
    connections: &Arc<Connections>,
    addresses: &[String],
) -> Result<Answer, Failure> {
    let mut attempts: FuturesUnordered<_> = (0_u32..)
        .zip(addresses)
        .map(|(index, address)| async move {
            sleep(NEXT_ADDRESS * index).await;
            (address.clone(), ask_address(connections, address).await)
        })
        .collect();
    let (mut best, mut failures) = (None::<(u64, Vec<EtcdMember>)>, Vec::new());
    while let Some((address, attempt)) = attempts.next().await {
        match attempt {
            AddressAnswer::Granted(session) => return Ok(Answer::Granted(session)),
            AddressAnswer::Listed(term, members, why) => {
                if best.as_ref().is_none_or(|(earlier, _)| term > *earlier) {
                    best = Some((term, members));
                }
                failures.push((address, why));
            }
            AddressAnswer::Failed(why) => failures.push((address, why)),
        }
    }
    let why = Failure::join_failures(failures);
    best.map(|(_, members)| Answer::Listed(members, why.clone())).ok_or(why)
}

async fn ask_address(connections: &Connections, address: &str) -> AddressAnswer {
    let by = Instant::now() + REQUEST;
    let client = match connections.client_of(address) {
        Ok(client) => client,
        Err(failure) => return AddressAnswer::Failed(failure),
    };
    let list = || async { client.cluster_client().member_list().await };
    let (term, listed) = match request_member(connections, address, by, list()).await {
        Ok(list) => {
            (list.header().map_or(0, etcd_client::ResponseHeader::raft_term), convert_members(list.members()))
        }
        Err(failure) => return AddressAnswer::Failed(failure),
    };
    let grant = async { client.lease_client().grant(LEASE_TTL, None).await };
    let granted = match request_member(connections, address, by, grant).await {
        Ok(granted) => granted,
        Err(failure) => return AddressAnswer::Listed(term, listed, failure),
    };
    // A list after the grant has all members that were added before.
    match request_member(connections, address, by, list()).await {
        Ok(list) => AddressAnswer::Granted(Box::new(Session {
            lease: granted.id(),
            revision: granted.header().map_or(0, etcd_client::ResponseHeader::revision),
            members: convert_members(list.members()),
            client: client.clone(),
        })),
        Err(failure) => AddressAnswer::Listed(term, listed, failure),
    }
}

/// Members as etcd lists them. Whether they are in sync is not known yet.
pub(crate) fn convert_members(listed: &[Member]) -> Vec<EtcdMember> {
    let member = |member: &Member| EtcdMember {
        id: member.id(),
        name: member.name().to_owned(),
        peer_urls: member.peer_urls().to_vec(),
        learner: member.is_learner(),
        in_sync: None,
        version: None,
    };
    listed.iter().map(member).collect()
}
