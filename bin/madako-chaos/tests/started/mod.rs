//! Starts the built program with an input; the process ends with the test.

use std::io::{ErrorKind, Write as _};
use std::process::{Child, Command, Stdio};

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) errors: String,
}

pub(crate) struct Started(Option<Child>);

/// This package's program.
pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_madako-chaos"))
}

pub(crate) fn start(mut program: Command, input: &str) -> Started {
    let mut child =
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let written = child.stdin.take().unwrap().write_all(input.as_bytes());
    let started = Started(Some(child));
    // A program that refuses its arguments does not read.
    assert!(written.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::BrokenPipe), "{written:?}");
    started
}

impl Started {
    /// Waits for the end. A program ended by a signal has no code: that fails the test.
    pub(crate) fn ended(mut self) -> Ended {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (out, errors) = (text(output.stdout), text(output.stderr));
        match output.status.code() {
            Some(code) => Ended { code, out, errors },
            None => panic!("{}:\n{out}\n{errors}", output.status),
        }
    }
}

/// The running process, for observation.
impl AsMut<Child> for Started {
    fn as_mut(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
