//! The section `kubernetes`: access to the cluster's API server.

use std::path::Path;

use madako_kubernetes::ApiServerAccess;

use super::settings::{ABSOLUTE_PATH, Findings, section};

section! {
    it: Option<String> = None => {
        "kubeconfig": ABSOLUTE_PATH => it;
    }
}

const FIELD: &str = "kubernetes.kubeconfig";

/// Reads the kubeconfig that the section names.
pub(super) fn read_kubernetes(path: Option<String>, findings: &mut Findings) -> Option<ApiServerAccess> {
    let Some(path) = path else {
        findings.report_missing(FIELD, "the path of a kubeconfig");
        return None;
    };
    let error = match ApiServerAccess::read(Path::new(&path)) {
        Ok(access) => return Some(access),
        Err(error) => error,
    };
    for problem in error.problems {
        let place = match problem.field.as_str() {
            "" => format!("{FIELD} ({path})"),
            inner => format!("{FIELD} ({path}): {inner}"),
        };
        findings.report(place, problem.got, problem.expected);
    }
    None
}
