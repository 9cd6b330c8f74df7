//! Reads the outputs of a command to their end, and keeps them within a limit.

use std::io;
use std::os::fd::OwnedFd;

use madako_protocol::host::MAX_OUTPUT;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use crate::limits::STREAM_BUFFER;
use crate::protocol::StartFailure;

/// A command's outputs, and the error of its start.
pub(super) struct Streams {
    failure: Stream,
    stdout: Stream,
    stderr: Stream,
}

impl Streams {
    pub(super) fn new(failure: OwnedFd, stdout: OwnedFd, stderr: OwnedFd) -> io::Result<Self> {
        let stream = |pipe| {
            Ok::<_, io::Error>(Stream { from: Some(pipe_receiver(pipe)?), kept: Vec::new(), cut: false })
        };
        Ok(Self { failure: stream(failure)?, stdout: stream(stdout)?, stderr: stream(stderr)? })
    }

    /// Reads all outputs to their end. Cancel-safe; may be called again.
    pub(super) async fn read_to_end(&mut self) {
        tokio::join!(self.failure.read_to_end(), self.stdout.read_to_end(), self.stderr.read_to_end());
    }

    pub(super) fn is_at_end(&self) -> bool {
        [&self.failure, &self.stdout, &self.stderr].iter().all(|stream| stream.from.is_none())
    }

    pub(super) fn start_failure(&self) -> Option<StartFailure> {
        if self.failure.kept.is_empty() {
            return None;
        }
        let failure = serde_json::from_slice(&self.failure.kept);
        Some(failure.unwrap_or_else(|error| StartFailure::Failed(format!("its start failed: {error}"))))
    }

    /// Both outputs, and whether they were truncated.
    pub(super) fn output_texts(&self) -> [(String, bool); 2] {
        [&self.stdout, &self.stderr].map(|stream| lossy_text(&stream.kept, stream.cut))
    }
}

struct Stream {
    /// `None` after its end.
    from: Option<pipe::Receiver>,
    kept: Vec<u8>,
    cut: bool,
}

impl Stream {
    async fn read_to_end(&mut self) {
        let Some(from) = &mut self.from else { return };
        let mut buffer = vec![0; STREAM_BUFFER];
        // A read error counts as the end of the output.
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let room = (MAX_OUTPUT - self.kept.len()).min(length);
            self.kept.extend_from_slice(&buffer[..room]);
            self.cut |= room < length;
        }
        self.from = None;
    }
}

pub(super) fn pipe_receiver(pipe: OwnedFd) -> io::Result<pipe::Receiver> {
    pipe::Receiver::from_owned_fd(pipe)
}

/// An output as text of at most [`MAX_OUTPUT`] bytes, and whether it was truncated. Invalid UTF-8 is replaced; a
/// character cut off at the end is dropped instead.
fn lossy_text(kept: &[u8], mut cut: bool) -> (String, bool) {
    let mut text = String::with_capacity(kept.len());
    let mut chunks = kept.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        for character in chunk.valid().chars() {
            cut |= !push_within_limit(&mut text, character);
        }
        let is_cut_off = cut && chunks.peek().is_none();
        if !chunk.invalid().is_empty() && !is_cut_off {
            cut |= !push_within_limit(&mut text, char::REPLACEMENT_CHARACTER);
        }
    }
    (text, cut)
}

/// Returns whether there was room.
fn push_within_limit(text: &mut String, character: char) -> bool {
    let fits = text.len() + character.len_utf8() <= MAX_OUTPUT;
    if fits {
        text.push(character);
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_at_whole_characters_within_its_limit() {
        let full = "x".repeat(MAX_OUTPUT - 1);
        for (kept, cut, expected) in [
            (b"true\n".to_vec(), false, ("true\n".to_owned(), false)),
            (b"a\xffb".to_vec(), false, ("a\u{fffd}b".to_owned(), false)),
            // A partial character at the end, of a complete output and of a truncated one.
            (b"a\xc3".to_vec(), false, ("a\u{fffd}".to_owned(), false)),
            (b"a\xc3".to_vec(), true, ("a".to_owned(), true)),
            // A replacement character is longer than the byte that it replaces.
            ([full.as_bytes(), b"\xff"].concat(), false, (full.clone(), true)),
        ] {
            assert_eq!(lossy_text(&kept, cut), expected, "{:?}", String::from_utf8_lossy(&kept));
        }
        let (replaced, cut) = lossy_text(&[0xff; MAX_OUTPUT], true);
        assert!(replaced.len() <= MAX_OUTPUT && cut);
    }
}
