//! Data of a running system that an operator provides in a file: a cluster, or the taints of its nodes.
//!
//! Guarantees: the error names every field with a wrong shape and every unknown field, as for typed input. Taints are
//! valid for a Kubernetes node.
//! Does not: apply the rules of a new configuration to a cluster. Such a cluster is analysed, not stored, and a plan
//! may have to correct its faults.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::cluster::{Cluster, Taint};
use crate::rules;
use madako_json::input::{InputError, Problems};
use madako_json::strict::walk::read_strictly;
use madako_json::strict::{Path, Tree, shown_text, yaml};

/// Reads a cluster in YAML or JSON, such as `ckecli cluster get` prints.
///
/// # Errors
/// The error names each wrong field and the expected value.
pub fn cluster_from_yaml(text: &str) -> Result<Cluster, InputError> {
    const SUBJECT: &str = "current cluster";
    let tree = yaml::read_yaml(SUBJECT, text)?;
    let mut problems = Problems::default();
    let cluster = read_strictly(tree, Path::Root, &mut problems);
    problems.finish(SUBJECT)?;
    Ok(cluster.unwrap_or_default())
}

/// Reads taints of Kubernetes nodes in YAML or JSON: an object from each node's address to its taints.
///
/// # Errors
/// The error names each wrong field and the expected value.
pub fn node_taints_from_yaml(text: &str) -> Result<BTreeMap<String, Vec<Taint>>, InputError> {
    const SUBJECT: &str = "taints of nodes";
    let tree = yaml::read_yaml(SUBJECT, text)?;
    let mut problems = Problems::default();
    // Broken rules. A field with a wrong shape is reported once, not again as a broken rule.
    let mut broken = Problems::default();
    let mut taints = BTreeMap::new();
    if !matches!(tree, Tree::Object(_)) {
        problems.add("", tree.short_text(), "an object from addresses of nodes to lists of taints");
    }
    for (address, list) in tree.fields() {
        let path = Path::Root.field(address);
        if address.parse::<IpAddr>().is_err() {
            problems.add(path, shown_text(address), "the address of a node");
        }
        if !matches!(list, Tree::List(_) | Tree::Null) {
            problems.add(path, list.short_text(), "a list of taints");
        }
        let mut of_node: Vec<Taint> = Vec::new();
        for (index, taint) in list.items().iter().enumerate() {
            let path = path.item(index);
            let Some(taint) = read_strictly(taint.clone(), path, &mut problems) else { continue };
            rules::check_taint(&taint, &path, &mut broken);
            of_node.push(taint);
        }
        taints.insert(address.clone(), of_node);
    }
    problems.add_unrelated(broken);
    problems.finish(SUBJECT)?;
    Ok(taints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_file_is_accepted_as_found() {
        let found = cluster_from_yaml("nodes:\n- address: 10.0.0.1\n- address: 10.0.0.1\n").unwrap();
        assert_eq!(found.nodes.len(), 2);
        assert!(found.options.is_absent(), "nothing is filled in");
        let stored =
            r#"{"name":"c","nodes":[{"address":"10.0.0.1","taints":null}],"options":{"kubelet":{}}}"#;
        assert_eq!(cluster_from_yaml(stored).unwrap().options.text(), Some(r#"{"kubelet":{}}"#));

        let error = cluster_from_yaml("name: 5\nnodes: [{adress: 10.0.0.1}]\n").unwrap_err().to_string();
        assert!(error.contains("name: got the number 5") && error.contains("nodes[0].adress"), "{error}");
        assert!(cluster_from_yaml("").is_err() && cluster_from_yaml("[]").is_err());
    }

    #[test]
    fn taints_are_read_for_each_address() {
        let taints = node_taints_from_yaml(
            "10.0.0.1:\n- {key: a, effect: NoSchedule}\n- {key: b, value: c, effect: NoExecute}\n10.0.0.2:\n",
        )
        .unwrap();
        assert_eq!(taints["10.0.0.1"].iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(taints["10.0.0.2"].is_empty());
        assert!(node_taints_from_yaml("{}").unwrap().is_empty());

        let error = node_taints_from_yaml("node1: [{key: a}]\n10.0.0.1: {key: a}\n10.0.0.2: [{kye: a}]\n");
        let error = error.unwrap_err().to_string();
        for part in ["node1: got \"node1\"", "10.0.0.1: got an object", "10.0.0.2[0].kye", "10.0.0.2[0].key"]
        {
            assert!(error.contains(part), "{part} is not in {error}");
        }
        assert!(node_taints_from_yaml("[]").is_err());
    }

    #[test]
    fn impossible_taint_is_refused_with_the_expected_form() {
        let text = "10.0.0.1:\n- {key: a, effect: NoShedule}\n- {key: a, value: 'v v', effect: NoExecute}\n\
                    - {key: a b, effect: NoExecute}\n- {key: a}\n- {effect: NoExecute, timeAdded: now}\n";
        let error = node_taints_from_yaml(text).unwrap_err().to_string();
        for part in [
            "10.0.0.1[0].effect: got \"NoShedule\", expected NoSchedule, PreferNoSchedule or NoExecute",
            "10.0.0.1[1].value: got \"v v\", expected at most 63 letters",
            "10.0.0.1[2].key: got \"a b\"",
            "10.0.0.1[3].effect: expected NoSchedule",
            "10.0.0.1[4].key: expected at most 63",
            "10.0.0.1[4].timeAdded: got \"now\"",
        ] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }
}
