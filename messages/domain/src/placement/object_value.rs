//! A placement resource of any kind, as one type.

use super::kind::{Kind, ObjectKey};
use super::metadata::Metadata;
use super::{core, infrastructure, kubernetes, openstack};
use madako_json::input::InputError;
use madako_json::krake::document::{self, RequestError, RequestedDocument};
use madako_json::krake::json;
use madako_json::krake::reader::Field;
use madako_json::krake::schema::Schema;
use serde::Serialize;

/// A type of resource.
pub trait Resource: Field + Serialize + Clone + PartialEq {
    /// The kind of all resources of this type.
    const KIND: Kind;

    /// The metadata that resources of every kind have.
    fn metadata(&self) -> &Metadata;

    /// The metadata for changes.
    fn metadata_mut(&mut self) -> &mut Metadata;

    /// The resource as a value of any kind.
    fn into_object(self) -> Object;

    /// The resource, if it is of this type.
    fn from_object(object: &Object) -> Option<&Self>;

    /// The resource for changes, if it is of this type.
    fn from_object_mut(object: &mut Object) -> Option<&mut Self>;

    /// The identity of the resource.
    fn key(&self) -> ObjectKey {
        let metadata = self.metadata();
        ObjectKey::new(Self::KIND, metadata.namespace.as_deref(), metadata.name.as_str())
    }
}

/// A resource whose status has a path of its own for writes.
pub trait WithStatus: Resource {
    /// The type of the status.
    type Status: Field + Serialize + Clone + PartialEq;

    /// The state that controllers observed; requests write it only as a subresource.
    fn status(&self) -> &Self::Status;

    /// The status for changes.
    fn status_mut(&mut self) -> &mut Self::Status;

    /// Reads the status from a request; see [`document::status_from_request`].
    ///
    /// # Errors
    /// The body is not JSON, or it has wrong fields, each of which the error names.
    fn status_from_request(text: &str) -> Result<RequestedDocument<Self::Status>, RequestError> {
        document::status_from_request(Self::KIND.name(), Self::KIND.schema(), text)
    }
}

macro_rules! with_status {
    ($($type:path: $status:path;)*) => {
        $(
            impl WithStatus for $type {
                type Status = $status;

                fn status(&self) -> &Self::Status {
                    &self.status
                }

                fn status_mut(&mut self) -> &mut Self::Status {
                    &mut self.status
                }
            }
        )*
    };
}

with_status! {
    infrastructure::GlobalCloud: infrastructure::CloudStatus;
    infrastructure::Cloud: infrastructure::CloudStatus;
    kubernetes::Application: kubernetes::ApplicationStatus;
    kubernetes::Cluster: kubernetes::ClusterStatus;
    openstack::Project: openstack::ProjectStatus;
    openstack::MagnumCluster: openstack::MagnumClusterStatus;
}

macro_rules! objects {
    ($($kind:ident = $module:ident;)*) => {
        /// A resource of any kind.
        #[derive(Debug, Clone, PartialEq)]
        #[expect(clippy::large_enum_variant, reason = "applications are the biggest, and most are applications")]
        pub enum Object {
            $(
                #[doc = concat!("See [`", stringify!($module), "::", stringify!($kind), "`].")]
                $kind($module::$kind),
            )*
        }

        impl Object {
            /// The kind of the resource.
            #[must_use]
            pub fn kind(&self) -> Kind {
                match self { $(Self::$kind(_) => Kind::$kind,)* }
            }

            /// The metadata that resources of every kind have.
            #[must_use]
            pub fn metadata(&self) -> &Metadata {
                match self { $(Self::$kind(value) => &value.metadata,)* }
            }

            /// The metadata for changes.
            #[must_use]
            pub fn metadata_mut(&mut self) -> &mut Metadata {
                match self { $(Self::$kind(value) => &mut value.metadata,)* }
            }

            /// Reads a stored resource leniently.
            ///
            /// # Errors
            /// The error names each field that has a wrong shape.
            pub fn from_stored(kind: Kind, text: &str) -> Result<Self, InputError> {
                match kind {
                    $(Kind::$kind => document::from_stored(kind.name(), text).map(Self::$kind),)*
                }
            }

            /// Reads a resource from a request strictly.
            ///
            /// # Errors
            /// The text is not JSON, or it has wrong fields, each of which the error names.
            pub fn from_request(kind: Kind, text: &str) -> Result<RequestedDocument<Self>, RequestError> {
                match kind {
                    $(Kind::$kind => {
                        let RequestedDocument { value, passed_over } = document::from_request(kind.name(), text)?;
                        Ok(RequestedDocument { value: Self::$kind(value), passed_over })
                    })*
                }
            }

            /// The JSON on one line, as Krake stores it.
            #[must_use]
            pub fn to_json(&self) -> String {
                match self { $(Self::$kind(value) => json::to_text(value),)* }
            }
        }

        impl Kind {
            /// The schema of the kind's resources.
            #[must_use]
            pub fn schema(self) -> &'static Schema {
                match self { $(Self::$kind => &$module::$kind::SCHEMA,)* }
            }
        }

        $(
            impl Resource for $module::$kind {
                const KIND: Kind = Kind::$kind;

                fn metadata(&self) -> &Metadata {
                    &self.metadata
                }

                fn metadata_mut(&mut self) -> &mut Metadata {
                    &mut self.metadata
                }

                fn into_object(self) -> Object {
                    Object::$kind(self)
                }

                fn from_object(object: &Object) -> Option<&Self> {
                    match object {
                        Object::$kind(value) => Some(value),
                        _ => None,
                    }
                }

                fn from_object_mut(object: &mut Object) -> Option<&mut Self> {
                    match object {
                        Object::$kind(value) => Some(value),
                        _ => None,
                    }
                }
            }
        )*
    };
}

objects! {
    Role = core;
    RoleBinding = core;
    GlobalMetric = core;
    Metric = core;
    GlobalMetricsProvider = core;
    MetricsProvider = core;
    GlobalInfrastructureProvider = infrastructure;
    InfrastructureProvider = infrastructure;
    GlobalCloud = infrastructure;
    Cloud = infrastructure;
    Application = kubernetes;
    Cluster = kubernetes;
    Project = openstack;
    MagnumCluster = openstack;
}

impl Object {
    /// The identity of the resource.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        let metadata = self.metadata();
        ObjectKey::new(self.kind(), metadata.namespace.as_deref(), metadata.name.as_str())
    }
}
