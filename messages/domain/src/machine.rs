//! Machines as a sabakan registry describes them, and the variables of the query that selects them.
//!
//! The JSON forms are those of sabakan's GraphQL answers (`searchMachines`) and of CKE's `sabakan/query-variables`.
//! This module decides nothing.

use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};
use strum::{IntoStaticStr, VariantArray, VariantNames};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::limits::MAX_MACHINE_BYTES;
use crate::rules::names;
use crate::schema;
use madako_json::go::{ZERO_TIME, go_object};
use madako_json::input::{InputError, Problems, Warning};
use madako_json::named;
use madako_json::strict::walk::check_strictly;
use madako_json::strict::{HasSchema as _, Kind, Path, Tree, shown_text, yaml};

/// The lifecycle state of a machine, in sabakan's spelling (its `docs/lifecycle.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[derive(IntoStaticStr, VariantArray, VariantNames)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum MachineState {
    /// Registered, but not healthy yet.
    Uninitialized,
    /// Without known faults.
    Healthy,
    /// A part of the machine is broken.
    Unhealthy,
    /// The machine does not answer. It may still run.
    Unreachable,
    /// The operating system is being updated.
    Updating,
    /// The machine is being retired and its data removed.
    Retiring,
    /// The machine is out of service.
    Retired,
}

named!(MachineState all names);

go_object! {
    /// A label of a machine in the registry.
    #[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub struct MachineLabel {
        /// Name without the prefix `sabakan.cke.cybozu.com/`.
        pub name: String = "name";
        /// Value; may be empty.
        pub value: String = "value";
        ..drop typed
    }
}

impl MachineLabel {
    /// True if Kubernetes allows the name behind a prefix, and the value.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.has_good_name() && names::is_label_value(&self.value)
    }

    /// A name behind a prefix follows the rules of values, but is never empty.
    fn has_good_name(&self) -> bool {
        !self.name.is_empty() && names::is_label_value(&self.name)
    }
}

/// The baseboard management controller of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bmc {
    /// Type of the controller; it selects the repair procedure.
    #[serde(default, rename = "bmcType", deserialize_with = "deserialize_null_as_empty")]
    pub bmc_type: String,
}

/// The properties of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// Serial number, the key of the registry.
    pub serial: String,
    /// Labels; Go writes `null` for none.
    #[serde(default, deserialize_with = "deserialize_null_as_empty")]
    pub labels: Vec<MachineLabel>,
    /// Number of the rack.
    #[serde(default, deserialize_with = "deserialize_null_as_empty")]
    pub rack: i64,
    /// Position within the rack.
    #[serde(default, rename = "indexInRack", deserialize_with = "deserialize_null_as_empty")]
    pub index_in_rack: i64,
    /// Role of the machine, such as `compute`.
    #[serde(default, deserialize_with = "deserialize_null_as_empty")]
    pub role: String,
    /// IPv4 addresses; the first one identifies the machine's node.
    #[serde(default, deserialize_with = "deserialize_null_as_empty")]
    pub ipv4: Vec<String>,
    /// Registration time with its original offset.
    #[serde(
        rename = "registerDate",
        serialize_with = "time::serde::rfc3339::serialize",
        deserialize_with = "deserialize_date"
    )]
    pub register_date: OffsetDateTime,
    /// Planned retirement with its original offset.
    #[serde(
        rename = "retireDate",
        serialize_with = "time::serde::rfc3339::serialize",
        deserialize_with = "deserialize_date"
    )]
    pub retire_date: OffsetDateTime,
    /// Address and type of the baseboard management controller.
    #[serde(default, deserialize_with = "deserialize_null_as_empty")]
    pub bmc: Bmc,
}

/// The condition of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MachineStatus {
    /// State in Sabakan's life cycle of a machine.
    pub state: MachineState,
    /// Seconds since the machine entered this state.
    #[serde(default, deserialize_with = "deserialize_null_as_empty")]
    pub duration: f64,
}

/// An entry of the registry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Properties that the registry stores.
    pub spec: MachineSpec,
    /// Condition that the registry observes.
    pub status: MachineStatus,
}

impl Machine {
    /// The address of the machine's node: its first IPv4 address, if it has one.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        self.spec.ipv4.first().map(String::as_str)
    }

    /// True if all properties that become node labels are valid in Kubernetes (CKE's `sabakan-integration.md`, "Node labels").
    #[must_use]
    pub fn has_good_labels(&self) -> bool {
        let spec = &self.spec;
        spec.rack >= 0
            && spec.index_in_rack >= 0
            && names::is_label_value(&spec.role)
            && spec.labels.iter().all(MachineLabel::is_good)
    }

    /// The properties that cannot become node labels; the rest of the machine is usable.
    #[must_use]
    pub fn bad_labels(&self) -> Vec<BadLabel> {
        let spec = &self.spec;
        let mut bad = Vec::new();
        if !names::is_label_value(&spec.role) {
            bad.push(BadLabel::Role(spec.role.as_str().into()));
        }
        if spec.rack < 0 {
            bad.push(BadLabel::Rack(spec.rack));
        }
        if spec.index_in_rack < 0 {
            bad.push(BadLabel::IndexInRack(spec.index_in_rack));
        }
        for label in spec.labels.iter().filter(|label| !label.is_good()) {
            let name = label.name.as_str().into();
            bad.push(if label.has_good_name() {
                BadLabel::Value { name, value: label.value.as_str().into() }
            } else {
                BadLabel::Name(name)
            });
        }
        bad
    }
}

/// A property that should become a node label but is invalid in Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum BadLabel {
    /// The role: the value of one label and part of the key of another.
    Role(Box<str>),
    /// A negative number of the rack.
    Rack(i64),
    /// A negative position in the rack.
    IndexInRack(i64),
    /// The name is not one of Kubernetes.
    Name(Box<str>),
    /// The value of a label.
    Value {
        /// Name of the label that has the value.
        name: Box<str>,
        /// The value that is not a label value of Kubernetes.
        value: Box<str>,
    },
}

/// Reads a time in the notation of Go's `time.RFC3339`: a `T` as separator, `Z` or a numeric offset, no leap second.
#[must_use]
pub fn parse_date(text: &str) -> Option<OffsetDateTime> {
    let bytes = text.as_bytes();
    let is_go = bytes.get(10) == Some(&b'T') && bytes.get(17) != Some(&b'6') && bytes.last() != Some(&b'z');
    OffsetDateTime::parse(text, &Rfc3339).ok().filter(|_| is_go)
}

/// Reads a date. Go ignores `null`, so `null` is Go's zero time.
fn deserialize_date<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OffsetDateTime, D::Error> {
    const EXPECTED: &str = "an RFC 3339 time such as 2026-01-31T12:00:00Z";
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(ZERO_TIME) };
    parse_date(&text).ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &EXPECTED))
}

go_object! {
    /// Conditions that select machines (sabakan's `MachineParams`).
    ///
    /// Unknown fields are dropped, because a registry refuses unknown variables.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct MachineParams {
        /// Labels that a machine must have; absent: any.
        pub labels: Option<Vec<MachineLabel>> = "labels";
        /// Racks of which a machine must have one; absent: any.
        pub racks: Option<Vec<i64>> = "racks", is Kind::List(&schema::INT);
        /// Roles of which a machine must have one; absent: any.
        pub roles: Option<Vec<String>> = "roles";
        /// States of which a machine must have one; absent: any.
        pub states: Option<Vec<MachineState>> = "states", is schema::TEXTS;
        /// Minimum number of days before the retire date.
        pub min_days_before_retire: Option<i64> = "minDaysBeforeRetire", omit Option::is_none, is schema::INT;
        ..drop typed
    }
}

go_object! {
    /// Variables of the GraphQL query (CKE's `sabakan/query-variables`). The query always contains both; an absent
    /// one is `null`.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct QueryVariables {
        /// Conditions that a selected machine satisfies.
        pub having: Option<MachineParams> = "having";
        /// Conditions that exclude a machine.
        pub not_having: Option<MachineParams> = "notHaving";
        ..drop typed
    }
}

impl QueryVariables {
    /// Reads typed variables strictly, in the JSON form that CKE stores unchanged.
    ///
    /// # Errors
    /// The error names each wrong field and the expected value.
    pub fn from_json(text: &str) -> Result<Self, InputError> {
        const SUBJECT: &str = "set of query variables";
        if text.len() > MAX_MACHINE_BYTES {
            let got = format!("{} bytes", text.len());
            return Err(yaml::error_of_text(SUBJECT, got, &format!("at most {MAX_MACHINE_BYTES} bytes")));
        }
        let tree = Tree::from_json(text)
            .map_err(|error| yaml::error_of_text(SUBJECT, error.to_string(), "one JSON object"))?;
        let mut problems = Problems::default();
        let good = check_strictly(tree, Self::SCHEMA, Path::Root, &mut problems);
        let mut broken = Problems::default();
        for (name, params) in good.fields() {
            check_params(params, &Path::Root.field(name), &mut broken);
        }
        problems.add_unrelated(broken);
        problems.finish(SUBJECT)?;
        Ok(serde_json::from_str(&good.to_string()).expect("a value of the right shape can be read"))
    }

    /// Settings that are valid but probably mistakes: variables replace the query's own defaults, which exclude boot
    /// servers and retired machines.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        match &self.not_having {
            None => warnings.push(Warning::new(
                "notHaving",
                "without the field, the registry's default for it is off too: boot servers and retired \
                 machines are chosen as well",
            )),
            Some(not_having) => {
                let boot = "boot".to_owned();
                let left_out = not_having.roles.as_ref().is_some_and(|roles| roles.contains(&boot));
                let chosen = self.having.as_ref().and_then(|having| having.roles.as_ref());
                if !left_out && chosen.is_none_or(|roles| roles.contains(&boot)) {
                    let message = "it does not name the role \"boot\": boot servers are chosen as well";
                    warnings.push(Warning::new("notHaving.roles", message));
                }
            }
        }
        warnings
    }
}

fn check_params(params: &Tree, path: &Path<'_>, problems: &mut Problems) {
    let items = |name: &str| params.get(name).map_or(&[][..], Tree::items);
    let states = path.field("states");
    for (index, state) in items("states").iter().enumerate() {
        let given = state.text().unwrap_or_default();
        if !MachineState::NAMES.contains(&given) {
            let expected = format!("one of {}", MachineState::NAMES.join(", "));
            problems.add(states.item(index), shown_text(given), expected);
        }
    }
    let labels = path.field("labels");
    for (index, label) in items("labels").iter().enumerate() {
        if label.get("name").and_then(Tree::text).is_none_or(str::is_empty) {
            problems.add(labels.item(index).field("name"), "", "the name of a label");
        }
    }
}

/// Reads `null`, which Go writes for an empty list or map, as the empty value.
fn deserialize_null_as_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests;
