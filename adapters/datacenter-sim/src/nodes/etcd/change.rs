//! Requests to etcd: changes of members and users, and the writes of a client. The rules and messages are etcd's.

use std::time::Duration;

use madako_domain::node_status::{EtcdMember, EtcdStatus};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Member, Runner, hash_to_id};
use crate::nodes::faults::NetworkIsland;
use crate::nodes::limits::{HEALTH_INTERVAL, MAX_LEARNERS};
use crate::nodes::log::{Effect, EtcdFact, Observed};
use crate::nodes::machine::version_of_image;
use crate::nodes::world::World;

/// Users that the service creates.
const USERS: [&str; 2] = ["root", "kube-apiserver"];

/// A request that needs a majority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    AddLearner {
        peer_url: String,
    },
    Promote {
        id: u64,
    },
    Remove {
        id: u64,
    },
    SetUpAuthentication,
    /// The client counts one further.
    Write,
}

impl Change {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::AddLearner { .. } => "addition of a member",
            Self::Promote { .. } => "promotion of a member",
            Self::Remove { .. } => "removal of a member",
            Self::SetUpAuthentication => "setup of authentication",
            Self::Write => "write",
        }
    }

    /// The name, and the member that changes.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::AddLearner { peer_url } => format!("{} {peer_url}", self.name()),
            Self::Promote { id } | Self::Remove { id } => format!("{} {id}", self.name()),
            Self::SetUpAuthentication | Self::Write => self.name().to_owned(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChangeResult {
    Done {
        members: Vec<EtcdMember>,
        cluster: u64,
        writes: u64,
    },
    /// No asked member has a majority.
    Unavailable,
    Refused(String),
    /// The permit ended on the way.
    Late,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) addresses: Vec<String>,
    pub(crate) change: Change,
    /// `None`: a request of the client, which is not an effect of the service.
    pub(crate) effect: Option<Effect>,
    /// The request has no effect afterwards.
    pub(crate) until: Instant,
    pub(crate) reply: oneshot::Sender<ChangeResult>,
}

impl World {
    pub(crate) fn take_request(&mut self, request: Request) {
        let Request { addresses, change, effect, until, reply } = request;
        let changed = if self.now > until {
            ChangeResult::Late
        } else {
            match &effect {
                Some(effect) => self.watch_voters(effect, |world| world.change(&addresses, &change)),
                None => self.change(&addresses, &change),
            }
        };
        if let Some(effect) = effect {
            self.note(match &changed {
                ChangeResult::Done { .. } => Observed::Applied { effect, failed: None },
                ChangeResult::Refused(why) => Observed::Applied { effect, failed: Some(why.clone()) },
                ChangeResult::Unavailable => Observed::Dropped { effect, why: "no majority".to_owned() },
                ChangeResult::Late => Observed::Dropped { effect, why: "the permit ended".to_owned() },
            });
        }
        // The caller may have dropped its future.
        let _ = reply.send(changed);
    }

    /// The first asked member that clients reach.
    fn find_reachable_member(&self, addresses: &[String]) -> Option<Runner> {
        let runners = self.running_members();
        let at = |address: &String| {
            let is_reached =
                |runner: &&Runner| runner.address == *address && runner.island == NetworkIsland::Mainland;
            runners.iter().find(is_reached).cloned()
        };
        addresses.iter().find_map(at)
    }

    fn change(&mut self, addresses: &[String], change: &Change) -> ChangeResult {
        let Some(reached) = self.find_reachable_member(addresses) else { return ChangeResult::Unavailable };
        let id = reached.cluster;
        let quorum = self.etcd.get(&id).and_then(|cluster| cluster.quorum.as_ref());
        if quorum != Some(&NetworkIsland::Mainland) {
            return ChangeResult::Unavailable;
        }
        let changed = match change {
            Change::AddLearner { peer_url } => self.add_learner(id, peer_url),
            Change::Promote { id: member } => self.promote(id, *member),
            Change::Remove { id: member } => self.remove(id, *member),
            Change::SetUpAuthentication => Ok(self.set_up_authentication(id)),
            Change::Write => self.write(id),
        };
        let fact = match changed {
            Ok(fact) => fact,
            Err(why) => return ChangeResult::Refused(why),
        };
        fact.into_iter().for_each(|fact| self.note(Observed::Etcd(fact)));
        self.settle();
        match self.etcd.get(&id) {
            Some(cluster) => {
                ChangeResult::Done { members: cluster.list_members(), cluster: id, writes: cluster.writes }
            }
            None => ChangeResult::Unavailable,
        }
    }

    /// Number of voting members in touch with the majority for a time.
    fn count_connected(&self, id: u64, since: Duration) -> usize {
        let is_connected = |runner: &Runner| {
            let process = self.nodes.get(&runner.address).and_then(|machine| machine.etcd_process());
            let touch = process.and_then(|process| process.in_touch_since);
            runner.cluster == id
                && self.etcd.get(&id).is_some_and(|cluster| cluster.is_voting(runner.member))
                && touch.is_some_and(|touch| touch + since <= self.now)
        };
        self.running_members().iter().filter(|runner| is_connected(runner)).count()
    }

    fn add_learner(&mut self, id: u64, peer_url: &str) -> Result<Option<EtcdFact>, String> {
        let connected = self.count_connected(id, HEALTH_INTERVAL);
        let cluster = self.etcd.get_mut(&id).ok_or("no cluster")?;
        if cluster.member_with_url(peer_url).is_some() {
            return Ok(None);
        }
        if connected < cluster.count_voting() {
            return Err("etcdserver: unhealthy cluster".to_owned());
        }
        if cluster.members.values().filter(|member| member.learner).count() >= MAX_LEARNERS {
            return Err("etcdserver: too many learner members in cluster".to_owned());
        }
        cluster.additions += 1;
        let member = self::hash_to_id(&[peer_url, &id.to_string(), &cluster.additions.to_string()]);
        let peer_url = peer_url.to_owned();
        let added = Member { name: String::new(), peer_url: peer_url.clone(), learner: true };
        cluster.members.insert(member, added);
        Ok(Some(EtcdFact::Added { cluster: id, member, peer_url }))
    }

    fn promote(&mut self, id: u64, member: u64) -> Result<Option<EtcdFact>, String> {
        let process = |runner: &Runner| self.nodes.get(&runner.address)?.etcd_process();
        let is_ready = self.running_members().iter().any(|runner| {
            (runner.cluster, runner.member) == (id, member)
                && process(runner).is_some_and(|process| process.is_synced)
        });
        let cluster = self.etcd.get_mut(&id).ok_or("no cluster")?;
        let Some(known) = cluster.members.get_mut(&member) else {
            return Err("etcdserver: member not found".to_owned());
        };
        if !known.learner {
            return Ok(None);
        }
        if !is_ready {
            return Err(
                "etcdserver: can only promote a learner member which is in sync with leader".to_owned()
            );
        }
        known.learner = false;
        Ok(Some(EtcdFact::Promoted { cluster: id, member }))
    }

    fn remove(&mut self, id: u64, member: u64) -> Result<Option<EtcdFact>, String> {
        let active = self.count_connected(id, Duration::ZERO);
        let is_active =
            self.running_members().iter().any(|runner| (runner.cluster, runner.member) == (id, member));
        let cluster = self.etcd.get_mut(&id).ok_or("no cluster")?;
        let is_voting = cluster.is_voting(member);
        // The members that run stay a majority (etcd's `--strict-reconfig-check`).
        if is_voting && is_active && active < 2 + (cluster.count_voting() - 1) / 2 {
            return Err("etcdserver: unhealthy cluster".to_owned());
        }
        let removed = cluster.members.remove(&member);
        Ok(removed.map(|_| EtcdFact::Removed { cluster: id, member }))
    }

    fn set_up_authentication(&mut self, id: u64) -> Option<EtcdFact> {
        let cluster = self.etcd.get_mut(&id)?;
        cluster.users.extend(USERS.map(str::to_owned));
        let is_new = !std::mem::replace(&mut cluster.has_authentication, true);
        is_new.then_some(EtcdFact::AuthenticationOn { cluster: id })
    }

    /// The client is `kube-apiserver`. Each running voting member of the majority gets the write before its
    /// acknowledgement.
    fn write(&mut self, id: u64) -> Result<Option<EtcdFact>, String> {
        let cluster = self.etcd.get_mut(&id).ok_or("no cluster")?;
        if cluster.has_authentication && !cluster.users.contains(USERS[1]) {
            return Err("etcdserver: permission denied".to_owned());
        }
        cluster.writes += 1;
        let writes = cluster.writes;
        for runner in self.running_members() {
            let cluster = &self.etcd[&id];
            let has_it = cluster.quorum.as_ref() == Some(&runner.island) && cluster.is_voting(runner.member);
            if runner.cluster == id
                && has_it
                && let Some(data) = self.nodes.get_mut(&runner.address).and_then(|node| node.data_mut())
            {
                data.writes = writes;
            }
        }
        Ok(Some(EtcdFact::Written { cluster: id, number: writes }))
    }

    /// Number of the last acknowledged write; `None`: no asked member has a majority.
    pub(crate) fn count_writes(&self, addresses: &[String]) -> Option<u64> {
        let cluster = self.etcd.get(&self.find_reachable_member(addresses)?.cluster)?;
        (cluster.quorum == Some(NetworkIsland::Mainland)).then_some(cluster.writes)
    }

    /// The answer to a status request; `None`: no asked member answers.
    pub(crate) fn etcd_status(&self, addresses: &[String]) -> Option<EtcdStatus> {
        let reached = self.find_reachable_member(addresses)?;
        let cluster = self.etcd.get(&reached.cluster)?;
        let healthy = cluster.quorum == Some(NetworkIsland::Mainland);
        let mut members = cluster.list_members();
        for member in &mut members {
            let runners = self.running_members();
            let is_it = |runner: &&Runner| {
                (runner.cluster, runner.member, &runner.island)
                    == (reached.cluster, member.id, &NetworkIsland::Mainland)
            };
            let machine = runners.iter().find(is_it).and_then(|runner| self.nodes.get(&runner.address));
            let process = machine.and_then(|machine| machine.etcd_process());
            // Without a lease there is no revision to compare with.
            member.in_sync =
                healthy.then(|| process.is_some_and(|process| process.is_synced) && !member.learner);
            let image = machine.and_then(|machine| machine.etcd_image());
            member.version = image.and_then(|image| version_of_image(image).parse().ok());
        }
        Some(EtcdStatus { healthy, members })
    }
}
