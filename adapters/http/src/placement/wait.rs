//! API answers that wait until a resource reaches a state (`?blocking=running`), at most until the server's shutdown.

use std::sync::Arc;

use madako_domain::placement::kubernetes::ApplicationState;
use madako_domain::placement::object_value::Object;
use madako_domain::placement::objects::Change;
use madako_protocol::placement::objects::Follower;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use super::BLOCKING;
use super::problem::Problem;
use super::query::{AwaitedCondition, state_name};
use super::service::{RequestContext, Service};
use super::write::{AnsweredResource, WrittenResource};

/// Shutdown signal of the server. The listener adds it to the extensions of each request; without it the server never
/// shuts down.
#[derive(Debug, Clone, Default)]
pub struct ServerClosing(Option<watch::Receiver<bool>>);

impl ServerClosing {
    /// `closing` becomes true when the server shuts down.
    #[must_use]
    pub fn new(closing: watch::Receiver<bool>) -> Self {
        Self(Some(closing))
    }

    pub(super) async fn wait_for_close(&mut self) {
        match &mut self.0 {
            // An error means that the server is gone, which closes as well.
            Some(closing) => drop(closing.wait_for(|closing| *closing).await),
            None => std::future::pending().await,
        }
    }
}

/// A state that an answer waits for, with a follower that started before the write.
pub(super) struct AwaitedState {
    awaited: AwaitedCondition,
    service: Arc<Service>,
    follower: Box<dyn Follower>,
    until: Instant,
    closing: ServerClosing,
    _place: OwnedSemaphorePermit,
}

impl RequestContext {
    /// Prepares to wait for a state, before the write, so that no later change is missed.
    pub(super) async fn expect(
        &mut self,
        awaited: Option<AwaitedCondition>,
    ) -> Result<Option<AwaitedState>, Problem> {
        let Some(awaited) = awaited else { return Ok(None) };
        let place = self.service.take_stream_slot()?;
        let until = Instant::now() + BLOCKING;
        let follower = self.follow().await?;
        let (service, closing) = (Arc::clone(&self.service), self.closing_signal());
        Ok(Some(AwaitedState { awaited, service, follower, until, closing, _place: place }))
    }
}

impl AwaitedState {
    /// The resource in the awaited state, or as it was written if the state is not reached in time, as in Krake.
    pub(super) async fn wait_for_state(mut self, written: WrittenResource) -> WrittenResource {
        if self.is_satisfied(&written) {
            return written;
        }
        let (until, mut closing) = (self.until, self.closing.clone());
        tokio::select! {
            biased;
            reached = self.reach_state(&written) => reached.unwrap_or(written),
            () = tokio::time::sleep_until(until) => written,
            () = closing.wait_for_close() => written,
        }
    }

    fn is_satisfied(&self, written: &WrittenResource) -> bool {
        match self.awaited {
            AwaitedCondition::Deleted => written.gone,
            AwaitedCondition::State(wanted) => {
                !written.gone && state_name(written.written_object()) == Some(wanted)
            }
        }
    }

    /// `None`: the state cannot be reached.
    async fn reach_state(&mut self, written: &WrittenResource) -> Option<WrittenResource> {
        loop {
            let Ok(changes) = self.follower.next().await else {
                // Changes were missed: check the present state, then follow later changes.
                let revision = self.service.refresh().await.ok()?;
                self.follower = self.service.api.objects.follow(revision).ok()?;
                match self.service.api.objects.get(&written.key) {
                    Some(stored) => {
                        let now = WrittenResource {
                            revision: stored.mod_revision,
                            shown: AnsweredResource::Stored(stored),
                            ..written.clone()
                        };
                        if self.is_satisfied(&now) {
                            return Some(now);
                        }
                    }
                    None => return self.answer_deleted(written, written.shown.clone(), revision),
                }
                continue;
            };
            for change in changes.iter().filter(|change| change.key == written.key) {
                if let Some(end) = self.evaluate_change(written, change) {
                    return end;
                }
            }
        }
    }

    /// `None`: continue to wait.
    fn evaluate_change(&self, written: &WrittenResource, change: &Change) -> Option<Option<WrittenResource>> {
        // The write itself, and earlier changes.
        if change.revision <= written.revision {
            return None;
        }
        match &change.after {
            Some(stored) => {
                let shown = AnsweredResource::Stored(Arc::clone(stored));
                let now = WrittenResource { revision: stored.mod_revision, shown, ..written.clone() };
                self.is_satisfied(&now).then_some(Some(now))
            }
            None => {
                let last = change.before.as_ref().map_or_else(
                    || written.shown.clone(),
                    |before| AnsweredResource::Stored(Arc::clone(before)),
                );
                Some(self.answer_deleted(written, last, change.revision))
            }
        }
    }

    fn answer_deleted(
        &self,
        written: &WrittenResource,
        last: AnsweredResource,
        revision: i64,
    ) -> Option<WrittenResource> {
        let last = WrittenResource { revision, gone: true, shown: last, ..written.clone() };
        if self.awaited != AwaitedCondition::Deleted {
            return None;
        }
        // As in Krake's status of applications.
        let mut object = last.written_object().clone();
        if let Object::Application(application) = &mut object {
            application.status.state = ApplicationState::Deleted;
        }
        let wire = object.to_json().into();
        Some(WrittenResource { shown: AnsweredResource::New(Box::new(object), wire), ..last })
    }
}
