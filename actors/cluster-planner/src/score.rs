//! Scores of machines (seed 000, "Node selection").
//!
//! A score has a part that a machine keeps while a plan is made, and one that its rack has: each node
//! of the same kind in a rack makes the rack less welcome by [`POINTS_PER_NODE`].

use madako_domain::machine::MachineState;
use madako_domain::plan::Score;
use time::OffsetDateTime;

use crate::inventory::Entry;

/// Nodes in a rack at which its points reach 0; more give negative points (seed 000).
const RACK_CAPACITY: i64 = 100;
/// Points that a rack loses for each node (seed 000).
pub(crate) const POINTS_PER_NODE: i64 = 10;
/// Points of a healthy machine when a node is chosen to leave (seed 000).
const HEALTHY_POINTS: i64 = 1_000;
/// Whole days of lifetime beyond which a machine gains a point each, or loses one when they are past (seed 000).
const LIFETIME_DAYS: [i64; 3] = [250, 500, 1_000];

/// The time until a machine's retire date, in whole days cut towards zero.
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

/// Points that a machine keeps while control plane nodes are chosen to be ones no more.
pub(crate) fn staying_points(entry: &Entry<'_>, now: OffsetDateTime) -> i64 {
    let health = if entry.state == MachineState::Healthy { HEALTHY_POINTS } else { 0 };
    health + lifetime_points(entry, now)
}

/// Points of a rack with so many nodes of the kind.
pub(crate) fn rack_points(nodes: u64) -> i64 {
    let nodes = i64::try_from(nodes).unwrap_or(i64::MAX / POINTS_PER_NODE - RACK_CAPACITY);
    (RACK_CAPACITY - nodes) * POINTS_PER_NODE
}

/// What a machine's score is made of, of which `points` are not its rack's.
pub(crate) fn parts(entry: &Entry<'_>, now: OffsetDateTime, score: i64, points: i64) -> Score {
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
