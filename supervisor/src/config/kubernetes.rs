//! The section `kubernetes`: access to the cluster's API server.

use std::path::Path;

use madako_kubernetes::Access;

use super::document::Fields;

/// Reads the section and the kubeconfig that it names.
pub(super) fn read(mut section: Fields) -> Option<Access> {
    let path = section.filled("kubeconfig");
    let field = section.path("kubeconfig");
    let mut access = None;
    match path {
        None => section.report_missing("kubeconfig", "the path of a kubeconfig"),
        Some(path) if !path.starts_with('/') => {
            section.report("kubeconfig", format!("{path:?}"), "an absolute path");
        }
        Some(path) => match Access::read(Path::new(&path)) {
            Ok(read) => access = Some(read),
            Err(error) => {
                for problem in error.problems {
                    let place = match problem.field.as_str() {
                        "" => format!("{field} ({path})"),
                        inner => format!("{field} ({path}): {inner}"),
                    };
                    section.findings().problems.add(place, problem.got, problem.expected);
                }
            }
        },
    }
    section.finish();
    access
}
