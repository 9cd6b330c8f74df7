//! I2: no command, plan or repair takes the majority of etcd's voting members away.

use std::collections::BTreeSet;

use super::{Id, Violation};
use crate::canary::{Canary, is_planted};
use crate::node_status::{EtcdMember, EtcdStatus};

/// The members that a command stops and removes, by id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberLoss {
    /// Members that stop and keep their vote.
    pub stopped: BTreeSet<u64>,
    /// Members that lose their vote.
    pub removed: BTreeSet<u64>,
}

impl MemberLoss {
    fn is_about(&self, member: &EtcdMember) -> bool {
        self.stopped.contains(&member.id) || self.removed.contains(&member.id)
    }
}

/// I2 of a command: after a command that stops or removes a voting member, the members that run in sync are a majority
/// of the voting members that remain. A member whose state is unknown counts as not in sync.
#[must_use]
pub fn check_quorum(members: &[EtcdMember], loss: &MemberLoss) -> Option<Violation> {
    let voting = || members.iter().filter(|member| !member.learner);
    if !voting().any(|member| loss.is_about(member)) {
        return None;
    }
    let counts = |member: &EtcdMember| member.is_in_sync() || !is_planted(Canary::DeadMembersUncounted);
    let remaining = || voting().filter(|member| !loss.removed.contains(&member.id) && counts(member));
    let stops = |id: &u64| loss.stopped.contains(id) && !is_planted(Canary::StoppedMemberCounted);
    let in_sync = remaining().filter(|member| member.is_in_sync() && !stops(&member.id));
    check_majority("the command", in_sync.count(), remaining().count())
}

/// I2 of a plan that takes control plane nodes away: the members in sync on control plane nodes that stay are a
/// majority of all voting members. A plan that takes none away is never judged. `etcd` is `None` if etcd does not
/// answer.
#[must_use]
pub fn quorum_of_plan(
    etcd: Option<&EtcdStatus>,
    before: &BTreeSet<&str>,
    after: &BTreeSet<&str>,
) -> Option<Violation> {
    if before.is_subset(after) {
        return None;
    }
    let (in_sync, all) = count_staying(etcd, |address| before.contains(address) && after.contains(address));
    check_majority("the plan", in_sync, all)
}

/// I2 of a drain or repair of a control plane node: its member is known to be out of sync, or the other members in
/// sync are a majority of all voting members. A node without a member is never judged. `etcd` is `None` if etcd does
/// not answer.
#[must_use]
pub fn quorum_of_repair(etcd: Option<&EtcdStatus>, node: &str) -> Option<Violation> {
    if let Some(etcd) = etcd {
        let own = etcd.voting().find(|member| member.address() == node);
        if own.is_none_or(|member| member.in_sync == Some(false)) {
            return None;
        }
    }
    let (in_sync, all) = count_staying(etcd, |address| address != node);
    check_majority("the repair", in_sync, all)
}

/// The voting members in sync that stay, and all voting members.
fn count_staying(etcd: Option<&EtcdStatus>, stays: impl Fn(&str) -> bool) -> (usize, usize) {
    let voting = || etcd.into_iter().flat_map(EtcdStatus::voting);
    let stay = voting().filter(|member| member.is_in_sync() && stays(&member.address()));
    (stay.count(), voting().count())
}

fn check_majority(cause: &str, in_sync: usize, of: usize) -> Option<Violation> {
    let is_half_enough = is_planted(Canary::HalfIsEnough) && in_sync * 2 == of;
    (in_sync * 2 <= of && !is_half_enough).then(|| Violation {
        invariant: Id::I2,
        what: format!(
            "after {cause}, {in_sync} of {of} voting members of etcd are known to run in sync; a majority must"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members with the ids 1, 2, ...: `+` in sync, `-` out of sync, `?` unknown, `l` a learner.
    fn members(states: &str) -> Vec<EtcdMember> {
        let member = |(state, id): (char, u64)| EtcdMember {
            id,
            name: format!("10.0.0.{id}"),
            learner: state == 'l',
            in_sync: match state {
                '+' => Some(true),
                '?' => None,
                _ => Some(false),
            },
            ..EtcdMember::default()
        };
        states.chars().zip(1..).map(member).collect()
    }

    fn etcd(states: &str) -> EtcdStatus {
        EtcdStatus { healthy: true, members: members(states) }
    }

    fn loss(stopped: &[u64], removed: &[u64]) -> MemberLoss {
        MemberLoss { stopped: stopped.iter().copied().collect(), removed: removed.iter().copied().collect() }
    }

    #[test]
    fn a_command_leaves_a_majority_of_the_remaining_members_in_sync() {
        for (states, stopped, removed, is_kept) in [
            ("+++", &[1][..], &[][..], true),
            ("++-", &[1], &[], false),
            ("++?", &[1], &[], false),
            ("++-", &[3], &[], true),
            ("+++", &[1, 2], &[], false),
            ("++", &[1], &[], false),
            ("+", &[1], &[], false),
            ("++-", &[], &[3], true),
            ("+++", &[], &[1], true),
            ("+--", &[], &[3], false),
            ("+--", &[], &[2, 3], true),
            ("+++", &[1], &[1, 2], true),
            ("+", &[], &[1], false),
            // A command that touches no voting member is not judged.
            ("+--", &[], &[], true),
            ("+--l", &[4], &[4], true),
            ("+--", &[9], &[9], true),
            // A learner has no vote.
            ("++-l", &[1], &[], false),
            ("+++lll", &[1], &[], true),
        ] {
            let violation = check_quorum(&members(states), &loss(stopped, removed));
            assert_eq!(violation.is_none(), is_kept, "{states} {stopped:?} {removed:?}: {violation:?}");
        }
    }

    #[test]
    fn a_plan_leaves_a_majority_of_all_members_in_sync() {
        let before = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].into();
        let judged = |etcd: Option<&EtcdStatus>, after: &[&str]| {
            quorum_of_plan(etcd, &before, &after.iter().copied().collect()).is_none()
        };
        assert!(judged(Some(&etcd("+++")), &["10.0.0.2", "10.0.0.3"]));
        assert!(!judged(Some(&etcd("++-")), &["10.0.0.2", "10.0.0.3"]));
        assert!(judged(Some(&etcd("++-")), &["10.0.0.1", "10.0.0.2", "10.0.0.4"]));
        assert!(!judged(Some(&etcd("+++")), &["10.0.0.3"]));
        // The fourth member left the control plane before, and may stop at any time.
        assert!(!judged(Some(&etcd("+++++")), &["10.0.0.2", "10.0.0.3"]));
        assert!(!judged(None, &["10.0.0.1"]));
        assert!(judged(None, &["10.0.0.1", "10.0.0.2", "10.0.0.3"]), "nothing leaves");
    }

    #[test]
    fn a_repair_takes_no_member_that_the_majority_needs() {
        let judged = |etcd: Option<&EtcdStatus>, node| quorum_of_repair(etcd, node).is_none();
        assert!(judged(Some(&etcd("+++")), "10.0.0.1"));
        assert!(!judged(Some(&etcd("++-")), "10.0.0.1"));
        assert!(judged(Some(&etcd("++-")), "10.0.0.3"), "its member is known to be out of sync");
        assert!(!judged(Some(&etcd("+??")), "10.0.0.3"), "its member may be in sync");
        assert!(judged(Some(&etcd("+--")), "10.0.0.9"), "it has no member");
        assert!(!judged(None, "10.0.0.1"));
    }
}
