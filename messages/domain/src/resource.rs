//! The user-defined resources that are applied to Kubernetes (CKE's `resource/KIND[/NAMESPACE]/NAME`, its
//! `docs/user-resources.md`): their keys, and the order in which they are applied.
//!
//! Does not: know the kinds of the API server. A kind without a namespace in its key counts as cluster-wide, as in CKE.

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

use crate::keys;
use crate::limits::{MAX_KIND, MAX_NAMESPACE, MAX_OBJECT_NAME};

/// The annotation with the revision of the applied definition.
pub const ANNOTATION_REVISION: &str = "cke.cybozu.com/revision";
/// The annotation with the images of a static resource, separated by commas.
pub const ANNOTATION_IMAGE: &str = "cke.cybozu.com/image";
/// The annotation that asks for the certificate of the webhooks' authority in each `clientConfig`.
pub const ANNOTATION_INJECT_CA: &str = "cke.cybozu.com/inject-cacert";
/// The annotation with the name of the service for which a Secret gets a certificate.
pub const ANNOTATION_ISSUE_CERT: &str = "cke.cybozu.com/issue-cert";

/// The name of a resource among all resources: its key below `resource/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResourceKey {
    /// Kind in Kubernetes, such as `ConfigMap`.
    pub kind: String,
    /// Namespace; `None` for a cluster-wide resource.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.kind)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

/// The reason why a text or a manifest names no resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: expected {expected}")]
pub struct InvalidResource {
    /// The field of the manifest, or the part of the key.
    pub field: &'static str,
    /// The expected form, as the end of a sentence.
    pub expected: &'static str,
}

const KIND: &str = "a kind, such as ConfigMap";
const NAMESPACE: &str = "a namespace: 1 to 63 lower-case letters, digits or -";
const NAME: &str = "a name of 1 to 253 characters without /, % and white space";

impl ResourceKey {
    /// Parses `KIND[/NAMESPACE]/NAME`.
    ///
    /// # Errors
    /// The first wrong part.
    pub fn parse(text: &str) -> Result<Self, InvalidResource> {
        let parts: Vec<&str> = text.split('/').collect();
        match parts[..] {
            [kind, name] => Self::new(["kind", "namespace", "name"], kind, None, name),
            [kind, namespace, name] => Self::new(["kind", "namespace", "name"], kind, Some(namespace), name),
            _ => Err(InvalidResource { field: "key", expected: "KIND/NAME or KIND/NAMESPACE/NAME" }),
        }
    }

    /// Reads the name of the resource that a manifest defines.
    ///
    /// # Errors
    /// The first missing or wrong field. The error shows no value: a manifest may be a Secret.
    pub fn of_manifest(manifest: &Value) -> Result<Self, InvalidResource> {
        if !manifest.is_object() {
            return Err(InvalidResource {
                field: "document",
                expected: "an object with apiVersion, kind and metadata",
            });
        }
        let text = |value: &Value| value.as_str().map(str::to_owned).filter(|text| !text.is_empty());
        if text(&manifest["apiVersion"]).is_none() {
            return Err(InvalidResource {
                field: "apiVersion",
                expected: "a version, such as v1 or apps/v1",
            });
        }
        let metadata = &manifest["metadata"];
        let kind = text(&manifest["kind"]).unwrap_or_default();
        let name = text(&metadata["name"]).unwrap_or_default();
        let namespace = match &metadata["namespace"] {
            Value::Null => None,
            Value::String(namespace) if namespace.is_empty() => None,
            Value::String(namespace) => Some(namespace.as_str()),
            _ => return Err(InvalidResource { field: "metadata.namespace", expected: NAMESPACE }),
        };
        Self::new(["kind", "metadata.namespace", "metadata.name"], &kind, namespace, &name)
    }

    fn new(
        [of_kind, of_namespace, of_name]: [&'static str; 3],
        kind: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Self, InvalidResource> {
        let is_kind = (1..=MAX_KIND).contains(&kind.len()) && kind.bytes().all(|c| c.is_ascii_alphanumeric());
        if !is_kind {
            return Err(InvalidResource { field: of_kind, expected: KIND });
        }
        let is_label = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let is_namespace =
            |text: &str| (1..=MAX_NAMESPACE).contains(&text.len()) && text.bytes().all(is_label);
        if namespace.is_some_and(|namespace| !is_namespace(namespace)) {
            return Err(InvalidResource { field: of_namespace, expected: NAMESPACE });
        }
        let is_path = |c: char| !c.is_whitespace() && !c.is_control() && c != '/' && c != '%';
        let is_name = (1..=MAX_OBJECT_NAME).contains(&name.len())
            && name.chars().all(is_path)
            && !matches!(name, "." | "..");
        if !is_name {
            return Err(InvalidResource { field: of_name, expected: NAME });
        }
        Ok(Self { kind: kind.to_owned(), namespace: namespace.map(str::to_owned), name: name.to_owned() })
    }

    /// The key of the resource in the store.
    #[must_use]
    pub fn stored(&self) -> String {
        format!("{}{self}", keys::RESOURCES)
    }

    /// The place of the kind in the order of application (CKE's numbers): a resource may need those of lower ranks.
    #[must_use]
    pub fn rank(&self) -> u16 {
        match &*self.kind {
            "Namespace" => 10,
            "ServiceAccount" => 20,
            "CustomResourceDefinition" => 30,
            "ClusterRole" => 40,
            "ClusterRoleBinding" => 50,
            "Role" => 2000,
            "RoleBinding" => 2010,
            "NetworkPolicy" => 2020,
            "Secret" => 2030,
            "ConfigMap" => 2040,
            _ if self.namespace.is_none() => 1000,
            _ => 3000,
        }
    }
}

impl Ord for ResourceKey {
    /// The order of application: by rank, then by key.
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank()).then_with(|| self.to_string().cmp(&other.to_string()))
    }
}

impl PartialOrd for ResourceKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resources_are_ordered_by_rank_and_then_by_key() {
        let sorted = [
            "Namespace/b",
            "ServiceAccount/b/a",
            "CustomResourceDefinition/a.example.com",
            "ClusterRole/z",
            "ClusterRoleBinding/a",
            "PriorityClass/a",
            "Role/a/a",
            "RoleBinding/a/a",
            "NetworkPolicy/a/a",
            "Secret/a/a",
            "ConfigMap/a/b",
            "ConfigMap/b/a",
            "Deployment/a/a",
            "Service/a/a",
        ];
        let mut keys: Vec<ResourceKey> =
            sorted.iter().rev().map(|key| ResourceKey::parse(key).unwrap()).collect();
        keys.sort();
        assert_eq!(keys.iter().map(ToString::to_string).collect::<Vec<_>>(), sorted);
    }

    #[test]
    fn manifest_names_its_resource() {
        let manifest = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "namespace": "b"}});
        let key = ResourceKey::of_manifest(&manifest).unwrap();
        assert_eq!(
            (key.to_string(), key.stored()),
            ("Deployment/b/a".into(), "resource/Deployment/b/a".into())
        );
        assert_eq!(ResourceKey::parse("Deployment/b/a").unwrap(), key);
        let wide = json!({"apiVersion": "v1", "kind": "ClusterRole", "metadata": {"name": "system:a", "namespace": ""}});
        assert_eq!(ResourceKey::of_manifest(&wide).unwrap().to_string(), "ClusterRole/system:a");
    }

    #[test]
    fn wrong_field_is_named() {
        let with = |field: &str, value: Value| {
            let mut manifest =
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "b"}});
            *manifest.pointer_mut(field).unwrap() = value;
            ResourceKey::of_manifest(&manifest).map_err(|wrong| wrong.field)
        };
        for (field, value, named) in [
            ("/apiVersion", json!(1), "apiVersion"),
            ("/apiVersion", json!(""), "apiVersion"),
            ("/kind", json!(null), "kind"),
            ("/kind", json!("a/b"), "kind"),
            ("/metadata/name", json!(5), "metadata.name"),
            ("/metadata/name", json!("a/b"), "metadata.name"),
            ("/metadata/name", json!(".."), "metadata.name"),
            ("/metadata/name", json!("a".repeat(254)), "metadata.name"),
            ("/metadata/namespace", json!(["b"]), "metadata.namespace"),
            ("/metadata/namespace", json!("B"), "metadata.namespace"),
            ("", json!([]), "document"),
        ] {
            assert_eq!(with(field, value.clone()), Err(named), "{field}: {value}");
        }
        for text in ["Secret", "Secret/a/b/c", "Secret//b", "/a/b", "Secret/a/"] {
            assert!(ResourceKey::parse(text).is_err(), "{text}");
        }
    }
}
