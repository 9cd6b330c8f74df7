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

fn describe_limit() -> String {
    format!("the password is too long: expected at most {MAX_PASSWORD_BYTES} bytes")
}

/// The given password, else the user's input without echo, or the first line of standard input.
///
/// # Errors
/// There is no password.
pub(super) fn read_password(given: Option<&str>, of_whom: &str) -> Result<String, Failure> {
    let bytes = match given {
        Some(given) => return Ok(given.to_owned()),
        None if io::stdin().is_terminal() => read_typed(&format!("Password of {of_whom}: "))?,
        None => read_line(io::stdin().lock())?,
    };
    match String::from_utf8(bytes) {
        Ok(text) if !text.is_empty() => Ok(text),
        Ok(_) => {
            Err(Failure::bad_input(format_args!("the password of {of_whom} is missing: give --password")))
        }
        Err(_) => Err(Failure::bad_input("the password is not UTF-8 text")),
    }
}

/// The user's input at the terminal without echo. ckecli, whose command this is for, refuses standard input that is none.
///
/// # Errors
/// There is no terminal, or no input.
pub(crate) fn read_hidden(prompt: &str) -> Result<String, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::bad_input(
            "standard input is not a terminal, so no password can be typed: set VAULT_TOKEN",
        ));
    }
    let bytes = read_typed(prompt)?;
    String::from_utf8(bytes).map_err(|_| Failure::bad_input("the password is not UTF-8 text"))
}

fn read_line(source: impl BufRead) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for byte in source.bytes() {
        match byte? {
            b'\n' => break,
            byte => bytes.push(byte),
        }
        if bytes.len() > MAX_PASSWORD_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, describe_limit()));
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

fn read_typed(prompt: &str) -> Result<Vec<u8>, Failure> {
    write!(io::stderr(), "{prompt}")?;
    io::stderr().flush()?;
    enable_raw_mode()?;
    let _unseen = HiddenInput;
    let mut bytes = Vec::new();
    for byte in io::stdin().lock().bytes() {
        match byte? {
            b'\r' | b'\n' | END => break,
            INTERRUPT => {
                return Err(Failure::bad_input(
                    "the input of the password was interrupted, so no request was sent",
                ));
            }
            BACKSPACE | DELETE => {
                bytes.pop();
            }
            byte if bytes.len() < MAX_PASSWORD_BYTES => bytes.push(byte),
            _ => return Err(Failure::bad_input(describe_limit())),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_one_line() {
        assert_eq!(read_line(&b"hunter2\r\nmore"[..]).unwrap(), b"hunter2");
        assert_eq!(read_line(&b"hunter2"[..]).unwrap(), b"hunter2");
        assert_eq!(read_line(&b""[..]).unwrap(), b"");
        read_line(io::BufReader::new(io::repeat(b'a'))).unwrap_err();
    }
}
