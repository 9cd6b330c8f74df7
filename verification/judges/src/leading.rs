//! The promise about leadership: each permit ends before the leader's lease can end, by at least the margin.

use crate::fact::Fact;
use crate::oracle::{Context, FactJudgement, Predicate};

pub(crate) struct LeaseMargin;

impl Predicate for LeaseMargin {
    fn observe(&mut self, Context { fact, terms, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let Fact::Permitted { instance, until, lease_ends } = fact else { return };
        ruling.require(*until + terms.lease_margin() <= *lease_ends, || {
            format!("{instance} has a permit until {until:?}, and its lease may end at {lease_ends:?}")
        });
    }
}
