//! Reads input files of commands: whole, within a limit; `-` is standard input.

use std::fs::File;
use std::io::{self, Read};

use anyhow::Context as _;

pub const STDIN: &str = "-";

/// The name of a file in messages.
#[must_use]
pub fn display_name(name: &str) -> &str {
    if name == STDIN { "standard input" } else { name }
}

/// # Errors
/// The file cannot be read, or has more than `most` bytes.
pub fn read_input(name: &str, most: usize) -> anyhow::Result<Vec<u8>> {
    if name == STDIN {
        read_bounded(io::stdin().lock(), most)
    } else {
        File::open(name).and_then(|file| read_bounded(file, most))
    }
    .with_context(|| format!("{} cannot be read", display_name(name)))
}

/// # Errors
/// The file cannot be read, has more than `most` bytes, or is not UTF-8.
pub fn read_text(name: &str, most: usize) -> anyhow::Result<String> {
    String::from_utf8(read_input(name, most)?)
        .map_err(|_| anyhow::anyhow!("{} is not UTF-8 text", display_name(name)))
}

fn read_bounded(source: impl Read, most: usize) -> io::Result<Vec<u8>> {
    let limit = most as u64;
    let mut bytes = Vec::new();
    source.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {limit} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::read_bounded;

    #[test]
    fn input_longer_than_its_limit_is_refused() {
        assert_eq!(read_bounded(&b"abc"[..], 3).unwrap(), b"abc");
        assert_eq!(read_bounded(&b"abcd"[..], 3).unwrap_err().to_string(), "longer than 3 bytes");
    }
}
