//! Builds the node of a machine (CKE's `sabakan-integration.md`, "Node labels", "Node annotations", "Taint nodes").

use std::collections::BTreeMap;

use madako_domain::cluster::{LABEL_ROLE, Node, TAINT_STATE, Taint};
use madako_domain::machine::{BadLabel, Machine, MachineState};
use time::OffsetDateTime;

use crate::limits::LONGEST_DATE;

/// Annotation with the serial of the node's machine.
pub(crate) const ANNOTATION_SERIAL: &str = "cke.cybozu.com/serial";
const ANNOTATION_REGISTER_DATE: &str = "cke.cybozu.com/register-date";
const ANNOTATION_RETIRE_DATE: &str = "cke.cybozu.com/retire-date";

const LABEL_RACK: &str = "cke.cybozu.com/rack";
const LABEL_INDEX_IN_RACK: &str = "cke.cybozu.com/index-in-rack";
const LABEL_REGISTER_MONTH: &str = "cke.cybozu.com/register-month";
const LABEL_RETIRE_MONTH: &str = "cke.cybozu.com/retire-month";
const LABEL_ZONE: &str = "topology.kubernetes.io/zone";
const LABEL_ZONE_DEPRECATED: &str = "failure-domain.beta.kubernetes.io/zone";
const LABEL_MASTER: &str = "node-role.kubernetes.io/master";
const LABEL_CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
const LABEL_PREFIX_NODE_ROLE: &str = "node-role.kubernetes.io/";
const LABEL_PREFIX_SABAKAN: &str = "sabakan.cke.cybozu.com/";

const EFFECT_NO_EXECUTE: &str = "NoExecute";

/// Value of the state taint for a machine state, if the state has one. Its effect is `NoExecute`.
pub(crate) fn state_taint_value(state: MachineState) -> Option<&'static str> {
    match state {
        MachineState::Retiring => Some("retiring"),
        MachineState::Retired => Some("retired"),
        MachineState::Uninitialized
        | MachineState::Healthy
        | MachineState::Unhealthy
        | MachineState::Unreachable
        | MachineState::Updating => None,
    }
}

/// True if a node has exactly the state taint of a machine state.
pub(crate) fn has_state_taint(node: &Node, state: MachineState) -> bool {
    let mut taints = node.taints.iter().filter(|taint| taint.key == TAINT_STATE);
    match (taints.next(), state_taint_value(state)) {
        (None, None) => true,
        (Some(taint), Some(value)) => {
            taint.value == value && taint.effect == EFFECT_NO_EXECUTE && taints.next().is_none()
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// Labels from the machine's own fields, which override the template's.
const OWN_LABELS: [&str; 7] = [
    LABEL_INDEX_IN_RACK,
    LABEL_RACK,
    LABEL_REGISTER_MONTH,
    LABEL_RETIRE_MONTH,
    LABEL_ROLE,
    LABEL_ZONE_DEPRECATED,
    LABEL_ZONE,
];

/// A node of the template, preprocessed for many machines.
#[derive(Debug)]
pub(crate) struct NodeMaker<'a> {
    template: &'a Node,
    /// The template's labels that no machine field overrides.
    labels: Vec<(&'a String, &'a String)>,
    overrides_machines: bool,
    /// The template's taints without the state taint.
    taints: Vec<Taint>,
}

impl<'a> NodeMaker<'a> {
    pub(crate) fn new(template: &'a Node) -> Self {
        let own = |key: &str| OWN_LABELS.contains(&key);
        Self {
            template,
            labels: template.labels.iter().filter(|(key, _)| !own(key)).collect(),
            overrides_machines: template.labels.keys().any(|key| key.starts_with(LABEL_PREFIX_SABAKAN)),
            taints: template.taints.iter().filter(|taint| taint.key != TAINT_STATE).cloned().collect(),
        }
    }

    /// Builds the node of a machine.
    ///
    /// Labels, weakest first: the machine's own, the template's, those of the machine's fields. The state taint
    /// follows the machine's state alone: a state taint in the template is ignored, as it would contradict the state.
    ///
    /// `good_labels` says whether all labels from the machine are valid ([`Machine::has_good_labels`]). If not,
    /// invalid ones are left out, as CKE would reject the whole configuration.
    pub(crate) fn make_node(&self, machine: &Machine, address: &str, good_labels: bool) -> Node {
        let mut labels = self.make_labels(machine);
        if !good_labels {
            leave_out(&mut labels, &machine.bad_labels());
        }
        let mut taints = self.taints.clone();
        if let Some(value) = state_taint_value(machine.status.state) {
            taints.push(Taint {
                key: TAINT_STATE.to_owned(),
                value: value.to_owned(),
                effect: EFFECT_NO_EXECUTE.to_owned(),
                ..Taint::default()
            });
        }
        Node {
            address: address.to_owned(),
            hostname: String::new(),
            user: self.template.user.clone(),
            control_plane: self.template.control_plane,
            annotations: self.make_annotations(machine),
            labels,
            taints,
            rest: self.template.rest.clone(),
        }
    }

    fn make_labels(&self, machine: &Machine) -> BTreeMap<String, String> {
        let spec = &machine.spec;
        let own = |key: &str, value: String| (key.to_owned(), value);
        let yes = || "true".to_owned();
        let rack = spec.rack.to_string();
        let zone = ["rack", &rack].concat();

        // Collecting sorts, and keeps the last of equal keys. A sorted input makes sorting cheap, and a large site
        // has many nodes: the usual order of the keys is used here.
        let mut labels = Vec::with_capacity(spec.labels.len() + self.labels.len() + OWN_LABELS.len() + 3);
        labels.push(own(LABEL_INDEX_IN_RACK, spec.index_in_rack.to_string()));
        labels.push(own(LABEL_RACK, rack));
        labels.push(own(LABEL_REGISTER_MONTH, month_label(spec.register_date)));
        labels.push(own(LABEL_RETIRE_MONTH, month_label(spec.retire_date)));
        labels.push(own(LABEL_ROLE, spec.role.clone()));
        labels.extend(self.labels.iter().map(|(key, value)| ((*key).clone(), (*value).clone())));
        labels.push(own(LABEL_ZONE_DEPRECATED, zone.clone()));
        if !spec.role.is_empty() {
            // Without a role the key would be invalid.
            labels.push(([LABEL_PREFIX_NODE_ROLE, &*spec.role].concat(), yes()));
        }
        if self.template.control_plane {
            labels.push(own(LABEL_CONTROL_PLANE, yes()));
            labels.push(own(LABEL_MASTER, yes()));
        }
        for label in &spec.labels {
            let key = [LABEL_PREFIX_SABAKAN, &*label.name].concat();
            if !(self.overrides_machines && self.template.labels.contains_key(&key)) {
                labels.push((key, label.value.clone()));
            }
        }
        labels.push(own(LABEL_ZONE, zone));
        labels.into_iter().collect()
    }

    fn make_annotations(&self, machine: &Machine) -> BTreeMap<String, String> {
        let spec = &machine.spec;
        let own = |key: &str, value: String| (key.to_owned(), value);
        let mut annotations = Vec::with_capacity(self.template.annotations.len() + 3);
        annotations.extend(self.template.annotations.iter().map(|(key, value)| (key.clone(), value.clone())));
        annotations.push(own(ANNOTATION_REGISTER_DATE, format_date(spec.register_date)));
        annotations.push(own(ANNOTATION_RETIRE_DATE, format_date(spec.retire_date)));
        annotations.push(own(ANNOTATION_SERIAL, spec.serial.clone()));
        annotations.into_iter().collect()
    }
}

/// Removes invalid labels, except labels with which the template replaces a machine's.
fn leave_out(labels: &mut BTreeMap<String, String>, bad: &[BadLabel]) {
    for bad in bad {
        match bad {
            BadLabel::Role(role) => {
                labels.remove(LABEL_ROLE);
                labels.remove(&[LABEL_PREFIX_NODE_ROLE, role].concat());
            }
            BadLabel::Rack(_) => {
                labels.remove(LABEL_RACK);
            }
            BadLabel::IndexInRack(_) => {
                labels.remove(LABEL_INDEX_IN_RACK);
            }
            BadLabel::Name(name) => {
                labels.remove(&[LABEL_PREFIX_SABAKAN, name].concat());
            }
            BadLabel::Value { name, value } => {
                let key = [LABEL_PREFIX_SABAKAN, name].concat();
                if labels.get(&key).is_some_and(|kept| **kept == **value) {
                    labels.remove(&key);
                }
            }
        }
    }
}

/// A date in the format of Go's `time.RFC3339`: in its own offset, `Z` for UTC, without a fraction.
fn format_date(date: OffsetDateTime) -> String {
    let mut text = String::with_capacity(LONGEST_DATE);
    push_month(&mut text, date);
    for (mark, number) in [('-', date.day()), ('T', date.hour()), (':', date.minute()), (':', date.second())]
    {
        text.push(mark);
        push_two_digits(&mut text, number);
    }
    let (hours, minutes, _) = date.offset().as_hms();
    if (hours, minutes) == (0, 0) {
        text.push('Z');
    } else {
        text.push(if hours < 0 || minutes < 0 { '-' } else { '+' });
        push_two_digits(&mut text, hours.unsigned_abs());
        text.push(':');
        push_two_digits(&mut text, minutes.unsigned_abs());
    }
    text
}

/// Month of a date in its own offset, as `yyyy-MM`.
fn month_label(date: OffsetDateTime) -> String {
    let mut text = String::with_capacity("2006-01".len());
    push_month(&mut text, date);
    text
}

fn push_month(text: &mut String, date: OffsetDateTime) {
    // Parsed RFC 3339 dates have years from 0 to 9999.
    let year = date.year().clamp(0, 9_999).unsigned_abs();
    for hundreds in [year / 100, year % 100] {
        push_two_digits(text, u8::try_from(hundreds).unwrap_or_default());
    }
    text.push('-');
    push_two_digits(text, date.month().into());
}

/// Formatting macros take longer than the rest of a node, and a plan may have 90,000 nodes.
fn push_two_digits(text: &mut String, number: u8) {
    text.push(char::from(b'0' + number / 10 % 10));
    text.push(char::from(b'0' + number % 10));
}

#[cfg(test)]
mod tests;
