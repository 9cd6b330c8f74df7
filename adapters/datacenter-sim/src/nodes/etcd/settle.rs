//! The state of the clusters after a change of nodes, containers or members.

use std::collections::BTreeMap;

use madako_domain::containers::Container;

use super::Cluster;
use crate::nodes::faults::NetworkIsland;
use crate::nodes::log::{Effect, EtcdFact, Observed, Voter};
use crate::nodes::world::World;

#[derive(Debug, Clone)]
pub(crate) struct Runner {
    pub(crate) address: String,
    pub(crate) cluster: u64,
    pub(crate) member: u64,
    pub(crate) island: NetworkIsland,
    /// Number of the last write that the member has.
    writes: u64,
    /// See [`MemberData`](crate::nodes::MemberData).
    pub(crate) has_joined: bool,
}

/// A running voting member: its cluster, its id, and whether the cluster has a quorum.
type RunningVoter = (u64, u64, bool);

impl World {
    /// All running members, in the order of their addresses.
    pub(crate) fn running_members(&self) -> Vec<Runner> {
        let running = self.nodes.iter().filter_map(|(address, machine)| {
            let process = machine.etcd_process()?;
            let data = machine.member_data();
            let runner = Runner {
                address: address.clone(),
                cluster: process.cluster,
                member: process.member,
                island: self.island_of(address),
                writes: data.map_or(0, |data| data.writes),
                has_joined: data.is_some_and(|data| data.has_joined),
            };
            self.runs_programs(address).then_some(runner)
        });
        running.collect()
    }

    /// Brings all clusters to the state that follows from their members.
    pub(crate) fn settle(&mut self) {
        let runners = self.running_members();
        for cluster in self.etcd.keys().copied().collect::<Vec<_>>() {
            let of_cluster: Vec<&Runner> =
                runners.iter().filter(|runner| runner.cluster == cluster).collect();
            self.settle_quorum(cluster, &of_cluster);
            for runner in &of_cluster {
                self.settle_member(runner);
            }
            self.settle_sync(cluster, &of_cluster);
        }
        // A member that does not run is in touch with no majority.
        let now = self.now;
        let stopped = self
            .nodes
            .iter_mut()
            .filter(|(address, _)| !runners.iter().any(|runner| runner.address == **address));
        for process in stopped.filter_map(|(_, machine)| machine.process_mut()) {
            process.note_contact(now, false);
        }
    }

    fn settle_quorum(&mut self, id: u64, runners: &[&Runner]) {
        let Some(cluster) = self.etcd.get_mut(&id) else { return };
        let (is_formed, had_quorum) = (cluster.formed, cluster.quorum.is_some());
        let voters: Vec<&&Runner> =
            runners.iter().filter(|runner| cluster.is_voting(runner.member)).collect();
        cluster.quorum = island_with_majority(cluster, &voters);
        let quorum = cluster.quorum.clone();
        cluster.formed |= quorum.is_some();
        let members = cluster.members.keys().copied().collect();
        let acknowledged = cluster.writes;
        let Some(island) = quorum else {
            if had_quorum {
                self.note(Observed::Etcd(EtcdFact::QuorumLost { cluster: id }));
            }
            return;
        };
        let kept = voters.iter().filter(|voter| voter.island == island).map(|voter| voter.writes).max();
        let kept = kept.unwrap_or_default();
        if !is_formed {
            let second = self.etcd.iter().any(|(other, cluster)| *other != id && cluster.formed);
            self.note(Observed::Etcd(EtcdFact::Formed { cluster: id, members, second }));
        } else if !had_quorum {
            self.note(Observed::Etcd(EtcdFact::QuorumRegained { cluster: id, kept }));
        }
        if kept < acknowledged {
            if let Some(cluster) = self.etcd.get_mut(&id) {
                cluster.writes = kept;
            }
            self.note(Observed::Etcd(EtcdFact::WriteLost { cluster: id, acknowledged, kept }));
        }
    }

    fn settle_member(&mut self, runner: &Runner) {
        let now = self.now;
        let Some(cluster) = self.etcd.get_mut(&runner.cluster) else { return };
        let in_touch = cluster.quorum.as_ref() == Some(&runner.island);
        let writes = cluster.writes;
        let Some(machine) = self.nodes.get_mut(&runner.address) else { return };
        let Some(process) = machine.process_mut() else { return };
        match cluster.members.get_mut(&runner.member) {
            None if in_touch => {
                let why = "the member has been permanently removed from the cluster".to_owned();
                return self.exit(&runner.address, why);
            }
            Some(member) if in_touch && member.name.is_empty() => member.name.clone_from(&process.name),
            _ => {}
        }
        let (wake, is_synced) = (process.note_contact(now, in_touch), process.is_synced);
        if let Some(data) = machine.data_mut() {
            data.has_joined |= in_touch;
            data.writes = if is_synced { writes } else { data.writes };
        }
        self.settles.extend(wake);
    }

    /// The member at an address ends by itself.
    pub(crate) fn exit(&mut self, address: &str, why: String) {
        let machine = self.nodes.get_mut(address);
        let ran = machine.and_then(|machine| machine.containers.get_mut(Container::Etcd.name()));
        if let Some(ran) = ran {
            ran.end();
        }
        self.note(Observed::Etcd(EtcdFact::Exited { address: address.to_owned(), why }));
    }

    /// Carries an effect out, and notes the running voting members that it stopped or removed.
    pub(crate) fn watch_voters<R>(&mut self, effect: &Effect, act: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.running_voters();
        let others: Vec<Vec<Voter>> =
            before.iter().map(|(cluster, ..)| self.voting_members(*cluster)).collect();
        let result = act(self);
        self.settle();
        let after = self.running_voters();
        for ((cluster, member, had_quorum), mut others) in before.into_iter().zip(others) {
            if after.iter().any(|(other, stays, _)| (*other, *stays) == (cluster, member)) {
                continue;
            }
            let etcd = self.etcd.get(&cluster);
            let voting = etcd.map_or(0, Cluster::count_voting);
            others.retain(|voter| {
                voter.member != member && etcd.is_some_and(|etcd| etcd.is_voting(voter.member))
            });
            let effect = effect.clone();
            let lost = EtcdFact::VoterLost { effect, cluster, member, voting, others, had_quorum };
            self.note(Observed::Etcd(lost));
        }
        result
    }

    fn running_voters(&self) -> Vec<RunningVoter> {
        let voter = |runner: Runner| {
            let cluster = self.etcd.get(&runner.cluster)?;
            let is_voting = cluster.is_voting(runner.member);
            is_voting.then_some((runner.cluster, runner.member, cluster.quorum.is_some()))
        };
        self.running_members().into_iter().filter_map(voter).collect()
    }

    fn voting_members(&self, cluster: u64) -> Vec<Voter> {
        let Some(cluster) = self.etcd.get(&cluster) else { return Vec::new() };
        let voter = |member: &u64| {
            let last = cluster.last_in_sync.get(member).copied().unwrap_or(self.began());
            let out_of_sync = (!cluster.in_sync.contains(member)).then(|| self.now - last);
            Voter { member: *member, out_of_sync }
        };
        cluster.members.keys().filter(|member| cluster.is_voting(**member)).map(voter).collect()
    }

    fn settle_sync(&mut self, id: u64, runners: &[&Runner]) {
        let is_synced = |runner: &&&Runner| {
            let process = self.nodes.get(&runner.address).and_then(|machine| machine.etcd_process());
            process.is_some_and(|process| process.is_synced)
        };
        let in_sync = runners.iter().filter(is_synced).map(|runner| runner.member).collect();
        let now = self.now;
        if let Some(cluster) = self.etcd.get_mut(&id) {
            let before = std::mem::replace(&mut cluster.in_sync, in_sync);
            cluster.last_in_sync.extend(before.into_iter().map(|member| (member, now)));
        }
    }
}

/// The part of the network with a majority of the voting members.
fn island_with_majority(cluster: &Cluster, voters: &[&&Runner]) -> Option<NetworkIsland> {
    let mut by_island: BTreeMap<&NetworkIsland, usize> = BTreeMap::new();
    for voter in voters {
        *by_island.entry(&voter.island).or_default() += 1;
    }
    let is_majority = |(_, count): &(&NetworkIsland, usize)| *count * 2 > cluster.count_voting();
    by_island.into_iter().find(is_majority).map(|(island, _)| island.clone())
}
