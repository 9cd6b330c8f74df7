//! Comparisons of configuration files that were made before: the files of most nodes differ in the names of the nodes only, and
//! a comparison costs a hundred times as much as a search.
//!
//! # Guarantees
//! - A found answer is that of a new comparison. It was made for a node with other names, in a file with these names. A node whose
//!   names are not plain texts in YAML, or also occur elsewhere in the wanted file, is always compared. Where no field differed,
//!   each field has the node's names at the same places in both files, so that none differs for other names, wherever else
//!   these occur.
//! - At most [`MAX_KNOWN_FILES`] answers are kept for each component.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};

use madako_domain::cluster::Node;
use madako_domain::component::Component;

use super::{Configuration, Unknown};
use crate::kubernetes::options::KubernetesOptions;
use crate::limits::MAX_KNOWN_FILES;

/// Names that no node has.
const ADDRESS: &str = "madako.address.invalid";
const NAME: &str = "madako.name.invalid";

/// The fields in which a file differs from the wanted one; `None`: it is not a configuration.
type FileComparison = Option<Vec<String>>;

/// The known comparisons with one set of options, which has them.
#[derive(Debug, Default)]
pub struct KnownComparisons(Mutex<BTreeMap<(Component, bool), KnownFiles>>);

#[derive(Debug)]
struct KnownFiles {
    /// The wanted file of the node without names.
    wanted: String,
    /// By the file with other names of the node, and whether the node has one name only.
    found: BTreeMap<(bool, String), FileComparison>,
    /// The files without a differing field.
    equal: Vec<Pattern>,
}

/// A file with places for a node's names.
#[derive(Debug)]
struct Pattern {
    /// Each text is followed by the address or else by the name.
    parts: Vec<(String, bool)>,
    rest: String,
    /// True if it is the file of a node with one name.
    has_one_name: bool,
}

impl Pattern {
    /// `general` has [`ADDRESS`] and [`NAME`] at the places of the names.
    fn of(mut general: &str, has_one_name: bool) -> Self {
        let mut parts = Vec::new();
        while let Some(place) = [ADDRESS, NAME].iter().filter_map(|name| general.find(name)).min() {
            let (text, rest) = general.split_at(place);
            let is_address = rest.starts_with(ADDRESS);
            parts.push((text.to_owned(), is_address));
            general = &rest[if is_address { ADDRESS.len() } else { NAME.len() }..];
        }
        Self { parts, rest: general.to_owned(), has_one_name }
    }

    fn is_file_of(&self, node: &Node, mut file: &str) -> bool {
        for (text, is_address) in &self.parts {
            let name = if *is_address { &node.address } else { node.name() };
            match file.strip_prefix(text.as_str()).and_then(|file| file.strip_prefix(name)) {
                Some(rest) => file = rest,
                None => return false,
            }
        }
        file == self.rest && self.has_one_name == (node.name() == node.address)
    }
}

/// A copy finds the same answers again.
impl Clone for KnownComparisons {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// They follow from the options.
impl PartialEq for KnownComparisons {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl KnownComparisons {
    pub(super) fn find(
        &self,
        component: Component,
        options: &KubernetesOptions,
        (node, file): (&Node, &str),
        unknown: Unknown,
    ) -> FileComparison {
        let compare = |node: &Node, file: &str| compare(component, options, (node, file), unknown);
        if !is_plain(&node.address) || !is_plain(node.name()) {
            return compare(node, file);
        }
        // No code panics while it holds the lock, and the map is consistent at any moment.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.entry((component, unknown == Unknown::Keep)).or_insert_with(|| {
            let nameless = Node { address: ADDRESS.to_owned(), hostname: NAME.to_owned(), ..Node::default() };
            let wanted = Configuration::build_wanted(component, options, &nameless, None, unknown);
            let wanted = wanted.and_then(|wanted| wanted.to_yaml().ok()).unwrap_or_default();
            KnownFiles { wanted, found: BTreeMap::new(), equal: Vec::new() }
        });
        if known.equal.iter().any(|pattern| pattern.is_file_of(node, file)) {
            return Some(Vec::new());
        }
        let occurs = |name: &str| known.wanted.contains(name);
        if occurs(&node.address) || occurs(node.name()) || file.contains(ADDRESS) || file.contains(NAME) {
            return compare(node, file);
        }
        // A name may be a part of the address, or the reverse.
        let (first, second) = if node.name().contains(&node.address) {
            ((node.name(), NAME), (&*node.address, ADDRESS))
        } else {
            ((&*node.address, ADDRESS), (node.name(), NAME))
        };
        let general = file.replace(first.0, first.1).replace(second.0, second.1);
        // In a file of a node with one name, that is at the places of both.
        let general = (node.name() == node.address, general);
        if let Some(found) = known.found.get(&general) {
            return found.clone();
        }
        if known.found.len() >= MAX_KNOWN_FILES {
            known.found.clear();
            known.equal.clear();
        }
        let found = compare(node, file);
        let is_of_node = |field: &String| field.contains(&node.address) || field.contains(node.name());
        if found.as_ref().is_some_and(Vec::is_empty) {
            known.equal.push(Pattern::of(&general.1, general.0));
        }
        if !found.iter().flatten().any(is_of_node) {
            known.found.insert(general, found.clone());
        }
        found
    }
}

fn compare(
    component: Component,
    options: &KubernetesOptions,
    (node, file): (&Node, &str),
    unknown: Unknown,
) -> FileComparison {
    let running = Configuration::read(component, file, unknown)?;
    let wanted = Configuration::build_wanted(component, options, node, Some(&running), unknown);
    Some(wanted.map(|wanted| wanted.differing_fields(&running)).unwrap_or_default())
}

/// True if YAML reads the text as a text, without quotes.
fn is_plain(name: &str) -> bool {
    let is_of_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    // No word of YAML that is not a text has a `-` or a `.` behind a letter.
    let is_word = name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.contains(['-', '.']);
    name.chars().all(is_of_host) && (is_word || name.parse::<Ipv4Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use madako_json::go::RawJson;

    use super::*;

    fn options(text: &str) -> KubernetesOptions {
        KubernetesOptions::read(&RawJson::from_text(text.to_owned()).unwrap()).unwrap()
    }

    fn node(address: &str, hostname: &str) -> Node {
        Node { address: address.to_owned(), hostname: hostname.to_owned(), ..Node::default() }
    }

    fn file(component: Component, options: &KubernetesOptions, node: &Node) -> String {
        let wanted = Configuration::build_wanted(component, options, node, None, Unknown::Keep);
        wanted.unwrap().to_yaml().unwrap()
    }

    #[test]
    fn each_answer_is_that_of_a_comparison() {
        let nodes = [
            node("10.0.0.1", ""),
            node("10.0.0.11", ""),
            node("10.0.0.2", "rack-1"),
            node("10.0.0.3", "123"),
            node("10.0.0.4", "x.10.0.0.4"),
            node("10.0.0.5", "rack-2"),
            node("fd00::1", ""),
            node("10.0.0.9", "true"),
        ];
        for text in [
            "{}",
            r#"{"kubelet": {"config": {"maxPods": 7}}, "kube-proxy": {"config": {"mode": "ipvs"}}}"#,
            // The options have the address of a node.
            r#"{"kubelet": {"config": {"kubeletCgroups": "/10.0.0.1"}},
                "kube-proxy": {"config": {"bindAddress": "10.0.0.1"}}}"#,
        ] {
            let (options, earlier) = (options(text), options("{}"));
            for component in [Component::Kubelet, Component::Proxy] {
                let wanted: Vec<String> = nodes.iter().map(|node| file(component, &options, node)).collect();
                let old = nodes.iter().map(|node| file(component, &earlier, node));
                let odd = ["{}".to_owned(), "[".to_owned(), format!("a: {ADDRESS}")];
                for file in wanted.iter().cloned().chain(old).chain(odd) {
                    for node in &nodes {
                        let found =
                            options.comparisons.find(component, &options, (node, &file), Unknown::Keep);
                        let compared = compare(component, &options, (node, &file), Unknown::Keep);
                        assert_eq!(found, compared, "{text} {} {file}", node.address);
                    }
                }
            }
        }
    }

    #[test]
    fn the_files_of_nodes_with_other_names_are_compared_once() {
        let options = options("{}");
        for number in 1..=200 {
            let node = node(&format!("10.0.1.{number}"), &format!("node-{number}"));
            for component in [Component::Kubelet, Component::Proxy] {
                let file = file(component, &options, &node);
                let found = options.comparisons.find(component, &options, (&node, &file), Unknown::Keep);
                assert_eq!(found, Some(Vec::new()));
            }
        }
        let known = options.comparisons.0.lock().unwrap();
        assert!(known.len() == 2 && known.values().all(|files| files.found.len() == 1), "{known:?}");
    }
}
