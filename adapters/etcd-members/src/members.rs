//! Implements the port [`EtcdCluster`](madako_protocol::etcd::EtcdCluster): reads the state of the members, and changes
//! them.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use etcd_client::{Client, Error, GetOptions, MemberAddOptions, ResponseHeader};
use futures::StreamExt as _;
use madako_domain::node_status::{EtcdMember, EtcdStatus};
use madako_protocol::authorities::Authorities;
use madako_protocol::etcd::{EtcdCluster, EtcdError};
use madako_protocol::permit::Permit;
use tokio::time::{Instant, timeout_at};

use crate::connections::{Connections, Pool};
use crate::failure::{Failure, done};
use crate::limits::{MOST_ASKED_AT_ONCE, REQUEST};
use crate::session::{Answer, Session, convert_members, find_member, request_member};
use crate::users;

/// The port of etcd for clients.
pub const CLIENT_PORT: u16 = 2379;

/// A key that need not exist (CKE's).
pub(crate) const HEALTH: &str = "health";

const STATUS: &str = "status of etcd";
const REVISIONS: &str = "revisions of etcd";
const ADD: &str = "addition of a learner to etcd";
const PROMOTE: &str = "promotion of a learner of etcd";
const REMOVE: &str = "removal of a member of etcd";
const MOVE: &str = "move of etcd's leadership";
const AUTH: &str = "setup of users of etcd";
const USER: &str = "addition of a user of etcd";

pub struct EtcdMembers {
    pool: Pool,
}

pub(crate) struct MemberChange<'a> {
    what: &'static str,
    permit: &'a Permit,
}

impl MemberChange<'_> {
    pub(crate) fn name(&self) -> &'static str {
        self.what
    }

    /// Sends one request of the change. etcd's refusal is the inner error; some of them mean that the change has
    /// happened before.
    pub(crate) async fn send<T>(
        &self,
        sent: impl Future<Output = Result<T, Error>>,
    ) -> Result<Result<T, Failure>, EtcdError> {
        let now = Instant::now();
        self.permit.check(now)?;
        let by = self.permit.expires_at().min(now + REQUEST);
        match timeout_at(by, sent).await {
            Ok(answer) => Ok(answer.map_err(Failure::from)),
            Err(_) => {
                let why = format!("etcd did not answer within {:?}", by.saturating_duration_since(now));
                Err(Failure::Unavailable(why).into_error(self.what))
            }
        }
    }

    /// Sends one request of the change. A refusal with one of these messages counts as success.
    pub(crate) async fn send_idempotent<T>(
        &self,
        accepted: &[&str],
        sent: impl Future<Output = Result<T, Error>>,
    ) -> Result<(), EtcdError> {
        match self.send(sent).await? {
            Err(failure) if !accepted.iter().any(|message| failure.has_message(message)) => {
                Err(failure.into_error(self.what))
            }
            _ => Ok(()),
        }
    }
}

impl EtcdMembers {
    /// The etcd whose members trust the authority for clients, and prove certificates of the authority for servers.
    /// They listen for clients on `port`.
    #[must_use]
    pub fn new(authorities: Arc<dyn Authorities>, port: u16) -> Self {
        Self { pool: Pool::new(authorities, port) }
    }

    /// The answer of the addresses, with the connections that it came through.
    async fn ask(
        &self,
        what: &'static str,
        addresses: &[String],
    ) -> Result<(Arc<Connections>, Answer), EtcdError> {
        let connections = self.pool.open_connections(what).await?;
        match find_member(&connections, addresses).await {
            Ok(answer) => Ok((connections, answer)),
            Err(failure) => {
                self.pool.discard(&connections).await;
                Err(failure.into_error(what))
            }
        }
    }

    /// Creates a user of etcd, and a role of the same name for all keys that begin with `prefix`.
    ///
    /// # Errors
    /// See [`EtcdError`]; a user or role that exists otherwise is refused.
    pub async fn add_user(
        &self,
        permit: &Permit,
        addresses: &[String],
        name: &str,
        prefix: &str,
    ) -> Result<(), EtcdError> {
        let Session { client, .. } = self.open_session(USER, permit, addresses).await?;
        users::add_user(&MemberChange { what: USER, permit }, client.auth_client(), name, prefix).await
    }

    /// A member that has applied all writes of the cluster so far, and its revision.
    pub(crate) async fn member_in_sync(
        &self,
        what: &'static str,
        addresses: &[String],
    ) -> Result<(Client, i64), EtcdError> {
        match self.ask(what, addresses).await?.1 {
            Answer::Granted(session) => {
                let Session { client, lease, revision, .. } = *session;
                // A lease that is not revoked ends by itself soon.
                let by = Instant::now() + REQUEST;
                let _ = timeout_at(by, async { client.lease_client().revoke(lease).await }).await;
                Ok((client, revision))
            }
            Answer::Listed(_, failure) => Err(failure.into_error(what)),
        }
    }

    /// The version of a member; `None` if it is unknown.
    pub(crate) async fn read_version(&self, addresses: &[String]) -> Option<String> {
        let (client, _) = self.member_in_sync(STATUS, addresses).await.ok()?;
        let by = Instant::now() + REQUEST;
        let status = timeout_at(by, async { client.maintenance_client().status().await }).await;
        Some(status.ok()?.ok()?.version().to_owned())
    }

    /// The leader with a connection to it, as far as a member knows it.
    async fn leader<'m>(
        &self,
        what: &'static str,
        client: &Client,
        members: &'m [EtcdMember],
    ) -> Option<(&'m EtcdMember, Client)> {
        let by = Instant::now() + REQUEST;
        let status = timeout_at(by, async { client.maintenance_client().status().await }).await;
        let leader = status.ok()?.ok()?.leader();
        let leader = members.iter().find(|member| member.id == leader)?;
        let client = self.pool.open_connections(what).await.ok()?.client_of(&leader.address()).ok()?;
        Some((leader, client))
    }

    /// Finds a member for a change.
    async fn open_session(
        &self,
        what: &'static str,
        permit: &Permit,
        addresses: &[String],
    ) -> Result<Session, EtcdError> {
        permit.check(Instant::now())?;
        let late = || {
            let addresses = addresses.join(", ");
            let why =
                format!("the leader's permit ended before a member of etcd answered on any of {addresses}");
            Failure::Unavailable(why).into_error(what)
        };
        let answer = timeout_at(permit.expires_at(), self.ask(what, addresses)).await;
        match answer.map_err(|_| late())??.1 {
            Answer::Granted(session) => Ok(*session),
            Answer::Listed(_, failure) => Err(failure.into_error(what)),
        }
    }
}

/// Asks a member whether it is in sync, and for its version. `revision` is that of the grant.
async fn check_member(connections: &Connections, mut member: EtcdMember, revision: i64) -> EtcdMember {
    let address = member.address().into_owned();
    let by = Instant::now() + REQUEST;
    let Ok(client) = connections.client_of(&address) else {
        // Without an address, no client reaches it.
        member.in_sync = Some(false);
        return member;
    };
    let options = member.learner.then(|| GetOptions::new().with_serializable());
    let read =
        request_member(connections, &address, by, async { client.kv_client().get(HEALTH, options).await });
    let version =
        request_member(connections, &address, by, async { client.maintenance_client().status().await });
    let (read, version) = futures::join!(read, version);
    let reached = read.ok().and_then(|read| read.header().map(ResponseHeader::revision));
    member.in_sync = Some(reached.is_some_and(|reached| reached >= revision));
    member.version = version.ok().and_then(|status| status.version().parse().ok());
    member
}

/// The revision that a member has by itself.
async fn own_revision(connections: Arc<Connections>, address: String, by: Instant) -> Option<(String, i64)> {
    let client = connections.client_of(&address).ok()?;
    let sent = async { client.maintenance_client().status().await };
    let status = request_member(&connections, &address, by, sent).await.ok()?;
    let revision = status.header()?.revision();
    Some((address, revision))
}

#[async_trait]
impl EtcdCluster for EtcdMembers {
    async fn status(&self, addresses: &[String]) -> Result<EtcdStatus, EtcdError> {
        let (connections, answer) = self.ask(STATUS, addresses).await?;
        let session = match answer {
            Answer::Granted(session) => session,
            // Members that do not answer may be out of our reach alone: nothing is known of them.
            Answer::Listed(members, _) => return Ok(EtcdStatus { healthy: false, members }),
        };
        let requests =
            session.members.into_iter().map(|member| check_member(&connections, member, session.revision));
        let looking = futures::stream::iter(requests).buffered(MOST_ASKED_AT_ONCE).collect::<Vec<_>>();
        let revoke = async {
            // A lease that is not revoked ends by itself soon.
            let by = Instant::now() + REQUEST;
            let _ = timeout_at(by, session.client.lease_client().revoke(session.lease)).await;
        };
        let (members, ()) = futures::join!(looking, revoke);
        Ok(EtcdStatus { healthy: true, members })
    }

    async fn revisions(&self, addresses: &[String]) -> BTreeMap<String, i64> {
        // Without certificates, no member is asked.
        let Ok(connections) = self.pool.open_connections(REVISIONS).await else { return BTreeMap::new() };
        let by = Instant::now() + REQUEST;
        let requests =
            addresses.iter().cloned().map(|address| own_revision(Arc::clone(&connections), address, by));
        let answers = futures::stream::iter(requests).buffer_unordered(MOST_ASKED_AT_ONCE);
        answers.filter_map(futures::future::ready).collect().await
    }

    async fn add_learner(
        &self,
        permit: &Permit,
        addresses: &[String],
        peer_url: &str,
    ) -> Result<Vec<EtcdMember>, EtcdError> {
        let Session { client, members: present, .. } = self.open_session(ADD, permit, addresses).await?;
        let has_url = |member: &EtcdMember| member.peer_urls.iter().any(|url| url == peer_url);
        if present.iter().any(has_url) {
            return Ok(present);
        }
        let change = MemberChange { what: ADD, permit };
        let learner = MemberAddOptions::new().with_is_learner();
        let sent = async { client.cluster_client().member_add([peer_url.to_owned()], Some(learner)).await };
        match change.send(sent).await? {
            Ok(added) => Ok(convert_members(added.member_list())),
            Err(failure) if failure.has_message(done::PEER_URL_EXISTS) => {
                let list = async { client.cluster_client().member_list().await };
                let list = change.send(list).await?.map_err(|failure| failure.into_error(ADD))?;
                Ok(convert_members(list.members()))
            }
            Err(failure) => Err(failure.into_error(ADD)),
        }
    }

    async fn promote(&self, permit: &Permit, addresses: &[String], id: u64) -> Result<(), EtcdError> {
        let Session { client, members, .. } = self.open_session(PROMOTE, permit, addresses).await?;
        if members.iter().any(|member| member.id == id && !member.learner) {
            return Ok(());
        }
        // A follower of etcd 3.4 gives no answer while the learner is not in sync.
        let leader = self.leader(PROMOTE, &client, &members).await.map_or(client, |(_, leader)| leader);
        let sent = async { leader.cluster_client().member_promote(id).await };
        MemberChange { what: PROMOTE, permit }.send_idempotent(&[done::NOT_A_LEARNER], sent).await
    }

    async fn remove(&self, permit: &Permit, addresses: &[String], id: u64) -> Result<(), EtcdError> {
        let Session { client, members, .. } = self.open_session(REMOVE, permit, addresses).await?;
        if members.iter().all(|member| member.id != id) {
            return Ok(());
        }
        let sent = async { client.cluster_client().member_remove(id).await };
        MemberChange { what: REMOVE, permit }.send_idempotent(&[done::MEMBER_NOT_FOUND], sent).await
    }

    async fn move_leader(&self, permit: &Permit, addresses: &[String], from: &str) -> Result<(), EtcdError> {
        let Session { client, members, .. } = self.open_session(MOVE, permit, addresses).await?;
        let Some((leader, client)) = self.leader(MOVE, &client, &members).await else {
            let why = "no member knows the leader".to_owned();
            return Err(Failure::Unavailable(why).into_error(MOVE));
        };
        if leader.address() != from {
            return Ok(());
        }
        let mut moved = Ok(());
        for other in members.iter().filter(|member| member.id != leader.id && !member.learner) {
            let sent = async { client.maintenance_client().move_leader(other.id).await };
            moved = match (MemberChange { what: MOVE, permit }).send(sent).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(failure)) => Err(failure.into_error(MOVE)),
                Err(error) => Err(error),
            };
        }
        moved
    }

    async fn set_up_auth(&self, permit: &Permit, addresses: &[String]) -> Result<(), EtcdError> {
        let Session { client, .. } = self.open_session(AUTH, permit, addresses).await?;
        users::set_up(&MemberChange { what: AUTH, permit }, client.auth_client()).await
    }
}
