//! Files that are handed over: read whole, within a limit; `-` is standard input.

use std::fs::File;
use std::io::{self, Read};

use anyhow::Context as _;
use madako_messages::strict::MAX_TEXT_BYTES;

use crate::failure::Failure;

/// The name that stands for standard input.
pub(crate) const STDIN: &str = "-";

/// Bytes of a file.
///
/// # Errors
/// It cannot be read, or is longer than [`MAX_TEXT_BYTES`].
pub(crate) fn read(name: &str) -> Result<Vec<u8>, Failure> {
    let bytes = if name == STDIN {
        bounded(io::stdin().lock()).context("standard input cannot be read")
    } else {
        File::open(name).and_then(bounded).with_context(|| format!("{name} cannot be read"))
    };
    bytes.map_err(Failure::BadInput)
}

/// Text of a file.
///
/// # Errors
/// It cannot be read, is too long, or is not UTF-8.
pub(crate) fn read_text(name: &str) -> Result<String, Failure> {
    String::from_utf8(read(name)?).map_err(|_| Failure::bad_input(format_args!("{name} is not UTF-8 text")))
}

fn bounded(source: impl Read) -> io::Result<Vec<u8>> {
    let limit = MAX_TEXT_BYTES as u64;
    let mut bytes = Vec::new();
    source.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {limit} bytes")));
    }
    Ok(bytes)
}
