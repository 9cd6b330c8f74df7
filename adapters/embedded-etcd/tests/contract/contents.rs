//! Tests of an embedded store that starts with the contents of another store.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use etcd_client::{
    Client, Compare, CompareOp, GetOptions, Txn, TxnOp, WatchOptions, WatchResponse, WatchStream,
};
use madako_embedded_etcd::{
    Backend, Commit, EmbeddedEtcd, InitialContents, InitialValue, OpenError, Options,
};

const REVISION: i64 = 1_000_000;

fn pair(value: &'static str, create_revision: i64, mod_revision: i64) -> InitialValue {
    InitialValue { value: Bytes::from_static(value.as_bytes()), create_revision, mod_revision }
}

/// One transaction wrote two of these.
fn contents() -> InitialContents {
    let pairs = [("a", pair("1", 7, 900)), ("b", pair("2", 900, 900)), ("c", pair("3", 3, REVISION))];
    let pairs = pairs.into_iter().map(|(key, pair)| (key.as_bytes().to_vec(), pair)).collect();
    InitialContents { revision: REVISION, pairs }
}

fn holding(contents: InitialContents, backend: Backend) -> Options {
    Options { contents: Some(contents), ..Options::new(backend, Commit::Inline, 1) }
}

async fn everything(client: &mut Client) -> (i64, Vec<(String, String, i64, i64)>) {
    let answer = client.get("", Some(GetOptions::new().with_all_keys())).await.expect("the store answers");
    let pair = |kv: &etcd_client::KeyValue| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (key, value) = (text(kv.key()), text(kv.value()));
        (key, value, kv.create_revision(), kv.mod_revision())
    };
    (answer.header().expect("an answer has a header").revision(), answer.kvs().iter().map(pair).collect())
}

/// The first response of a watch after the answer to its creation.
async fn news(watch: &mut WatchStream) -> WatchResponse {
    loop {
        let reported = watch.message().await.expect("the store answers").expect("the watch goes on");
        if reported.canceled() || !reported.events().is_empty() {
            return reported;
        }
    }
}

fn expected() -> Vec<(String, String, i64, i64)> {
    let pairs = [("a", "1", 7, 900), ("b", "2", 900, 900), ("c", "3", 3, REVISION)];
    pairs.map(|(key, value, created, written)| (key.to_owned(), value.to_owned(), created, written)).to_vec()
}

#[tokio::test]
async fn initial_contents_keep_their_revisions_and_later_writes_continue() {
    let etcd = EmbeddedEtcd::open(holding(contents(), Backend::Memory)).unwrap();
    let mut client = etcd.direct_client().await.unwrap();
    assert_eq!(everything(&mut client).await, (REVISION, expected()));

    // Older revisions are unavailable, as after a compaction.
    let old = client.get("a", Some(GetOptions::new().with_revision(950))).await.unwrap_err().to_string();
    assert!(old.contains("required revision has been compacted"), "{old}");
    let from = |revision| WatchOptions::new().with_all_keys().with_start_revision(revision);
    let mut stream = client.watch("", Some(from(REVISION + 1))).await.unwrap();
    let mut late = client.watch("", Some(from(900))).await.unwrap();
    let shown = news(&mut late).await;
    assert_eq!((shown.canceled(), shown.compact_revision()), (true, REVISION));

    // Comparisons refer to the revisions of the original store.
    let unchanged = |revision| Compare::mod_revision("a", CompareOp::Equal, revision);
    let put = || vec![TxnOp::put("a", "4", None)];
    let refused = client.txn(Txn::new().when([unchanged(899)]).and_then(put())).await.unwrap();
    assert!(!refused.succeeded());
    let done = client.txn(Txn::new().when([unchanged(900)]).and_then(put())).await.unwrap();
    assert_eq!((done.succeeded(), done.header().unwrap().revision()), (true, REVISION + 1));
    let shown = news(&mut stream).await;
    let kv = shown.events()[0].kv().unwrap();
    assert_eq!((kv.create_revision(), kv.mod_revision()), (7, REVISION + 1));
}

#[tokio::test]
async fn initial_contents_do_not_replace_an_existing_store() {
    let directory = tempfile::tempdir().unwrap();
    let on = |path: &Path| holding(contents(), Backend::File(path.into()));
    let etcd = EmbeddedEtcd::open(on(directory.path())).unwrap();
    etcd.direct_client().await.unwrap().put("a", "later", None).await.unwrap();
    etcd.shutdown().await;
    let etcd = EmbeddedEtcd::open(on(directory.path())).unwrap();
    let (revision, pairs) = everything(&mut etcd.direct_client().await.unwrap()).await;
    assert_eq!((revision, pairs[0].1.as_str(), pairs.len()), (REVISION + 1, "later", 3));
    etcd.shutdown().await;
}

#[tokio::test]
async fn contradictory_initial_contents_are_refused() {
    for wrong in [pair("", 0, 5), pair("", 6, 5), pair("", 5, REVISION + 1)] {
        let contents =
            InitialContents { revision: REVISION, pairs: BTreeMap::from([(b"a".to_vec(), wrong)]) };
        let opened = EmbeddedEtcd::open(holding(contents, Backend::Memory));
        assert!(matches!(opened, Err(OpenError::Contents { .. })), "{opened:?}");
    }
    let nothing = InitialContents { revision: 5, pairs: BTreeMap::new() };
    let etcd = EmbeddedEtcd::open(holding(nothing, Backend::Memory)).unwrap();
    assert_eq!(everything(&mut etcd.direct_client().await.unwrap()).await, (5, Vec::new()));
}
