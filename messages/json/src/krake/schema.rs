//! The valid values of fields as plain data, for messages and for the description of the API (OpenAPI).

mod pattern;

/// The valid values of a field.
#[derive(Debug)]
pub enum Shape {
    /// A string.
    Text,
    /// A string that messages and logs never show.
    Secret,
    /// A label constraint, as a string.
    LabelConstraint,
    /// A metric constraint, as a string.
    MetricConstraint,
    /// `true` or `false`.
    Bool,
    /// A 64-bit integer. A request may send it as a decimal string.
    Integer,
    /// A finite number. A request may send it as a decimal string.
    Number,
    /// A point in time in ISO 8601.
    Time,
    /// A string out of a list of names.
    Choice(&'static [&'static str]),
    /// A list of values of one shape.
    List(&'static Shape),
    /// An object with free names and values of one shape.
    Map(&'static Shape),
    /// The value, or `null`.
    Nullable(&'static Shape),
    /// An object with known fields.
    Object(&'static Schema),
    /// An object with a field `type`, whose value names the field that has the content.
    Tagged(&'static [(&'static str, Shape)]),
    /// An object with a foreign schema.
    FreeForm,
    /// An object with a foreign schema that messages and logs never show.
    SecretFreeForm,
    /// A string, or an object with a foreign schema.
    TextOrFreeForm,
}

impl Shape {
    /// The regular expression that the whole text must match. It cannot express that the number of a metric
    /// constraint is finite.
    #[must_use]
    pub fn pattern(&self) -> Option<&'static str> {
        match self {
            Self::LabelConstraint => Some(pattern::LABEL_CONSTRAINT),
            Self::MetricConstraint => Some(pattern::METRIC_CONSTRAINT),
            _ => None,
        }
    }

    /// The expected value in words, for a message.
    #[must_use]
    pub fn expected(&self) -> String {
        match self {
            Self::Text | Self::Secret => "a text".to_owned(),
            Self::LabelConstraint => "a label constraint such as \"location is DE\"".to_owned(),
            Self::MetricConstraint => "a metric constraint such as \"load lesser than 5\"".to_owned(),
            Self::Bool => "true or false".to_owned(),
            Self::Integer => "a whole number of at most 64 bits".to_owned(),
            Self::Number => "a finite number".to_owned(),
            Self::Time => "a time such as 2026-01-31T12:00:00.000000+00:00".to_owned(),
            Self::Choice(names) => format!("one of {}", names.join(", ")),
            Self::List(item) => format!("a list of {}", item.plural_name()),
            Self::Map(entry) => format!("an object of {}", entry.plural_name()),
            Self::Nullable(shape) => format!("{}, or null", shape.expected()),
            Self::Object(_) | Self::FreeForm | Self::SecretFreeForm => "an object".to_owned(),
            Self::Tagged(variants) => {
                let names: Vec<_> = variants.iter().map(|(name, _)| *name).collect();
                format!("an object whose \"type\" is one of {}", names.join(", "))
            }
            Self::TextOrFreeForm => "an object or a text".to_owned(),
        }
    }

    fn plural_name(&self) -> &'static str {
        match self {
            Self::Text | Self::Secret => "texts",
            Self::LabelConstraint | Self::MetricConstraint => "constraints",
            Self::Bool => "booleans",
            Self::Integer => "whole numbers",
            Self::Number => "numbers",
            Self::Time => "times",
            Self::Choice(_) => "names",
            Self::List(_) => "lists",
            Self::Nullable(shape) => shape.plural_name(),
            Self::Map(_)
            | Self::Object(_)
            | Self::Tagged(_)
            | Self::FreeForm
            | Self::SecretFreeForm
            | Self::TextOrFreeForm => "objects",
        }
    }
}

/// The requests that may set a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A request must set it.
    Required,
    /// A request must set it at creation; later updates cannot change it.
    Immutable,
    /// A request may set it.
    Optional,
    /// A request may set it at creation; later updates cannot change it.
    OptionalImmutable,
    /// The service sets it; the value of a request is ignored.
    Readonly,
    /// The service sets it, and it may be absent; the value of a request is ignored.
    ReadonlyOptional,
    /// It has an address of its own; the value of a request for the whole object is ignored.
    Subresource,
}

impl Access {
    /// True if the value of a request is ignored.
    #[must_use]
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Readonly | Self::ReadonlyOptional | Self::Subresource)
    }

    /// True if updates cannot change the field.
    #[must_use]
    pub fn is_immutable(self) -> bool {
        matches!(self, Self::Immutable | Self::OptionalImmutable)
    }
}

/// A rule for the values of requests beyond their shape, if a schema can express it. The patterns are regular
/// expressions for the whole text, in the subset of syntax that ECMA 262 and Rust share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The value is a valid name of a resource or a namespace.
    Name,
    /// The keys and values are valid labels.
    Labels,
    /// The value is 0 or more.
    NotNegative,
}

impl Rule {
    /// The pattern for the value, or for the values of an object.
    #[must_use]
    pub fn pattern(self) -> Option<&'static str> {
        match self {
            Self::Name => Some(pattern::NAME),
            Self::Labels => Some(pattern::LABEL_VALUE),
            Self::NotNegative => None,
        }
    }

    /// The pattern for the names of an object's entries.
    #[must_use]
    pub fn key_pattern(self) -> Option<&'static str> {
        match self {
            Self::Labels => Some(pattern::LABEL_KEY),
            Self::Name | Self::NotNegative => None,
        }
    }
}

/// A field of an object.
#[derive(Debug)]
pub struct FieldSchema {
    /// Name of the field in JSON.
    pub name: &'static str,
    /// The requests that may set it.
    pub access: Access,
    /// Form of the values that the field takes.
    pub shape: Shape,
    /// A further rule for values of requests.
    pub rule: Option<Rule>,
}

/// An object with known fields.
#[derive(Debug)]
pub struct Schema {
    /// The name of the type.
    pub name: &'static str,
    /// Fields with only one valid value, such as `api` and `kind`. They are written first.
    pub constants: &'static [(&'static str, &'static str)],
    /// The fields, in the order of the written JSON.
    pub fields: &'static [FieldSchema],
    /// Names of unknown fields that some commands of Krake's own client send. The reader ignores them.
    pub tolerated: &'static [&'static str],
}

impl Schema {
    /// The names of all fields, constants first, in the order of the written JSON.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        let (constants, fields) = (self.constants, self.fields);
        constants.iter().map(|(name, _)| *name).chain(fields.iter().map(|field| field.name))
    }
}
