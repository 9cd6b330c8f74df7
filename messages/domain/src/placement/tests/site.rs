//! Test support: the values of a JSON document, each with its schema.

use serde_json::Value;

use madako_json::krake::schema::{Access, FieldSchema, Schema, Shape};

#[derive(Debug, Clone)]
enum Step {
    Name(String),
    Index(usize),
}

#[derive(Debug, Clone)]
pub(super) struct Site {
    steps: Vec<Step>,
    /// The path as problems name it.
    pub(super) path: String,
    pub(super) shape: &'static Shape,
    /// True if a request must set the value.
    pub(super) required: bool,
    /// True if the service ignores the request's value.
    pub(super) ours: bool,
}

impl Site {
    /// The document and all values in it.
    pub(super) fn all(schema: &'static Schema, document: &Value) -> Vec<Self> {
        let mut sites = Vec::new();
        let root = Self {
            steps: Vec::new(),
            path: String::new(),
            shape: Box::leak(Box::new(Shape::Object(schema))),
            required: false,
            ours: false,
        };
        root.walk(document, &mut sites);
        sites
    }

    fn walk(self, value: &Value, sites: &mut Vec<Self>) {
        let shape = match self.shape {
            Shape::Nullable(_) if value.is_null() => return sites.push(self),
            Shape::Nullable(some) => some,
            shape => shape,
        };
        sites.push(self.clone());
        match (shape, value) {
            (Shape::Object(schema), Value::Object(fields)) => {
                for field in schema.fields {
                    if let Some(value) = fields.get(field.name) {
                        self.field(field).walk(value, sites);
                    }
                }
            }
            (Shape::Tagged(variants), Value::Object(fields)) => {
                for (name, shape) in *variants {
                    if let Some(value) = fields.get(*name) {
                        self.step(Step::Name((*name).to_owned()), &format!(".{name}"), shape)
                            .walk(value, sites);
                    }
                }
            }
            (Shape::Map(entry), Value::Object(entries)) => {
                for (name, value) in entries {
                    let shown = madako_json::krake::reader::shorten_name(name);
                    self.step(Step::Name(name.clone()), &format!("[{shown}]"), entry).walk(value, sites);
                }
            }
            (Shape::List(item), Value::Array(items)) => {
                for (index, value) in items.iter().enumerate() {
                    self.step(Step::Index(index), &format!("[{index}]"), item).walk(value, sites);
                }
            }
            _ => {}
        }
    }

    fn field(&self, field: &'static FieldSchema) -> Self {
        let mut site =
            self.step(Step::Name(field.name.to_owned()), &format!(".{}", field.name), &field.shape);
        site.ours |= field.access.is_ours();
        site.required = matches!(field.access, Access::Required | Access::Immutable);
        site
    }

    fn step(&self, step: Step, shown: &str, shape: &'static Shape) -> Self {
        let mut site = self.clone();
        site.steps.push(step);
        site.path += shown;
        site.path = site.path.strip_prefix('.').map_or(site.path.clone(), str::to_owned);
        site.shape = shape;
        site.required = false;
        site
    }

    /// True for an object with known fields.
    pub(super) fn has_fields(&self, document: &Value) -> bool {
        let shape = if let Shape::Nullable(some) = self.shape { some } else { self.shape };
        matches!(shape, Shape::Object(_)) && self.of(document).is_object()
    }

    pub(super) fn of<'a>(&self, document: &'a Value) -> &'a Value {
        self.steps.iter().fold(document, |value, step| match step {
            Step::Name(name) => &value[name],
            Step::Index(index) => &value[index],
        })
    }

    pub(super) fn in_mut<'a>(&self, document: &'a mut Value) -> &'a mut Value {
        self.steps.iter().fold(document, |value, step| match step {
            Step::Name(name) => &mut value[name],
            Step::Index(index) => &mut value[index],
        })
    }

    /// Removes the field from its object.
    pub(super) fn remove(&self, document: &mut Value) {
        let mut parent = self.clone();
        match parent.steps.pop() {
            Some(Step::Name(name)) => {
                parent.in_mut(document).as_object_mut().expect("fields are in objects").remove(&name);
            }
            _ => panic!("{} is not a field", self.path),
        }
    }
}
