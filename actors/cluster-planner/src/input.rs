use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::cluster::{Cluster, Taint};
use madako_domain::constraints::Constraints;
use madako_domain::machine::Machine;
use madako_domain::template::Template;
use time::OffsetDateTime;

pub use crate::limits::DEFAULT_RETIRE_WAIT;

/// Stage of a leader's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaderStage {
    /// A leader was just elected: a changed template is applied, no other rule is tried.
    LeaderStart,
    /// Later: the rules in the order of CKE's `sabakan-integration.md`.
    Running,
}

/// The complete input of a plan. The order of the machines does not matter.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    pub template: &'a Template,
    pub constraints: &'a Constraints,
    pub machines: &'a [Machine],
    pub current: Option<&'a Cluster>,
    /// Taints of Kubernetes nodes with known state, by address.
    pub node_taints: &'a BTreeMap<String, Vec<Taint>>,
    /// Addresses of machines with a known repair or reboot under way. None of them joins the control plane, where it
    /// could be a second unavailable API server (invariant I8). CKE does not check this.
    pub under_repair: &'a BTreeSet<String>,
    /// Time of the observation.
    pub now: OffsetDateTime,
    /// Minimum time in the retired state before a worker is removed.
    pub retire_wait: Duration,
    /// True if the template differs from the current cluster's.
    pub template_changed: bool,
    pub moment: LeaderStage,
}
