//! Deprecated APIs that clients still request, as the metrics of an API server show.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::limits::MAX_DEPRECATED_APIS;
use crate::skew::KubernetesVersion;

/// The metric, which has a sample for each deprecated API that was requested since the start of the API server.
const METRIC: &str = "apiserver_requested_deprecated_apis{";

/// An API that Kubernetes deprecates and that a client has requested since the start of the API server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DeprecatedApi {
    /// Group and version, such as `policy/v1beta1`; `v1` for the core group.
    pub api_version: String,
    /// The resource; a subresource follows a slash.
    pub resource: String,
    /// The minor release that no longer has it, such as `1.25`; `None`: no release is named.
    pub removed_in: Option<String>,
}

impl DeprecatedApi {
    /// The requested deprecated APIs in the text of `/metrics`, at most [`MAX_DEPRECATED_APIS`].
    #[must_use]
    pub fn read_metrics(text: &str) -> BTreeSet<Self> {
        text.lines().filter_map(Self::read_sample).take(MAX_DEPRECATED_APIS).collect()
    }

    fn read_sample(line: &str) -> Option<Self> {
        let (labels, value) = line.strip_prefix(METRIC)?.rsplit_once('}')?;
        if value.trim() == "0" {
            return None;
        }
        // Names of APIs contain neither quotes nor commas.
        let label = |wanted: &str| {
            let found =
                labels.split(',').find_map(|label| label.trim().strip_prefix(wanted)?.strip_prefix('='));
            found.map(|value| value.trim_matches('"')).filter(|value| !value.is_empty())
        };
        let (version, resource) = (label("version")?, label("resource")?);
        let joined = |first: Option<&str>, second: &str| match first {
            Some(first) => format!("{first}/{second}"),
            None => second.to_owned(),
        };
        Some(Self {
            api_version: joined(label("group"), version),
            resource: match label("subresource") {
                Some(subresource) => joined(Some(resource), subresource),
                None => resource.to_owned(),
            },
            removed_in: label("removed_release").map(str::to_owned),
        })
    }

    /// True if API servers of a version no longer have it.
    #[must_use]
    pub fn is_removed_in(&self, version: &KubernetesVersion) -> bool {
        let removed = self.removed_in.as_ref().and_then(|release| release.parse::<KubernetesVersion>().ok());
        removed.is_some_and(|removed| removed <= *version)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const TEXT: &str = r#"# HELP apiserver_requested_deprecated_apis [STABLE] Gauge of deprecated APIs that have been requested
# TYPE apiserver_requested_deprecated_apis gauge
apiserver_requested_deprecated_apis{group="",removed_release="",resource="endpoints",subresource="",version="v1"} 1
apiserver_requested_deprecated_apis{group="flowcontrol.apiserver.k8s.io",removed_release="1.32",resource="flowschemas",subresource="status",version="v1beta3"} 1
apiserver_requested_deprecated_apis{group="policy",removed_release="1.25",resource="podsecuritypolicies",subresource="",version="v1beta1"} 0
apiserver_request_total{code="200",group="policy",resource="x",version="v1beta1"} 7
"#;

    #[test]
    fn requested_apis_are_read_from_metrics() {
        let reported: Vec<(String, String, Option<String>)> = DeprecatedApi::read_metrics(TEXT)
            .into_iter()
            .map(|api| (api.api_version, api.resource, api.removed_in))
            .collect();
        let api = |version: &str, resource: &str, removed: Option<&str>| {
            (version.to_owned(), resource.to_owned(), removed.map(str::to_owned))
        };
        assert_eq!(
            reported,
            [
                api("flowcontrol.apiserver.k8s.io/v1beta3", "flowschemas/status", Some("1.32")),
                api("v1", "endpoints", None),
            ]
        );
        for text in ["", "apiserver_requested_deprecated_apis{", "apiserver_requested_deprecated_apis{} 1"] {
            assert!(DeprecatedApi::read_metrics(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn the_number_of_deprecated_apis_is_bounded() {
        let mut text = String::new();
        for number in 0..2 * MAX_DEPRECATED_APIS {
            writeln!(text, "{METRIC}version=\"v1\",resource=\"r{number}\"}} 1").unwrap();
        }
        assert_eq!(DeprecatedApi::read_metrics(&text).len(), MAX_DEPRECATED_APIS);
    }

    #[test]
    fn an_api_is_removed_in_its_release_and_in_later_ones() {
        let is_removed = |removed_in: Option<&str>, version: &str| {
            let api = DeprecatedApi {
                api_version: "v1".to_owned(),
                resource: "r".to_owned(),
                removed_in: removed_in.map(str::to_owned),
            };
            api.is_removed_in(&version.parse().unwrap())
        };
        assert!(is_removed(Some("1.32"), "1.32.0") && is_removed(Some("1.32"), "1.33.6"));
        assert!(!is_removed(Some("1.32"), "1.31.14") && !is_removed(None, "1.40.0"));
    }
}
