//! Promises about the roll of kubelets and proxies in waves.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use madako_domain::invariants::check_wave;
use madako_domain::keys;
use madako_domain::rollout::Rollout;

use crate::fact::{ComponentFact, Fact, FactTime, NodeEffect};
use crate::observed_world::WrittenKey;
use crate::operations::Checks;
use crate::oracle::{Context, FactJudgement, Predicate};

/// Remembered states of the roll. The facts of nodes may be reported some waves later than the store's.
const STATES: usize = 64;
/// Time since its restart after which a component that does not serve has failed. The service waits longer for a kubelet,
/// and a simulated component serves earlier.
const FAILED_AFTER: Duration = Duration::from_secs(30);

/// The last states of the roll, with the times since which they are stored.
#[derive(Default)]
struct Rolls {
    states: VecDeque<(FactTime, Rollout)>,
    /// Time at which an operator resumed the roll, or another image began it anew: earlier failures do not count.
    anew: FactTime,
}

impl Rolls {
    fn observe(&mut self, at: FactTime, written: &[WrittenKey]) {
        for written in written.iter().filter(|written| written.key == keys::ROLLOUT) {
            let (before, after) = written.read::<Rollout>();
            // The next wave begins the roll anew.
            let after = after.unwrap_or_default();
            let before = before.unwrap_or_default();
            if before.image != after.image || (before.halted && !after.halted) {
                self.anew = at;
            }
            if self.states.len() == STATES {
                self.states.pop_front();
            }
            self.states.push_back((at, after));
        }
    }

    fn state_at(&self, at: FactTime) -> Option<&Rollout> {
        self.states.iter().rev().find(|(since, _)| *since <= at).map(|(_, rollout)| rollout)
    }

    /// The nodes that restarted in this roll and do not serve since, with the time since their restart.
    fn unready_of_roll<'a>(
        &self,
        at: FactTime,
        unready: &'a BTreeMap<String, Duration>,
    ) -> impl Iterator<Item = (&'a str, Duration)> {
        let anew = self.anew;
        let of_roll = unready.iter().filter(move |(_, age)| at.saturating_sub(**age) > anew);
        of_roll.map(|(address, age)| (address.as_str(), *age))
    }
}

#[derive(Default)]
pub(crate) struct RollHalts(Rolls);

impl Predicate for RollHalts {
    fn observe(
        &mut self,
        Context { at, fact, written, now, .. }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        self.0.observe(*at, written);
        let Fact::Component(ComponentFact::Restarted { effect, component, unready }) = fact else { return };
        let failed: Vec<&str> = self
            .0
            .unready_of_roll(*at, unready)
            .filter(|(_, age)| *age > FAILED_AFTER)
            .map(|(address, _)| address)
            .collect();
        let nodes = now.cluster.as_ref().map_or(0, |cluster| cluster.nodes.len());
        // Without failed nodes the promise is not put to the test.
        if failed.is_empty() {
            return;
        }
        ruling.require(failed.len() < Rollout::halt_limit(nodes), || {
            let NodeEffect { address, .. } = effect;
            format!("the {component} on {address} restarted after those on {} failed", failed.join(", "))
        });
    }
}

/// Invariant I15 of waves.
#[derive(Default)]
pub(crate) struct WaveKept {
    checks: Checks,
    rolls: Rolls,
}

impl Predicate for WaveKept {
    fn observe(
        &mut self,
        Context { at, fact, written, terms, .. }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        self.checks.observe(*at, fact, written);
        self.rolls.observe(*at, written);
        for written in written.iter().filter(|written| written.key == keys::ROLLOUT) {
            let (before, after) = written.read::<Rollout>();
            let violation = after.and_then(|after| check_wave(before.as_ref(), &after));
            ruling.require(violation.is_none(), || violation.map(|it| it.to_string()).unwrap_or_default());
        }
        let Fact::Component(ComponentFact::Restarted { effect, component, unready }) = fact else { return };
        let began = self.checks.begin_of_effect(effect, *at) + terms.tolerance;
        let rollout = self.rolls.state_at(began);
        let is_watched = |address: &str| rollout.is_some_and(|rollout| rollout.watched.contains_key(address));
        let is_known = |address: &str| {
            is_watched(address) || rollout.is_some_and(|rollout| rollout.failed.contains_key(address))
        };
        let unknown: Vec<&str> = self
            .rolls
            .unready_of_roll(*at, unready)
            .map(|(address, _)| address)
            .filter(|address| !is_known(address))
            .collect();
        ruling.require(is_watched(&effect.address) && unknown.is_empty(), || {
            let NodeEffect { address, .. } = effect;
            format!(
                "the {component} on {address} restarted, while the roll was {rollout:?} and those on [{}] did not serve",
                unknown.join(", ")
            )
        });
    }
}
