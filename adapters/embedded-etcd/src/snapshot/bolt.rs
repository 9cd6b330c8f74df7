//! The file format of bbolt, etcd's store, as far as writing a file once needs it. The comments of bbolt's `page.go`,
//! `db.go` and `bucket.go` describe the layout.
//!
//! Guarantees: pages are produced in the order of their numbers, so that a file can be streamed.

const PAGE_BYTES: usize = 4096;
/// Page header: number, flags, count of elements, and overflow pages.
pub(super) const PAGE_HEADER_BYTES: usize = 16;
/// Element of a leaf (flags, position, sizes) or of a branch (position, size, page number); both have this size.
pub(super) const ELEMENT_BYTES: usize = 16;
pub(super) const BRANCH: u16 = 0x01;
pub(super) const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREELIST: u16 = 0x10;
/// Flag of a leaf element that is a bucket.
pub(super) const IS_BUCKET: u32 = 0x01;
pub(super) const MAGIC: u32 = 0xED0C_DAED;
pub(super) const VERSION: u32 = 2;
/// Pages before those of the buckets: two metas, the free list, the root.
const FIRST_BUCKET_PAGE: u64 = 4;
/// Size at which a leaf is closed. Large leaves keep the plan small: 64 pages of changes are one entry of it.
const LEAF_BYTES: usize = 64 * PAGE_BYTES;
/// Upper bound of elements in a leaf (its count has 16 bits), far above the number that fits with etcd's keys.
const LEAF_ELEMENTS: usize = 4096;
/// Elements of a branch: with etcd's keys of at most 18 bytes these fit into one page.
const BRANCH_ELEMENTS: usize = 100;

/// Name of the bucket of changes.
pub(super) const CHANGES: &str = "key";

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) name: &'static str,
    pub(super) entries: Vec<Entry>,
}

#[derive(Debug, Default)]
pub(super) struct LeafBuilder {
    elements: Vec<(u32, Entry)>,
    data_bytes: usize,
}

impl LeafBuilder {
    pub(super) fn push(&mut self, entry: Entry) {
        self.push_flagged(0, entry);
    }

    fn push_flagged(&mut self, flags: u32, entry: Entry) {
        self.data_bytes += entry.key.len() + entry.value.len();
        self.elements.push((flags, entry));
    }

    pub(super) fn is_full(&self) -> bool {
        self.page_size() >= LEAF_BYTES || self.elements.len() >= LEAF_ELEMENTS
    }

    pub(super) fn first_key(&self) -> Option<&[u8]> {
        self.elements.first().map(|(_, entry)| entry.key.as_slice())
    }

    fn page_size(&self) -> usize {
        PAGE_HEADER_BYTES + self.elements.len() * ELEMENT_BYTES + self.data_bytes
    }

    pub(super) fn count_pages(&self) -> u64 {
        self.page_size().div_ceil(PAGE_BYTES) as u64
    }

    pub(super) fn build(&self, page: u64) -> Vec<u8> {
        let pages = self.count_pages();
        let mut bytes = Vec::with_capacity(pages as usize * PAGE_BYTES);
        page_header(&mut bytes, page, LEAF, self.elements.len(), pages - 1);
        let mut position = self.elements.len() * ELEMENT_BYTES;
        for (flags, Entry { key, value }) in &self.elements {
            for number in [*flags, position as u32, key.len() as u32, value.len() as u32] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            // Positions are relative to their element.
            position = position + key.len() + value.len() - ELEMENT_BYTES;
        }
        for (_, Entry { key, value }) in &self.elements {
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(value);
        }
        bytes.resize(pages as usize * PAGE_BYTES, 0);
        bytes
    }
}

#[derive(Debug)]
pub(super) struct FilePlan {
    buckets: Vec<Bucket>,
    /// Number of pages of the small buckets that have entries, in the order of the buckets.
    small_pages: u64,
    /// First key, first page and number of pages of each leaf of changes.
    leaves: Vec<(Vec<u8>, u64, u64)>,
    next_page: u64,
}

impl FilePlan {
    /// Starts with the small buckets, sorted by name; the bucket of changes is among them, still empty.
    pub(super) fn new(buckets: Vec<Bucket>) -> Self {
        let small_pages = buckets.iter().filter(|bucket| !bucket.entries.is_empty()).map(pages_of).sum();
        Self { buckets, small_pages, leaves: Vec::new(), next_page: FIRST_BUCKET_PAGE + small_pages }
    }

    pub(super) fn add_leaf(&mut self, first_key: Vec<u8>, pages: u64) {
        self.leaves.push((first_key, self.next_page, pages));
        self.next_page += pages;
    }

    pub(super) fn leaf_pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.leaves.iter().map(|(_, page, _)| *page)
    }

    pub(super) fn file_size(&self) -> u64 {
        let (branches, _) = self.build_tree();
        (self.next_page + branches.len() as u64) * PAGE_BYTES as u64
    }

    /// The pages before those of the changes.
    pub(super) fn write_head(&self) -> Vec<u8> {
        let (branches, changes_root) = self.build_tree();
        let high_water = self.next_page + branches.len() as u64;
        let mut bytes = Vec::new();
        for transaction in [0, 1] {
            meta_page(&mut bytes, transaction, high_water);
        }
        page_header(&mut bytes, 2, FREELIST, 0, 0);
        bytes.resize(3 * PAGE_BYTES, 0);
        let mut root = LeafBuilder::default();
        let mut contents = Vec::new();
        let mut next = FIRST_BUCKET_PAGE;
        for bucket in &self.buckets {
            let page = if bucket.name == CHANGES {
                changes_root
            } else if bucket.entries.is_empty() {
                None
            } else {
                let leaf = leaf_of(bucket);
                contents.extend(leaf.build(next));
                next += leaf.count_pages();
                Some(next - leaf.count_pages())
            };
            root.push_flagged(
                IS_BUCKET,
                Entry { key: bucket.name.as_bytes().to_vec(), value: bucket_header(page) },
            );
        }
        debug_assert_eq!(next, FIRST_BUCKET_PAGE + self.small_pages);
        // Ten names and bucket headers need far less than a page.
        bytes.extend(root.build(3));
        bytes.extend(contents);
        bytes
    }

    /// The pages after those of the changes.
    pub(super) fn write_branches(&self) -> Vec<u8> {
        self.build_tree().0.concat()
    }

    /// The branches over the leaves of changes, and the page of the root branch.
    fn build_tree(&self) -> (Vec<Vec<u8>>, Option<u64>) {
        let mut level: Vec<(&[u8], u64)> =
            self.leaves.iter().map(|(key, page, _)| (key.as_slice(), *page)).collect();
        let mut built = Vec::new();
        while level.len() > 1 {
            let mut above = Vec::new();
            for elements in level.chunks(BRANCH_ELEMENTS) {
                let page = self.next_page + built.len() as u64;
                built.push(encode_branch_page(page, elements));
                above.push((elements[0].0, page));
            }
            level = above;
        }
        (built, level.first().map(|(_, page)| *page))
    }
}

fn leaf_of(bucket: &Bucket) -> LeafBuilder {
    let mut leaf = LeafBuilder::default();
    for Entry { key, value } in &bucket.entries {
        leaf.push(Entry { key: key.clone(), value: value.clone() });
    }
    leaf
}

fn pages_of(bucket: &Bucket) -> u64 {
    leaf_of(bucket).count_pages()
}

/// Value of a bucket's element: its root page, or an inline empty leaf for an empty bucket.
fn bucket_header(page: Option<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&page.unwrap_or(0).to_le_bytes());
    // The bucket's sequence, which etcd does not use.
    bytes.extend_from_slice(&0_u64.to_le_bytes());
    if page.is_none() {
        page_header(&mut bytes, 0, LEAF, 0, 0);
    }
    bytes
}

fn page_header(bytes: &mut Vec<u8>, page: u64, flags: u16, count: usize, overflow: u64) {
    bytes.extend_from_slice(&page.to_le_bytes());
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&(count as u16).to_le_bytes());
    bytes.extend_from_slice(&(overflow as u32).to_le_bytes());
}

fn meta_page(bytes: &mut Vec<u8>, transaction: u64, high_water: u64) {
    let start = bytes.len();
    page_header(bytes, transaction, META, 0, 0);
    let meta = bytes.len();
    for number in [MAGIC, VERSION, PAGE_BYTES as u32, 0] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    // The root bucket's page and sequence, the free list's page, the high water mark, the transaction id.
    for number in [3, 0, 2, high_water, transaction] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    let checksum = hash_fnv1a(&bytes[meta..]);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes.resize(start + PAGE_BYTES, 0);
}

fn encode_branch_page(page: u64, elements: &[(&[u8], u64)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PAGE_BYTES);
    page_header(&mut bytes, page, BRANCH, elements.len(), 0);
    let mut position = elements.len() * ELEMENT_BYTES;
    for (key, child) in elements {
        bytes.extend_from_slice(&(position as u32).to_le_bytes());
        bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&child.to_le_bytes());
        position = position + key.len() - ELEMENT_BYTES;
    }
    for (key, _) in elements {
        bytes.extend_from_slice(key);
    }
    bytes.resize(PAGE_BYTES, 0);
    bytes
}

/// 64-bit FNV-1a, bbolt's checksum of a meta page.
pub(super) fn hash_fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The high water mark of a file's first meta page.
    fn high_water(file: &[u8]) -> u64 {
        let at = PAGE_HEADER_BYTES + 4 * 4 + 3 * 8;
        u64::from_le_bytes(file[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn the_high_water_mark_is_the_number_of_all_pages() {
        for (leaves, branches) in [(0, 0), (1, 0), (2, 1), (250, 4)] {
            let mut plan = FilePlan::new(vec![Bucket { name: CHANGES, entries: Vec::new() }]);
            for leaf in 0_u64..leaves {
                plan.add_leaf(leaf.to_be_bytes().to_vec(), 1);
            }
            let (head, tail) = (plan.write_head(), plan.write_branches());
            assert_eq!(tail.len() / PAGE_BYTES, branches, "{leaves} leaves");
            let pages = (head.len() + tail.len()) as u64 / PAGE_BYTES as u64 + leaves;
            assert_eq!(high_water(&head), pages, "{leaves} leaves");
            assert_eq!(plan.file_size(), pages * PAGE_BYTES as u64, "{leaves} leaves");
        }
    }
}
