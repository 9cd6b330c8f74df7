//! Constraints on custom resources: a cluster must have each named one.
//!
//! The name is that of the definition, `<plural>.<group>`. It is opaque: any text is valid, and names are compared
//! byte by byte.

/// True if a cluster has the custom resource that an application needs.
#[must_use]
pub fn has_custom_resource(custom_resources: &[String], needed: &str) -> bool {
    custom_resources.iter().any(|name| name == needed)
}
