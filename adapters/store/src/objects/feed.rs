//! Applies the events of the etcd watch to the cache of placement's resources.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use madako_domain::placement::kind::Kind;
use madako_domain::state::Fault;
use madako_domain::store::{Snapshot, StoreErrorKind};
use tokio::task::yield_now;

use super::decode::decode;
use super::source::Source;
use super::view::{DecodedResource, ObjectUpdate};
use super::{CacheState, Position};
use crate::encryption::Encryption;
use crate::limits::{MOST_FED_AT_ONCE, MOST_LOGGED};
use crate::telemetry;
use crate::watch::{DatedChange, FeedEvent, WatchedKeys};

/// Key prefixes of placement's resources.
static PREFIXES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| Kind::ALL.iter().map(|kind| kind.prefix()).collect());

/// Latest values of the gauges by kind, so that only changed ones are set again.
#[derive(Debug, Default)]
struct Gauges {
    counts: Vec<usize>,
}

impl Gauges {
    fn show(&mut self, shared: &CacheState) {
        let (revision, faults, kept, counts) = {
            let view = shared.read();
            (view.revision(), view.fault_count(), view.ring().len(), view.counts_by_kind())
        };
        telemetry::madako_objects_revision().set(revision as f64);
        telemetry::madako_objects_faults().set(faults as f64);
        telemetry::madako_objects_changes_kept().set(kept as f64);
        for (n, (kind, count)) in Kind::ALL.iter().zip(&counts).enumerate() {
            if self.counts.get(n) != Some(count) {
                telemetry::madako_objects(kind.name()).set(*count as f64);
            }
        }
        self.counts = counts;
    }
}

/// Feeds the view until the cache is dropped.
pub(super) async fn run(source: Arc<dyn Source>, shared: Arc<CacheState>) {
    let mut events = source.watch(WatchedKeys::Below(&PREFIXES));
    let encryption = source.encryption();
    let mut gauges = Gauges::default();
    while let Some(event) = events.recv().await {
        match event {
            FeedEvent::Listed { snapshot, others, cause } => {
                take_list(&shared, &encryption, snapshot, cause).await;
                telemetry::madako_objects_other_keys().set(others as f64);
                gauges.show(&shared);
            }
            FeedEvent::Changed { revision, changes } => {
                take_changes(&shared, &encryption, revision, changes).await;
                gauges.show(&shared);
            }
            FeedEvent::Interrupted(error) => {
                if error.kind == StoreErrorKind::Denied {
                    tracing::error!(%error, "placement needs a user that may read the whole key space of the store");
                } else {
                    tracing::info!(%error, "the view of placement's resources receives no changes");
                }
                *shared.lock_trouble() = Some(error);
                shared.publish_position(Position { attached: false, ..shared.newest_position() });
            }
            FeedEvent::Resumed => {
                shared.lock_trouble().take();
                shared.publish_position(Position { attached: true, ..shared.newest_position() });
            }
        }
    }
}

async fn take_list(shared: &CacheState, encryption: &Encryption, snapshot: Snapshot, cause: &'static str) {
    let mut values: BTreeMap<String, (i64, DecodedResource)> = BTreeMap::new();
    for (count, (key, entry)) in snapshot.entries.into_iter().enumerate() {
        if count % MOST_FED_AT_ONCE == MOST_FED_AT_ONCE - 1 {
            yield_now().await;
        }
        let read = decode(&key, &entry, encryption);
        values.insert(key, (entry.mod_revision, read));
    }
    let why = match cause {
        "start" => "it was read for the first time",
        "compacted" => "it was compacted beyond the last revision of the view",
        _ => "it is another store, or was restored",
    };
    let (generation, faults, replaced) = {
        let mut view = shared.write();
        let (faults, replaced) = view.replace(snapshot.revision, values, why);
        (view.generation(), faults, replaced)
    };
    drop(replaced);
    shared.lock_trouble().take();
    shared.publish_position(Position { generation, revision: snapshot.revision, attached: true });
    shared.news.publish(());
    report_faults(faults);
}

async fn take_changes(
    shared: &CacheState,
    encryption: &Encryption,
    revision: i64,
    changes: Vec<DatedChange>,
) {
    let mut steps = Vec::with_capacity(changes.len());
    for (count, DatedChange { revision, change }) in changes.into_iter().enumerate() {
        if count % MOST_FED_AT_ONCE == MOST_FED_AT_ONCE - 1 {
            yield_now().await;
        }
        let value = change.entry.map(|entry| (entry.mod_revision, decode(&change.key, &entry, encryption)));
        steps.push(ObjectUpdate { revision, key: change.key, value });
    }
    let (faults, news) = shared.write().advance(revision, steps);
    shared.publish_position(Position { revision, ..shared.newest_position() });
    if news {
        shared.news.publish(());
    }
    report_faults(faults);
}

fn report_faults(faults: Vec<Fault>) {
    for Fault { key, why } in faults.iter().take(MOST_LOGGED) {
        tracing::warn!(%key, %why, "a stored resource cannot be read: it is left out");
    }
    if faults.len() > MOST_LOGGED {
        tracing::warn!(more = faults.len() - MOST_LOGGED, "more stored resources cannot be read");
    }
}
