//! Scores of machines (CKE's `sabakan-integration.md`, "Node selection").
//!
//! A score is the sum of points of the machine, which are constant during a plan, and points of its rack: each node
//! of the same kind in the rack subtracts [`POINTS_PER_NODE`].

use madako_domain::machine::MachineState;
use madako_domain::plan::Score;
use time::OffsetDateTime;

use crate::inventory::Entry;

/// Nodes in a rack at which its points reach 0; more give negative points (CKE's `sabakan-integration.md`).
const RACK_CAPACITY: i64 = 100;
/// Points that a rack loses for each node (CKE's `sabakan-integration.md`).
pub(crate) const POINTS_PER_NODE: i64 = 10;
/// Points of a healthy machine when a node is chosen to leave (CKE's `sabakan-integration.md`).
const HEALTHY_POINTS: i64 = 1_000;
/// Thresholds in whole days of remaining lifetime: a machine gains a point for each that its days exceed, and loses
/// one for each that they exceed after its retire date (CKE's `sabakan-integration.md`).
const LIFETIME_DAYS: [i64; 3] = [250, 500, 1_000];

/// The time until a machine's retire date, in whole days truncated towards zero.
fn lifetime_days(entry: &Entry<'_>, now: OffsetDateTime) -> i64 {
    (entry.retire_date - now).whole_days()
}

/// Points for the time until a machine's retire date.
pub(crate) fn lifetime_points(entry: &Entry<'_>, now: OffsetDateTime) -> i64 {
    points_for(lifetime_days(entry, now))
}

fn points_for(days: i64) -> i64 {
    LIFETIME_DAYS
        .iter()
        .map(|limit| match days {
            _ if days > *limit => 1,
            _ if days < -limit => -1,
            _ => 0,
        })
        .sum()
}

/// The machine's points when control plane nodes are chosen for demotion.
pub(crate) fn staying_points(entry: &Entry<'_>, now: OffsetDateTime) -> i64 {
    let health = if entry.state == MachineState::Healthy { HEALTHY_POINTS } else { 0 };
    health + lifetime_points(entry, now)
}

/// Points of a rack with this many nodes of the kind.
pub(crate) fn rack_points(nodes: u64) -> i64 {
    let nodes = i64::try_from(nodes).unwrap_or(i64::MAX / POINTS_PER_NODE - RACK_CAPACITY);
    (RACK_CAPACITY - nodes) * POINTS_PER_NODE
}

/// Components of a score; `points` is the machine's part.
pub(crate) fn score_parts(entry: &Entry<'_>, now: OffsetDateTime, score: i64, points: i64) -> Score {
    let small = |number: i64| i32::try_from(number).unwrap_or(if number < 0 { i32::MIN } else { i32::MAX });
    let days = lifetime_days(entry, now);
    let lifetime_points = points_for(days);
    let rack_points = score - points;
    let in_rack = RACK_CAPACITY - rack_points / POINTS_PER_NODE;
    Score {
        health_points: small(points - lifetime_points),
        in_rack: u32::try_from(in_rack).unwrap_or(u32::MAX),
        rack_points: small(rack_points),
        days: small(days),
        lifetime_points: small(lifetime_points),
    }
}

#[cfg(test)]
mod tests;
