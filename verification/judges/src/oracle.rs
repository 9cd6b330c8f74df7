//! The oracle: evaluates all promises over one stream of facts.

use std::collections::{BTreeMap, BTreeSet};

use crate::exemptions::{Exemption, Exemptions};
use crate::fact::{Fact, FactTime};
use crate::observed_world::{ObservedWorld, WrittenKey};
use crate::promise::{Promise, Verdict};
use crate::terms::PromiseTerms;
use crate::{
    components, drains, keeping, leading, liveness, operations, pace, placement, repairs, requests, restores,
    waves,
};

pub(crate) struct Context<'a> {
    pub(crate) at: FactTime,
    pub(crate) fact: &'a Fact,
    /// Keys that the fact wrote, with their former values.
    pub(crate) written: &'a [WrittenKey],
    /// State of the world including the fact.
    pub(crate) now: &'a ObservedWorld,
    pub(crate) terms: &'a PromiseTerms,
}

/// Collects a predicate's judgement of a fact.
pub(crate) struct FactJudgement<'a> {
    verdict: &'a mut PredicateVerdict,
    pub(crate) exemptions: &'a mut Exemptions,
    /// The judged revision: a user's own revision is not counted as a violation.
    revision: Option<i64>,
    at: FactTime,
}

impl FactJudgement<'_> {
    pub(crate) fn count_test(&mut self) {
        self.verdict.judged += 1;
    }

    pub(crate) fn report_broken(&mut self, what: impl std::fmt::Display) {
        let what = format!("{:.1} s: {what}", self.at.as_secs_f64());
        self.verdict.found.push((self.revision, what));
    }

    /// Counts a test, and a violation unless `it_holds`.
    pub(crate) fn require(&mut self, it_holds: bool, otherwise: impl FnOnce() -> String) {
        self.count_test();
        if !it_holds {
            self.report_broken(otherwise());
        }
    }
}

pub(crate) trait Predicate: Send {
    fn observe(&mut self, context: &Context<'_>, ruling: &mut FactJudgement<'_>);
}

#[derive(Default)]
struct PredicateVerdict {
    judged: u64,
    found: Vec<(Option<i64>, String)>,
}

pub struct Oracle {
    terms: PromiseTerms,
    picture: ObservedWorld,
    predicates: Vec<(Promise, Box<dyn Predicate>, PredicateVerdict)>,
    exemptions: Exemptions,
    users: BTreeSet<i64>,
}

impl Oracle {
    #[must_use]
    pub fn new(terms: PromiseTerms) -> Self {
        let predicates = Promise::ALL
            .iter()
            .map(|promise| (*promise, predicate_of(*promise), PredicateVerdict::default()));
        Self {
            terms,
            picture: ObservedWorld::default(),
            predicates: predicates.collect(),
            exemptions: Exemptions::default(),
            users: BTreeSet::new(),
        }
    }

    /// Knows the leader and the faults, and evaluates no promise: for a world that cannot test them.
    #[must_use]
    pub fn without_promises(terms: PromiseTerms) -> Self {
        Self { predicates: Vec::new(), ..Self::new(terms) }
    }

    /// Takes in a fact. Returns the promises that it broke, by users' own revisions as well.
    pub fn observe(&mut self, at: FactTime, fact: &Fact) -> Vec<(Promise, String)> {
        let written = self.picture.observe(at, fact);
        let revision = match fact {
            Fact::Stored { revision, .. } => Some(*revision),
            _ => None,
        };
        if let Fact::ByUser { revision } = fact {
            self.users.insert(*revision);
        }
        for pause in &self.picture.pauses {
            self.exemptions.record_use(Exemption::Unjudged, *pause);
        }
        let context = Context { at, fact, written: &written, now: &self.picture, terms: &self.terms };
        let mut news = Vec::new();
        for (promise, predicate, verdict) in &mut self.predicates {
            let before = verdict.found.len();
            predicate.observe(
                &context,
                &mut FactJudgement { verdict, exemptions: &mut self.exemptions, revision, at },
            );
            news.extend(verdict.found[before..].iter().map(|(_, what)| (*promise, what.clone())));
        }
        news
    }

    /// Verdicts so far, without the violations in revisions known as users' own.
    #[must_use]
    pub fn verdicts(&self) -> BTreeMap<Promise, Verdict> {
        let ours = |(revision, _): &&(Option<i64>, String)| {
            revision.is_none_or(|revision| !self.users.contains(&revision))
        };
        let verdict = |kept: &PredicateVerdict| Verdict {
            judged: kept.judged,
            violations: kept.found.iter().filter(ours).map(|(_, what)| what.clone()).collect(),
        };
        self.predicates.iter().map(|(promise, _, kept)| (*promise, verdict(kept))).collect()
    }

    /// True if the leader or the store has a fault, or had one since the given time, or the leader changed since.
    #[must_use]
    pub fn is_leading_troubled(&self, since: FactTime) -> bool {
        self.picture.is_leading_troubled(since)
    }

    #[must_use]
    pub fn exemptions(&self) -> Exemptions {
        let mut exemptions = self.exemptions.clone();
        let by_user = |revision: &i64| self.users.contains(revision);
        let found = self.predicates.iter().flat_map(|(.., kept)| &kept.found);
        for _ in found.filter(|(revision, _)| revision.as_ref().is_some_and(by_user)) {
            exemptions.used_once(Exemption::ByUser);
        }
        exemptions
    }
}

fn predicate_of(promise: Promise) -> Box<dyn Predicate> {
    use crate::fact::RegistryQuestion::{Machines, Reports};
    match promise {
        Promise::IntegrationDisabled => Box::<keeping::IntegrationDisabled>::default(),
        Promise::TemplateApplied => Box::<liveness::TemplateApplied>::default(),
        Promise::FreshObservation => Box::new(keeping::FreshObservation),
        Promise::HeldRemoval => Box::<keeping::HeldRemoval>::default(),
        Promise::CurrentInputs => Box::<keeping::CurrentInputs>::default(),
        Promise::ControlPlaneReplaced => Box::<liveness::ControlPlaneReplaced>::default(),
        Promise::RetiredNotEarly => Box::new(keeping::RetiredNotEarly),
        Promise::RetiredLeaves => Box::<liveness::RetiredLeaves>::default(),
        Promise::StateTaint => Box::<liveness::StateTaint>::default(),
        Promise::MachinePolls => Box::new(pace::PollInterval::for_question(Machines)),
        Promise::ReportPolls => Box::new(pace::PollInterval::for_question(Reports)),
        Promise::MetricRounds => Box::<pace::MetricRounds>::default(),
        Promise::HealthChecks => Box::<pace::HealthChecks>::default(),
        Promise::QueueDisabled => Box::new(repairs::QueueDisabled),
        Promise::QueueResumes => Box::<repairs::QueueResumes>::default(),
        Promise::AutoRepairDisabled => Box::<repairs::AutoRepairDisabled>::default(),
        Promise::ConcurrentRepairs => Box::new(repairs::ConcurrentRepairs),
        Promise::WatchLasts => Box::<repairs::WatchLasts>::default(),
        Promise::NextStep => Box::<repairs::NextStep>::default(),
        Promise::FreshHealth => Box::<repairs::FreshHealth>::default(),
        Promise::HealthySucceeds => Box::<repairs::HealthySucceeds>::default(),
        Promise::ProtectedPods => Box::new(requests::ProtectedPods),
        Promise::EvictedFirst => Box::<drains::EvictedFirst>::default(),
        Promise::DrainRequests => Box::<drains::DrainRequests>::default(),
        Promise::DrainEnds => Box::<drains::DrainEnds>::default(),
        Promise::OneDrain => Box::<drains::OneDrain>::default(),
        Promise::DeletionKept => Box::new(repairs::DeletionKept),
        Promise::LeaseMargin => Box::new(leading::LeaseMargin),
        Promise::IfMatch => Box::<requests::IfMatch>::default(),
        Promise::AllConditions => Box::new(requests::AllConditions),
        Promise::FailingMetrics => Box::<placement::FailingMetrics>::default(),
        Promise::BetterCluster => Box::<placement::BetterCluster>::default(),
        Promise::QuorumKept => Box::<operations::QuorumKept>::default(),
        Promise::LossProved => Box::<restores::LossProved>::default(),
        Promise::OneEtcd => Box::<operations::OneEtcd>::default(),
        Promise::InitialisedOnce => Box::<operations::InitialisedOnce>::default(),
        Promise::VoterDataKept => Box::<operations::VoterDataKept>::default(),
        Promise::WritesKept => Box::<operations::WritesKept>::default(),
        Promise::EpochsInOrder => Box::<operations::EpochsInOrder>::default(),
        Promise::HostKeyKept => Box::new(operations::HostKeyKept),
        Promise::ApiKept => Box::<components::ApiKept>::default(),
        Promise::EndpointsWithdrawn => Box::new(components::EndpointsWithdrawn),
        Promise::EndpointsKept => Box::new(components::EndpointsKept),
        Promise::EndedBeforeReboot => Box::new(components::EndedBeforeReboot),
        Promise::ServedBeforeReady => Box::new(components::ServedBeforeReady),
        Promise::BootTaintsFirst => Box::new(components::BootTaintsFirst),
        Promise::VersionsAllowed => Box::<components::VersionsAllowed>::default(),
        Promise::RollHalts => Box::<waves::RollHalts>::default(),
        Promise::WaveKept => Box::<waves::WaveKept>::default(),
        Promise::DrainLimit => Box::<drains::DrainLimit>::default(),
    }
}
