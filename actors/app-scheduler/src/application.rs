//! Decides about one application (Krake's "Scheduling", "Application handler").
//!
//! Guarantees: a verdict depends on the application and on the candidate clusters alone, never on other decisions of
//! the same pass. A bound application stays unless another cluster is better by more than the stickiness, or its own
//! cluster no longer takes it.
//!
//! Does not: delay moves to spread them ([`crate::moves`]).

mod evaluation;

use std::rc::Rc;

use madako_domain::placement::decision::{Decision, LeftAlone, Move, Outcome};
use madako_domain::placement::fit::Requirements;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::kubernetes::{Application, ApplicationState};
use time::OffsetDateTime;

use self::evaluation::Evaluation;
use crate::config::SchedulerConfig;
use crate::failure::AttemptResult;
use crate::memory::Memory;
use crate::scope::Scope;
use crate::snapshot::{Snapshot, TypedResource};
use crate::target::Target;

pub(crate) struct Verdict<'a> {
    pub(crate) decision: Decision,
    pub(crate) act: ApplicationAct<'a>,
    /// Time at which the verdict may change without other changes.
    pub(crate) again: Option<OffsetDateTime>,
}

pub(crate) enum ApplicationAct<'a> {
    Nothing,
    /// The application stays: this version may be deployed.
    Keep {
        /// The place is right, so that an earlier failure is over.
        well: bool,
        /// The created cluster that it waited for no longer counts.
        forget: bool,
    },
    Bind {
        to: Rc<Target<'a>>,
        moves: Option<Move>,
    },
    Fail(AttemptResult),
    Create {
        cloud: Rc<Target<'a>>,
        /// Present cluster and reason, if the application is to move there.
        moves: Option<(ObjectKey, Move)>,
    },
}

/// Inputs shared by all verdicts of a pass.
#[derive(Clone, Copy)]
pub(crate) struct PassContext<'p> {
    pub(crate) snapshot: &'p Snapshot,
    pub(crate) config: &'p SchedulerConfig,
    pub(crate) memory: &'p Memory,
    pub(crate) now: OffsetDateTime,
    pub(crate) seed: u64,
}

/// Clouds for new clusters: those of the namespace, and global ones.
pub(crate) type Clouds<'s, 'a> = [&'s mut Scope<'a>; 2];

impl PassContext<'_> {
    /// Decides about an application. `clouds`: given if a cluster may be created for it.
    pub(crate) fn decide<'a>(
        &self,
        resource: TypedResource<'a, Application>,
        with_owner: bool,
        clusters: &mut Scope<'a>,
        clouds: Option<Clouds<'_, 'a>>,
    ) -> Verdict<'a> {
        let application = resource.value;
        let alone = if application.metadata.deleted.is_some() {
            Some(LeftAlone::Deleted)
        } else if with_owner {
            Some(LeftAlone::DeletedWithOwner)
        } else {
            (application.status.state == ApplicationState::Failed).then_some(LeftAlone::Failed)
        };
        let wants = Requirements::from(application);
        let class = clusters.evaluate_requirements(&wants);
        let evaluation = Evaluation { context: *self, application: resource, wants, class, clusters };
        match alone {
            Some(why) => evaluation.make_verdict(Outcome::LeftAlone { why }, ApplicationAct::Nothing),
            None => evaluation.decide(clouds),
        }
    }
}
