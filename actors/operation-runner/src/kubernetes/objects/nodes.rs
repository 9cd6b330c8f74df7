//! The labels, annotations and taints of Node objects, and the Node objects of nodes that left the cluster.
//!
//! The configuration's labels, annotations and taints (by key) are set. Others stay, except for the service's own ones,
//! which go if the configuration lacks them.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::cluster::{Cluster, Node, Taint};
use madako_domain::kubernetes::ANNOTATION_REBOOT;
use madako_domain::objects::{NodeChange, NodeObject};
use madako_domain::resource::ResourceKey;

/// Label and taint of control plane nodes.
const CONTROL_PLANE: &str = "cke.cybozu.com/master";

/// The key of a Node object among all objects.
#[must_use]
pub fn node_key(name: &str) -> ResourceKey {
    ResourceKey { kind: "Node".to_owned(), namespace: None, name: name.to_owned() }
}

/// True if only the configuration sets labels, annotations and taints of this name.
fn is_internal(name: &str) -> bool {
    name != ANNOTATION_REBOOT
        && (name.starts_with("cke.cybozu.com/")
            || name.contains(".cke.cybozu.com/")
            || name.starts_with("node-role.kubernetes.io/"))
}

/// The changes of Node objects, in the order of the configuration. Nodes that are not registered have none.
#[must_use]
pub fn node_changes(cluster: &Cluster, objects: &[NodeObject]) -> Vec<NodeChange> {
    let by_name: BTreeMap<&str, &NodeObject> =
        objects.iter().map(|object| (object.name.as_str(), object)).collect();
    let registered = cluster.nodes.iter().filter_map(|node| Some((node, *by_name.get(node.name())?)));
    let change = registered.map(|(node, object)| node_change(node, object, cluster.taint_control_plane));
    change.filter(|change| !change.is_empty()).collect()
}

fn node_change(node: &Node, object: &NodeObject, taints_control_plane: bool) -> NodeChange {
    let mut labels: BTreeMap<&str, &str> = to_pairs(&node.labels);
    if node.control_plane {
        labels.insert(CONTROL_PLANE, "true");
    }
    let taints = wanted_taints(node, object, taints_control_plane && node.control_plane);
    NodeChange {
        name: object.name.clone(),
        resource_version: object.resource_version.clone(),
        labels: differences(&labels, &object.labels),
        annotations: differences(&to_pairs(&node.annotations), &object.annotations),
        taints: (!are_same_taints(&taints, &object.taints)).then_some(taints),
    }
}

fn to_pairs(map: &BTreeMap<String, String>) -> BTreeMap<&str, &str> {
    map.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

fn differences(
    wanted: &BTreeMap<&str, &str>,
    present: &BTreeMap<String, String>,
) -> BTreeMap<String, Option<String>> {
    let differs = |(name, value): &(&&str, &&str)| present.get(**name).map(String::as_str) != Some(**value);
    let set =
        wanted.iter().filter(differs).map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned())));
    let is_surplus = |name: &&String| is_internal(name) && !wanted.contains_key(name.as_str());
    let removed = present.keys().filter(is_surplus).map(|name| (name.clone(), None));
    set.chain(removed).collect()
}

/// All taints after the change. A taint that is as wanted keeps the time at which it was added.
fn wanted_taints(node: &Node, object: &NodeObject, of_control_plane: bool) -> Vec<Taint> {
    let mut wanted: Vec<Taint> = node.taints.clone();
    if of_control_plane && wanted.iter().all(|taint| taint.key != CONTROL_PLANE) {
        let (key, effect) = (CONTROL_PLANE.to_owned(), "PreferNoSchedule".to_owned());
        wanted.push(Taint { key, effect, ..Taint::default() });
    }
    let is_wanted = |key: &str| wanted.iter().any(|taint| taint.key == key);
    let stay = |taint: &&Taint| !is_wanted(&taint.key) && !is_internal(&taint.key);
    let others: Vec<Taint> = object.taints.iter().filter(stay).cloned().collect();
    for taint in &mut wanted {
        if let Some(present) = object.taints.iter().find(|present| is_equal_taint(present, taint)) {
            taint.time_added.clone_from(&present.time_added);
        }
    }
    wanted.extend(others);
    wanted
}

fn is_equal_taint(one: &Taint, two: &Taint) -> bool {
    (&one.key, &one.value, &one.effect) == (&two.key, &two.value, &two.effect)
}

/// The order of taints does not matter.
fn are_same_taints(wanted: &[Taint], present: &[Taint]) -> bool {
    wanted.len() == present.len()
        && wanted.iter().all(|taint| present.iter().any(|present| is_equal_taint(taint, present)))
}

/// Names of the Node objects whose nodes are not in the cluster.
#[must_use]
pub fn surplus_nodes(cluster: &Cluster, objects: &[NodeObject]) -> BTreeSet<String> {
    let known: BTreeSet<&str> = cluster.nodes.iter().map(Node::name).collect();
    let surplus = objects.iter().filter(|object| !object.is_deleted && !known.contains(object.name.as_str()));
    surplus.map(|object| object.name.clone()).collect()
}

/// True if the removal of so many of all Node objects needs agreement: it is more than one, and more than a tenth.
#[must_use]
pub fn needs_removal_approval(surplus: usize, all: usize) -> bool {
    surplus > 1 && surplus * 10 > all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        let [key, value, effect] = [key, value, effect].map(str::to_owned);
        Taint { key, value, effect, ..Taint::default() }
    }

    fn node() -> Node {
        Node {
            address: "10.0.0.1".to_owned(),
            control_plane: true,
            labels: map(&[("cke.cybozu.com/rack", "1"), ("a", "b")]),
            annotations: map(&[("c", "d")]),
            taints: vec![taint("t", "1", "NoSchedule")],
            ..Node::default()
        }
    }

    fn object() -> NodeObject {
        NodeObject { name: "10.0.0.1".to_owned(), resource_version: "7".to_owned(), ..NodeObject::default() }
    }

    fn changed(object: &mut NodeObject, change: &NodeChange) {
        let set = |values: &mut BTreeMap<String, String>, changes: &BTreeMap<String, Option<String>>| {
            for (name, value) in changes {
                match value {
                    Some(value) => values.insert(name.clone(), value.clone()),
                    None => values.remove(name),
                };
            }
        };
        set(&mut object.labels, &change.labels);
        set(&mut object.annotations, &change.annotations);
        if let Some(taints) = &change.taints {
            object.taints.clone_from(taints);
        }
    }

    #[test]
    fn configured_values_are_set_internal_ones_go_and_others_stay() {
        let mut found = object();
        found.labels = map(&[
            ("a", "x"),
            ("other", "1"),
            ("cke.cybozu.com/old", "1"),
            ("node-role.kubernetes.io/x", ""),
        ]);
        found.annotations = map(&[("sabakan.cke.cybozu.com/y", ""), (ANNOTATION_REBOOT, "true")]);
        found.taints = vec![
            taint("t", "0", "NoExecute"),
            taint("other", "", "NoSchedule"),
            taint("cke.cybozu.com/b", "", "NoSchedule"),
        ];
        let cluster = Cluster { nodes: vec![node()], taint_control_plane: true, ..Cluster::default() };
        let all = node_changes(&cluster, std::slice::from_ref(&found));
        let [change] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((change.name.as_str(), change.resource_version.as_str()), ("10.0.0.1", "7"));
        changed(&mut found, change);
        let labels =
            [("a", "b"), ("cke.cybozu.com/master", "true"), ("cke.cybozu.com/rack", "1"), ("other", "1")];
        assert_eq!(found.labels, map(&labels));
        assert_eq!(found.annotations, map(&[(ANNOTATION_REBOOT, "true"), ("c", "d")]));
        let taints: Vec<String> =
            found.taints.iter().map(|it| format!("{}={}:{}", it.key, it.value, it.effect)).collect();
        assert_eq!(
            taints,
            ["t=1:NoSchedule", "cke.cybozu.com/master=:PreferNoSchedule", "other=:NoSchedule"]
        );
        assert_eq!(node_changes(&cluster, &[found]), [], "a change is complete");
    }

    #[test]
    fn worker_loses_label_and_taint_of_the_control_plane_and_a_kept_taint_its_time_never() {
        let worker = Node { control_plane: false, labels: map(&[]), annotations: map(&[]), ..node() };
        let cluster = Cluster { nodes: vec![worker], taint_control_plane: true, ..Cluster::default() };
        let mut found = object();
        found.labels = map(&[(CONTROL_PLANE, "true")]);
        let kept =
            Taint { time_added: Some("2026-11-21T00:00:00Z".to_owned()), ..taint("t", "1", "NoSchedule") };
        found.taints = vec![taint(CONTROL_PLANE, "", "PreferNoSchedule"), kept.clone()];
        let [change] = node_changes(&cluster, &[found]).try_into().unwrap();
        assert_eq!(change.labels, BTreeMap::from([(CONTROL_PLANE.to_owned(), None)]));
        assert_eq!(change.taints, Some(vec![kept]));
        assert_eq!(node_changes(&cluster, &[]), [], "a node that is not registered");
    }

    #[test]
    fn only_objects_of_other_nodes_are_surplus() {
        let cluster = Cluster { nodes: vec![node()], ..Cluster::default() };
        let named = |name: &str, is_deleted| NodeObject { name: name.to_owned(), is_deleted, ..object() };
        let objects = [object(), named("10.0.0.2", false), named("10.0.0.3", true)];
        assert_eq!(surplus_nodes(&cluster, &objects), BTreeSet::from(["10.0.0.2".to_owned()]));
        for (few, all, needs) in [(1, 1, false), (2, 20, false), (2, 19, true), (3, 30, false), (3, 29, true)]
        {
            assert_eq!(needs_removal_approval(few, all), needs, "{few} of {all}");
        }
    }
}
