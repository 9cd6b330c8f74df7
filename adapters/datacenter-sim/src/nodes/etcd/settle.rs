//! The state of the clusters after a change of nodes, containers or members.

use std::collections::BTreeMap;

use madako_domain::containers::Container;

use super::Cluster;
use crate::nodes::faults::Island;
use crate::nodes::log::{Effect, EtcdFact, Observed};
use crate::nodes::world::World;

/// A running member.
#[derive(Debug, Clone)]
pub(crate) struct Runner {
    pub(crate) address: String,
    pub(crate) cluster: u64,
    pub(crate) member: u64,
    pub(crate) island: Island,
    /// Number of the last write that the member has.
    writes: u64,
    /// See [`MemberData`](crate::nodes::MemberData).
    pub(crate) has_joined: bool,
}

/// A running voting member, and whether its cluster has a quorum.
type Voter = (u64, u64, bool);

impl World {
    /// All running members, in the order of their addresses.
    pub(crate) fn runners(&self) -> Vec<Runner> {
        let running = self.nodes.iter().filter_map(|(address, machine)| {
            let process = machine.process()?;
            let data = machine.data();
            let runner = Runner {
                address: address.clone(),
                cluster: process.cluster,
                member: process.member,
                island: self.island(address),
                writes: data.map_or(0, |data| data.writes),
                has_joined: data.is_some_and(|data| data.has_joined),
            };
            self.is_awake(address).then_some(runner)
        });
        running.collect()
    }

    /// Brings all clusters to the state that follows from their members.
    pub(crate) fn settle(&mut self) {
        let runners = self.runners();
        for cluster in self.etcd.keys().copied().collect::<Vec<_>>() {
            let of_cluster: Vec<&Runner> =
                runners.iter().filter(|runner| runner.cluster == cluster).collect();
            self.settle_quorum(cluster, &of_cluster);
            for runner in of_cluster {
                self.settle_member(runner);
            }
        }
        // A member that does not run is in touch with no majority.
        let now = self.now;
        let stopped = self
            .nodes
            .iter_mut()
            .filter(|(address, _)| !runners.iter().any(|runner| runner.address == **address));
        for process in stopped.filter_map(|(_, machine)| machine.process_mut()) {
            process.touch(now, false);
        }
    }

    fn settle_quorum(&mut self, id: u64, runners: &[&Runner]) {
        let Some(cluster) = self.etcd.get_mut(&id) else { return };
        let (is_formed, had_quorum) = (cluster.formed, cluster.quorum.is_some());
        let voters: Vec<&&Runner> =
            runners.iter().filter(|runner| cluster.is_voting(runner.member)).collect();
        cluster.quorum = majority(cluster, &voters);
        let quorum = cluster.quorum.clone();
        cluster.formed |= quorum.is_some();
        let members = cluster.members.keys().copied().collect();
        let acknowledged = cluster.writes;
        match (had_quorum, quorum.is_some()) {
            (false, true) if !is_formed => {
                let second = self.etcd.iter().any(|(other, cluster)| *other != id && cluster.formed);
                self.note(Observed::Etcd(EtcdFact::Formed { cluster: id, members, second }));
            }
            (false, true) => self.note(Observed::Etcd(EtcdFact::QuorumRegained { cluster: id })),
            (true, false) => self.note(Observed::Etcd(EtcdFact::QuorumLost { cluster: id })),
            _ => {}
        }
        let Some(island) = quorum else { return };
        let kept = voters.iter().filter(|voter| voter.island == island).map(|voter| voter.writes).max();
        let kept = kept.unwrap_or_default();
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
        let (wake, is_synced) = (process.touch(now, in_touch), process.is_synced);
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
        let before = self.voters();
        let result = act(self);
        self.settle();
        let after = self.voters();
        for (cluster, member, had_quorum) in before {
            let stays = |(other, stays, _): &Voter| (*other, *stays) == (cluster, member);
            if after.iter().any(stays) {
                continue;
            }
            let in_sync = self.in_sync(cluster);
            let voting = self.etcd.get(&cluster).map_or(0, Cluster::voting);
            let effect = effect.clone();
            let lost = EtcdFact::VoterLost { effect, cluster, member, voting, in_sync, had_quorum };
            self.note(Observed::Etcd(lost));
        }
        result
    }

    fn voters(&self) -> Vec<Voter> {
        let voter = |runner: Runner| {
            let cluster = self.etcd.get(&runner.cluster)?;
            let is_voting = cluster.is_voting(runner.member);
            is_voting.then_some((runner.cluster, runner.member, cluster.quorum.is_some()))
        };
        self.runners().into_iter().filter_map(voter).collect()
    }

    /// Number of voting members that are in sync.
    fn in_sync(&self, cluster: u64) -> usize {
        let is_in_sync = |runner: &Runner| {
            let process = self.nodes.get(&runner.address).and_then(|machine| machine.process());
            runner.cluster == cluster
                && self.etcd.get(&cluster).is_some_and(|cluster| cluster.is_voting(runner.member))
                && process.is_some_and(|process| process.is_synced)
        };
        self.runners().iter().filter(|runner| is_in_sync(runner)).count()
    }
}

/// The part of the network with a majority of the voting members.
fn majority(cluster: &Cluster, voters: &[&&Runner]) -> Option<Island> {
    let mut by_island: BTreeMap<&Island, usize> = BTreeMap::new();
    for voter in voters {
        *by_island.entry(&voter.island).or_default() += 1;
    }
    let is_majority = |(_, count): &(&Island, usize)| *count * 2 > cluster.voting();
    by_island.into_iter().find(is_majority).map(|(island, _)| island.clone())
}
