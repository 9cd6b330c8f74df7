//! The simulated etcd: clusters and members, derived from the containers and volumes of the nodes.
//!
//! A member runs if its container runs on data of its own. Its log is the number of the last write that it has.
//!
//! Does not: elect leaders or simulate terms. A connected majority of the voting members serves as soon as it exists.

mod change;
mod restore;
mod settle;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::node_status::EtcdMember;
use tokio::time::Instant;

use super::faults::NetworkIsland;

pub(crate) use change::{Change, ChangeResult, Request};
pub(crate) use settle::Runner;

#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) cluster: u64,
    pub(crate) member: u64,
    pub(crate) name: String,
    pub(crate) volume: String,
    /// Time from the contact with a majority until the member has all data.
    catch_up: Duration,
    /// Beginning of the present contact with a majority.
    in_touch_since: Option<Instant>,
    pub(crate) is_synced: bool,
}

impl Process {
    /// Notes whether the member is connected with a majority. Returns the end of its catch-up.
    fn note_contact(&mut self, now: Instant, in_touch: bool) -> Option<Instant> {
        if !in_touch {
            (self.in_touch_since, self.is_synced) = (None, false);
            return None;
        }
        let end = *self.in_touch_since.get_or_insert(now) + self.catch_up;
        self.is_synced |= end <= now;
        (!self.is_synced).then_some(end)
    }
}

/// A member as its cluster knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// Empty until the member has started.
    pub(crate) name: String,
    pub(crate) peer_url: String,
    pub(crate) learner: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) members: BTreeMap<u64, Member>,
    /// Members that had data at some time.
    initialised: BTreeSet<u64>,
    /// Number of the last acknowledged write of the client.
    pub(crate) writes: u64,
    formed: bool,
    /// Members in sync, and the times until which the others were.
    in_sync: BTreeSet<u64>,
    last_in_sync: BTreeMap<u64, Instant>,
    /// The part of the network with a majority.
    pub(crate) quorum: Option<NetworkIsland>,
    pub(crate) users: BTreeSet<String>,
    pub(crate) has_authentication: bool,
    /// Number of members that were added.
    additions: u64,
}

impl Cluster {
    /// A cluster of members that start for the first time: names and peer URLs.
    fn from_members(members: &BTreeMap<String, String>, token: &str) -> (u64, Self) {
        let member = |(name, url): (&String, &String)| {
            let member = Member { name: name.clone(), peer_url: url.clone(), learner: false };
            (hash_to_id(&[url, token]), member)
        };
        let members: BTreeMap<u64, Member> = members.iter().map(member).collect();
        let ids: Vec<String> = members.keys().map(u64::to_string).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        (hash_to_id(&ids), Self { members, ..Self::default() })
    }

    pub(crate) fn is_voting(&self, member: u64) -> bool {
        self.members.get(&member).is_some_and(|member| !member.learner)
    }

    fn count_voting(&self) -> usize {
        self.members.values().filter(|member| !member.learner).count()
    }

    fn member_with_url(&self, peer_url: &str) -> Option<u64> {
        self.members.iter().find(|(_, member)| member.peer_url == peer_url).map(|(id, _)| *id)
    }

    /// The members, as a client sees them, without their states.
    pub(crate) fn list_members(&self) -> Vec<EtcdMember> {
        let member = |(id, member): (&u64, &Member)| EtcdMember {
            id: *id,
            name: member.name.clone(),
            peer_urls: vec![member.peer_url.clone()],
            learner: member.learner,
            in_sync: None,
            version: None,
        };
        self.members.iter().map(member).collect()
    }
}

/// All clusters that ever existed, by id.
pub(crate) type Clusters = BTreeMap<u64, Cluster>;

/// An id, equal for equal parts (FNV-1a).
fn hash_to_id(parts: &[&str]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}
