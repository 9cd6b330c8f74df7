use std::rc::Rc;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::placement::decision::{
    Decision, Gain, MAX_METRICS_NAMED, Move, Outcome, RankedCluster, Stay,
};
use madako_domain::placement::fit::Requirements;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::{Application, Cluster, ClusterState};
use time::OffsetDateTime;

use super::{ApplicationAct, Clouds, PassContext, Verdict};
use crate::config::add_duration;
use crate::draw::SeededDraw;
use crate::failure::next_attempt;
use crate::scope::{ConstraintResult, Rank, Scope};
use crate::snapshot::TypedResource;
use crate::target::{Availability, Target};

/// One application and the inputs of its verdict.
pub(super) struct Evaluation<'p, 's, 'a> {
    pub(super) context: PassContext<'p>,
    pub(super) application: TypedResource<'a, Application>,
    pub(super) wants: Requirements<'a>,
    pub(super) class: Rc<ConstraintResult>,
    pub(super) clusters: &'s Scope<'a>,
}

impl<'a> Evaluation<'_, '_, 'a> {
    pub(super) fn decide(self, clouds: Option<Clouds<'_, 'a>>) -> Verdict<'a> {
        let current = self.current_cluster();
        let mut forget = false;
        if let Some(created) = self.created_cluster() {
            match self.evaluate_created_cluster(&created, current.as_ref()) {
                Some(verdict) => return verdict,
                None => forget = true,
            }
        }
        let Some(current) = current else { return self.choose_first_cluster(clouds) };
        let well = current.fit == CurrentFit::Fits;
        let stay = |why: Stay| Outcome::Stays { on: current.key.clone(), why };
        let keep = ApplicationAct::Keep { well, forget };
        if let Some(pin) = self.reason_for_pin() {
            return self.make_verdict(stay(pin), keep).with_own_cluster(&self, &current);
        }
        match current.fit {
            CurrentFit::Fits => self.find_better(&current, clouds, forget),
            CurrentFit::Waits => self.stay_while_waiting(&current, current.at.into_iter().collect()),
            CurrentFit::Failing => self.make_verdict(stay(Stay::FailingMetrics), keep),
            CurrentFit::Grace { until } => {
                self.make_verdict(stay(Stay::NotOnline { until }), keep).with_retry_at(until)
            }
            CurrentFit::NotOnline => self.evaluate_leaving(&current, Move::NotOnline, clouds),
            CurrentFit::Misfit => self.evaluate_leaving(&current, Move::Misfit, clouds),
            CurrentFit::Gone => self.evaluate_leaving(&current, Move::Gone, clouds),
        }
    }

    fn current_cluster(&self) -> Option<CurrentCluster> {
        let reference = self.application.value.status.scheduled_to.as_ref()?;
        let key = reference.key().unwrap_or_else(|| {
            ObjectKey::new(Kind::Cluster, reference.namespace.as_deref(), &reference.name)
        });
        let at = self.clusters.place(&key);
        let stand = match at.map(|at| (at, self.clusters.target(at))) {
            None if self.context.snapshot.get(&key).is_some() => CurrentFit::Misfit,
            None => CurrentFit::Gone,
            Some((_, target)) if target.availability == Availability::Deleted => CurrentFit::Gone,
            Some((at, target)) => self.fit_of_current(&key, at, target),
        };
        Some(CurrentCluster { key, at, fit: stand })
    }

    fn fit_of_current(&self, key: &ObjectKey, at: usize, target: &Target<'_>) -> CurrentFit {
        let lasting = Requirements { metrics: &[], ..self.wants };
        if !lasting.are_met_by(&target.offer) {
            return CurrentFit::Misfit;
        }
        match target.availability {
            Availability::Yes if self.class.fit.contains(at) => CurrentFit::Fits,
            Availability::Yes => CurrentFit::Misfit,
            Availability::Waits => CurrentFit::Waits,
            Availability::FailingMetrics => CurrentFit::Failing,
            Availability::Deleted => CurrentFit::Gone,
            Availability::NotOnline => {
                let since = self.context.memory.clusters.get(key).and_then(|kept| kept.not_online_since);
                let until =
                    add_duration(since.unwrap_or(self.context.now), self.context.config.reschedule_after);
                if until > self.context.now { CurrentFit::Grace { until } } else { CurrentFit::NotOnline }
            }
        }
    }

    /// The cluster that was created for it and that it waits for, if it still exists.
    fn created_cluster(&self) -> Option<ObjectKey> {
        let name = self.application.value.status.auto_cluster_create_started.as_deref()?;
        Some(ObjectKey::new(Kind::Cluster, self.application.stored.key.namespace.as_deref(), name))
    }

    /// `None`: that cluster no longer counts.
    fn evaluate_created_cluster(
        &self,
        created: &ObjectKey,
        current: Option<&CurrentCluster>,
    ) -> Option<Verdict<'a>> {
        let cluster = self.context.snapshot.typed::<Cluster>(created)?;
        if cluster.value.metadata.deleted.is_some() || current.is_some_and(|current| current.key == *created)
        {
            return None;
        }
        let at = self.clusters.place(created)?;
        let waiting = || {
            let outcome = Outcome::WaitsForCluster { cluster: created.clone() };
            let keep = ApplicationAct::Keep { well: false, forget: false };
            self.make_verdict(outcome, if current.is_some() { keep } else { ApplicationAct::Nothing })
        };
        if current.is_some() && self.reason_for_pin().is_some() {
            return Some(waiting());
        }
        if cluster.value.status.state != ClusterState::Online || self.class.waits.contains(at) {
            return Some(waiting());
        }
        if !self.class.fit.contains(at) {
            // Its metrics may recover; other obstacles do not disappear by themselves.
            return (self.clusters.target(at).availability == Availability::FailingMetrics).then(waiting);
        }
        let rank = self.rank(at);
        let Some(current) = current else {
            let act = ApplicationAct::Bind { to: Rc::clone(self.clusters.target(at)), moves: None };
            let mut verdict = self.make_verdict(Outcome::Bound { to: created.clone() }, act);
            verdict.decision.best = Some(self.rank_target(at, rank));
            return Some(verdict);
        };
        // The wait covers its own cluster and every cluster that may be better.
        let waits: Vec<usize> = self.class.waits.iter().collect();
        if let Some((_, until)) = self.metrics_awaited_at(&waits) {
            return Some(waiting().with_retry_at(until));
        }
        match current.fit {
            CurrentFit::Grace { until } => Some(waiting().with_retry_at(until)),
            CurrentFit::Failing => Some(waiting()),
            _ if !self.is_created_still_best(at, rank, current) => None,
            CurrentFit::Fits | CurrentFit::Waits => Some(self.decide_move(current, at, rank, Move::Created)),
            CurrentFit::NotOnline => Some(self.decide_move(current, at, rank, Move::NotOnline)),
            CurrentFit::Misfit => Some(self.decide_move(current, at, rank, Move::Misfit)),
            CurrentFit::Gone => Some(self.decide_move(current, at, rank, Move::Gone)),
        }
    }

    /// True if the created cluster is still the best: inputs may have changed since its creation.
    fn is_created_still_best(&self, at: usize, rank: Rank, current: &CurrentCluster) -> bool {
        let own = current.at.filter(|_| current.fit == CurrentFit::Fits).map(|own| self.own_rank(own));
        own.is_none_or(|own| rank.is_better_than(&own))
            && self.class.best_without(&[at]).is_none_or(|(other, _)| !other.is_better_than(&rank))
    }

    /// Reason not to move, independent of its cluster.
    fn reason_for_pin(&self) -> Option<Stay> {
        let application = self.application.value;
        if !application.spec.constraints.migration {
            return Some(Stay::MigrationDisabled);
        }
        let until = OffsetDateTime::from_unix_timestamp(application.status.migration_timeout);
        match until {
            Ok(until) => (until > self.context.now).then_some(Stay::MigrationTimeout { until }),
            // Beyond the calendar: stay for ever, or not at all.
            Err(_) => (application.status.migration_timeout > 0).then_some(Stay::MigrationTimeout {
                until: add_duration(self.context.now, std::time::Duration::MAX),
            }),
        }
    }

    fn choose_first_cluster(&self, clouds: Option<Clouds<'_, 'a>>) -> Verdict<'a> {
        let waits: Vec<usize> = self.class.waits.iter().collect();
        if !waits.is_empty() {
            return self.wait_for_metrics(self.metrics_awaited_at(&waits));
        }
        let best = self.class.best_without(&[]).map(|(rank, members)| (rank, self.draw(&members)));
        match self.best_cloud(clouds, best.map(|(rank, _)| rank)) {
            BestCloud::Waits(metrics) => self.wait_for_metrics(Some(metrics)),
            BestCloud::Better(cloud, rank) => self.create(&cloud, rank, None),
            BestCloud::None => match best {
                None => self.fail(),
                Some((rank, at)) => {
                    let to = self.clusters.target(at);
                    let outcome = Outcome::Bound { to: to.key().clone() };
                    let act = ApplicationAct::Bind { to: Rc::clone(to), moves: None };
                    let mut verdict = self.make_verdict(outcome, act);
                    verdict.decision.best = Some(self.rank_target(at, rank));
                    verdict.decision.runner_up = self.runner_up(&[at]);
                    verdict
                }
            },
        }
    }

    /// Looks for a better cluster while the own one fits.
    fn find_better(
        &self,
        current: &CurrentCluster,
        clouds: Option<Clouds<'_, 'a>>,
        forget: bool,
    ) -> Verdict<'a> {
        let Some(at) = current.at else { return self.evaluate_leaving(current, Move::Gone, clouds) };
        let stays = |why: Stay| {
            let outcome = Outcome::Stays { on: current.key.clone(), why };
            self.make_verdict(outcome, ApplicationAct::Keep { well: true, forget })
                .with_own_cluster(self, current)
        };
        let scheduled = self.application.value.status.scheduled.as_ref();
        if let Some(scheduled) = scheduled {
            let reschedule_after = self.context.config.reschedule_after;
            let until = add_duration(scheduled.instant(), reschedule_after);
            // A timestamp beyond the maximum clock skew came from a wrong clock; ignore it.
            let is_sane = until <= add_duration(self.context.now, reschedule_after.saturating_mul(2));
            if until > self.context.now && is_sane {
                return stays(Stay::Recent { until }).with_retry_at(until);
            }
        }
        let waits: Vec<usize> = self.class.waits.iter().collect();
        if !waits.is_empty() {
            return self.stay_while_waiting(current, waits);
        }
        let own = self.own_rank(at);
        let other = self
            .class
            .best_without(&[at])
            .filter(|(rank, _)| rank.is_better_than(&own) || is_planted(Canary::RestlessMoves));
        let best = other.as_ref().map_or(own, |(rank, _)| *rank);
        match (self.best_cloud(clouds, Some(best)), other) {
            (BestCloud::Waits(metrics), _) => self.stay_until_metrics_arrive(current, metrics),
            (BestCloud::Better(cloud, rank), _) => {
                let mut verdict = self.create(&cloud, rank, Some((current.key.clone(), Move::Better)));
                verdict.decision.gain = Some(self.gain_over(at, rank));
                verdict
            }
            (BestCloud::None, None) => stays(Stay::Best),
            (BestCloud::None, Some((rank, members))) => {
                let to = self.draw(&members);
                self.decide_move(current, to, rank, Move::Better)
            }
        }
    }

    /// Verdict for an application that its cluster no longer takes.
    fn evaluate_leaving(
        &self,
        current: &CurrentCluster,
        why: Move,
        clouds: Option<Clouds<'_, 'a>>,
    ) -> Verdict<'a> {
        let waits: Vec<usize> = self.class.waits.iter().collect();
        if !waits.is_empty() {
            return self.stay_while_waiting(current, waits);
        }
        let best = self.class.best_without(&[]);
        match (self.best_cloud(clouds, best.as_ref().map(|(rank, _)| *rank)), best) {
            (BestCloud::Waits(metrics), _) => self.stay_until_metrics_arrive(current, metrics),
            (BestCloud::Better(cloud, rank), _) => {
                self.create(&cloud, rank, Some((current.key.clone(), why)))
            }
            (BestCloud::None, None) => self.fail(),
            (BestCloud::None, Some((rank, members))) => {
                let to = self.draw(&members);
                self.decide_move(current, to, rank, why)
            }
        }
    }

    fn decide_move(&self, current: &CurrentCluster, at: usize, rank: Rank, why: Move) -> Verdict<'a> {
        let to = self.clusters.target(at);
        let outcome = Outcome::Moved { from: current.key.clone(), to: to.key().clone(), why: why.clone() };
        let act = ApplicationAct::Bind { to: Rc::clone(to), moves: Some(why.clone()) };
        let mut verdict = self.make_verdict(outcome, act);
        verdict.decision.best = Some(self.rank_target(at, rank));
        let own = current.at.filter(|own| !why.is_forced() && self.class.fit.contains(*own));
        let without: Vec<usize> = [Some(at), own].into_iter().flatten().collect();
        verdict.decision.runner_up = self.runner_up(&without);
        if let Some(own) = own {
            verdict.decision.gain = Some(self.gain_over(own, rank));
            let own = self.rank_target(own, self.own_rank(own));
            if verdict.decision.runner_up.as_ref().is_none_or(|other| ranks_higher(&own, other)) {
                verdict.decision.runner_up = Some(own);
            }
        }
        verdict
    }

    /// The best cloud, if its score exceeds the best cluster's, or if there is no cluster.
    fn best_cloud(&self, clouds: Option<Clouds<'_, 'a>>, best: Option<Rank>) -> BestCloud<'a> {
        let Some(clouds) = clouds else { return BestCloud::None };
        let mut found: Option<(Rank, Rc<Target<'a>>)> = None;
        for scope in clouds {
            let class = scope.evaluate_requirements(&self.wants);
            let waits =
                class.waits.iter().flat_map(|at| scope.target(at).awaited_metrics().collect::<Vec<_>>());
            if let Some(waits) = limit_metrics(waits) {
                return BestCloud::Waits(waits);
            }
            if let Some((rank, members)) = class.best_without(&[])
                && found.as_ref().is_none_or(|(known, _)| rank.is_better_than(known))
            {
                found = Some((rank, Rc::clone(scope.target(self.draw(&members)))));
            }
        }
        match found {
            Some((rank, cloud)) if best.is_none_or(|best| rank.score > best.score) => {
                BestCloud::Better(cloud, rank)
            }
            _ => BestCloud::None,
        }
    }

    fn create(&self, cloud: &Rc<Target<'a>>, rank: Rank, moves: Option<(ObjectKey, Move)>) -> Verdict<'a> {
        // The cluster gets its name at creation.
        let outcome = Outcome::Creates { cluster: cloud.key().clone(), cloud: cloud.key().clone() };
        let mut verdict =
            self.make_verdict(outcome, ApplicationAct::Create { cloud: Rc::clone(cloud), moves });
        let Rank { has_metrics, score } = rank;
        verdict.decision.best = Some(RankedCluster { target: cloud.key().clone(), score, has_metrics });
        verdict.decision.runner_up = self.runner_up(&[]);
        verdict
    }

    fn fail(&self) -> Verdict<'a> {
        let attempt = next_attempt(self.application.value, self.context.now);
        let again = attempt.again;
        let verdict = self.make_verdict(attempt.outcome.clone(), ApplicationAct::Fail(attempt));
        Verdict { again, ..verdict }
    }

    fn wait_for_metrics(&self, waits: Option<(Vec<String>, OffsetDateTime)>) -> Verdict<'a> {
        let (metrics, until) = waits.unwrap_or((Vec::new(), self.context.now));
        self.make_verdict(Outcome::WaitsForMetric { metrics, until }, ApplicationAct::Nothing)
            .with_retry_at(until)
    }

    fn stay_while_waiting(&self, current: &CurrentCluster, waits: Vec<usize>) -> Verdict<'a> {
        self.stay_until_metrics_arrive(
            current,
            self.metrics_awaited_at(&waits).unwrap_or((Vec::new(), self.context.now)),
        )
    }

    fn stay_until_metrics_arrive(
        &self,
        current: &CurrentCluster,
        waits: (Vec<String>, OffsetDateTime),
    ) -> Verdict<'a> {
        let (metrics, until) = waits;
        let why = Stay::WaitsForMetric { metrics, until };
        self.make_verdict(Outcome::Stays { on: current.key.clone(), why }, ApplicationAct::Nothing)
            .with_retry_at(until)
    }

    fn metrics_awaited_at(&self, places: &[usize]) -> Option<(Vec<String>, OffsetDateTime)> {
        limit_metrics(
            places.iter().flat_map(|at| self.clusters.target(*at).awaited_metrics().collect::<Vec<_>>()),
        )
    }

    pub(super) fn make_verdict(&self, outcome: Outcome, act: ApplicationAct<'a>) -> Verdict<'a> {
        let clusters = self.class.counts;
        let decision =
            Decision { at: self.context.now, outcome, best: None, runner_up: None, gain: None, clusters };
        Verdict { decision, act, again: None }
    }

    fn draw(&self, members: &[usize]) -> usize {
        match members {
            [only] => *only,
            _ => {
                let chosen = SeededDraw::new(self.context.seed, &self.application.value.metadata.uid)
                    .number_below(members.len());
                members.get(chosen).copied().unwrap_or_default()
            }
        }
    }

    fn rank(&self, at: usize) -> Rank {
        let base = &self.clusters.target(at).base;
        Rank { has_metrics: base.has_metrics, score: base.score() }
    }

    fn own_rank(&self, at: usize) -> Rank {
        let base = &self.clusters.target(at).base;
        Rank { has_metrics: base.has_metrics, score: base.with_stickiness(self.context.config.stickiness) }
    }

    fn rank_target(&self, at: usize, rank: Rank) -> RankedCluster {
        let target = self.clusters.target(at).key().clone();
        RankedCluster { target, score: rank.score, has_metrics: rank.has_metrics }
    }

    /// The best place except the given ones.
    fn runner_up(&self, without: &[usize]) -> Option<RankedCluster> {
        let (rank, members) = self.class.best_without(without)?;
        Some(self.rank_target(self.draw(&members), rank))
    }

    fn gain_over(&self, own: usize, other: Rank) -> Gain {
        let base = self.rank(own).score;
        Gain { gain: other.score - base, stickiness: self.own_rank(own).score - base }
    }
}

/// State of the bound cluster with respect to the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CurrentFit {
    Fits,
    /// It would fit, but for metrics that are still awaited.
    Waits,
    Failing,
    /// Not online, but within the grace time.
    Grace {
        until: OffsetDateTime,
    },
    NotOnline,
    Misfit,
    Gone,
}

struct CurrentCluster {
    key: ObjectKey,
    at: Option<usize>,
    fit: CurrentFit,
}

impl<'a> Verdict<'a> {
    fn with_retry_at(self, time: OffsetDateTime) -> Self {
        Self { again: Some(time), ..self }
    }

    /// Adds the own cluster and the best other one to the decision of a staying application.
    fn with_own_cluster(mut self, evaluation: &Evaluation<'_, '_, 'a>, current: &CurrentCluster) -> Self {
        if let Some(own) = current.at.filter(|own| evaluation.class.fit.contains(*own)) {
            self.decision.best = Some(evaluation.rank_target(own, evaluation.own_rank(own)));
            let other = evaluation.class.best_without(&[own]);
            self.decision.gain = other.as_ref().map(|(rank, _)| evaluation.gain_over(own, *rank));
            self.decision.runner_up =
                other.map(|(rank, members)| evaluation.rank_target(evaluation.draw(&members), rank));
        }
        self
    }
}

/// The best cloud, compared with clusters.
enum BestCloud<'a> {
    /// A cluster is better, or there is no cloud.
    None,
    Better(Rc<Target<'a>>, Rank),
    /// A metric is still awaited.
    Waits((Vec<String>, OffsetDateTime)),
}

fn ranks_higher(one: &RankedCluster, other: &RankedCluster) -> bool {
    let rank = |ranked: &RankedCluster| Rank { has_metrics: ranked.has_metrics, score: ranked.score };
    rank(one).is_better_than(&rank(other))
}

/// Names of a few awaited metrics, and the deadline of all.
fn limit_metrics(
    waits: impl Iterator<Item = (String, OffsetDateTime)>,
) -> Option<(Vec<String>, OffsetDateTime)> {
    let mut metrics: Vec<String> = Vec::new();
    let mut last = None;
    for (metric, until) in waits {
        last = last.max(Some(until));
        if metrics.len() < MAX_METRICS_NAMED && !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    last.map(|last| (metrics, last))
}
