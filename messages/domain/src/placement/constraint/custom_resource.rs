//! Constraints on custom resources: a cluster must have each named one.
//!
//! The name is that of the definition, `<plural>.<group>`. It is opaque: any text is allowed, and it is
//! compared as it is.

/// Whether a custom resource that an application needs is among those that a cluster has.
#[must_use]
pub fn has_custom_resource(custom_resources: &[String], needed: &str) -> bool {
    custom_resources.iter().any(|name| name == needed)
}
