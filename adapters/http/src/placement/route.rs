//! Finds the resource or list that a path of the placement API names: one table for all kinds.
//!
//! Segments are compared after percent-decoding, as in Krake's server. A path with an additional slash has no target.

use axum::http::Method;
use madako_domain::placement::kind::{Kind, ObjectKey, Subresource};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Index,
    Me,
    Release,
    Document,
    /// All resources of a kind, or those of one namespace.
    Collection {
        kind: Kind,
        /// `None` for all namespaces, and for kinds without namespaces.
        namespace: Option<String>,
    },
    Object(ObjectKey),
    Part(ObjectKey, Subresource),
    Explanation(ObjectKey),
    Dependents(ObjectKey),
}

pub(super) const EXPLAIN: &str = "explain";

pub(super) const DEPENDENTS: &str = "dependents";

/// Parts of a kind's resources that have a path.
pub(super) fn subresources_of(kind: Kind) -> &'static [Subresource] {
    use Subresource::{Binding, Complete, Retry, Shutdown, Status};
    match kind {
        Kind::Application => &[Status, Binding, Complete, Shutdown, Retry],
        Kind::Cluster | Kind::MagnumCluster => &[Status, Binding],
        Kind::Project | Kind::Cloud | Kind::GlobalCloud => &[Status],
        Kind::Role
        | Kind::RoleBinding
        | Kind::GlobalMetric
        | Kind::Metric
        | Kind::GlobalMetricsProvider
        | Kind::MetricsProvider
        | Kind::GlobalInfrastructureProvider
        | Kind::InfrastructureProvider => &[],
    }
}

/// The target of a path; `None` if there is none.
pub(super) fn find_target(path: &str) -> Option<Target> {
    let segments: Vec<String> =
        path.strip_prefix('/')?.split('/').map(decode_segment).collect::<Option<_>>()?;
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match segments.as_slice() {
        [""] => return Some(Target::Index),
        ["me"] => return Some(Target::Me),
        ["release"] => return Some(Target::Release),
        ["openapi.json"] => return Some(Target::Document),
        _ => {}
    }
    let (api, rest) = segments.split_first()?;
    let kind = |plural: &str, namespaced: bool| {
        Kind::ALL
            .iter()
            .copied()
            .find(|kind| kind.api().name() == *api && kind.plural() == plural)
            .filter(|kind| kind.namespaced() == namespaced)
    };
    let (kind, namespace, rest) = match rest {
        ["namespaces", namespace, plural, rest @ ..] if !namespace.is_empty() => {
            (kind(plural, true)?, Some((*namespace).to_owned()), rest)
        }
        // Without a namespace, a namespaced kind only has its list over all namespaces.
        [plural] => {
            let kind = kind(plural, true).or_else(|| kind(plural, false))?;
            return Some(Target::Collection { kind, namespace: None });
        }
        [plural, rest @ ..] => (kind(plural, false)?, None, rest),
        [] => return None,
    };
    let key = |name: &str| ObjectKey::new(kind, namespace.as_deref(), name);
    match rest {
        [] => Some(Target::Collection { kind, namespace }),
        [name] if !name.is_empty() => Some(Target::Object(key(name))),
        [name, EXPLAIN] if !name.is_empty() && kind == Kind::Application => {
            Some(Target::Explanation(key(name)))
        }
        [name, DEPENDENTS] if !name.is_empty() => Some(Target::Dependents(key(name))),
        [name, part] if !name.is_empty() => {
            let part = subresources_of(kind).iter().copied().find(|known| known.name() == *part)?;
            Some(Target::Part(key(name), part))
        }
        _ => None,
    }
}

impl Target {
    /// Allowed methods, in the order of Krake's `Allow`. HEAD is answered as GET without the body; OPTIONS answers
    /// preflight requests.
    pub(super) fn allowed_methods(&self) -> &'static [Method] {
        match self {
            Self::Index
            | Self::Me
            | Self::Release
            | Self::Document
            | Self::Explanation(_)
            | Self::Dependents(_) => &[Method::GET, Method::HEAD, Method::OPTIONS],
            Self::Collection { kind, namespace: None } if kind.namespaced() => {
                &[Method::GET, Method::HEAD, Method::OPTIONS]
            }
            Self::Collection { .. } => &[Method::GET, Method::HEAD, Method::OPTIONS, Method::POST],
            Self::Object(_) => &[Method::DELETE, Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT],
            Self::Part(..) => &[Method::OPTIONS, Method::PUT],
        }
    }
}

/// A percent-decoded segment; `None` if the encoding is invalid or not UTF-8.
pub(super) fn decode_segment(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
            let (high, low) = (digit()?, digit()?);
            plain.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            plain.push(byte);
        }
    }
    String::from_utf8(plain).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_paths() {
        for &kind in Kind::ALL {
            let (api, plural) = (kind.api().name(), kind.plural());
            let (base, namespace) = match kind.namespaced() {
                true => (format!("/{api}/namespaces/testing/{plural}"), Some("testing".to_owned())),
                false => (format!("/{api}/{plural}"), None),
            };
            assert_eq!(find_target(&base), Some(Target::Collection { kind, namespace }), "{base}");
            let key = ObjectKey::new(kind, Some("testing"), "one");
            assert_eq!(find_target(&format!("{base}/one")), Some(Target::Object(key.clone())));
            assert_eq!(find_target(&format!("{base}/one/dependents")), Some(Target::Dependents(key.clone())));
            for part in subresources_of(kind) {
                let path = format!("{base}/one/{}", part.name());
                assert_eq!(find_target(&path), Some(Target::Part(key.clone(), *part)), "{path}");
            }
            let all = Target::Collection { kind, namespace: None };
            assert_eq!(find_target(&format!("/{api}/{plural}")), Some(all));
        }
    }

    #[test]
    fn a_path_is_decoded_and_nothing_else_is_taken_for_one() {
        let key = ObjectKey::new(Kind::Application, Some("system:admin"), "a.b");
        for path in [
            "/kubernetes/namespaces/system:admin/applications/a.b",
            "/kubernetes/namespaces/system%3Aadmin/applications/a%2Eb",
        ] {
            assert_eq!(find_target(path), Some(Target::Object(key.clone())), "{path}");
        }
        for path in [
            "",
            "//",
            "/core",
            "/core/",
            "/core/roles/",
            "/core/roles/a/status",
            "/core/roles/a/",
            "/core/namespaces/n/roles",
            "/core/applications",
            "/kubernetes/applications/a",
            "/kubernetes/applications/",
            "/kubernetes/namespaces/n",
            "/kubernetes/namespaces//applications",
            "/kubernetes/namespaces/n/applications/a/status/b",
            "/kubernetes/namespaces/n/applications/a/logs",
            "/kubernetes/namespaces/n/clusters/a/retry",
            "/kubernetes/namespaces/n/applications/%",
            "/kubernetes/namespaces/n/applications/%ff",
            "/kubernetes/namespaces/n/applications/%+1",
        ] {
            assert_eq!(find_target(path), None, "{path}");
        }
    }

    #[test]
    fn http_methods_equal_those_of_krake() {
        for (path, methods) in [
            ("/", "GET HEAD OPTIONS"),
            ("/kubernetes/applications", "GET HEAD OPTIONS"),
            ("/kubernetes/namespaces/n/applications", "GET HEAD OPTIONS POST"),
            ("/core/roles", "GET HEAD OPTIONS POST"),
            ("/core/roles/r", "DELETE GET HEAD OPTIONS PUT"),
            ("/openstack/namespaces/n/magnumclusters/m/binding", "OPTIONS PUT"),
        ] {
            let allowed: Vec<_> =
                find_target(path).unwrap().allowed_methods().iter().map(Method::as_str).collect();
            assert_eq!(allowed.join(" "), methods, "{path}");
        }
    }
}
