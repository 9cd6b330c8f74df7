//! Reads a password that was not given, from the terminal or from standard input.

use std::io::{self, BufRead, IsTerminal as _, Read as _, Write as _};

use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode};

use crate::failure::Failure;
use crate::limits::MAX_PASSWORD_BYTES;

/// Bytes of a terminal for Ctrl-C, Ctrl-D, backspace and delete.
const INTERRUPT: u8 = 3;
const END: u8 = 4;
const BACKSPACE: u8 = 8;
const DELETE: u8 = 127;

/// The given password, else the user's input without echo, or the first line of standard input.
///
/// # Errors
/// There is no password.
pub(super) fn password(given: Option<&str>, of_whom: &str) -> Result<String, Failure> {
    let bytes = match given {
        Some(given) => return Ok(given.to_owned()),
        None if io::stdin().is_terminal() => typed(of_whom)?,
        None => line(io::stdin().lock())?,
    };
    match String::from_utf8(bytes) {
        Ok(text) if !text.is_empty() => Ok(text),
        Ok(_) => {
            Err(Failure::bad_input(format_args!("the password of {of_whom} is missing: give --password")))
        }
        Err(_) => Err(Failure::bad_input("the password is not UTF-8 text")),
    }
}

fn line(source: impl BufRead) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for byte in source.bytes() {
        match byte? {
            b'\n' => break,
            byte => bytes.push(byte),
        }
        if bytes.len() > MAX_PASSWORD_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the password is too long"));
        }
    }
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    Ok(bytes)
}

/// Raw mode of the terminal; its drop restores the echo.
struct HiddenInput;

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // A failure cannot be handled here.
        let _ = disable_raw_mode();
        let _ = writeln!(io::stderr());
    }
}

fn typed(of_whom: &str) -> Result<Vec<u8>, Failure> {
    write!(io::stderr(), "Password of {of_whom}: ")?;
    io::stderr().flush()?;
    enable_raw_mode()?;
    let _unseen = HiddenInput;
    let mut bytes = Vec::new();
    for byte in io::stdin().lock().bytes() {
        match byte? {
            b'\r' | b'\n' | END => break,
            INTERRUPT => return Err(Failure::bad_input("interrupted; nothing was done")),
            BACKSPACE | DELETE => {
                bytes.pop();
            }
            byte if bytes.len() < MAX_PASSWORD_BYTES => bytes.push(byte),
            _ => return Err(Failure::bad_input("the password is too long")),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_one_line() {
        assert_eq!(line(&b"hunter2\r\nmore"[..]).unwrap(), b"hunter2");
        assert_eq!(line(&b"hunter2"[..]).unwrap(), b"hunter2");
        assert_eq!(line(&b""[..]).unwrap(), b"");
        line(io::BufReader::new(io::repeat(b'a'))).unwrap_err();
    }
}
