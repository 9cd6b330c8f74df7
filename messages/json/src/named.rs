//! The macro that gives an enum methods and constants for the names that strum derives.

/// Adds to an enum with `strum::IntoStaticStr` the method `name`. `all` also adds the constant `ALL` from
/// `strum::VariantArray`, and `names` the constant `NAMES` from `strum::VariantNames`.
#[macro_export]
macro_rules! named {
    ($($enum:ident $($list:ident)*),+) => {
        $(impl $enum {
            /// The name in JSON, metrics and messages.
            #[must_use]
            pub fn name(&self) -> &'static str {
                self.into()
            }

            $($crate::named!(@$list);)*
        })+
    };
    (@all) => {
        /// Every value, in order of declaration.
        pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;
    };
    (@names) => {
        /// Every name, in order of declaration.
        pub const NAMES: &'static [&'static str] = <Self as strum::VariantNames>::VARIANTS;
    };
}
