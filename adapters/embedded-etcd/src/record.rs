//! Encodes one change of a key as a record in the file, and its position as the record's key.
//!
//! Guarantees: a decoded record is the one that was written at that revision, or decoding returns `None`. The checksum
//! covers the revision, so it detects misplaced records as well as flipped bits.

use etcd_client::proto::PbKeyValue;

use crate::crc32c::Crc32c;

/// A revision: the transaction (`main`), and the change within it (`sub`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Revision {
    pub(crate) main: i64,
    pub(crate) sub: u32,
}

pub(crate) const REVISION_BYTES: usize = 12;

impl Revision {
    pub(crate) fn first_in_transaction(main: i64) -> Self {
        Self { main, sub: 0 }
    }

    /// Big-endian, so that byte order is revision order. Revisions are never negative.
    pub(crate) fn to_bytes(self) -> [u8; REVISION_BYTES] {
        let mut bytes = [0; REVISION_BYTES];
        bytes[..8].copy_from_slice(&self.main.to_be_bytes());
        bytes[8..].copy_from_slice(&self.sub.to_be_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; REVISION_BYTES]) -> Self {
        let (main, sub) = bytes.split_at(8);
        Self {
            main: i64::from_be_bytes(main.try_into().expect("the first 8 of 12 bytes")),
            sub: u32::from_be_bytes(sub.try_into().expect("the last 4 of 12 bytes")),
        }
    }
}

/// Checksum, create revision, version, lease, length of the key.
const HEADER_BYTES: usize = 4 + 8 + 8 + 8 + 4;

/// A change as stored in the file, borrowed from its page. A deletion has version 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) create: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
}

impl<'a> Record<'a> {
    pub(crate) fn encode_into(&self, revision: Revision, buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.reserve(HEADER_BYTES + self.key.len() + self.value.len());
        buffer.extend_from_slice(&[0; 4]);
        buffer.extend_from_slice(&self.create.to_le_bytes());
        buffer.extend_from_slice(&self.version.to_le_bytes());
        buffer.extend_from_slice(&self.lease.to_le_bytes());
        let key_bytes = u32::try_from(self.key.len()).expect("requests are bounded far below 4 GiB");
        buffer.extend_from_slice(&key_bytes.to_le_bytes());
        buffer.extend_from_slice(self.key);
        buffer.extend_from_slice(self.value);
        let checksum = record_checksum(revision, &buffer[4..]);
        buffer[..4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// `None` if the bytes are not a record written at `revision`.
    pub(crate) fn decode(revision: Revision, bytes: &'a [u8]) -> Option<Self> {
        let (expected, rest) = bytes.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*expected) != record_checksum(revision, rest) {
            return None;
        }
        let (create, rest) = rest.split_first_chunk::<8>()?;
        let (version, rest) = rest.split_first_chunk::<8>()?;
        let (lease, rest) = rest.split_first_chunk::<8>()?;
        let (key_bytes, rest) = rest.split_first_chunk::<4>()?;
        let (key, value) = rest.split_at_checked(u32::from_le_bytes(*key_bytes) as usize)?;
        Some(Self {
            key,
            value,
            create: i64::from_le_bytes(*create),
            version: i64::from_le_bytes(*version),
            lease: i64::from_le_bytes(*lease),
        })
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.version == 0
    }

    /// The pair as clients see it; a deletion has only its key and revision.
    pub(crate) fn to_key_value(self, revision: Revision) -> PbKeyValue {
        PbKeyValue {
            key: self.key.to_vec(),
            create_revision: self.create,
            mod_revision: revision.main,
            version: self.version,
            value: self.value.to_vec(),
            lease: self.lease,
        }
    }
}

fn record_checksum(revision: Revision, rest: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(&revision.to_bytes());
    crc.update(rest);
    crc.finish()
}

#[cfg(test)]
mod tests {
    use super::{Record, Revision};

    #[test]
    fn record_decodes_to_its_content_and_rejects_any_change() {
        let revision = Revision { main: 7, sub: 3 };
        let record = Record { key: b"key", value: b"value", create: 5, version: 2, lease: 99 };
        let mut bytes = Vec::new();
        record.encode_into(revision, &mut bytes);
        assert_eq!(Record::decode(revision, &bytes), Some(record));
        assert_eq!(Record::decode(Revision { main: 7, sub: 4 }, &bytes), None, "moved to another revision");
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut spoiled = bytes.clone();
                spoiled[at] ^= 1 << bit;
                assert_eq!(Record::decode(revision, &spoiled), None, "bit {bit} of byte {at}");
            }
            assert_eq!(Record::decode(revision, &bytes[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn encoded_revisions_sort_as_numbers() {
        let revisions = [(0, 0), (1, 0), (1, 255), (1, 256), (256, 0), (1 << 40, 9)];
        for pair in revisions.windows(2) {
            let [low, high] = [pair[0], pair[1]].map(|(main, sub)| Revision { main, sub });
            assert!(low.to_bytes() < high.to_bytes());
            assert_eq!(Revision::from_bytes(&high.to_bytes()), high);
        }
    }
}
