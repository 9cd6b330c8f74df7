//! Ownership of placement: the leader claims the owner's key when its reign begins, follows the key, and claims it
//! again when allowed.

use madako_domain::placement::ownership::{self, Ownership, Step};
use madako_domain::store::Epoch;
use madako_protocol::actors::LeaderMessage;
use madako_protocol::event::Event;
use madako_protocol::feed::Task;
use madako_protocol::mailbox::Envelope;
use madako_protocol::store::WatchEvent;
use ractor::ActorRef;
use tokio::time::sleep;

use super::placement::{PlacementAccess, claim_ownership};
use super::{LeaderArguments, LeaderState, START_RETRY, madako_placement_owner};
use crate::limits::CLAIM_RETRY;

impl LeaderState {
    pub(super) fn handle_owner_change(
        &mut self,
        myself: &ActorRef<Envelope<LeaderMessage>>,
        event: WatchEvent,
    ) {
        match event {
            WatchEvent::Listed(mut snapshot) => {
                self.owner = Some((snapshot.revision, snapshot.entries.remove(ownership::KEY)));
                if self.is_ahead() {
                    // The list precedes this leader's claim, or the store was restored to an earlier state.
                    return self.start_claim(myself);
                }
            }
            WatchEvent::Changed { revision, changes } => {
                // Other keys may share the key as a prefix.
                let of_it = changes.into_iter().rfind(|change| change.key == ownership::KEY);
                let Some(change) = of_it else { return };
                self.owner = Some((revision, change.entry));
            }
            WatchEvent::Interrupted(_) => return,
        }
        self.update_ownership(myself);
    }

    pub(super) fn finish_claim(
        &mut self,
        myself: &ActorRef<Envelope<LeaderMessage>>,
        epoch: i64,
        placement: Ownership,
    ) {
        if self.reigning && self.epoch.as_ref().is_some_and(|own| own.number == epoch) {
            self.claiming = None;
            if placement != Ownership::Unknown {
                self.set_ownership(placement);
            }
            self.update_ownership(myself);
        }
    }

    /// Updates the ownership from the owner's key.
    pub(super) fn update_ownership(&mut self, myself: &ActorRef<Envelope<LeaderMessage>>) {
        let (Some(access), Some(epoch)) =
            (&self.given.placement, self.epoch.as_ref().filter(|_| self.reigning))
        else {
            return;
        };
        let Some((_, owner)) = &self.owner else { return };
        if self.is_ahead() {
            return;
        }
        match ownership::next_step(owner.as_ref(), &access.prefix, epoch) {
            Step::Settled(settled) => self.set_ownership(settled),
            Step::Claim(_) => self.start_claim(myself),
        }
    }

    /// True if the watch has not yet shown this leader's own claim.
    fn is_ahead(&self) -> bool {
        let known_revision = self.owner.as_ref().map_or(0, |(revision, _)| *revision);
        matches!(self.ownership, Ownership::Ours { revision } if revision > known_revision)
    }

    /// Reads the key and claims it if it is free.
    fn start_claim(&mut self, myself: &ActorRef<Envelope<LeaderMessage>>) {
        let (Some(access), Some(epoch)) =
            (&self.given.placement, self.epoch.as_ref().filter(|_| self.reigning))
        else {
            return;
        };
        if self.claiming.is_some() {
            return;
        }
        let (given, access, epoch) = (self.given.clone(), access.clone(), epoch.clone());
        let leader = myself.clone();
        self.claiming = Some(Task::start(async move {
            let placement = claim_placement(&access, &given, &epoch).await;
            match placement {
                Ownership::Ours { .. } => {}
                // The watch shows this owner and its end; until then no action is needed.
                Ownership::Theirs { .. } => sleep(START_RETRY).await,
                Ownership::Unknown => sleep(CLAIM_RETRY).await,
            }
            // The leader is gone, and with it the claim.
            let _ = leader.cast(LeaderMessage::Claimed { epoch: epoch.number, placement }.into());
        }));
    }

    pub(super) fn set_ownership(&mut self, ownership: Ownership) {
        let Some(access) = &self.given.placement else { return };
        if self.ownership == ownership {
            return;
        }
        match &ownership {
            Ownership::Theirs { prefix } => {
                self.given.events.emit(Event::PlacementHeld { owner: prefix.clone() });
            }
            Ownership::Ours { .. } if !matches!(self.ownership, Ownership::Ours { .. }) => {
                self.given.events.emit(Event::PlacementOwned);
            }
            Ownership::Ours { .. } | Ownership::Unknown => {}
        }
        show_ownership(access, &ownership);
        self.ownership = ownership;
    }
}

/// Claims placement; emits an event on failure.
pub(super) async fn claim_placement(
    access: &PlacementAccess,
    given: &LeaderArguments,
    epoch: &Epoch,
) -> Ownership {
    claim_ownership(access, epoch).await.unwrap_or_else(|error| {
        given.events.emit(Event::CommitFailed { what: "claim of placement", why: error.to_string() });
        Ownership::Unknown
    })
}

pub(super) fn show_ownership(access: &PlacementAccess, ownership: &Ownership) {
    let ours = matches!(ownership, Ownership::Ours { .. });
    madako_placement_owner().set(f64::from(ours));
    access.ownership.send_if_modified(|known| {
        let news = known != ownership;
        known.clone_from(ownership);
        news
    });
}
