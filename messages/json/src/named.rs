//! The macro that gives an enum methods and constants for the names that strum derives.

/// Adds to an enum with `strum::IntoStaticStr` the method `name`. `all` also adds the constant `ALL` from
/// `strum::VariantArray`, `array` the same as an array (of a `Copy` enum), and `names` the constant `NAMES` from
/// `strum::VariantNames`.
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
    (@array) => {
        /// Every value, in order of declaration.
        pub const ALL: [Self; <Self as strum::VariantArray>::VARIANTS.len()] =
            *<Self as strum::VariantArray>::VARIANTS.first_chunk().expect("its own length");
    };
    (@names) => {
        /// Every name, in order of declaration.
        pub const NAMES: &'static [&'static str] = <Self as strum::VariantNames>::VARIANTS;
    };
}
