//! What becomes of one application (seed 004, "Application handler"; issue 4, section 4).
//!
//! Guarantees: a verdict depends on the application and on the places alone, never on what else the same pass
//! decides. An application that is bound stays unless another cluster is better by more than the stickiness, or
//! its own takes it no longer.
//!
//! Does not: hold moves back to spread them ([`crate::moves`]).

mod case;

use std::rc::Rc;

use madako_domain::placement::decision::{Decision, LeftAlone, Move, Outcome};
use madako_domain::placement::fit::Wants;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::kubernetes::{Application, ApplicationState};
use time::OffsetDateTime;

use self::case::Case;
use crate::config::SchedulerConfig;
use crate::failure::Attempt;
use crate::memory::Memory;
use crate::scope::Scope;
use crate::snapshot::{Seen, Snapshot};
use crate::target::Target;

/// A decision, and what is to be done.
pub(crate) struct Verdict<'a> {
    pub(crate) decision: Decision,
    pub(crate) act: Act<'a>,
    /// When it would be another one though nothing changed.
    pub(crate) again: Option<OffsetDateTime>,
}

/// What is to be done.
pub(crate) enum Act<'a> {
    /// Nothing.
    Nothing,
    /// It stays: this version of it may be deployed.
    Keep {
        /// Whether it is where it should be, so that a failure of before is over.
        well: bool,
        /// Whether the cluster that it waited for does not count any more.
        forget: bool,
    },
    /// It is bound.
    Bind {
        to: Rc<Target<'a>>,
        /// For a move: why.
        moves: Option<Move>,
    },
    /// The attempt failed.
    Fail(Attempt),
    /// A cluster is created for it.
    Create {
        cloud: Rc<Target<'a>>,
        /// For one that is bound and is to move there: where it is, and why.
        moves: Option<(ObjectKey, Move)>,
    },
}

/// What all verdicts of a pass share.
#[derive(Clone, Copy)]
pub(crate) struct Court<'p> {
    pub(crate) snapshot: &'p Snapshot,
    pub(crate) config: &'p SchedulerConfig,
    pub(crate) memory: &'p Memory,
    pub(crate) now: OffsetDateTime,
    pub(crate) seed: u64,
}

/// Clouds on which a cluster may be created: those of the namespace, and everybody's.
pub(crate) type Clouds<'s, 'a> = [&'s mut Scope<'a>; 2];

impl Court<'_> {
    /// Judges an application. `clouds`: if a cluster may be created for it.
    pub(crate) fn judge<'a>(
        &self,
        seen: Seen<'a, Application>,
        with_owner: bool,
        clusters: &mut Scope<'a>,
        clouds: Option<Clouds<'_, 'a>>,
    ) -> Verdict<'a> {
        let application = seen.value;
        let alone = if application.metadata.deleted.is_some() {
            Some(LeftAlone::Deleted)
        } else if with_owner {
            Some(LeftAlone::DeletedWithOwner)
        } else {
            (application.status.state == ApplicationState::Failed).then_some(LeftAlone::Failed)
        };
        let wants = Wants::from(application);
        let class = clusters.class(&wants);
        let case = Case { court: *self, seen, wants, class, clusters };
        match alone {
            Some(why) => case.verdict(Outcome::LeftAlone { why }, Act::Nothing),
            None => case.judge(clouds),
        }
    }
}
