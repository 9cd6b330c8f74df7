//! Suggestion of a known name for an unknown one.

use crate::limits::MAX_GUESSED_NAME;

/// The nearest known name, if it is near enough: at most a third of the characters differ. Differences in case and
/// separators (`-`, `_`) do not count.
#[must_use]
pub fn nearest_name<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > MAX_GUESSED_NAME {
        return None;
    }
    let name = fold_name(name);
    known
        .map(|candidate| (edit_distance(&name, &fold_name(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len() / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The name without case and separators, which people mix up most.
fn fold_name(name: &str) -> Vec<char> {
    name.chars().filter(|c| !matches!(c, '-' | '_')).map(|c| c.to_ascii_lowercase()).collect()
}

/// The number of characters to add, remove, replace or swap with their neighbour.
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i);
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest_name;

    #[test]
    fn a_misspelt_name_gets_the_nearest_name_as_a_hint() {
        let known =
            ["kube-api", "kube-controller-manager", "kube-scheduler", "kubelet", "etcd-rivers", "etcd"];
        for (typed, meant) in [
            ("kubelt", Some("kubelet")),
            ("Kubelet", Some("kubelet")),
            ("kube_api", Some("kube-api")),
            ("kubeApi", Some("kube-api")),
            ("kube-contorller-manager", Some("kube-controller-manager")),
            ("ectd", Some("etcd")),
            ("etcd_rivers", Some("etcd-rivers")),
            ("docker", None),
            ("", None),
        ] {
            assert_eq!(nearest_name(typed, known.into_iter()), meant, "{typed}");
        }
        assert_eq!(nearest_name(&"kubelet".repeat(100), known.into_iter()), None);
    }
}
