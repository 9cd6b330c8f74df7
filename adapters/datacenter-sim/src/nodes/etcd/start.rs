//! The start of a member: etcd's rules for data and for the arguments of a first start.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::containers::Container;

use super::{Cluster, Process, Runner, hash_to_id};
use crate::chance::Kind;
use crate::nodes::limits::CATCH_UP_TAKES;
use crate::nodes::log::{EtcdFact, Observed};
use crate::nodes::machine::{Content, MemberData};
use crate::nodes::world::World;

const DEFAULT_PEER_URL: &str = "http://localhost:2380";
const DEFAULT_TOKEN: &str = "etcd-cluster";

struct Arguments {
    name: String,
    peer_url: String,
    token: String,
    /// Names and peer URLs of the first members; `None` without `--initial-cluster`.
    initial: Option<BTreeMap<String, String>>,
    is_existing: bool,
    files: Vec<String>,
}

impl Arguments {
    fn read<'a>(args: impl Iterator<Item = &'a str>) -> Self {
        let mut read = Self {
            name: "default".to_owned(),
            peer_url: DEFAULT_PEER_URL.to_owned(),
            token: DEFAULT_TOKEN.to_owned(),
            initial: None,
            is_existing: false,
            files: Vec::new(),
        };
        let options = args.filter_map(|arg| arg.trim_start_matches('-').split_once('='));
        for (option, value) in options {
            match option {
                "name" => value.clone_into(&mut read.name),
                "initial-advertise-peer-urls" => value.clone_into(&mut read.peer_url),
                "initial-cluster-token" => value.clone_into(&mut read.token),
                "initial-cluster-state" => read.is_existing = value == "existing",
                "initial-cluster" => {
                    let members = value.split(',').filter_map(|member| member.split_once('='));
                    read.initial =
                        Some(members.map(|(name, url)| (name.to_owned(), url.to_owned())).collect());
                }
                _ if option.ends_with("-file") => read.files.push(value.to_owned()),
                _ => {}
            }
        }
        read
    }
}

impl World {
    /// etcd starts in a container that was started some time before.
    pub(crate) fn start_member(&mut self, address: &str, start: u64) {
        let Some(machine) = self.nodes.get(address) else { return };
        let Some(ran) = machine.containers.get(Container::Etcd.name()) else { return };
        if ran.start != start || !ran.status.running || ran.status.foreign {
            return;
        }
        let volume = ran.data_volume().unwrap_or_default().to_owned();
        let arguments = Arguments::read(ran.args());
        let missing = arguments.files.iter().find(|file| !machine.files.contains_key(*file)).cloned();
        let content = machine.volumes.get(&volume).copied();
        let started = match (missing, content) {
            (Some(file), _) => Err(format!("open {file}: no such file or directory")),
            (None, None) => Err("cannot access the data directory".to_owned()),
            (None, Some(Content::Member(data))) => self.start_with_data(data),
            (None, Some(Content::Empty)) => self.start_new(address, &arguments),
        };
        match started {
            Ok(data) => self.run_member(address, data, arguments.name, volume),
            Err(why) => self.exit(address, why),
        }
        self.settle();
    }

    fn run_member(&mut self, address: &str, data: MemberData, name: String, volume: String) {
        let catch_up = self.draw_duration(address, Kind::EtcdCatchUpTakes, CATCH_UP_TAKES);
        let Some(machine) = self.nodes.get_mut(address) else { return };
        machine.volumes.insert(volume.clone(), Content::Member(data));
        let Some(ran) = machine.containers.get_mut(Container::Etcd.name()) else { return };
        let MemberData { cluster, member, .. } = data;
        let (in_touch_since, is_synced) = (None, false);
        ran.process = Some(Process { cluster, member, name, volume, catch_up, in_touch_since, is_synced });
    }

    /// A start on data; the other arguments do not count.
    fn start_with_data(&self, data: MemberData) -> Result<MemberData, String> {
        let cluster = self.etcd.get(&data.cluster);
        if cluster.is_some_and(|cluster| cluster.members.contains_key(&data.member)) {
            Ok(data)
        } else {
            Err("the member has been permanently removed from the cluster".to_owned())
        }
    }

    fn start_new(&mut self, address: &str, arguments: &Arguments) -> Result<MemberData, String> {
        let Some(initial) = &arguments.initial else {
            if arguments.is_existing {
                return Err("cannot fetch cluster info from peer urls".to_owned());
            }
            return Ok(self.start_alone(address, arguments));
        };
        if initial.get(&arguments.name) != Some(&arguments.peer_url) {
            return Err(format!("couldn't find local name {:?} in the initial cluster", arguments.name));
        }
        if arguments.is_existing {
            self.join(address, &arguments.peer_url, initial)
        } else {
            self.bootstrap(address, arguments, initial)
        }
    }

    /// Without a list of first members, the member is a cluster of its own.
    fn start_alone(&mut self, address: &str, arguments: &Arguments) -> MemberData {
        let own = BTreeMap::from([(arguments.name.clone(), arguments.peer_url.clone())]);
        // etcd's own ids would be equal for each such cluster; judges need to distinguish them.
        let token = format!("{} {address} {}", arguments.token, self.etcd.len());
        let (cluster, formed) = Cluster::from_members(&own, &token);
        self.etcd.entry(cluster).or_insert(formed);
        let member = hash_to_id(&[&arguments.peer_url, &token]);
        self.initialise_member(address, cluster, member)
    }

    fn bootstrap(
        &mut self,
        address: &str,
        arguments: &Arguments,
        initial: &BTreeMap<String, String>,
    ) -> Result<MemberData, String> {
        if let Some(known) = self.peer_cluster(address, &arguments.peer_url, initial, true)
            && let Some(member) = self.etcd[&known].member_with_url(&arguments.peer_url)
            && self.etcd[&known].initialised.contains(&member)
        {
            return Err(format!("member {member:x} has already been bootstrapped"));
        }
        let (cluster, new) = Cluster::from_members(initial, &arguments.token);
        let member = hash_to_id(&[&arguments.peer_url, &arguments.token]);
        let known = self.etcd.entry(cluster).or_insert(new);
        if !known.members.contains_key(&member) {
            return Err("the member has been permanently removed from the cluster".to_owned());
        }
        Ok(self.initialise_member(address, cluster, member))
    }

    fn join(
        &mut self,
        address: &str,
        peer_url: &str,
        initial: &BTreeMap<String, String>,
    ) -> Result<MemberData, String> {
        let Some(cluster) = self.peer_cluster(address, peer_url, initial, false) else {
            return Err("cannot fetch cluster info from peer urls".to_owned());
        };
        let known = &self.etcd[&cluster];
        let members: BTreeSet<&String> = known.members.values().map(|member| &member.peer_url).collect();
        if members != initial.values().collect() {
            return Err("error validating peerURLs: the members are not those of the cluster".to_owned());
        }
        let Some(member) = known.member_with_url(peer_url) else {
            return Err("the member was not added".to_owned());
        };
        // With an empty log under its old id, a member panics as soon as it hears of the committed index.
        if known.initialised.contains(&member) {
            return Err(
                "tocommit is out of range: was the raft log corrupted, truncated, or lost?".to_owned()
            );
        }
        Ok(self.initialise_member(address, cluster, member))
    }

    fn initialise_member(&mut self, address: &str, cluster: u64, member: u64) -> MemberData {
        let is_new = self.etcd.get_mut(&cluster).is_some_and(|known| known.initialised.insert(member));
        let (address, again) = (address.to_owned(), !is_new);
        self.note(Observed::Etcd(EtcdFact::Initialised { cluster, member, address, again }));
        MemberData { cluster, member, writes: 0, has_joined: false }
    }

    /// The cluster of a running member with one of the URLs that a starting member can reach. `has_joined`: only a
    /// member counts that knows which members have started.
    fn peer_cluster(
        &self,
        address: &str,
        own: &str,
        initial: &BTreeMap<String, String>,
        has_joined: bool,
    ) -> Option<u64> {
        let island = self.island_of(address);
        let is_peer = |url: &String| url != own && initial.values().any(|other| other == url);
        let is_reached = |runner: &&Runner| runner.island == island && (runner.has_joined || !has_joined);
        self.running_members().iter().filter(is_reached).find_map(|runner| {
            let member = self.etcd.get(&runner.cluster)?.members.get(&runner.member)?;
            is_peer(&member.peer_url).then_some(runner.cluster)
        })
    }
}
