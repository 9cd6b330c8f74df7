//! Watch streams of the placement API: one line of JSON per change, an empty line as a heartbeat.
//!
//! A watch that cannot continue breaks off in the middle of its chunked body; every client treats that as an error and
//! lists again. A server that shuts down ends the body properly.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::{BufMut as _, BytesMut};
use futures::stream;
use madako_domain::placement::core::Verb;
use madako_domain::placement::kind::Kind;
use madako_domain::placement::objects::{Change, Stored};
use madako_protocol::placement::objects::{Follower, FollowerGap};
use madako_protocol::telemetry::CountedGauge;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::problem::Problem;
use super::query::shorten_parameter;
use super::rbac::{GrantedScope, RequestScope, RequestedAccess};
use super::selector::Selector;
use super::service::{RequestContext, Service};
use super::wait::ServerClosing;
use super::{ANONYMOUS, Authorization};
use crate::limits::ATTEMPTS;
use crate::telemetry::madako_placement_watches;

/// Media type of a watch in Krake's server.
const LINES: &str = "application/x-ndjson";

#[derive(Debug, thiserror::Error)]
enum WatchEnd {
    #[error("the watch ends because it missed changes: list the resources again, and watch from there")]
    Gap(#[from] FollowerGap),
    #[error("the watch ends because its user lost the permission to watch these resources")]
    Forbidden,
}

impl RequestContext {
    /// Follows all changes after the store's revision at the time of the request.
    pub(super) async fn follow(&mut self) -> Result<Box<dyn Follower>, Problem> {
        let mut revision = self.refresh().await?;
        let mut attempt = 1;
        loop {
            match self.service.api.objects.follow(revision) {
                Ok(follower) => return Ok(follower),
                // The store was replaced in between.
                Err(gap) if attempt == ATTEMPTS => return Err(Problem::replaced_cache(&gap)),
                Err(_) => {
                    attempt += 1;
                    revision = self.service.refresh().await?;
                }
            }
        }
    }

    pub(super) async fn watch(
        mut self,
        selected: SelectedWatch,
        heartbeat: Option<Duration>,
    ) -> Result<Response, Problem> {
        for pages in ["limit", "continue"] {
            if let Some(value) = self.query.get(pages) {
                let got = format!("{:?}", shorten_parameter(value));
                return Err(Problem::invalid_field(pages, got, "nothing: a watch has no pages"));
            }
        }
        let place = self.service.take_stream_slot()?;
        let follower = self.follow().await?;
        let watch = Watch {
            _open: CountedGauge::new(madako_placement_watches(selected.kind.name())),
            selected,
            follower,
            heartbeat: heartbeat.map(heartbeat_interval),
            closing: self.closing_signal(),
            pending: VecDeque::new(),
            service: Arc::clone(&self.service),
            user: self.user,
            _place: place,
        };
        let lines = stream::try_unfold(watch, |mut watch| async move {
            match watch.next_line().await {
                Ok(Some(line)) => Ok(Some((line, watch))),
                Ok(None) => Ok(None),
                Err(broken) => {
                    tracing::info!(
                        error = &broken as &dyn std::error::Error, kind = %watch.selected.kind,
                        "a watch ended early"
                    );
                    Err(broken)
                }
            }
        });
        Ok(([(header::CONTENT_TYPE, LINES)], Body::from_stream(lines)).into_response())
    }
}

fn heartbeat_interval(every: Duration) -> Interval {
    let mut interval = interval_at(Instant::now() + every, every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

pub(super) struct SelectedWatch {
    pub(super) kind: Kind,
    pub(super) namespace: Option<String>,
    /// Namespaces that the user may see.
    pub(super) granted: GrantedScope,
    pub(super) selector: Selector,
}

struct Watch {
    selected: SelectedWatch,
    follower: Box<dyn Follower>,
    heartbeat: Option<Interval>,
    closing: ServerClosing,
    /// Changes that were received and not yet written.
    pending: VecDeque<Arc<Change>>,
    service: Arc<Service>,
    user: String,
    _place: OwnedSemaphorePermit,
    _open: CountedGauge,
}

impl Watch {
    /// The next line; `None` at the proper end.
    async fn next_line(&mut self) -> Result<Option<Bytes>, WatchEnd> {
        loop {
            while let Some(change) = self.pending.pop_front() {
                self.check_access(&change)?;
                if let Some(line) = self.selected.line_of_change(&change) {
                    return Ok(Some(line));
                }
            }
            let signs = async {
                match &mut self.heartbeat {
                    Some(heartbeat) => heartbeat.tick().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.closing.wait_for_close() => return Ok(None),
                changes = self.follower.next() => self.pending.extend(changes?),
                _ = signs => return Ok(Some(Bytes::from_static(b"\n"))),
            }
        }
    }

    /// Checks the user's rights again when a role or a role binding has changed.
    fn check_access(&mut self, change: &Change) -> Result<(), WatchEnd> {
        let concerns = matches!(change.key.kind, Kind::Role | Kind::RoleBinding);
        if !concerns
            || self.service.api.settings.authorization != Authorization::Rbac
            || self.user == ANONYMOUS
        {
            return Ok(());
        }
        let SelectedWatch { kind, namespace, granted, .. } = &self.selected;
        let place = match namespace {
            Some(namespace) => RequestScope::Namespace(namespace),
            None if kind.namespaced() => RequestScope::Everywhere,
            None => RequestScope::Global,
        };
        let wish = RequestedAccess { kind: *kind, part: None, verb: Verb::List, scope: place };
        // After a gain of rights the client must list the existing resources, so the watch ends in this case too.
        match self.service.granted_scope(&self.user, &wish) {
            Some(now) if now == *granted => Ok(()),
            _ => Err(WatchEnd::Forbidden),
        }
    }
}

impl SelectedWatch {
    /// The line of a change; `None` if the watch does not show it.
    fn line_of_change(&self, change: &Change) -> Option<Bytes> {
        let key = &change.key;
        let concerns = key.kind == self.kind
            && self.namespace.as_ref().is_none_or(|namespace| key.namespace.as_ref() == Some(namespace))
            && self.granted.includes(key.namespace.as_deref());
        if !concerns {
            return None;
        }
        let visible = |stored: &Option<Arc<Stored>>| {
            stored.clone().filter(|stored| self.selector.selects(&stored.object.metadata().labels))
        };
        let (before, after) = (visible(&change.before), visible(&change.after));
        let (kind, stored) = match (before, after) {
            (Some(_), Some(after)) if after.create_revision != after.mod_revision => ("MODIFIED", after),
            (_, Some(after)) => ("ADDED", after),
            // A resource that no longer matches is shown in its present state.
            (Some(before), None) => ("DELETED", change.after.clone().unwrap_or(before)),
            (None, None) => return None,
        };
        let head = format!(r#"{{"type": "{kind}", "object": "#);
        let mut line = BytesMut::with_capacity(head.len() + stored.wire.len() + 2);
        line.put_slice(head.as_bytes());
        line.put_slice(&stored.wire);
        line.put_slice(b"}\n");
        Some(line.freeze())
    }
}
