//! Input and output of the programs: results in three forms, messages, and input files.
//!
//! Guarantees: results go to standard output, everything else to standard error; each message begins with the program's
//! name. Each problem of an invalid input has its own line. Input sizes are bounded. A closed pipe causes no panic.
//!
//! Does not: know any command, choose exit codes, or end the process.

mod input;
mod list;
mod message;
mod output;
mod progress;
mod stopwatch;
mod wrap;

pub use input::{STDIN, display_name, read_input, read_text};
pub use list::{Cell, List, Surface, Tone};
pub use message::{describe_error, exit_codes, is_closed_pipe, print_clap_error, print_note};
pub use output::{Format, Table, escape_unprintable, print_bytes, print_text, show_value};
pub use progress::{Progress, format_duration_in_words};
pub use stopwatch::Stopwatch;
pub use wrap::{USUAL_WIDTH, count_with_noun, cut_to_width, push_wrapped};
