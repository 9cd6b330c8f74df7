//! Reads all keys of an etcd at one revision, in order, page by page.

use etcd_client::{Client, GetOptions, KeyValue};
use madako_domain::backup::EtcdContents;
use ring::digest::{Context, SHA256};
use tokio::time::timeout;

use crate::failure::Failure;
use crate::limits::{FIRST_PAGE, MOST_PAGE, MOST_PAGE_BYTES, PAGE, PAGE_BYTES, REQUEST};
use crate::members::HEALTH;

/// etcd's refusal of a read at a compacted revision.
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
/// A part of the client's refusal of a page that is too large.
const TOO_LARGE: &str = "decoded message length too large";

/// The reason why the contents are unknown.
#[derive(Debug)]
pub(crate) enum ReadFailure {
    /// etcd has compacted the revision.
    Compacted,
    Etcd(Failure),
}

/// The revision of a member that has applied all earlier writes of the cluster.
pub(crate) async fn present_revision(member: &Client) -> Result<i64, Failure> {
    let late = |_| Failure::Unavailable(format!("etcd did not answer within {REQUEST:?}"));
    let mut reader = member.kv_client();
    let answer = timeout(REQUEST, reader.get(HEALTH, None)).await.map_err(late)??;
    Ok(answer.header().map_or(0, etcd_client::ResponseHeader::revision))
}

/// Reads all keys at a revision. `shown` receives the number of keys so far, and of all.
pub(crate) async fn read_contents(
    member: &Client,
    revision: i64,
    shown: impl Fn(u64, u64),
) -> Result<EtcdContents, ReadFailure> {
    let mut reader = member.kv_client().max_decoding_message_size(MOST_PAGE_BYTES);
    let mut hash = Context::new(&SHA256);
    let (mut keys, mut limit) = (0_u64, FIRST_PAGE);
    // etcd has no empty key: this is the beginning of all keys.
    let mut from = vec![0];
    loop {
        let options = GetOptions::new().with_from_key().with_revision(revision).with_limit(limit);
        let late = |_| Failure::Unavailable(format!("etcd sent no page of keys within {PAGE:?}"));
        let page = timeout(PAGE, reader.get(from.clone(), Some(options))).await;
        let answer = match page.map_err(late).and_then(|answer| answer.map_err(Failure::from)) {
            Ok(answer) => answer,
            Err(Failure::Refused(why) | Failure::Unavailable(why))
                if limit > 1 && why.contains(TOO_LARGE) =>
            {
                limit /= 2;
                continue;
            }
            Err(failure) if failure.has_message(COMPACTED) => return Err(ReadFailure::Compacted),
            Err(failure) => return Err(ReadFailure::Etcd(failure)),
        };
        // etcd counts the keys of the whole range, not those of the page.
        let all = keys + u64::try_from(answer.count()).unwrap_or(0);
        let mut bytes = 0;
        for pair in answer.kvs() {
            bytes += add_to_hash(&mut hash, pair);
            keys += 1;
        }
        shown(keys, all);
        let last = answer.kvs().last().filter(|_| answer.more());
        let Some(last) = last else { break };
        from = [last.key(), &[0]].concat();
        limit = next_limit(limit, bytes);
    }
    let hash = hash.finish();
    let hash = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(EtcdContents { revision, keys, hash })
}

/// Keys of the next page after a page of this many bytes.
fn next_limit(limit: i64, bytes: usize) -> i64 {
    if bytes < *PAGE_BYTES.start() {
        (limit * 2).min(MOST_PAGE)
    } else if bytes > *PAGE_BYTES.end() {
        (limit / 2).max(1)
    } else {
        limit
    }
}

/// Adds a key with all that etcd keeps about it. Lengths keep neighbours apart. Returns the bytes of key and value.
fn add_to_hash(hash: &mut Context, pair: &KeyValue) -> usize {
    for text in [pair.key(), pair.value()] {
        hash.update(&(text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    for number in [pair.create_revision(), pair.mod_revision(), pair.version(), pair.lease()] {
        hash.update(&number.to_be_bytes());
    }
    pair.key().len() + pair.value().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_approach_their_size_within_bounds() {
        assert_eq!(next_limit(16, 0), 32);
        assert_eq!(next_limit(16, *PAGE_BYTES.start()), 16);
        assert_eq!(next_limit(16, *PAGE_BYTES.end()), 16);
        assert_eq!(next_limit(16, PAGE_BYTES.end() + 1), 8);
        assert_eq!(next_limit(1, usize::MAX), 1);
        assert_eq!(next_limit(MOST_PAGE, 0), MOST_PAGE);
    }
}
