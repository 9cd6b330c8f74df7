//! How the programs speak with who runs them: results in three forms, messages, files that are handed over.
//!
//! Guarantees: results go to standard output, everything else to standard error, each message beginning with the
//! program's name; an input that is wrong is told with each problem on a line of its own; what comes in is bounded.
//! Nothing panics when the reader of a pipe goes away.
//!
//! Does not: know any command, choose exit codes, or end the process.

mod input;
mod message;
mod output;
mod stopwatch;

pub use input::{STDIN, read, read_text, shown};
pub use message::{exit_codes, is_closed_pipe, note, tell, tell_words};
pub use output::{Format, Table, print, print_bytes, printable, show};
pub use stopwatch::Stopwatch;
