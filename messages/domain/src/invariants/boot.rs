//! I18: no kubelet starts on a registered node without its boot taints.

use super::{Id, Violation};
use crate::cluster::Taint;

/// I18 of a command that starts the kubelet of a node. `present` are the taints of its Node object; `None`: the node is not
/// registered, and its kubelet registers it with the boot taints. Kubernetes identifies a taint by its key and its effect.
#[must_use]
pub fn check_boot_taints(node: &str, present: Option<&[Taint]>, boot_taints: &[Taint]) -> Option<Violation> {
    let present = present?;
    let is_present =
        |wanted: &Taint| present.iter().any(|has| (&has.key, &has.effect) == (&wanted.key, &wanted.effect));
    let Taint { key, effect, .. } = boot_taints.iter().find(|wanted| !is_present(wanted))?;
    let what = format!("the kubelet of {node} would start without the boot taint {key}:{effect}");
    Some(Violation { invariant: Id::I18, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, effect: &str) -> Taint {
        Taint { key: key.to_owned(), effect: effect.to_owned(), ..Taint::default() }
    }

    #[test]
    fn a_registered_node_has_each_boot_taint() {
        let boot = [taint("a", "NoSchedule"), taint("b", "NoExecute")];
        let check = |present: Option<&[Taint]>| check_boot_taints("n", present, &boot);
        assert_eq!(check(None), None, "the kubelet registers the node");
        let added = Taint { time_added: Some("2026-01-01T00:00:00Z".to_owned()), ..boot[1].clone() };
        assert_eq!(check(Some(&[added, taint("c", "NoSchedule"), boot[0].clone()])), None);
        for other in [taint("b", "NoSchedule"), taint("c", "NoExecute")] {
            let violation = check(Some(&[boot[0].clone(), other])).unwrap().to_string();
            assert_eq!(violation, "I18: the kubelet of n would start without the boot taint b:NoExecute");
        }
        assert!(check(Some(&[])).is_some());
        assert_eq!(check_boot_taints("n", Some(&[]), &[]), None);
    }
}
