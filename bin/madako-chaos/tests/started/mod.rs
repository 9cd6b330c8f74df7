//! The built program, started with something on its standard input; it ends with the test.

use std::io::{ErrorKind, Write as _};
use std::process::{Child, Command, Stdio};

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) errors: String,
}

/// A program that was started.
pub(crate) struct Started(Option<Child>);

/// This package's program.
pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_madako-chaos"))
}

/// Starts a program and feeds it.
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
    /// Waits for its end. Ended by a signal, it has no code: that fails the test.
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

/// The process itself, for who looks at it while it runs.
impl AsMut<Child> for Started {
    fn as_mut(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended by itself; then there is nothing to end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
