//! What a machine looks like as a node (seed 000, "Node labels", "Node annotations", "Taint nodes").

use madako_messages::cluster::{LABEL_ROLE, Node, TAINT_STATE, Taint};
use madako_messages::machine::{Machine, MachineState};
use time::OffsetDateTime;

/// Annotation that names the machine that a node was made from.
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

/// The value of the state taint that belongs to a state, if one does. Its effect is `NoExecute`.
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

/// Whether a node has exactly the state taint that belongs to a state.
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

/// The node that a machine becomes by a node of the template.
///
/// Labels, weakest first: the machine's own, the template's, those of the machine's fields. The state
/// taint belongs to the machine's state alone: one in the template is left out, as it would never be
/// what the state asks for.
pub(crate) fn to_node(machine: &Machine, address: &str, template: &Node) -> Node {
    let spec = &machine.spec;
    let own = |key: &str, value: String| (key.to_owned(), value);
    let yes = || "true".to_owned();
    let zone = format!("rack{}", spec.rack);

    // Collecting keeps the last of equal keys.
    let mut labels = Vec::with_capacity(spec.labels.len() + template.labels.len() + 10);
    labels.extend(
        spec.labels
            .iter()
            .map(|label| (format!("{LABEL_PREFIX_SABAKAN}{}", label.name), label.value.clone())),
    );
    labels.extend(template.labels.iter().map(|(key, value)| (key.clone(), value.clone())));
    labels.push(own(LABEL_RACK, spec.rack.to_string()));
    labels.push(own(LABEL_INDEX_IN_RACK, spec.index_in_rack.to_string()));
    labels.push(own(LABEL_ROLE, spec.role.clone()));
    labels.push(own(LABEL_RETIRE_MONTH, month(spec.retire_date)));
    labels.push(own(LABEL_REGISTER_MONTH, month(spec.register_date)));
    if !spec.role.is_empty() {
        // Without a role this would not be a valid key.
        labels.push((format!("{LABEL_PREFIX_NODE_ROLE}{}", spec.role), yes()));
    }
    if template.control_plane {
        labels.push(own(LABEL_MASTER, yes()));
        labels.push(own(LABEL_CONTROL_PLANE, yes()));
    }
    labels.push(own(LABEL_ZONE_DEPRECATED, zone.clone()));
    labels.push(own(LABEL_ZONE, zone));

    let mut annotations = Vec::with_capacity(template.annotations.len() + 3);
    annotations.extend(template.annotations.iter().map(|(key, value)| (key.clone(), value.clone())));
    annotations.push(own(ANNOTATION_SERIAL, spec.serial.clone()));
    annotations.push(own(ANNOTATION_REGISTER_DATE, rfc3339(spec.register_date)));
    annotations.push(own(ANNOTATION_RETIRE_DATE, rfc3339(spec.retire_date)));

    let mut taints: Vec<Taint> =
        template.taints.iter().filter(|taint| taint.key != TAINT_STATE).cloned().collect();
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
        user: template.user.clone(),
        control_plane: template.control_plane,
        annotations: annotations.into_iter().collect(),
        labels: labels.into_iter().collect(),
        taints,
        rest: template.rest.clone(),
    }
}

/// A date as Go's `time.RFC3339` writes it: in its own offset, `Z` for none, without a fraction.
fn rfc3339(date: OffsetDateTime) -> String {
    let (hours, minutes, _) = date.offset().as_hms();
    let mut text = format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
        date.year(),
        u8::from(date.month()),
        date.day(),
        date.hour(),
        date.minute(),
        date.second()
    );
    if (hours, minutes) == (0, 0) {
        text.push('Z');
    } else {
        let sign = if hours < 0 || minutes < 0 { '-' } else { '+' };
        text.push_str(&format!("{sign}{:02}:{:02}", hours.unsigned_abs(), minutes.unsigned_abs()));
    }
    text
}

/// The month of a date in its own offset, as `yyyy-MM`.
fn month(date: OffsetDateTime) -> String {
    format!("{:04}-{:02}", date.year(), u8::from(date.month()))
}

#[cfg(test)]
mod tests;
