//! What a plan is made from.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::cluster::{Cluster, Taint};
use madako_domain::constraints::Constraints;
use madako_domain::machine::Machine;
use madako_domain::template::Template;
use time::OffsetDateTime;

pub use crate::limits::DEFAULT_RETIRE_WAIT;

/// When in a leader's life the plan is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// A leader has just been elected: a template that changed is regenerated, no rule is tried.
    LeaderStart,
    /// Afterwards: the rules in the seed's order.
    Running,
}

/// Everything that a plan depends on. The order of the machines does not matter.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// The checked template.
    pub template: &'a Template,
    /// The operator's constraints.
    pub constraints: &'a Constraints,
    /// The machines of one observation.
    pub machines: &'a [Machine],
    /// The cluster as it is configured now, if there is one.
    pub current: Option<&'a Cluster>,
    /// Taints of the Kubernetes nodes whose state is known, by address.
    pub node_taints: &'a BTreeMap<String, Vec<Taint>>,
    /// Addresses of the machines whose repair or reboot is under way, as far as that is known: none of them joins the control
    /// plane, where it could be a second API server that is away (invariant I8). CKE does not look at this.
    pub under_repair: &'a BTreeSet<String>,
    /// The time of the observation.
    pub now: OffsetDateTime,
    /// A worker whose machine has been retired for longer than this is removed.
    pub retire_wait: Duration,
    /// Whether the template is another one than the current cluster was made from.
    pub template_changed: bool,
    /// When in a leader's life the plan is made.
    pub moment: Moment,
}
