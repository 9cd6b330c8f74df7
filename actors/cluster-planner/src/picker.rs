//! Repeatedly picks the best machine of a set whose scores change with each pick.
//!
//! A pick lowers the scores of the machines in the same rack by [`POINTS_PER_NODE`] and leaves the others unchanged.
//! So machines are sorted once within their racks, a heap holds the best of every rack, and a pick costs the
//! logarithm of the number of racks. Of equal scores the lowest id wins, which is the lowest address.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::inventory::MachineId;
use crate::score::{POINTS_PER_NODE, rack_points};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    pub(crate) rack: i64,
    /// The machine's points, higher first.
    pub(crate) points: Reverse<i64>,
    /// Lower first.
    pub(crate) id: MachineId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PickedMachine {
    pub(crate) id: MachineId,
    pub(crate) score: i64,
    /// The machine's part of the score.
    pub(crate) points: i64,
    /// Number of candidates, including this one.
    pub(crate) considered: usize,
    pub(crate) runner_up: Option<(MachineId, i64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PickGoal {
    /// The highest score joins, which fills its rack.
    Join,
    /// The lowest score leaves, which empties its rack. Points are stored negated.
    Leave,
}

/// The machines of one rack, best first.
#[derive(Debug)]
struct Rack {
    next: usize,
    end: usize,
    points: i64,
}

#[derive(Debug)]
pub(crate) struct Picker {
    goal: PickGoal,
    candidates: Vec<Candidate>,
    racks: Vec<Rack>,
    /// Best of each rack: score, id, index into `racks`.
    best: BinaryHeap<(i64, Reverse<MachineId>, usize)>,
    left: usize,
}

impl Picker {
    /// Picks the highest scores; `nodes_in` gives the present nodes of the kind in a rack.
    pub(crate) fn to_join(candidates: Vec<Candidate>, nodes_in: impl Fn(i64) -> u64) -> Self {
        Self::new(PickGoal::Join, candidates, |rack| rack_points(nodes_in(rack)))
    }

    /// Picks the lowest scores; the candidates are all nodes of the kind.
    pub(crate) fn to_leave(mut candidates: Vec<Candidate>, nodes_in: impl Fn(i64) -> u64) -> Self {
        for candidate in &mut candidates {
            candidate.points.0 = -candidate.points.0;
        }
        Self::new(PickGoal::Leave, candidates, |rack| -rack_points(nodes_in(rack)))
    }

    fn new(goal: PickGoal, mut candidates: Vec<Candidate>, points: impl Fn(i64) -> i64) -> Self {
        candidates.sort_unstable();
        let mut racks: Vec<Rack> = Vec::new();
        for (index, candidate) in candidates.iter().enumerate() {
            match racks.last_mut() {
                Some(rack) if candidates[rack.next].rack == candidate.rack => rack.end = index + 1,
                _ => racks.push(Rack { next: index, end: index + 1, points: points(candidate.rack) }),
            }
        }
        let left = candidates.len();
        let mut picker = Self { goal, candidates, racks, best: BinaryHeap::new(), left };
        picker.best = (0..picker.racks.len()).filter_map(|rack| picker.best_of_rack(rack)).collect();
        picker
    }

    fn best_of_rack(&self, index: usize) -> Option<(i64, Reverse<MachineId>, usize)> {
        let rack = &self.racks[index];
        let candidate = self.candidates[..rack.end].get(rack.next)?;
        Some((candidate.points.0 + rack.points, Reverse(candidate.id), index))
    }

    fn score(&self, key: i64) -> i64 {
        match self.goal {
            PickGoal::Join => key,
            PickGoal::Leave => -key,
        }
    }

    /// The machine that [`Self::pick`] would take.
    pub(crate) fn peek(&self) -> Option<MachineId> {
        self.best.peek().map(|(_, Reverse(id), _)| *id)
    }

    /// Discards the best machine without a change of its rack's points.
    pub(crate) fn pass_over(&mut self) {
        if let Some((_, _, index)) = self.best.pop() {
            self.left -= 1;
            self.racks[index].next += 1;
            self.best.extend(self.best_of_rack(index));
        }
    }

    pub(crate) fn pick(&mut self) -> Option<PickedMachine> {
        let (key, Reverse(id), index) = self.best.pop()?;
        let considered = self.left;
        self.left -= 1;
        let points = self.score(self.candidates[self.racks[index].next].points.0);
        self.racks[index].next += 1;
        let runner_up = self
            .best_of_rack(index)
            .max(self.best.peek().copied())
            .map(|(key, Reverse(id), _)| (id, self.score(key)));
        self.racks[index].points -= POINTS_PER_NODE;
        if let Some(next) = self.best_of_rack(index) {
            self.best.push(next);
        }
        Some(PickedMachine { id, score: self.score(key), points, considered, runner_up })
    }
}

#[cfg(test)]
mod tests;
