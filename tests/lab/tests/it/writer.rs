//! Test support: a client of the cluster's etcd that writes while a test changes the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::{Either, select};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::eventually;
use crate::fleet::Fleet;

const PREFIX: &str = "/registry/written/";
/// Pace of the writes. A write takes some 50 ms, most of them the start of the client and its handshake.
const PACE: Duration = Duration::from_millis(100);

/// The acknowledged writes of a client.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    /// The revision of each acknowledged write, by its key.
    acknowledged: BTreeMap<String, i64>,
    /// The longest time between two acknowledged writes.
    pub(crate) longest_gap: Duration,
    /// Writes without an acknowledgement.
    pub(crate) refused: usize,
}

impl Fleet {
    /// Writes one key after the other until `change` ends.
    pub(crate) async fn while_writing<T>(&self, change: impl Future<Output = T>) -> (T, Writes) {
        let mut writes = Writes::default();
        let done = {
            let writing = std::pin::pin!(self.write_on(&mut writes));
            match select(std::pin::pin!(change), writing).await {
                Either::Left((done, _)) => done,
                Either::Right((never, _)) => match never {},
            }
        };
        (done, writes)
    }

    async fn write_on(&self, writes: &mut Writes) -> std::convert::Infallible {
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        for number in 0_u64.. {
            pace.tick().await;
            let key = format!("{PREFIX}{number:06}");
            match self.etcdctl_as("kube-apiserver", &["put", &key, "value", "-w", "json"]).await {
                Ok(answer) => {
                    writes.longest_gap = writes.longest_gap.max(last.elapsed());
                    last = Instant::now();
                    let answer: Value = serde_json::from_str(&answer).unwrap();
                    writes.acknowledged.insert(key, answer["header"]["revision"].as_i64().unwrap());
                }
                Err(_) => writes.refused += 1,
            }
        }
        unreachable!("numbers do not end")
    }

    /// Reads all acknowledged writes.
    pub(crate) async fn has(&self, writes: &Writes) {
        assert!(!writes.acknowledged.is_empty(), "the client wrote: {writes:?}");
        let present = self.written().await;
        let lost: Vec<&String> = writes.acknowledged.keys().filter(|key| !present.contains(*key)).collect();
        assert!(lost.is_empty(), "lost writes: {lost:?} of {}", writes.acknowledged.len());
    }

    /// Reads all writes that were acknowledged up to a revision, and none of the later ones.
    pub(crate) async fn has_only_up_to(&self, revision: i64, writes: &Writes) {
        let present = self.written().await;
        let of =
            |is_kept: bool| writes.acknowledged.iter().filter(move |(_, at)| (**at <= revision) == is_kept);
        assert!(of(true).next().is_some() && of(false).next().is_some(), "before and after: {writes:?}");
        let lost: Vec<&String> = of(true).map(|(key, _)| key).filter(|key| !present.contains(*key)).collect();
        assert!(lost.is_empty(), "lost writes up to revision {revision}: {lost:?}");
        let later: Vec<&String> =
            of(false).map(|(key, _)| key).filter(|key| present.contains(*key)).collect();
        assert!(later.is_empty(), "writes after revision {revision}: {later:?}");
    }

    /// The keys that the client wrote, as etcd has them.
    pub(crate) async fn written(&self) -> BTreeSet<String> {
        let read = async || self.etcdctl(&["get", "--prefix", "--keys-only", PREFIX]).await.ok();
        let present = eventually("etcd is read", read).await;
        present.lines().map(str::to_owned).collect()
    }
}
