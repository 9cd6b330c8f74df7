//! Reading a snapshot in etcd's format: of this store, or of a real etcd by `etcdctl snapshot save`.
//!
//! Guarantees: the SHA-256 at its end is verified. A file in another format is an error, never a panic or an endless
//! loop. The whole file is in memory during the read.

use etcd_client::proto::PbKeyValue;
use prost::Message;

use super::StoredLease;
use super::bolt::{
    BRANCH, CHANGES, ELEMENT_BYTES, IS_BUCKET, LEAF, MAGIC, PAGE_HEADER_BYTES, VERSION, hash_fnv1a,
};
use crate::record::Revision;

const DIGEST_BYTES: usize = 32;
/// Bytes of a meta page from its magic number to its checksum.
const META_BYTES: usize = 56;
/// Page sizes to try if the first meta page, which contains the page size, is invalid.
const PAGE_SIZES: [usize; 3] = [4096, 8192, 16384];
const COMPACTED: &[u8] = b"finishedCompactRev";

/// A snapshot: the complete state of a store, history included.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub(crate) changes: Vec<(Revision, PbKeyValue)>,
    /// Ids and TTLs in seconds.
    pub(crate) leases: Vec<(i64, i64)>,
    pub(crate) compacted: i64,
}

/// The reason to refuse a file as a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The digest is missing or does not match.
    #[error(
        "the snapshot's SHA-256 is missing or wrong: the file was cut off, altered, or not saved by \
         `snapshot save`"
    )]
    Digest,
    /// The pages are not those of a bbolt file.
    #[error("the snapshot is not in etcd's format ({0}): expected a file that `snapshot save` wrote")]
    Format(&'static str),
}

impl Snapshot {
    /// Parses the bytes of a snapshot file.
    pub fn read(file: &[u8]) -> Result<Self, SnapshotError> {
        let (contents, digest) = file.split_last_chunk::<DIGEST_BYTES>().ok_or(SnapshotError::Digest)?;
        if ring::digest::digest(&ring::digest::SHA256, contents).as_ref() != digest {
            return Err(SnapshotError::Digest);
        }
        Self::from_pages(contents).map_err(SnapshotError::Format)
    }

    /// True if a file begins as a file of etcd does, whatever is wrong with the rest: with a meta page of bbolt.
    #[must_use]
    pub fn is_begun_by(file: &[u8]) -> bool {
        file.get(PAGE_HEADER_BYTES..).is_some_and(|meta| meta.starts_with(&MAGIC.to_le_bytes()))
    }

    #[must_use]
    pub fn revision(&self) -> i64 {
        self.changes.last().map_or(1, |(revision, _)| revision.main).max(self.compacted).max(1)
    }

    #[must_use]
    pub fn count_changes(&self) -> usize {
        self.changes.len()
    }

    fn from_pages(bytes: &[u8]) -> Result<Self, &'static str> {
        let pages = Pages::open(bytes)?;
        let mut changes = Vec::new();
        pages.visit_bucket(CHANGES.as_bytes(), &mut |key, value| {
            let (revision, is_tombstone) =
                parse_revision(key).ok_or("a key of a change is not a revision")?;
            let mut pair = PbKeyValue::decode(value).map_err(|_| "a change cannot be decoded")?;
            if is_tombstone {
                pair = PbKeyValue { key: pair.key, ..PbKeyValue::default() };
            }
            changes.push((revision, pair));
            Ok(())
        })?;
        let mut leases = Vec::new();
        pages.visit_bucket(b"lease", &mut |_, value| {
            let lease = StoredLease::decode(value).map_err(|_| "a lease cannot be decoded")?;
            leases.push((lease.id, lease.ttl));
            Ok(())
        })?;
        let mut compacted = -1;
        pages.visit_bucket(b"meta", &mut |key, value| {
            if key == COMPACTED {
                compacted = parse_revision(value).ok_or("the last compaction is not a revision")?.0.main;
            }
            Ok(())
        })?;
        Ok(Self { changes, leases, compacted })
    }
}

/// Revision in etcd's encoding, and whether it is a deletion.
fn parse_revision(key: &[u8]) -> Option<(Revision, bool)> {
    let (main, rest) = key.split_first_chunk::<8>()?;
    let (sub, rest) = rest.strip_prefix(b"_")?.split_first_chunk::<8>()?;
    let revision =
        Revision { main: i64::from_be_bytes(*main), sub: u32::try_from(i64::from_be_bytes(*sub)).ok()? };
    (revision.main >= 0 && (rest.is_empty() || rest == b"t")).then_some((revision, rest == b"t"))
}

type Take<'t> = &'t mut dyn FnMut(&[u8], &[u8]) -> Result<(), &'static str>;

struct Pages<'a> {
    bytes: &'a [u8],
    page_bytes: usize,
    root: u64,
}

impl<'a> Pages<'a> {
    fn open(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let valid = PAGE_SIZES.into_iter().flat_map(|page_bytes| [(page_bytes, 0), (page_bytes, page_bytes)]);
        let newest = valid.filter_map(|(page_bytes, at)| parse_meta_page(bytes, page_bytes, at)).max();
        let (_, root, page_bytes) = newest.ok_or("it has no valid meta page")?;
        Ok(Self { bytes, page_bytes, root })
    }

    /// Every entry of a bucket; none if the bucket does not exist.
    fn visit_bucket(&self, bucket: &[u8], take: Take<'_>) -> Result<(), &'static str> {
        let mut header = None;
        self.visit_elements(
            self.read_page(self.root)?,
            &mut self.count_pages(),
            &mut |flags, key, value| {
                if flags & IS_BUCKET != 0 && key == bucket {
                    header = Some(value);
                }
                Ok(())
            },
        )?;
        let Some(header) = header else { return Ok(()) };
        let root = read_u64_at(header, 0).ok_or("a bucket has no header")?;
        // A small bucket is inline, after its header.
        let page =
            if root == 0 { header.get(16..).ok_or("a bucket has no page")? } else { self.read_page(root)? };
        self.visit_elements(page, &mut self.count_pages(), &mut |_, key, value| take(key, value))
    }

    /// Upper bound of pages in a valid walk over a tree; exceeding it means a cycle.
    fn count_pages(&self) -> usize {
        self.bytes.len() / self.page_bytes
    }

    fn read_page(&self, page: u64) -> Result<&'a [u8], &'static str> {
        let at = usize::try_from(page).ok().and_then(|page| page.checked_mul(self.page_bytes));
        at.and_then(|at| self.bytes.get(at..)).ok_or("a page is beyond its end")
    }

    fn visit_elements(
        &self,
        page: &'a [u8],
        left: &mut usize,
        take: &mut dyn FnMut(u32, &'a [u8], &'a [u8]) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        const CUT_OFF: &str = "an element is cut off";
        *left = left.checked_sub(1).ok_or("its pages form a circle")?;
        let head = page.get(..PAGE_HEADER_BYTES).ok_or("a page is cut off")?;
        let (flags, count) =
            (u16::from_le_bytes([head[8], head[9]]), u16::from_le_bytes([head[10], head[11]]));
        for index in 0..usize::from(count) {
            let element = page.get(PAGE_HEADER_BYTES + index * ELEMENT_BYTES..).ok_or(CUT_OFF)?;
            let field = |index: usize| {
                let bytes = element.get(4 * index..)?.first_chunk::<4>()?;
                Some(u32::from_le_bytes(*bytes))
            };
            match flags {
                BRANCH => {
                    let child = read_u64_at(element, 8).ok_or(CUT_OFF)?;
                    self.visit_elements(self.read_page(child)?, left, take)?;
                }
                LEAF => {
                    let [flags, position, key, value] =
                        [field(0), field(1), field(2), field(3)].map(|field| field.ok_or(CUT_OFF));
                    let (key, value) = (key? as usize, value? as usize);
                    let pair = element.get(position? as usize..).ok_or(CUT_OFF)?;
                    let (key, rest) = pair.split_at_checked(key).ok_or(CUT_OFF)?;
                    take(flags?, key, rest.get(..value).ok_or(CUT_OFF)?)?;
                }
                _ => return Err("a page is neither a branch nor a leaf"),
            }
        }
        Ok(())
    }
}

/// Transaction, root page and page size of a valid meta page.
fn parse_meta_page(bytes: &[u8], page_bytes: usize, at: usize) -> Option<(u64, u64, usize)> {
    let meta = bytes.get(at + PAGE_HEADER_BYTES..)?;
    let words =
        [0, 4, 8].map(|at| meta.get(at..)?.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes)));
    let is_valid = words == [Some(MAGIC), Some(VERSION), Some(page_bytes as u32)]
        && read_u64_at(meta, META_BYTES)? == hash_fnv1a(&meta[..META_BYTES]);
    is_valid.then_some((read_u64_at(meta, 48)?, read_u64_at(meta, 16)?, page_bytes))
}

fn read_u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?))
}
