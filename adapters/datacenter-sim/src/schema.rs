//! The part of sabakan's GraphQL schema (its `gql/graph/schema.graphqls`) that clients use, run over the simulated data center:
//! `machine`, `searchMachines` and `setMachineState`, with aliases, fragments and variables.
//!
//! Does not: introspection and directives; both are refused as invalid.

use async_graphql_parser::types::{
    ExecutableDocument, Field, OperationDefinition, OperationType, Selection, SelectionSet, Type,
};
use async_graphql_parser::{Pos, Positioned};
use async_graphql_value::{ConstValue, Name};
use madako_domain::machine::{self as domain, MachineState};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::addressing::Nic;
use crate::datacenter::Record;
use crate::filter::matches_search;
use crate::service::SimulatedRegistry;
use crate::variables::{VariableError, coerce_value};

/// Deepest nesting of selections and fragments. sabakan's machines have five levels; a cycle of fragments has no end.
const MAX_DEPTH: u32 = 16;

/// Fields by name. A field has a type here if it is an object or a list of objects.
struct ObjectType {
    name: &'static str,
    fields: &'static [(&'static str, Option<&'static ObjectType>)],
}

static MACHINE: ObjectType = ObjectType {
    name: "Machine",
    fields: &[("spec", Some(&SPEC)), ("status", Some(&STATUS)), ("info", Some(&INFO))],
};
static SPEC: ObjectType = ObjectType {
    name: "MachineSpec",
    fields: &[
        ("serial", None),
        ("labels", Some(&LABEL)),
        ("rack", None),
        ("indexInRack", None),
        ("role", None),
        ("ipv4", None),
        ("registerDate", None),
        ("retireDate", None),
        ("bmc", Some(&BMC)),
    ],
};
static LABEL: ObjectType = ObjectType { name: "Label", fields: &[("name", None), ("value", None)] };
static BMC: ObjectType = ObjectType { name: "BMC", fields: &[("bmcType", None), ("ipv4", None)] };
static STATUS: ObjectType =
    ObjectType { name: "MachineStatus", fields: &[("state", None), ("timestamp", None), ("duration", None)] };
static INFO: ObjectType =
    ObjectType { name: "MachineInfo", fields: &[("network", Some(&NETWORK)), ("bmc", Some(&BMC_INFO))] };
static NETWORK: ObjectType = ObjectType { name: "NetworkInfo", fields: &[("ipv4", Some(&NIC))] };
static BMC_INFO: ObjectType = ObjectType { name: "BMCInfo", fields: &[("ipv4", Some(&NIC))] };
static NIC: ObjectType = ObjectType {
    name: "NICConfig",
    fields: &[("address", None), ("netmask", None), ("maskbits", None), ("gateway", None)],
};

struct FieldEntry {
    name: &'static str,
    arguments: &'static [(&'static str, &'static str)],
    answer: &'static ObjectType,
}

static QUERY: [FieldEntry; 2] = [
    FieldEntry { name: "machine", arguments: &[("serial", "ID!")], answer: &MACHINE },
    FieldEntry {
        name: "searchMachines",
        arguments: &[("having", "MachineParams"), ("notHaving", "MachineParams")],
        answer: &MACHINE,
    },
];
static MUTATION: [FieldEntry; 1] = [FieldEntry {
    name: "setMachineState",
    arguments: &[("serial", "ID!"), ("state", "MachineState!")],
    answer: &STATUS,
}];

#[derive(Debug)]
pub(crate) enum Failure {
    /// Validation failed; no field ran.
    Invalid {
        message: String,
        at: Option<Pos>,
        path: Vec<Value>,
    },
    Field {
        message: String,
        at: Pos,
        key: String,
        extensions: Option<Value>,
    },
}

impl Failure {
    fn invalid_query(message: String, at: Pos) -> Self {
        Self::Invalid { message, at: Some(at), path: Vec::new() }
    }
}

impl From<VariableError> for Failure {
    fn from(mistake: VariableError) -> Self {
        Self::Invalid { message: mistake.message, at: None, path: mistake.path }
    }
}

/// Runs one operation of a document with variables from [`crate::variables::coerce_variables`]. The members of the answer have
/// the order of the selection.
pub(crate) fn execute(
    registry: &SimulatedRegistry,
    document: &ExecutableDocument,
    operation: &OperationDefinition,
    variables: &Map<String, Value>,
) -> Result<ConstValue, Failure> {
    let run = QueryRun { registry, document, operation, variables };
    let (root, entries) = match operation.ty {
        OperationType::Mutation => ("Mutation", &MUTATION[..]),
        _ => ("Query", &QUERY[..]),
    };
    // Validate the whole operation before any field runs.
    let mut calls = Vec::new();
    run.visit_fields(&operation.selection_set, root, 0, &mut |field| {
        if field.node.name.node == "__typename" {
            calls.push((field, None));
            return Ok(());
        }
        let entry = entries.iter().find(|entry| entry.name == field.node.name.node.as_str());
        let entry = entry.ok_or_else(|| unknown_field(field, root))?;
        let arguments = run.read_arguments(field, entry)?;
        run.check(field, Some(entry.answer), 1)?;
        calls.push((field, Some((entry, arguments))));
        Ok(())
    })?;
    let mut answer = ConstValue::Object(Default::default());
    for (field, call) in calls {
        let value = match call {
            None => ConstValue::String(root.to_owned()),
            Some((entry, arguments)) => {
                let selected = |value| run.select(&field.node.selection_set, entry.answer, value);
                run.call(entry, field, arguments)?.map_each(selected)?
            }
        };
        insert_field(&mut answer, &field.node, value);
    }
    Ok(answer)
}

enum CallSource {
    One(ConstValue),
    Many(Vec<ConstValue>),
}

impl CallSource {
    fn map_each(
        self,
        mut map: impl FnMut(ConstValue) -> Result<ConstValue, Failure>,
    ) -> Result<ConstValue, Failure> {
        match self {
            Self::One(value) => map(value),
            Self::Many(values) => values.into_iter().map(map).collect::<Result<_, _>>().map(ConstValue::List),
        }
    }
}

struct QueryRun<'a> {
    registry: &'a SimulatedRegistry,
    document: &'a ExecutableDocument,
    operation: &'a OperationDefinition,
    variables: &'a Map<String, Value>,
}

impl<'a> QueryRun<'a> {
    /// Calls `each` for every field of a selection on type `name`, fragments included, in document order.
    fn visit_fields(
        &self,
        selection: &'a Positioned<SelectionSet>,
        name: &str,
        depth: u32,
        each: &mut dyn FnMut(&'a Positioned<Field>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if depth > MAX_DEPTH {
            return Err(Failure::invalid_query(
                format!("the query selects fields at more than {MAX_DEPTH} levels"),
                selection.pos,
            ));
        }
        for item in &selection.node.items {
            if let Some(directive) = item.node.directives().first() {
                let message = format!("Unknown directive \"@{}\".", directive.node.name.node);
                return Err(Failure::invalid_query(message, directive.pos));
            }
            let (condition, fragment) = match &item.node {
                Selection::Field(field) => {
                    each(field)?;
                    continue;
                }
                Selection::InlineFragment(fragment) => {
                    (fragment.node.type_condition.as_ref(), &fragment.node.selection_set)
                }
                Selection::FragmentSpread(spread) => {
                    let called = &spread.node.fragment_name.node;
                    let found = self.document.fragments.get(called).ok_or_else(|| {
                        Failure::invalid_query(format!("Unknown fragment \"{called}\"."), item.pos)
                    })?;
                    (Some(&found.node.type_condition), &found.node.selection_set)
                }
            };
            if let Some(condition) = condition.filter(|condition| condition.node.on.node != name) {
                let message = format!(
                    "Fragment cannot be spread here as objects of type \"{name}\" can never be of type \"{}\".",
                    condition.node.on.node
                );
                return Err(Failure::invalid_query(message, condition.pos));
            }
            self.visit_fields(fragment, name, depth + 1, each)?;
        }
        Ok(())
    }

    /// Validates a field's selection against its type; `None` is a scalar.
    fn check(
        &self,
        field: &'a Positioned<Field>,
        answer: Option<&'static ObjectType>,
        depth: u32,
    ) -> Result<(), Failure> {
        let selection = &field.node.selection_set;
        let name = &field.node.name.node;
        let Some(object) = answer else {
            return if selection.node.items.is_empty() {
                Ok(())
            } else {
                Err(Failure::invalid_query(format!("Field \"{name}\" must not have a selection."), field.pos))
            };
        };
        if selection.node.items.is_empty() {
            let message =
                format!("Field \"{name}\" of type \"{}\" must have a selection of subfields.", object.name);
            return Err(Failure::invalid_query(message, field.pos));
        }
        self.visit_fields(selection, object.name, depth, &mut |field| {
            if field.node.name.node == "__typename" {
                return self.check(field, None, depth + 1);
            }
            if let Some((argument, _)) = field.node.arguments.first() {
                let message = format!("Unknown argument \"{}\".", argument.node);
                return Err(Failure::invalid_query(message, argument.pos));
            }
            let known = object.fields.iter().find(|(known, _)| *known == field.node.name.node.as_str());
            let (_, kind) = known.ok_or_else(|| unknown_field(field, object.name))?;
            self.check(field, *kind, depth + 1)
        })
    }

    /// Arguments of a root field as JSON, coerced to their declared types.
    fn read_arguments(
        &self,
        field: &Positioned<Field>,
        entry: &FieldEntry,
    ) -> Result<Map<String, Value>, Failure> {
        let mut given = Map::new();
        for (name, value) in &field.node.arguments {
            let Some((_, kind)) = entry.arguments.iter().find(|(known, _)| *known == name.node.as_str())
            else {
                return Err(Failure::invalid_query(format!("Unknown argument \"{}\".", name.node), name.pos));
            };
            if let async_graphql_value::Value::Variable(variable) = &value.node
                && !self.variables.contains_key(variable.as_str())
                && self.is_defined(variable)
            {
                continue;
            }
            let value = value.node.clone().into_const_with(|variable| {
                if !self.is_defined(&variable) {
                    let message = format!("Variable \"${variable}\" is not defined.");
                    return Err(Failure::invalid_query(message, name.pos));
                }
                let value = self.variables.get(variable.as_str()).cloned().unwrap_or_default();
                ConstValue::from_json(value)
                    .map_err(|error| Failure::invalid_query(error.to_string(), name.pos))
            })?;
            let mut value =
                value.into_json().map_err(|error| Failure::invalid_query(error.to_string(), name.pos))?;
            let kind = Type::new(kind).expect("the table above holds well-formed types");
            coerce_value(&kind, &mut value, &mut vec![json!("argument"), json!(name.node.as_str())])?;
            given.insert(name.node.to_string(), value);
        }
        let missing =
            entry.arguments.iter().find(|(name, kind)| kind.ends_with('!') && !given.contains_key(*name));
        match missing {
            Some((name, kind)) => Err(Failure::invalid_query(
                format!("Field \"{}\" argument \"{name}\" of type \"{kind}\" is required.", entry.name),
                field.pos,
            )),
            None => Ok(given),
        }
    }

    fn is_defined(&self, variable: &Name) -> bool {
        self.operation.variable_definitions.iter().any(|definition| definition.node.name.node == *variable)
    }

    fn call(
        &self,
        entry: &FieldEntry,
        field: &Positioned<Field>,
        mut arguments: Map<String, Value>,
    ) -> Result<CallSource, Failure> {
        let failed = |message: String, extensions| Failure::Field {
            message,
            at: field.pos,
            key: field.node.response_key().node.to_string(),
            extensions,
        };
        let not_found = || failed("not found".to_owned(), None);
        let text = |arguments: &Map<String, Value>, name: &str| {
            arguments.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        if entry.name == "searchMachines" {
            let mut params = |name: &str| {
                let value = arguments.remove(name).unwrap_or_default();
                serde_json::from_value::<Option<domain::MachineParams>>(value)
                    .map_err(|error| failed(error.to_string(), None))
            };
            let variables =
                domain::QueryVariables { having: params("having")?, not_having: params("notHaving")? };
            self.registry.note_search(&variables);
            let (records, now) = self.registry.list_records();
            let chosen = records.into_iter().filter(|record| {
                matches_search(&record.machine, variables.having.as_ref(), variables.not_having.as_ref(), now)
            });
            return Ok(CallSource::Many(chosen.map(machine_value).collect()));
        }
        let serial = text(&arguments, "serial");
        if entry.name == "setMachineState" {
            let name = text(&arguments, "state");
            let state = MachineState::ALL.iter().copied().find(|state| state.name() == name);
            let state = state.ok_or_else(|| failed(format!("{name} is not a valid MachineState"), None))?;
            self.registry.set_state(&serial, state).map_err(|error| {
                let extensions = json!({"serial": serial, "type": error.error_code()});
                failed(error.to_string(), Some(extensions))
            })?;
            let record = self.registry.record(&serial).ok_or_else(not_found)?;
            return Ok(CallSource::One(status_value(&record)));
        }
        self.registry
            .record(&serial)
            .map(|record| CallSource::One(machine_value(record)))
            .ok_or_else(not_found)
    }

    /// Selected fields of a value. [`Self::check`] has validated the selection.
    fn select(
        &self,
        selection: &'a Positioned<SelectionSet>,
        object: &'static ObjectType,
        value: ConstValue,
    ) -> Result<ConstValue, Failure> {
        let members = match value {
            ConstValue::List(items) => {
                let selected = items.into_iter().map(|item| self.select(selection, object, item));
                return selected.collect::<Result<_, _>>().map(ConstValue::List);
            }
            ConstValue::Object(members) => members,
            other => return Ok(other),
        };
        let mut selected = ConstValue::Object(Default::default());
        self.visit_fields(selection, object.name, 0, &mut |field| {
            let name = field.node.name.node.as_str();
            let kind = object.fields.iter().find(|(known, _)| *known == name).and_then(|(_, kind)| *kind);
            let value = match members.get(name) {
                None => ConstValue::String(object.name.to_owned()),
                Some(value) => match kind {
                    Some(kind) => self.select(&field.node.selection_set, kind, value.clone())?,
                    None => value.clone(),
                },
            };
            insert_field(&mut selected, &field.node, value);
            Ok(())
        })?;
        Ok(selected)
    }
}

fn unknown_field(field: &Positioned<Field>, object: &str) -> Failure {
    let message = format!("Cannot query field \"{}\" on type \"{object}\".", field.node.name.node);
    Failure::invalid_query(message, field.pos)
}

/// Adds a field to an answer. If a response key is selected twice, the two selections are merged.
fn insert_field(answer: &mut ConstValue, field: &Field, value: ConstValue) {
    let ConstValue::Object(members) = answer else { return };
    merge(members.entry(field.response_key().node.clone()).or_insert(ConstValue::Null), value);
}

fn merge(into: &mut ConstValue, value: ConstValue) {
    match (into, value) {
        (ConstValue::Object(members), ConstValue::Object(more)) => {
            for (name, value) in more {
                merge(members.entry(name).or_insert(ConstValue::Null), value);
            }
        }
        (ConstValue::List(items), ConstValue::List(more)) if items.len() == more.len() => {
            items.iter_mut().zip(more).for_each(|(item, value)| merge(item, value));
        }
        (into, value) => *into = value,
    }
}

fn object_value<const N: usize>(members: [(&'static str, ConstValue); N]) -> ConstValue {
    ConstValue::Object(members.into_iter().map(|(name, value)| (Name::new(name), value)).collect())
}

fn text_value(value: impl Into<String>) -> ConstValue {
    ConstValue::String(value.into())
}

/// RFC 3339 with the fractional digits of the date. sabakan formats dates outside the range of RFC 3339 differently;
/// simulated dates stay within it.
fn date_value(date: OffsetDateTime) -> ConstValue {
    date.format(&Rfc3339).map_or(ConstValue::Null, ConstValue::String)
}

fn machine_value(record: Record) -> ConstValue {
    let status = status_value(&record);
    let spec = record.machine.spec;
    let labels: Vec<_> = spec
        .labels
        .into_iter()
        .map(|label| object_value([("name", text_value(label.name)), ("value", text_value(label.value))]))
        .collect();
    let bmc = object_value([
        ("bmcType", text_value(spec.bmc.bmc_type)),
        ("ipv4", text_value(record.bmc.address.to_string())),
    ]);
    object_value([
        (
            "spec",
            object_value([
                ("serial", text_value(spec.serial)),
                ("labels", if labels.is_empty() { ConstValue::Null } else { ConstValue::List(labels) }),
                ("rack", ConstValue::Number(spec.rack.into())),
                ("indexInRack", ConstValue::Number(spec.index_in_rack.into())),
                ("role", text_value(spec.role)),
                ("ipv4", ConstValue::List(spec.ipv4.into_iter().map(text_value).collect())),
                ("registerDate", date_value(spec.register_date)),
                ("retireDate", date_value(spec.retire_date)),
                ("bmc", bmc),
            ]),
        ),
        ("status", status),
        (
            "info",
            object_value([
                (
                    "network",
                    object_value([("ipv4", ConstValue::List(record.nics.iter().map(nic_value).collect()))]),
                ),
                ("bmc", object_value([("ipv4", nic_value(&record.bmc))])),
            ]),
        ),
    ])
}

fn status_value(record: &Record) -> ConstValue {
    let status = &record.machine.status;
    let duration = serde_json::Number::from_f64(status.duration).map_or(ConstValue::Null, ConstValue::Number);
    object_value([
        ("state", text_value(status.state.name())),
        ("timestamp", date_value(record.since)),
        ("duration", duration),
    ])
}

fn nic_value(nic: &Nic) -> ConstValue {
    object_value([
        ("address", text_value(nic.address.to_string())),
        ("netmask", text_value(nic.netmask().to_string())),
        ("maskbits", ConstValue::Number(nic.mask_bits.into())),
        ("gateway", text_value(nic.gateway.to_string())),
    ])
}
