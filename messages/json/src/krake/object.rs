//! The macros that define an object with known fields, and everything its JSON form needs.

/// Defines a struct with its JSON form, its schema, and its update.
///
/// A field is `pub name: Type = access(default)`: the access is one of [`super::schema::Access`] in lower case,
/// with a default for what is absent (for what a request may not bring: what stands there meanwhile).
/// `as "name"` gives a name in JSON that differs, `check(rule)` a rule for what a request brings, with its
/// [`super::schema::Rule`] if there is one. Behind the
/// struct's name may stand `constants(...)`, `tolerated(...)`, `check(rule)` and `all_default`, in this order; the last
/// implements `Default`, and every field must have one.
#[macro_export]
macro_rules! object {
    (
        $(#[$meta:meta])*
        pub struct $name:ident
        $(constants($($constant:literal = $constant_value:literal),*))?
        $(tolerated($($tolerated:literal),*))?
        $(check($rule:path))?
        all_default
        {
            $(
                $(#[$field_meta:meta])*
                pub $field:ident $(as $json:literal)?: $type:ty = $access:ident ($default:expr)
                    $(, check($check:path $(, $rule_name:ident)?))?;
            )*
        }
    ) => {
        $crate::krake::object::object! {
            $(#[$meta])*
            pub struct $name
            $(constants($($constant = $constant_value),*))?
            $(tolerated($($tolerated),*))?
            $(check($rule))?
            {
                $(
                    $(#[$field_meta])*
                    pub $field $(as $json)?: $type = $access($default)
                        $(, check($check $(, $rule_name)?))?;
                )*
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* rest: $crate::krake::reader::Rest::default() }
            }
        }
    };

    (
        $(#[$meta:meta])*
        pub struct $name:ident
        $(constants($($constant:literal = $constant_value:literal),*))?
        $(tolerated($($tolerated:literal),*))?
        $(check($rule:path))?
        {
            $(
                $(#[$field_meta:meta])*
                pub $field:ident $(as $json:literal)?: $type:ty = $access:ident $(($default:expr))?
                    $(, check($check:path $(, $rule_name:ident)?))?;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
            /// Fields that this version does not know, kept as they are.
            pub rest: $crate::krake::reader::Rest,
        }

        impl $name {
            /// Its fields.
            pub const SCHEMA: $crate::krake::schema::Schema = $crate::krake::schema::Schema {
                name: stringify!($name),
                constants: &[$($(($constant, $constant_value)),*)?],
                fields: &[$($crate::krake::schema::FieldSchema {
                    name: $crate::krake::object::object!(@json $field $($json)?),
                    access: $crate::krake::object::object!(@access $access),
                    shape: <$type as $crate::krake::reader::Field>::SHAPE,
                    rule: $crate::krake::object::object!(@rule $($($rule_name)?)?),
                }),*],
                tolerated: &[$($($tolerated),*)?],
            };
        }

        impl $crate::krake::reader::Field for $name {
            const SHAPE: $crate::krake::schema::Shape =
                $crate::krake::schema::Shape::Object(&Self::SCHEMA);

            fn read(
                raw: &serde_json::value::RawValue,
                path: $crate::strict::walk::Path<'_>,
                reader: &mut $crate::krake::reader::Reader,
            ) -> Option<Self> {
                #[allow(unused_mut, reason = "some objects have no fields")]
                let mut members = reader.members(raw, path, &Self::SCHEMA)?;
                // Each field is read before any is missed: every wrong one is to be named.
                let constants: &[Option<()>] = &[
                    $($(reader.constant(&mut members, $constant, $constant_value, path)),*)?
                ];
                $(
                    let name = $crate::krake::object::object!(@json $field $($json)?);
                    let $field: Option<$type> = reader.field(
                        &mut members,
                        name,
                        $crate::krake::object::object!(@access $access),
                        $crate::krake::object::object!(@default $type $(, $default)?),
                        path,
                    );
                    $(
                        if let Some(value) = &$field {
                            reader.check(value, path.field(name), $check);
                        }
                    )?
                )*
                if constants.contains(&None) {
                    return None;
                }
                let value = Self { $($field: $field?,)* rest: members.rest() };
                $(reader.check(&value, path, $rule);)?
                Some(value)
            }

            fn update(
                &mut self,
                new: Self,
                path: $crate::strict::walk::Path<'_>,
                problems: &mut $crate::input::Problems,
            ) {
                $(
                    let access = $crate::krake::object::object!(@access $access);
                    let path_here = path.field($crate::krake::object::object!(@json $field $($json)?));
                    if access.is_immutable() {
                        if self.$field != new.$field {
                            $crate::krake::update::refuse(&self.$field, &new.$field, path_here, problems);
                        }
                    } else if !access.is_ours() {
                        $crate::krake::reader::Field::update(&mut self.$field, new.$field, path_here, problems);
                    }
                )*
                let _ = (path, problems);
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap as _;
                let mut map = serializer.serialize_map(None)?;
                $($(map.serialize_entry($constant, $constant_value)?;)*)?
                $(map.serialize_entry(
                    $crate::krake::object::object!(@json $field $($json)?),
                    &self.$field,
                )?;)*
                for (name, value) in self.rest.iter() {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            /// Reads leniently. Only `serde_json` can, since unknown fields are kept as text.
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::krake::document::deserialize(deserializer)
            }
        }
    };

    (@json $field:ident) => { stringify!($field) };
    (@json $field:ident $json:literal) => { $json };

    (@rule) => { None };
    (@rule $rule:ident) => { Some($crate::krake::schema::Rule::$rule) };

    (@access required) => { $crate::krake::schema::Access::Required };
    (@access immutable) => { $crate::krake::schema::Access::Immutable };
    (@access optional) => { $crate::krake::schema::Access::Optional };
    (@access optional_immutable) => { $crate::krake::schema::Access::OptionalImmutable };
    (@access readonly) => { $crate::krake::schema::Access::Readonly };
    (@access readonly_optional) => { $crate::krake::schema::Access::ReadonlyOptional };
    (@access subresource) => { $crate::krake::schema::Access::Subresource };

    (@default $type:ty) => { None::<fn() -> $type> };
    (@default $type:ty, $default:expr) => {
        // Not a `|| ...` alone, whose type would differ from field to field.
        Some((|| $default) as fn() -> $type)
    };
}
pub use object;
