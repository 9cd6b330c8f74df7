use proptest::prelude::*;

use super::*;

/// A header with a right checksum.
fn header(name: &str, mode: u32, owner: u32, size: usize) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put =
        |start: usize, text: &str| header[start..start + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, &format!("{mode:07o}"));
    put(108, &format!("{owner:07o}"));
    put(116, &format!("{owner:07o}"));
    put(124, &format!("{size:011o}"));
    put(136, "00000000000");
    put(156, "0");
    put(257, "ustar\x0000");
    with_checksum(header)
}

fn with_checksum(mut header: [u8; BLOCK]) -> [u8; BLOCK] {
    header[148..156].fill(b' ');
    let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

fn archive(files: &[([u8; BLOCK], &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (header, content) in files {
        archive.extend(header);
        archive.extend(*content);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

fn refusal(archive: &[u8]) -> String {
    format!("{:#}", parse_entries(archive).expect_err("the archive is refused"))
}

#[test]
fn files_have_path_mode_owner_and_content() {
    let mut prefixed = header("server.key", 0o600, 10000, 3);
    prefixed[345..357].copy_from_slice(b"etc/etcd/pki");
    let mut directory = header("etc/", 0o700, 0, 0);
    directory[156] = b'5';
    let archive = archive(&[
        (header("/etc/./etcd//ca.crt", 0o644, 0, 512), &[7; 512]),
        (with_checksum(directory), b""),
        (with_checksum(prefixed), b"key"),
    ]);
    let read = parse_entries(&archive).expect("a valid archive");
    let expected = [
        Entry {
            parents: vec!["etc", "etcd"],
            name: "ca.crt",
            mode: 0o644,
            owner: (0, 0),
            content: &[7; 512],
        },
        Entry {
            parents: vec!["etc", "etcd", "pki"],
            name: "server.key",
            mode: 0o600,
            owner: (10000, 10000),
            content: b"key",
        },
    ];
    assert_eq!(read, expected);
}

#[test]
fn archives_of_gnu_tar_are_read() {
    let mut gnu = header("a", 0o100_644, 5, 1);
    gnu[257..265].copy_from_slice(b"ustar  \0");
    gnu[345..356].copy_from_slice(b"15100000000");
    let archive = archive(&[(with_checksum(gnu), b"x")]);
    let read = parse_entries(&archive).expect("a valid archive");
    assert_eq!((read[0].parents.len(), read[0].name, read[0].mode), (0, "a", 0o644));
}

#[test]
fn every_cut_before_the_end_mark_is_refused() {
    let archive = archive(&[(header("a", 0o644, 0, 700), &[1; 700]), (header("b", 0o644, 0, 0), b"")]);
    let whole = archive.len() - BLOCK;
    for length in 0..archive.len() {
        assert_eq!(parse_entries(&archive[..length]).is_ok(), length >= whole, "{length} bytes");
    }
}

#[test]
fn damaged_and_foreign_entries_are_refused() {
    let changed = |at: usize, bytes: &[u8]| {
        let mut header = header("a", 0o644, 0, 0);
        header[at..at + bytes.len()].copy_from_slice(bytes);
        archive(&[(with_checksum(header), b"")])
    };
    for (archive, expected) in [
        (changed(0, b"../a"), "leaves the directory"),
        (changed(0, b"a/../../b"), "leaves the directory"),
        (changed(0, b"a/.."), "names no file"),
        (changed(0, b"a/"), "names no file"),
        (changed(0, b"\0"), "names no file"),
        (changed(0, b"a.tmp"), ".tmp"),
        (changed(0, b"\xff"), "not UTF-8"),
        (changed(156, b"2"), "type '2'"),
        (changed(156, b"x"), "extended"),
        (changed(156, b"L"), "extended"),
        (changed(124, b"00004000001"), "expected at most 1048576"),
        (changed(124, b"\x80\0\0\0"), "expected octal digits"),
        (changed(100, b"0000689"), "expected octal digits"),
        (changed(124, b"00000001001"), "end mark"),
        (changed(124, b"00000004000"), "within a file"),
    ] {
        assert!(refusal(&archive).contains(expected), "{expected}: {}", refusal(&archive));
    }
    let mut spoilt = archive(&[(header("a", 0o644, 0, 0), b"")]);
    spoilt[0] = b'b';
    assert!(refusal(&spoilt).contains("checksum"));
    let mut longer = archive(&[]);
    longer.push(1);
    assert!(refusal(&longer).contains("end mark"));
}

proptest! {
    #[test]
    fn no_bytes_cause_a_panic_or_a_path_outside(
        name in "[a./]{0,100}",
        numbers in proptest::collection::vec(any::<u8>(), 48),
        tail in proptest::collection::vec(any::<u8>(), 0..2048),
    ) {
        let mut header = header(&name, 0o644, 0, 0);
        header[100..148].copy_from_slice(&numbers);
        let mut bytes = with_checksum(header).to_vec();
        bytes.extend(tail);
        for archive in [bytes, archive(&[(self::header(&name, 0o644, 0, 0), b"")])] {
            for entry in parse_entries(&archive).unwrap_or_default() {
                prop_assert!(!entry.parents.contains(&".."));
                prop_assert!(!entry.name.contains('/') && !["", ".", ".."].contains(&entry.name));
            }
        }
    }
}
