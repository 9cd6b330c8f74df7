//! The macro that defines a struct with known fields and its JSON form in Krake's API.

/// Defines a struct with its JSON form, its schema and its update.
///
/// A field is `pub name: Type = access(default)`. The access is a variant of [`super::schema::Access`] in lower case;
/// the default is the value of an absent field, or the placeholder of a field that a request cannot set. `as "name"`
/// gives a different JSON name. `check(rule)` is a rule for values of requests, with its [`super::schema::Rule`] if
/// there is one. The struct's name may be followed by `constants(...)`, `tolerated(...)`, `check(rule)` and
/// `all_default`, in this order; `all_default` implements `Default` and requires a default for every field.
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
                Self { $($field: $default,)* rest: $crate::krake::reader::UnreadFields::default() }
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
            /// Unknown fields, kept as their original text.
            pub rest: $crate::krake::reader::UnreadFields,
        }

        impl $name {
            /// The schema of this object.
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
                let mut members = reader.read_members(raw, path, &Self::SCHEMA)?;
                // Read each field before failing, so that the error names every wrong one.
                let constants: &[Option<()>] = &[
                    $($(reader.read_constant(&mut members, $constant, $constant_value, path)),*)?
                ];
                $(
                    let name = $crate::krake::object::object!(@json $field $($json)?);
                    let $field: Option<$type> = reader.read_field(
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
                let value = Self { $($field: $field?,)* rest: members.into_unread_fields() };
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
                            $crate::krake::update::refuse_change(&self.$field, &new.$field, path_here, problems);
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
            /// Reads leniently. Works only with `serde_json`, because unknown fields are kept as text.
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
        // The cast to `fn` makes the type the same for each field; the type of a bare closure differs.
        Some((|| $default) as fn() -> $type)
    };
}
pub use object;
