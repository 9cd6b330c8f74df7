//! Turns unsuccessful answers of the API server into errors of the port.

use http_body_util::LengthLimitError;
use kube::core::Status;
use madako_domain::kubernetes::EvictionOutcome;
use madako_protocol::causes::{error_chain, root_cause};
use madako_protocol::kubernetes::KubernetesError;

use crate::limits::MAX_SERVER_TEXT;

/// Reason in an answer about an object that does not exist.
const NOT_FOUND: &str = "NotFound";

/// Cause in an answer to an eviction that a disruption budget forbids.
const DISRUPTION_BUDGET: &str = "DisruptionBudget";

pub(crate) fn to_kubernetes_error(what: &str, error: kube::Error) -> KubernetesError {
    match error {
        kube::Error::Api(status) => error_from_status(what, &status),
        kube::Error::FromUtf8(_) => malformed_answer(what, "it is not UTF-8"),
        error => {
            if error_chain(&error).any(|cause| cause.is::<LengthLimitError>()) {
                malformed_answer(what, "it is longer than the limit")
            } else {
                unavailable_server(what, &shorten_text(&root_cause(&error).to_string()))
            }
        }
    }
}

/// Maps a status other than success. It means that an object is not found only if the API server itself says so: a
/// proxy or a wrong address also answers 404.
fn error_from_status(what: &str, status: &Status) -> KubernetesError {
    if status.code == 404 && status.reason == NOT_FOUND {
        return KubernetesError::NotFound { what: what.to_owned() };
    }
    if status.code == 0 {
        return malformed_answer(what, "a failure without a status code");
    }
    KubernetesError::Refused {
        what: what.to_owned(),
        status: status.code,
        why: shorten_text(&status.message),
    }
}

/// Words of an API server's message about a webhook that failed. It fails at each other server as well, after its time limit.
const FAILED_WEBHOOK: &str = "failed calling webhook";

/// True if another API server may answer better: this one does not answer, has too much to do, or does not reach etcd.
pub(crate) fn is_of_server(error: &KubernetesError) -> bool {
    match error {
        KubernetesError::Unavailable { .. } | KubernetesError::Malformed { .. } => true,
        KubernetesError::Refused { status: 500, why, .. } => !why.contains(FAILED_WEBHOOK),
        KubernetesError::Refused { status, .. } => matches!(status, 429 | 503 | 504),
        _ => false,
    }
}

/// The error of a watch that did not begin. Its status tells all that counts.
pub(crate) fn refused_stream(what: &str, status: u16) -> KubernetesError {
    KubernetesError::Refused { what: what.to_owned(), status, why: "the watch did not begin".to_owned() }
}

/// The refusal if an answer says, in the API server's own format, that a disruption budget forbids an eviction.
pub(crate) fn forbidden_by_budget(error: &kube::Error) -> Option<EvictionOutcome> {
    let kube::Error::Api(status) = error else { return None };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut budgets = causes.filter(|cause| cause.reason == DISRUPTION_BUDGET);
    let budget = budgets.next().filter(|_| status.code == 429)?;
    Some(EvictionOutcome::Refused { why: shorten_text(&format!("{} {}", status.message, budget.message)) })
}

/// An answer in an unexpected form.
pub(crate) fn malformed_answer(what: &str, why: &str) -> KubernetesError {
    KubernetesError::Malformed { what: what.to_owned(), why: why.to_owned() }
}

/// No complete answer.
pub(crate) fn unavailable_server(what: &str, why: &str) -> KubernetesError {
    KubernetesError::Unavailable { what: what.to_owned(), why: why.to_owned() }
}

/// On one line, without control characters, and of limited length.
fn shorten_text(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let mut line = String::new();
    for word in words {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > 4 * MAX_SERVER_TEXT {
            break;
        }
    }
    match line.char_indices().nth(MAX_SERVER_TEXT) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_server_is_asked_only_where_it_may_answer_better() {
        let refused = |status, why: &str| KubernetesError::Refused {
            what: "x".to_owned(),
            status,
            why: why.to_owned(),
        };
        for (error, is_asked) in [
            (unavailable_server("x", "it does not answer"), true),
            (refused(429, "too many requests"), true),
            (refused(500, "etcdserver: leader changed"), true),
            (refused(500, "Internal error occurred: failed calling webhook \"a\""), false),
            (refused(503, "the server is currently unable to handle the request"), true),
            (refused(403, "forbidden"), false),
            (refused(409, "conflict"), false),
        ] {
            assert_eq!(is_of_server(&error), is_asked, "{error}");
        }
    }
}
