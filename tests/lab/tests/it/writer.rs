//! A client of the cluster's etcd that writes while a test changes the cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::{Either, select};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::eventually;
use crate::fleet::Fleet;

const PREFIX: &str = "/registry/written/";
/// Pace of the writes. A write takes some 50 ms, most of them the start of the client and its handshake.
const PACE: Duration = Duration::from_millis(100);

/// The acknowledged writes of a client.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    acknowledged: BTreeSet<String>,
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
            match self.etcdctl_as("kube-apiserver", &["put", &key, "value"]).await {
                Ok(_) => {
                    writes.longest_gap = writes.longest_gap.max(last.elapsed());
                    last = Instant::now();
                    writes.acknowledged.insert(key);
                }
                Err(_) => writes.refused += 1,
            }
        }
        unreachable!("numbers do not end")
    }

    /// Reads all acknowledged writes.
    pub(crate) async fn has(&self, writes: &Writes) {
        assert!(!writes.acknowledged.is_empty(), "the client wrote: {writes:?}");
        let read = async || self.etcdctl(&["get", "--prefix", "--keys-only", PREFIX]).await.ok();
        let present = eventually("etcd is read", read).await;
        let present: BTreeSet<String> = present.lines().map(str::to_owned).collect();
        let lost: Vec<&String> = writes.acknowledged.difference(&present).collect();
        assert!(lost.is_empty(), "lost writes: {lost:?} of {}", writes.acknowledged.len());
    }
}
