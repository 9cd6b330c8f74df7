//! Reads a tar archive of files: the POSIX format ustar, and GNU tar's where it needs no extensions.
//!
//! Guarantees: an archive is accepted as a whole or not at all. Each header's checksum is right, each path stays below
//! the directory it is written to, each size is within the limits, and the archive has its end mark, so a cut stream is
//! refused.
//!
//! Does not: read links, devices, sparse files, or the extensions for long names and large numbers. Directories are
//! skipped: `write_files` creates the parents of a file.

use anyhow::{Context as _, Result, bail, ensure};

use crate::limits::MAX_FILE;

/// Bytes of a header; contents are padded to this size.
pub(crate) const BLOCK: usize = 512;
/// Ending of the name under which a file is written before it replaces the old one.
pub(crate) const TEMPORARY: &str = ".tmp";

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Names of its parents, below the directory of the archive.
    pub(crate) parents: Vec<&'a str>,
    pub(crate) name: &'a str,
    /// Permission bits.
    pub(crate) mode: u32,
    /// User and group.
    pub(crate) owner: (u32, u32),
    pub(crate) content: &'a [u8],
}

/// Reads all files of an archive.
///
/// # Errors
/// The archive is damaged, incomplete, or holds more than files and directories; see the module.
pub(crate) fn parse_entries(archive: &[u8]) -> Result<Vec<Entry<'_>>> {
    let mut rest = archive;
    let mut entries = Vec::new();
    loop {
        let Some((header, after)) = rest.split_first_chunk::<BLOCK>() else {
            bail!("the archive ends without its end mark after {} files: send it again", entries.len());
        };
        if header.iter().all(|byte| *byte == 0) {
            ensure!(
                after.iter().all(|byte| *byte == 0),
                "the archive goes on after its end mark: send it again"
            );
            return Ok(entries);
        }
        let described =
            || format!("entry {} of the archive, {:?}", entries.len() + 1, shown_field(header, 0, 100));
        let size = checked_size(header).with_context(described)?;
        let padded = size.next_multiple_of(BLOCK);
        ensure!(
            padded <= after.len(),
            "the archive ends within a file after {} complete files: send it again",
            entries.len()
        );
        let entry = parse_entry(header, &after[..size]).with_context(described)?;
        entries.extend(entry);
        rest = &after[padded..];
    }
}

/// The size of the content after a header with a right checksum.
fn checked_size(header: &[u8; BLOCK]) -> Result<usize> {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    let spaces = 8 * u64::from(b' ');
    let actual = sum(&header[..148]) + spaces + sum(&header[156..]);
    ensure!(
        number_field(header, 148, 8)? == actual,
        "the header of the entry has a wrong checksum: send the archive again"
    );
    let size = number_field(header, 124, 12)?;
    ensure!(size <= MAX_FILE, "the file in the archive has {size} bytes, expected at most {MAX_FILE}");
    Ok(usize::try_from(size)?)
}

/// The file that a header describes; `None` for a directory.
fn parse_entry<'a>(header: &'a [u8; BLOCK], content: &'a [u8]) -> Result<Option<Entry<'a>>> {
    match header[156] {
        b'0' | 0 => {}
        b'5' => return Ok(None),
        b'x' | b'g' | b'L' | b'K' => {
            bail!(
                "the archive has extended headers, which are not supported: use the format ustar and shorter names"
            )
        }
        kind => bail!("the entry has the type {:?}: expected a file or a directory", char::from(kind)),
    }
    // GNU tar uses the place of the prefix for other fields.
    let prefix = if &header[257..263] == b"ustar\0" { text_field(header, 345, 155)? } else { "" };
    let mut parents = prefix.split('/').chain(text_field(header, 0, 100)?.split('/')).collect::<Vec<_>>();
    let name = parents.pop().unwrap_or_default();
    ensure!(!matches!(name, "" | "." | ".."), "the path of the entry names no file");
    ensure!(
        !name.ends_with(TEMPORARY),
        "the name of the file ends with {TEMPORARY}, which is reserved for unfinished files"
    );
    parents.retain(|parent| !matches!(*parent, "" | "."));
    ensure!(!parents.contains(&".."), "the path of the file leaves the directory");
    let mode = u32::try_from(number_field(header, 100, 8)? & 0o7777)?;
    let owner =
        (u32::try_from(number_field(header, 108, 8)?)?, u32::try_from(number_field(header, 116, 8)?)?);
    Ok(Some(Entry { parents, name, mode, owner, content }))
}

/// The bytes of a field up to its first NUL.
fn field_bytes(header: &[u8; BLOCK], start: usize, length: usize) -> &[u8] {
    let field = &header[start..start + length];
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn text_field(header: &[u8; BLOCK], start: usize, length: usize) -> Result<&str> {
    std::str::from_utf8(field_bytes(header, start, length)).context("the path of the entry is not UTF-8")
}

/// A field for messages.
fn shown_field(header: &[u8; BLOCK], start: usize, length: usize) -> String {
    String::from_utf8_lossy(field_bytes(header, start, length)).into_owned()
}

/// A number in octal digits, with spaces around it; an empty field is 0.
fn number_field(header: &[u8; BLOCK], start: usize, length: usize) -> Result<u64> {
    let digits = shown_field(header, start, length);
    let digits = digits.trim_matches(' ');
    if digits.is_empty() {
        return Ok(0);
    }
    ensure!(
        digits.bytes().all(|digit| digit.is_ascii_digit()),
        "the header of the entry has the number {digits:?}, expected octal digits"
    );
    u64::from_str_radix(digits, 8)
        .with_context(|| format!("the header of the entry has the number {digits:?}, expected octal digits"))
}

#[cfg(test)]
mod tests;
