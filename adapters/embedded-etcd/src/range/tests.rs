use std::collections::BTreeMap;

use etcd_client::proto::{PbRangeRequest, PbResponseHeader};
use proptest::prelude::*;
use prost::Message;

use super::{RangePlan, ReadableRevisions, RecordSource};
use crate::index::{Change, Index};
use crate::record::{Record, Revision};
use crate::request_error::RequestError;

#[derive(Debug, Default)]
struct Written(BTreeMap<Revision, (Vec<u8>, Vec<u8>, Change)>);

impl RecordSource for Written {
    fn record<T>(&self, revision: Revision, show: impl FnOnce(Record<'_>) -> T) -> Result<T, RequestError> {
        let (key, value, change) = &self.0[&revision];
        Ok(show(Record { key, value, create: change.create, version: change.version, lease: change.lease }))
    }
}

fn pair() -> impl Strategy<Value = (Vec<u8>, Vec<u8>, i64, i64)> {
    let bytes = |max| prop::collection::vec(any::<u8>(), 0..max);
    let lease = prop_oneof![Just(0), any::<i64>()];
    (bytes(200), bytes(300), 1..i64::MAX, lease)
}

proptest! {
    #[test]
    fn an_encoded_answer_is_the_message_encoded(
        pairs in prop::collection::vec(pair(), 0..12),
        (limit, sort_order, sort_target) in (0i64..8, 0i32..3, 0i32..5),
        (keys_only, count_only) in (any::<bool>(), any::<bool>()),
    ) {
        let (mut index, mut written) = (Index::default(), Written::default());
        for (number, (key, value, version, lease)) in pairs.iter().enumerate() {
            // Keys must not be empty, and must differ here.
            let key = [key.as_slice(), &[number as u8]].concat();
            let revision = Revision::first_in_transaction(number as i64 + 2);
            let bytes = (key.len() + value.len()) as u32;
            let change = Change { revision, create: 2, version: *version, lease: *lease, bytes };
            index.push(&key, change);
            written.0.insert(revision, (key, value.clone(), change));
        }
        let request = PbRangeRequest {
            key: vec![0],
            range_end: vec![0],
            limit,
            sort_order,
            sort_target,
            keys_only,
            count_only,
            ..PbRangeRequest::default()
        };
        let view = ReadableRevisions { current: pairs.len() as i64 + 1, compacted: -1 };
        let header = PbResponseHeader { cluster_id: u64::MAX, member_id: 7, revision: view.current, raft_term: 2 };
        let plan = || RangePlan::new(&index, view, &request).unwrap();
        let message = plan().finish(&written, header).unwrap();
        let encoded = plan().encode(&written, header, 5).unwrap();
        prop_assert_eq!(&encoded[..5], &[0; 5]);
        prop_assert_eq!(encoded[5..].to_vec(), message.encode_to_vec());
    }
}
