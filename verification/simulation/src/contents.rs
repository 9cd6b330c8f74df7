//! Computes the contents of the store from its watch history. A comparison with a restarted store finds every lost
//! write that a client has observed (I9).

use std::collections::BTreeMap;

use etcd_client::{Client, GetOptions};

/// The revision of a key's last write, and a hash of the value.
type LastWrite = (i64, u64);

/// All keys after the last observed revision.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    revision: i64,
    keys: BTreeMap<String, LastWrite>,
}

/// FNV-1a over words instead of bytes; a hash is compared only with hashes of this function.
fn hash_value(value: &[u8]) -> u64 {
    value.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash: u64, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Contents {
    /// Records a write of a key; `None` is a deletion.
    pub fn apply_write(&mut self, revision: i64, key: &str, value: Option<&[u8]>) {
        self.revision = self.revision.max(revision);
        match value {
            Some(value) => self.keys.insert(key.to_owned(), (revision, hash_value(value))),
            None => self.keys.remove(key),
        };
    }

    /// The differences of a store from these contents, and the number of compared keys; `None` if the store does not
    /// answer.
    pub async fn find_differences_from(&self, client: &mut Client) -> Option<(usize, Vec<String>)> {
        let answer = client.get("", Some(GetOptions::new().with_all_keys())).await.ok()?;
        let revision = answer.header()?.revision();
        let mut lost = Vec::new();
        if revision < self.revision {
            lost.push(format!(
                "the store was started again at revision {revision}, and had shown {}",
                self.revision
            ));
        }
        let there: BTreeMap<&str, LastWrite> = answer
            .kvs()
            .iter()
            .map(|kv| (kv.key_str().unwrap_or_default(), (kv.mod_revision(), hash_value(kv.value()))))
            .collect();
        for (key, (written, value)) in &self.keys {
            match there.get(key.as_str()) {
                Some((again, _)) if *again > self.revision => {}
                Some(same) if *same == (*written, *value) => {}
                // A later revision may have deleted the key.
                None if revision > self.revision => {}
                found => lost.push(format!("{key} of revision {written} is {found:?} after a start")),
            }
        }
        Some((self.keys.len(), lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store_process::StoreProcess;

    #[tokio::test(start_paused = true)]
    async fn lost_contents_of_the_store_are_found() {
        let store = StoreProcess::start_in_memory(1);
        let mut client = store.connect_client().await.unwrap();
        let mut contents = Contents::default();
        for (key, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
            let put = client.put(key, value, None).await.unwrap();
            contents.apply_write(put.header().unwrap().revision(), key, Some(value.as_bytes()));
        }
        assert_eq!(contents.find_differences_from(&mut client).await, Some((2, Vec::new())));
        let mut spoilt = contents.clone();
        spoilt.apply_write(4, "b", Some(b"other"));
        assert_eq!(spoilt.find_differences_from(&mut client).await.unwrap().1.len(), 1, "another value");
        let mut spoilt = contents.clone();
        spoilt.apply_write(2, "c", Some(b"gone"));
        assert_eq!(
            spoilt.find_differences_from(&mut client).await.unwrap().1.len(),
            1,
            "a key that is not there"
        );
        let mut spoilt = contents.clone();
        spoilt.apply_write(9, "a", Some(b"3"));
        assert_eq!(
            spoilt.find_differences_from(&mut client).await.unwrap().1.len(),
            2,
            "a revision that is not there, and its key"
        );
    }
}
