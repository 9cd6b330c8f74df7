//! The version policy of Kubernetes' components, and I14: no effect makes versions that the policy forbids.
//!
//! The policy is about minor versions: any patch release may take the place of another one. A component whose version an
//! effect does not change is not judged, so that it may restart at its version.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use madako_json::krake::reader::shorten_name;
use serde::{Serialize, Serializer};

use crate::component::Component;
use crate::invariants::{Id, Violation};

/// Minor versions by which a kubelet or a proxy may be older than the newest API server.
pub const NODE_SKEW: u64 = 3;

/// A version of Kubernetes, such as 1.34.4.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubernetesVersion {
    major: u64,
    minor: u64,
    /// The numbers after the minor version, as they were printed.
    rest: Vec<u64>,
}

impl KubernetesVersion {
    /// Reads the output of `kube-apiserver --version`, which is `Kubernetes v1.34.4`.
    #[must_use]
    pub fn from_output(output: &str) -> Option<Self> {
        output.lines().next()?.trim().strip_prefix("Kubernetes ")?.parse().ok()
    }

    /// The version in the tag of an image. It is a guess: only the program knows its version.
    #[must_use]
    pub fn guess_from_image(image: &str) -> Option<Self> {
        let name = image.split('@').next().unwrap_or(image);
        let (_, tag) = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'))?;
        tag.parse().ok()
    }

    /// True if the two have the same minor version.
    #[must_use]
    pub fn is_same_minor(&self, other: &Self) -> bool {
        self.release() == other.release()
    }

    /// True if it is this minor version or a newer one.
    #[must_use]
    pub fn is_at_least(&self, major: u64, minor: u64) -> bool {
        self.release() >= (major, minor)
    }

    fn release(&self) -> (u64, u64) {
        (self.major, self.minor)
    }

    /// True if this version is newer by more than `count` minor versions.
    fn exceeds(&self, older: &Self, count: u64) -> bool {
        match self.major == older.major {
            true => self.minor > older.minor + count,
            false => self.major > older.major,
        }
    }
}

impl FromStr for KubernetesVersion {
    type Err = NoKubernetesVersion;

    fn from_str(text: &str) -> Result<Self, NoKubernetesVersion> {
        let numbers = text.strip_prefix('v').unwrap_or(text).split(['-', '+']).next().unwrap_or_default();
        let numbers = numbers.split('.').map(str::parse).collect::<Result<Vec<u64>, _>>();
        let refused = || NoKubernetesVersion(shorten_name(text));
        match numbers.map_err(|_| refused())?.as_slice() {
            [major, minor, rest @ ..] => Ok(Self { major: *major, minor: *minor, rest: rest.to_vec() }),
            _ => Err(refused()),
        }
    }
}

/// A text that is not a version, shortened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version of Kubernetes: expected one such as v1.34.4")]
pub struct NoKubernetesVersion(String);

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        self.rest.iter().try_for_each(|number| write!(f, ".{number}"))
    }
}

impl Serialize for KubernetesVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The known versions of components, by address. A stopped API server has the version of its container: the store has
/// what it wrote. Other components have one only while they run. On a node without a known state, an API server has the minor
/// version with which it answers, and a kubelet the version that its Node object has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions(pub BTreeMap<Component, BTreeMap<String, KubernetesVersion>>);

impl Versions {
    /// Adds the version of a component.
    pub fn insert(&mut self, component: Component, address: &str, version: KubernetesVersion) {
        self.0.entry(component).or_default().insert(address.to_owned(), version);
    }

    /// Adds other versions. They replace those of the same components and nodes.
    pub fn merge(&mut self, others: Self) {
        for (component, nodes) in others.0 {
            self.0.entry(component).or_default().extend(nodes);
        }
    }

    /// The version of a component on a node.
    #[must_use]
    pub fn version_on(&self, component: Component, address: &str) -> Option<&KubernetesVersion> {
        self.0.get(&component)?.get(address)
    }

    fn all(&self, component: Component) -> impl Iterator<Item = (&String, &KubernetesVersion)> {
        self.0.get(&component).into_iter().flatten()
    }

    /// The API server of the oldest version, with its address.
    #[must_use]
    pub fn oldest_api_server(&self) -> Option<(&String, &KubernetesVersion)> {
        self.all(Component::ApiServer).min_by_key(|(_, version)| version.release())
    }

    /// The API server of the newest version, with its address.
    #[must_use]
    pub fn newest_api_server(&self) -> Option<(&String, &KubernetesVersion)> {
        self.all(Component::ApiServer).max_by_key(|(_, version)| version.release())
    }
}

/// A component on a node, with its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VersionOnNode {
    /// Name of the component.
    pub component: &'static str,
    /// Address of the node.
    pub node: String,
    /// Version of the component on that node.
    pub version: KubernetesVersion,
}

impl VersionOnNode {
    fn new(component: Component, (node, version): (&str, &KubernetesVersion)) -> Self {
        Self { component: component.name(), node: node.to_owned(), version: version.clone() }
    }
}

impl fmt::Display for VersionOnNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} on {} has {}", self.component, self.node, self.version)
    }
}

/// The rule that a start would break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum SkewRule {
    /// API servers go up by one minor version at a time.
    MinorSkipped,
    /// API servers never go back to an earlier minor version: an older one may not read what a newer one stored.
    MinorReverted,
    /// Kubelets and proxies are at most [`NODE_SKEW`] minor versions older than any API server.
    NodeTooOld,
    /// No component is newer than the oldest API server: a client may reach any of them.
    NewerThanApiServer,
}

madako_json::named!(SkewRule);

/// A start that the policy forbids, with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skew {
    /// The rule of Kubernetes' version policy that the versions break.
    pub rule: SkewRule,
    /// The component that would start, with the version that it would have.
    pub start: VersionOnNode,
    /// The component that forbids this version.
    pub other: VersionOnNode,
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, start: VersionOnNode { component, node, version }, other } = self;
        let rule_text = match rule {
            SkewRule::MinorSkipped => {
                "API servers go up by one minor version at a time: go to the minor version between them first"
            }
            SkewRule::MinorReverted => {
                "API servers never go back to an earlier minor version: keep their version, or restore a backup of etcd"
            }
            SkewRule::NodeTooOld => {
                "kubelets and proxies are at most three minor versions older than the API servers: update them first, with the image of the present API servers"
            }
            SkewRule::NewerThanApiServer => {
                "no component is newer than the oldest API server: update the API servers first"
            }
        };
        write!(f, "{} ({component} {version} on {node}, while {other}): {rule_text}", rule.name())
    }
}

/// Judges the start of a component on a node at a version. Versions that are not known forbid nothing.
#[must_use]
pub fn check_start(
    versions: &Versions,
    component: Component,
    node: &str,
    version: &KubernetesVersion,
) -> Option<Skew> {
    if versions.version_on(component, node).is_some_and(|present| present.is_same_minor(version)) {
        return None;
    }
    let found = |rule, other: Component, on: (&String, &KubernetesVersion)| Skew {
        rule,
        start: VersionOnNode::new(component, (node, version)),
        other: VersionOnNode::new(other, (on.0, on.1)),
    };
    let (oldest, newest) = (versions.oldest_api_server(), versions.newest_api_server());
    let server = Component::ApiServer;
    let mut rules = Vec::new();
    if component == server {
        let before = newest.filter(|(_, newest)| newest.exceeds(version, 0));
        rules.push(before.map(|on| found(SkewRule::MinorReverted, server, on)));
        let below = oldest.filter(|(_, oldest)| version.exceeds(oldest, 1));
        rules.push(below.map(|on| found(SkewRule::MinorSkipped, server, on)));
        // A kubelet that is already too old for another API server is not a reason to keep this one back.
        let raises = newest.is_none_or(|(_, newest)| version.exceeds(newest, 0));
        let of_nodes = [Component::Kubelet, Component::Proxy];
        let mut old = of_nodes.into_iter().flat_map(|other| versions.all(other).map(move |on| (other, on)));
        let old = old.find(|(_, (_, has))| raises && version.exceeds(has, NODE_SKEW));
        rules.push(old.map(|(other, on)| found(SkewRule::NodeTooOld, other, on)));
        // With an API server, a newer component means that the version goes back, or was there before.
        let others = Component::ALL.into_iter().filter(|other| *other != server && oldest.is_none());
        let mut newer = others.flat_map(|other| versions.all(other).map(move |on| (other, on)));
        let newer = newer.find(|(_, (_, has))| has.exceeds(version, 0));
        rules.push(newer.map(|(other, on)| found(SkewRule::NewerThanApiServer, other, on)));
    } else {
        let older = oldest.filter(|(_, oldest)| version.exceeds(oldest, 0));
        rules.push(older.map(|on| found(SkewRule::NewerThanApiServer, server, on)));
        let is_of_nodes = !component.is_of_control_plane();
        let far = newest.filter(|(_, newest)| is_of_nodes && newest.exceeds(version, NODE_SKEW));
        rules.push(far.map(|on| found(SkewRule::NodeTooOld, server, on)));
    }
    rules.into_iter().flatten().next()
}

/// I14 of a command that starts a component on nodes.
#[must_use]
pub fn check_versions<'a>(
    versions: &Versions,
    component: Component,
    nodes: impl IntoIterator<Item = &'a str>,
    version: &KubernetesVersion,
) -> Option<Violation> {
    let skew = nodes.into_iter().find_map(|node| check_start(versions, component, node, version))?;
    Some(Violation { invariant: Id::I14, what: skew.to_string() })
}

/// The rules that an upgrade of all components would break: of the API servers first, then of the others beside the
/// upgraded API servers. `nodes` are the nodes with each component.
#[must_use]
pub fn check_upgrade(
    versions: &Versions,
    nodes: &BTreeMap<Component, Vec<String>>,
    version: &KubernetesVersion,
) -> Vec<Skew> {
    let mut versions = versions.clone();
    let mut found = Vec::new();
    for component in Component::ALL {
        let nodes = nodes.get(&component).into_iter().flatten();
        let skews = nodes.clone().filter_map(|node| check_start(&versions, component, node, version));
        found.extend(skews);
        for node in nodes {
            versions.insert(component, node, version.clone());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn version(text: &str) -> KubernetesVersion {
        text.parse().unwrap()
    }

    /// API servers on a, b and c, kubelets on a and w.
    fn versions(servers: [&str; 3], kubelets: [&str; 2]) -> Versions {
        let mut versions = Versions::default();
        for (node, text) in ["a", "b", "c"].iter().zip(servers).filter(|(_, text)| !text.is_empty()) {
            versions.insert(Component::ApiServer, node, version(text));
        }
        for (node, text) in ["a", "w"].iter().zip(kubelets).filter(|(_, text)| !text.is_empty()) {
            versions.insert(Component::Kubelet, node, version(text));
        }
        versions
    }

    fn rule(versions: &Versions, component: Component, node: &str, to: &str) -> Option<SkewRule> {
        check_start(versions, component, node, &version(to)).map(|skew| skew.rule)
    }

    #[test]
    fn versions_are_read_from_the_programs_output_and_guessed_from_a_tag() {
        let read = |output: &str| KubernetesVersion::from_output(output).map(|it| it.to_string());
        assert_eq!(read("Kubernetes v1.34.4\n").unwrap(), "1.34.4");
        assert_eq!(read("Kubernetes v1.31.0-rc.1+abc").unwrap(), "1.31.0");
        for output in ["", "etcd Version: 3.5.15", "Kubernetes v1", "Kubernetes latest"] {
            assert_eq!(read(output), None, "{output}");
        }
        let guess = |image: &str| KubernetesVersion::guess_from_image(image).map(|it| it.to_string());
        assert_eq!(guess("ghcr.io/cybozu/kubernetes:1.30.5.1").unwrap(), "1.30.5.1");
        assert_eq!(guess("a:5000/kubernetes:v1.34.4@sha256:00").unwrap(), "1.34.4");
        for image in ["kubernetes", "a:5000/kubernetes", "kubernetes:latest", "kubernetes:1"] {
            assert_eq!(guess(image), None, "{image}");
        }
    }

    #[test]
    fn api_servers_go_up_by_one_minor_version_and_never_back() {
        let all = versions(["1.30.5", "1.30.5", "1.30.5"], ["1.30.5", "1.30.5"]);
        let server = Component::ApiServer;
        assert_eq!(rule(&all, server, "a", "1.31.0"), None);
        assert_eq!(rule(&all, server, "a", "1.30.4"), None, "a patch release may go back");
        assert_eq!(rule(&all, server, "a", "1.32.0"), Some(SkewRule::MinorSkipped));
        assert_eq!(rule(&all, server, "a", "2.0.0"), Some(SkewRule::MinorSkipped));
        assert_eq!(rule(&all, server, "a", "1.29.9"), Some(SkewRule::MinorReverted));
        let mixed = versions(["1.31.0", "1.30.5", ""], ["1.30.5", "1.30.5"]);
        assert_eq!(rule(&mixed, server, "b", "1.31.0"), None);
        assert_eq!(rule(&mixed, server, "a", "1.32.0"), Some(SkewRule::MinorSkipped));
        assert_eq!(rule(&mixed, server, "c", "1.30.5"), Some(SkewRule::MinorReverted), "a new server");
        assert_eq!(rule(&mixed, server, "b", "1.30.6"), None, "it restarts at its minor version");
    }

    #[test]
    fn kubelets_are_at_most_three_minor_versions_older() {
        let old = versions(["1.33.0", "1.33.0", "1.33.0"], ["1.33.0", "1.30.0"]);
        let skew = check_start(&old, Component::ApiServer, "a", &version("1.34.0")).unwrap();
        assert_eq!((skew.rule, skew.other.node.as_str()), (SkewRule::NodeTooOld, "w"));
        assert!(skew.to_string().starts_with(
            "node-too-old (kube-apiserver 1.34.0 on a, while the kubelet on w has 1.30.0): kubelets and proxies"
        ));
        assert_eq!(rule(&old, Component::Kubelet, "x", "1.30.2"), None);
        assert_eq!(rule(&old, Component::Kubelet, "x", "1.29.2"), Some(SkewRule::NodeTooOld));
        assert_eq!(rule(&old, Component::Scheduler, "a", "1.29.2"), None, "the rule is for nodes");
        let too_old = versions(["1.34.0", "1.33.0", "1.33.0"], ["1.33.0", "1.30.0"]);
        assert_eq!(rule(&too_old, Component::ApiServer, "b", "1.34.0"), None, "it was there before");
    }

    #[test]
    fn nothing_is_newer_than_the_oldest_api_server() {
        let mixed = versions(["1.31.0", "1.30.5", "1.31.0"], ["1.30.5", "1.31.0"]);
        for component in Component::ALL.into_iter().filter(|it| *it != Component::ApiServer) {
            let skew = check_start(&mixed, component, "a", &version("1.31.0")).unwrap();
            assert_eq!((skew.rule, skew.other.node.as_str()), (SkewRule::NewerThanApiServer, "b"));
            assert_eq!(rule(&mixed, component, "a", "1.30.9"), None);
        }
        assert_eq!(rule(&mixed, Component::Kubelet, "w", "1.31.2"), None, "it restarts");
        let none = versions(["", "", ""], ["1.31.0", ""]);
        assert_eq!(rule(&none, Component::ApiServer, "a", "1.30.0"), Some(SkewRule::NewerThanApiServer));
    }

    #[test]
    fn a_command_breaks_i14_if_one_of_its_nodes_does() {
        let all = versions(["1.30.5", "1.30.5", "1.30.5"], ["1.30.5", ""]);
        let check = |to: &str| check_versions(&all, Component::Kubelet, ["a", "w"], &version(to));
        assert_eq!(check("1.30.9"), None);
        assert!(check("1.31.0").unwrap().to_string().starts_with("I14: newer-than-api-server (kubelet"));
    }

    #[test]
    fn an_upgrade_is_judged_in_its_order() {
        let nodes = BTreeMap::from([
            (Component::ApiServer, ["a", "b", "c"].map(str::to_owned).to_vec()),
            (Component::Kubelet, ["a", "w"].map(str::to_owned).to_vec()),
        ]);
        let rules = |versions: &Versions, to: &str| -> Vec<SkewRule> {
            check_upgrade(versions, &nodes, &version(to)).into_iter().map(|skew| skew.rule).collect()
        };
        let all = versions(["1.30.5", "1.30.5", "1.30.5"], ["1.30.5", "1.30.5"]);
        assert_eq!(rules(&all, "1.31.0"), []);
        assert_eq!(rules(&all, "1.29.0")[0], SkewRule::MinorReverted);
        assert_eq!(rules(&all, "1.32.0")[0], SkewRule::MinorSkipped);
        assert_eq!(rules(&Versions::default(), "1.31.0"), [], "nothing is known");
    }

    /// The minor versions of a fleet break no rule about states.
    fn is_allowed(versions: &Versions) -> bool {
        let (Some((_, oldest)), Some((_, newest))) =
            (versions.oldest_api_server(), versions.newest_api_server())
        else {
            return true;
        };
        let mut kubelets = versions.all(Component::Kubelet).map(|(_, version)| version);
        !newest.exceeds(oldest, 1)
            && kubelets.all(|kubelet| !kubelet.exceeds(oldest, 0) && !newest.exceeds(kubelet, NODE_SKEW))
    }

    proptest! {
        #[test]
        fn a_start_that_is_not_refused_keeps_an_allowed_fleet_allowed(
            servers in prop::array::uniform3(30..32_u64),
            kubelets in prop::array::uniform2(28..31_u64),
            to in 24..36_u64,
            is_server in any::<bool>(),
        ) {
            let text = |minor: u64| format!("1.{minor}.0");
            let (servers, kubelets) = (servers.map(text), kubelets.map(text));
            let before = versions(
                [&servers[0], &servers[1], &servers[2]], [&kubelets[0], &kubelets[1]],
            );
            prop_assert!(is_allowed(&before));
            let component = if is_server { Component::ApiServer } else { Component::Kubelet };
            let to = version(&text(to));
            if check_start(&before, component, "a", &to).is_none() {
                let mut after = before.clone();
                after.insert(component, "a", to);
                prop_assert!(is_allowed(&after), "{before:?} {after:?}");
            }
        }
    }
}
