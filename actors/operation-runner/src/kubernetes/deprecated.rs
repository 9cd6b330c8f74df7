//! The deprecated APIs that clients still request, for a plan.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::deprecated_api::DeprecatedApi;
use madako_domain::skew::KubernetesVersion;
use serde::Serialize;

/// The answers of API servers, by address.
pub type DeprecationAnswers = BTreeMap<String, Result<BTreeSet<DeprecatedApi>, String>>;

/// A deprecated API that clients requested since the start of some API servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestedApi {
    #[serde(flatten)]
    pub api: DeprecatedApi,
    /// The planned version no longer has it.
    pub is_removed: bool,
    /// Addresses of the API servers that were asked for it.
    pub servers: Vec<String>,
}

/// Joins the answers, those that the planned version removes first. Also returns a note for each server without an answer.
#[must_use]
pub fn join_answers(
    answers: DeprecationAnswers,
    version: Option<&KubernetesVersion>,
) -> (Vec<RequestedApi>, Vec<String>) {
    let (mut servers, mut notes) = (BTreeMap::<DeprecatedApi, Vec<String>>::new(), Vec::new());
    for (address, answer) in answers {
        match answer {
            Ok(apis) => apis.into_iter().for_each(|api| servers.entry(api).or_default().push(address.clone())),
            Err(why) => notes.push(format!(
                "the deprecated APIs that were requested from the API server on {address} are not known: {why}"
            )),
        }
    }
    let requested = servers.into_iter().map(|(api, servers)| {
        let is_removed = version.is_some_and(|version| api.is_removed_in(version));
        RequestedApi { api, is_removed, servers }
    });
    let mut requested: Vec<RequestedApi> = requested.collect();
    requested.sort_by_key(|requested| !requested.is_removed);
    (requested, notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apis_that_the_planned_version_removes_come_first() {
        let api = |resource: &str, removed_in: Option<&str>| DeprecatedApi {
            api_version: "v1".to_owned(),
            resource: resource.to_owned(),
            removed_in: removed_in.map(str::to_owned),
        };
        let answers = || {
            DeprecationAnswers::from([
                ("a".to_owned(), Ok([api("kept", None), api("removed", Some("1.34"))].into())),
                ("b".to_owned(), Ok([api("removed", Some("1.34"))].into())),
                ("c".to_owned(), Err("silence".to_owned())),
            ])
        };
        let (requested, notes) = join_answers(answers(), Some(&"1.34.4".parse().unwrap()));
        let reported: Vec<(&str, bool, usize)> =
            requested.iter().map(|it| (it.api.resource.as_str(), it.is_removed, it.servers.len())).collect();
        assert_eq!(reported, [("removed", true, 2), ("kept", false, 1)]);
        assert!(matches!(&notes[..], [note] if note.contains("on c are not known: silence")), "{notes:?}");
        assert!(join_answers(answers(), None).0.iter().all(|it| !it.is_removed), "an unknown version");
    }
}
