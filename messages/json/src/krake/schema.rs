//! What values may be, as plain data: for messages, and for whoever describes the API (OpenAPI).

mod pattern;

/// What a value may be.
#[derive(Debug)]
pub enum Shape {
    /// A text.
    Text,
    /// A text that is never shown in a message or a log.
    Secret,
    /// A constraint on labels.
    LabelConstraint,
    /// A constraint on metrics.
    MetricConstraint,
    /// `true` or `false`.
    Bool,
    /// A whole number of 64 bits. A request may bring it as a decimal string.
    Integer,
    /// A finite number. A request may bring it as a decimal string.
    Number,
    /// A point in time in ISO 8601.
    Time,
    /// One of some names.
    Choice(&'static [&'static str]),
    /// A list.
    List(&'static Shape),
    /// An object with names of its own.
    Map(&'static Shape),
    /// The value, or `null`.
    Nullable(&'static Shape),
    /// An object with known fields.
    Object(&'static Schema),
    /// An object with a field `type`, and a field with that name that has the content.
    Tagged(&'static [(&'static str, Shape)]),
    /// An object of somebody else's shape.
    FreeForm,
    /// An object of somebody else's shape that is never shown.
    SecretFreeForm,
    /// A text, or an object of somebody else's shape.
    TextOrFreeForm,
}

impl Shape {
    /// What a text has to match as a whole, as far as a regular expression can say it: that a number of a metric
    /// constraint is finite, it cannot.
    #[must_use]
    pub fn pattern(&self) -> Option<&'static str> {
        match self {
            Self::LabelConstraint => Some(pattern::LABEL_CONSTRAINT),
            Self::MetricConstraint => Some(pattern::METRIC_CONSTRAINT),
            _ => None,
        }
    }

    /// What is expected, for a message.
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
            Self::List(item) => format!("a list of {}", item.plural()),
            Self::Map(entry) => format!("an object of {}", entry.plural()),
            Self::Nullable(shape) => format!("{}, or null", shape.expected()),
            Self::Object(_) | Self::FreeForm | Self::SecretFreeForm => "an object".to_owned(),
            Self::Tagged(variants) => {
                let names: Vec<_> = variants.iter().map(|(name, _)| *name).collect();
                format!("an object whose \"type\" is one of {}", names.join(", "))
            }
            Self::TextOrFreeForm => "an object or a text".to_owned(),
        }
    }

    fn plural(&self) -> &'static str {
        match self {
            Self::Text | Self::Secret => "texts",
            Self::LabelConstraint | Self::MetricConstraint => "constraints",
            Self::Bool => "booleans",
            Self::Integer => "whole numbers",
            Self::Number => "numbers",
            Self::Time => "times",
            Self::Choice(_) => "names",
            Self::List(_) => "lists",
            Self::Nullable(shape) => shape.plural(),
            Self::Map(_)
            | Self::Object(_)
            | Self::Tagged(_)
            | Self::FreeForm
            | Self::SecretFreeForm
            | Self::TextOrFreeForm => "objects",
        }
    }
}

/// Who sets a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A request has to bring it.
    Required,
    /// A request has to bring it at creation; later it never changes.
    Immutable,
    /// A request may bring it.
    Optional,
    /// A request may bring it at creation; later it never changes.
    OptionalImmutable,
    /// The service sets it; what a request brings is passed over.
    Readonly,
    /// The same, and it may be absent.
    ReadonlyOptional,
    /// It has an address of its own; what a request for the whole object brings is passed over.
    Subresource,
}

impl Access {
    /// Whether what a request brings is passed over.
    #[must_use]
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Readonly | Self::ReadonlyOptional | Self::Subresource)
    }

    /// Whether it never changes after creation.
    #[must_use]
    pub fn is_immutable(self) -> bool {
        matches!(self, Self::Immutable | Self::OptionalImmutable)
    }
}

/// What a request's value has to follow beyond its shape, as far as a schema can say it. The patterns are regular
/// expressions for the whole text, in the part of the language that ECMA 262 and Rust have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// It is the name of a resource or a namespace.
    Name,
    /// Its keys and values are those of labels.
    Labels,
    /// It is 0 or more.
    NotNegative,
}

impl Rule {
    /// What texts have to match: the value, or the values of an object.
    #[must_use]
    pub fn pattern(self) -> Option<&'static str> {
        match self {
            Self::Name => Some(pattern::NAME),
            Self::Labels => Some(pattern::LABEL_VALUE),
            Self::NotNegative => None,
        }
    }

    /// What the names of an object's entries have to match.
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
    /// Its name.
    pub name: &'static str,
    /// Who sets it.
    pub access: Access,
    /// What it may be.
    pub shape: Shape,
    /// What else a request's value has to follow.
    pub rule: Option<Rule>,
}

/// An object with known fields.
#[derive(Debug)]
pub struct Schema {
    /// Name of the type.
    pub name: &'static str,
    /// Fields that can only have one value, such as `api` and `kind`, which come first.
    pub constants: &'static [(&'static str, &'static str)],
    /// The fields, in the order in which they are written.
    pub fields: &'static [FieldSchema],
    /// Names that the type does not have, but that Krake's own client sends in some commands: passed over.
    pub tolerated: &'static [&'static str],
}

impl Schema {
    /// Names of all fields, in the order in which they are written.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        let (constants, fields) = (self.constants, self.fields);
        constants.iter().map(|(name, _)| *name).chain(fields.iter().map(|field| field.name))
    }
}
