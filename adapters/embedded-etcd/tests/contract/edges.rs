//! Compares the embedded store with etcd in cases that random sequences do not reach: limits, large requests, alarms,
//! time.

use std::time::Duration;

use etcd_client::proto::*;
use tokio::time::Instant;
use tonic::Code;

use crate::generate::{Step, watch_request};
use crate::outcome::{Outcome, perform};
use crate::peers::{DEADLINE, Embedded, RealEtcd};
use crate::watchers::Watchers;
use crate::wire::Wire;

/// Size limit of a message in an etcd with default settings, in bytes.
const MESSAGE_BYTES: usize = 2 * 1024 * 1024;

fn put(key: &str, value: impl Into<Vec<u8>>) -> PbPutRequest {
    PbPutRequest { key: key.into(), value: value.into(), ..Default::default() }
}

fn operation(request: PbTxnOpRequest) -> PbTxnRequestOp {
    PbTxnRequestOp { request: Some(request) }
}

fn puts(count: usize) -> Vec<PbTxnRequestOp> {
    (0..count)
        .map(|number| operation(PbTxnOpRequest::RequestPut(put(&format!("many/{number:03}"), "v"))))
        .collect()
}

fn txn(success: Vec<PbTxnRequestOp>) -> Step {
    Step::Txn(PbTxnRequest { success, ..Default::default() })
}

fn nested(outer: usize, inner: usize) -> Step {
    let mut success = puts(outer - 1);
    let inner = (0..inner)
        .map(|number| operation(PbTxnOpRequest::RequestPut(put(&format!("inner/{number}"), "v"))))
        .collect();
    success
        .push(operation(PbTxnOpRequest::RequestTxn(PbTxnRequest { success: inner, ..Default::default() })));
    txn(success)
}

fn everything(limit: i64) -> PbRangeRequest {
    PbRangeRequest { key: vec![0], range_end: vec![0], limit, ..Default::default() }
}

fn grant(id: i64, ttl: i64) -> Step {
    Step::Grant(PbLeaseGrantRequest { id, ttl })
}

#[tokio::test]
async fn limits_are_those_of_etcd() {
    let Some(real) = RealEtcd::start().await else { return };
    let embedded = Embedded::start().await;
    let delete = |key: &str, end: &str| {
        operation(PbTxnOpRequest::RequestDeleteRange(PbDeleteRequest {
            key: key.into(),
            range_end: end.into(),
            prev_kv: true,
        }))
    };
    let keep = |key: &str| {
        operation(PbTxnOpRequest::RequestPut(PbPutRequest { ignore_value: true, ..put(key, "") }))
    };
    let steps = [
        txn(puts(128)),
        txn(puts(129)),
        nested(28, 100),
        nested(28, 101),
        txn(Vec::new()),
        txn(vec![delete("many/", "many0"), delete("many/000", "")]),
        txn(vec![operation(PbTxnOpRequest::RequestPut(put("a", "1"))), delete("a", "b")]),
        txn(vec![operation(PbTxnOpRequest::RequestPut(put("a", "1"))), delete("a", "\0")]),
        txn(vec![keep("nothing")]),
        Step::Put(put("large", vec![b'x'; 1_500_000])),
        Step::Put(put("too-large", vec![b'x'; 1_573_000])),
        // The limit of a message is half a MiB above that of a request; 15 bytes here are overhead of the value.
        Step::Put(put("too-large", vec![b'x'; MESSAGE_BYTES - 15])),
        Step::Put(put("too-large", vec![b'x'; MESSAGE_BYTES - 14])),
        Step::Range(PbRangeRequest { key: vec![b'x'; MESSAGE_BYTES], ..Default::default() }),
        Step::Delete(PbDeleteRequest { key: vec![b'x'; 4 * MESSAGE_BYTES], ..Default::default() }),
        txn(vec![
            operation(PbTxnOpRequest::RequestPut(put("large/1", vec![b'x'; 700_000]))),
            operation(PbTxnOpRequest::RequestPut(put("large/2", vec![b'x'; 700_000]))),
        ]),
        Step::Range(everything(0)),
        Step::Range(everything(3)),
        grant(5, 0),
        Step::Revoke(PbLeaseRevokeRequest { id: 5 }),
        grant(6, -7),
        Step::Revoke(PbLeaseRevokeRequest { id: 6 }),
        grant(7, 9_000_000_001),
        Step::KeepAlive(99),
        Step::TimeToLive(PbLeaseTimeToLiveRequest { id: 99, keys: true }),
        Step::Compact(PbCompactionRequest { revision: 0, physical: false }),
        Step::Compact(PbCompactionRequest { revision: 0, physical: false }),
        Step::Compact(PbCompactionRequest { revision: 4, physical: false }),
        Step::Compact(PbCompactionRequest { revision: 4, physical: true }),
        Step::Compact(PbCompactionRequest { revision: -1, physical: true }),
        Step::Compact(PbCompactionRequest { revision: 1_000, physical: false }),
    ];
    for step in steps {
        let expected = perform(&real.wire, &step).await;
        let answer = perform(&embedded.wire, &step).await;
        // A value may have megabytes.
        let [step, ours, theirs] = [format!("{step:?}"), format!("{answer:?}"), format!("{expected:?}")]
            .map(|text| text.chars().take(300).collect::<String>());
        assert!(answer == expected, "{step}: {ours}, but etcd {theirs}");
    }
    embedded.stop().await;
}

#[tokio::test]
async fn a_lease_without_an_id_gets_one_that_is_free() {
    let Some(real) = RealEtcd::start().await else { return };
    let embedded = Embedded::start().await;
    for wire in [&real.wire, &embedded.wire] {
        let mut ids = Vec::new();
        for _ in 0..3 {
            let granted = wire.grant(PbLeaseGrantRequest { id: 0, ttl: 100 }).await.expect("granted");
            assert!(granted.id > 0 && granted.ttl == 100 && !ids.contains(&granted.id), "{granted:?}");
            ids.push(granted.id);
        }
    }
    embedded.stop().await;
}

#[tokio::test]
async fn space_alarm_refuses_requests_that_need_space() {
    let Some(real) = RealEtcd::start().await else { return };
    let embedded = Embedded::start().await;
    let mut outcomes = Vec::new();
    for wire in [&real.wire, &embedded.wire] {
        let header = wire.status(PbStatusRequest {}).await.expect("a status").header.expect("a header");
        let mut observed = Vec::new();
        observed.push(perform(wire, &Step::Put(put("a", "1"))).await);
        alarm(wire, 1, header.member_id).await;
        let range = operation(PbTxnOpRequest::RequestRange(everything(0)));
        for step in [
            Step::Put(put("a", "2")),
            txn(puts(1)),
            txn(vec![range]),
            Step::Range(everything(0)),
            Step::Delete(PbDeleteRequest { key: b"a".to_vec(), ..Default::default() }),
        ] {
            observed.push(perform(wire, &step).await);
        }
        alarm(wire, 2, header.member_id).await;
        observed.push(perform(wire, &Step::Put(put("a", "3"))).await);
        outcomes.push(observed);
    }
    assert_eq!(outcomes[1], outcomes[0]);
    assert!(matches!(&outcomes[0][1], Outcome::Refused(Code::ResourceExhausted, _)));
    embedded.stop().await;
}

async fn alarm(wire: &Wire, action: i32, member_id: u64) {
    let changed = wire.alarm(PbAlarmRequest { action, member_id, alarm: 1 }).await.expect("an answer");
    assert_eq!(changed.alarms.len(), 1);
    let listed = wire.alarm(PbAlarmRequest { action: 0, member_id: 0, alarm: 0 }).await.expect("an answer");
    assert_eq!(listed.alarms.len(), usize::from(action == 1));
}

#[tokio::test]
async fn a_lease_that_ends_takes_its_keys_with_one_revision() {
    let Some(real) = RealEtcd::start().await else { return };
    let embedded = Embedded::start().await;
    let mut observed = Vec::new();
    for wire in [&real.wire, &embedded.wire] {
        let mut watchers = Watchers::open(wire).await;
        watchers.create(watch_request(b"\0", b"\0", 0, 0, &[], true)).await;
        wire.grant(PbLeaseGrantRequest { id: 3, ttl: 2 }).await.expect("granted");
        for key in ["c", "a", "b"] {
            wire.put(PbPutRequest { lease: 3, ..put(key, "v") }).await.expect("put");
        }
        let events = watchers.until_events(6).await;
        observed.push(events);
        assert_eq!(wire.keep_alive(3).await.expect("an answer").ttl, 0);
    }
    assert_eq!(observed[1], observed[0]);
    assert_eq!(
        observed[0][3..].iter().map(|event| event.kv.as_ref().map(|kv| kv.mod_revision)).collect::<Vec<_>>(),
        [Some(5), Some(5), Some(5)]
    );
    embedded.stop().await;
}

/// A real etcd panics on it, so the test only uses the embedded store.
#[tokio::test]
async fn failed_transaction_leaves_no_changes() {
    let embedded = Embedded::start().await;
    let wire = &embedded.wire;
    wire.put(put("b", "1")).await.expect("put");
    let before = wire.range(everything(0)).await.expect("a range");
    let request = PbTxnRequest {
        success: vec![
            operation(PbTxnOpRequest::RequestPut(put("c", "2"))),
            operation(PbTxnOpRequest::RequestDeleteRange(PbDeleteRequest {
                key: b"a".to_vec(),
                range_end: vec![0],
                prev_kv: false,
            })),
            operation(PbTxnOpRequest::RequestPut(PbPutRequest { ignore_value: true, ..put("b", "") })),
        ],
        ..Default::default()
    };
    let refused = wire.txn(request).await.expect_err("there is no value to keep");
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "etcdserver: key not found"));
    assert_eq!(wire.range(everything(0)).await.expect("a range"), before);
    let after = wire.put(put("b", "2")).await.expect("put");
    assert_eq!(after.header.expect("a header").revision, before.header.expect("a header").revision + 1);
    embedded.stop().await;
}

#[tokio::test]
async fn a_compaction_without_waiting_frees_its_space_in_the_end() {
    let embedded = Embedded::start().await;
    let wire = &embedded.wire;
    let in_use = async || wire.status(PbStatusRequest {}).await.expect("a status").db_size_in_use;
    for _ in 0..1_500 {
        wire.put(put("key", vec![b'v'; 100])).await.expect("put");
    }
    let full = in_use().await;
    wire.compact(PbCompactionRequest { revision: 1_501, physical: false }).await.expect("compacts");
    let start = Instant::now();
    while in_use().await > full / 1_000 {
        assert!(start.elapsed() < DEADLINE, "{} of {full} bytes are still there", in_use().await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    embedded.stop().await;
}
