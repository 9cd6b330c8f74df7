//! I13: no effect takes the API of Kubernetes away.

use std::collections::{BTreeMap, BTreeSet};

use super::{Id, Violation};

/// I13 of a command that ends the API servers on the nodes `lost`. `healthy` are all configured API servers by address;
/// one whose state is unknown is not healthy. A server that is not healthy may be ended, and so may the only one.
#[must_use]
pub fn api_available(healthy: &BTreeMap<String, bool>, lost: &BTreeSet<&str>) -> Option<Violation> {
    let is_lost = |address: &str| lost.contains(address);
    let ended: Vec<&str> = healthy
        .iter()
        .filter(|(address, up)| **up && is_lost(address))
        .map(|(address, _)| &**address)
        .collect();
    let others_down = healthy.iter().filter(|(address, up)| !**up && !is_lost(address));
    let down: Vec<&str> = others_down.map(|(address, _)| &**address).collect();
    let what = match ended.as_slice() {
        [] => return None,
        [one] if down.is_empty() => {
            // Servers that start anew on other nodes may not serve yet.
            let others = healthy.iter().filter(|(address, up)| !**up && is_lost(address)).count();
            if others == 0 {
                return None;
            }
            format!("the command ends the healthy API server on {one} while {others} others start")
        }
        [one] => format!(
            "the command ends the API server on {one} while those on {} are not healthy",
            down.join(", ")
        ),
        several => format!("the command ends {} healthy API servers at once", several.len()),
    };
    Some(Violation { invariant: Id::I13, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(healthy: [bool; 3], lost: &[&str]) -> Option<String> {
        let healthy = ["a", "b", "c"].iter().zip(healthy).map(|(address, up)| ((*address).to_owned(), up));
        api_available(&healthy.collect(), &lost.iter().copied().collect())
            .map(|violation| violation.to_string())
    }

    #[test]
    fn a_healthy_server_ends_only_while_all_others_are_healthy() {
        assert_eq!(judge([true; 3], &["a"]), None);
        let found = judge([true, true, false], &["a"]).unwrap();
        assert_eq!(found, "I13: the command ends the API server on a while those on c are not healthy");
        assert!(judge([true; 3], &["a", "b"]).unwrap().contains("2 healthy API servers at once"));
        assert!(judge([true, false, true], &["a", "b"]).is_some(), "b does not serve yet");
    }

    #[test]
    fn servers_that_are_not_healthy_may_end_at_any_time() {
        assert_eq!(judge([true, false, false], &["b"]), None);
        assert_eq!(judge([false; 3], &["a", "b", "c"]), None, "a bootstrap");
    }

    #[test]
    fn the_only_server_may_end() {
        let only = BTreeMap::from([("a".to_owned(), true)]);
        assert_eq!(api_available(&only, &BTreeSet::from(["a"])), None);
    }
}
