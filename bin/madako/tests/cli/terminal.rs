//! A terminal for the program: a pseudoterminal with a size, and the text on its screen.
//!
//! The screen knows the control sequences that the program uses: moves of the cursor and the removal of text. Of colours it
//! knows only that there were some.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{read, write};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::process::Child;

use crate::program::{PATIENCE, command};
use crate::service::stage::{eventually, found};

/// Both ends of a terminal: the user's, and the program's.
pub(crate) fn open() -> (OwnedFd, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let end = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    (master, end)
}

/// A program in a terminal.
pub(crate) struct Terminal {
    master: OwnedFd,
    child: Child,
    screen: Screen,
}

impl Terminal {
    /// Starts `madako` with these arguments.
    pub(crate) fn start(args: &[&str], columns: u16, rows: u16) -> Self {
        Self::start_with(args, columns, rows, &[])
    }

    /// Starts `madako` with these arguments and variables of the environment.
    pub(crate) fn start_with(args: &[&str], columns: u16, rows: u16, variables: &[(&str, &str)]) -> Self {
        let (master, end) = open();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&end, size).unwrap();
        fcntl_setfl(&master, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
        let child = command(args)
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .envs(variables.iter().copied())
            .stdin(Stdio::from(end.try_clone().unwrap()))
            .stdout(Stdio::from(end.try_clone().unwrap()))
            .stderr(Stdio::from(end))
            .spawn()
            .unwrap();
        Self { master, child, screen: Screen::new(columns.into(), rows.into()) }
    }

    pub(crate) fn press(&self, keys: &str) {
        assert_eq!(write(&self.master, keys.as_bytes()).unwrap(), keys.len());
    }

    /// Shows the output so far.
    fn update(&mut self) {
        let mut part = [0; 4096];
        // Without output there is an error, as after the end of the program.
        while let Ok(count @ 1..) = read(&self.master, &mut part[..]) {
            self.screen.show(&part[..count]);
        }
    }

    /// Waits until the screen shows a text. Returns the screen.
    pub(crate) async fn until(&mut self, text: &str) -> String {
        self.until_screen(text, |shown| shown.contains(text)).await
    }

    pub(crate) async fn until_screen(&mut self, what: &str, is_wanted: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let shown = found(async || {
            self.update();
            last = self.screen.text();
            is_wanted(&last).then(|| last.clone())
        })
        .await;
        shown.unwrap_or_else(|| panic!("within {PATIENCE:?}: no {what:?} on\n{last}"))
    }

    /// Waits for the end of the program. Returns whether it has used colours.
    pub(crate) async fn uses_colours(mut self) -> bool {
        self.wait().await;
        self.screen.has_colours
    }

    /// Waits for the end of the program. Returns its exit code, and all that it has written since its start.
    pub(crate) async fn end(mut self) -> (i32, String) {
        let code = self.wait().await;
        (code, self.screen.written)
    }

    /// Waits for the end of the program, and for all that it has written. Returns its exit code.
    async fn wait(&mut self) -> i32 {
        let status = eventually("the program ends", async || {
            self.update();
            self.child.try_wait().unwrap()
        })
        .await;
        self.update();
        status.code().unwrap_or(-1)
    }
}

/// The text on a screen.
struct Screen {
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// The beginning of a character or control sequence.
    pending: Vec<u8>,
    /// All written text without control sequences. Text that overwrites a line, such as a progress bar, is a line of its own.
    written: String,
    /// The last character went back to the start of the line.
    has_returned: bool,
    /// Text had another colour than usual.
    has_colours: bool,
}

impl Screen {
    fn new(columns: usize, rows: usize) -> Self {
        let (cells, pending) = (vec![vec![' '; columns]; rows], Vec::new());
        let written = String::new();
        Self { cells, row: 0, column: 0, pending, written, has_returned: false, has_colours: false }
    }

    fn text(&self) -> String {
        let line = |cells: &Vec<char>| cells.iter().collect::<String>().trim_end().to_owned();
        self.cells.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn show(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.pending.push(*byte);
            let whole = match self.pending.as_slice() {
                [0x1b] | [0x1b, b'[' | b'(' | b']'] => false,
                [0x1b, b'[', .., last] => (0x40..=0x7e).contains(last),
                [0x1b, b']', .., last] => *last == 7,
                [0x1b, ..] => true,
                text => std::str::from_utf8(text).is_ok(),
            };
            if whole {
                let pending = std::mem::take(&mut self.pending);
                match String::from_utf8_lossy(&pending).strip_prefix('\x1b') {
                    Some(sequence) => self.control(sequence),
                    None => String::from_utf8_lossy(&pending).chars().for_each(|it| self.print(it)),
                }
            }
        }
    }

    fn print(&mut self, character: char) {
        match character {
            '\r' => self.column = 0,
            '\n' => self.row += 1,
            _ => {
                if let Some(cell) = self.cells.get_mut(self.row).and_then(|row| row.get_mut(self.column)) {
                    *cell = character;
                }
                self.column += 1;
            }
        }
        if self.row == self.cells.len() {
            let emptied = vec![' '; self.cells.remove(0).len()];
            self.cells.push(emptied);
            self.row -= 1;
        }
        let overwrites = std::mem::replace(&mut self.has_returned, character == '\r') && character != '\n';
        if overwrites && !self.written.is_empty() {
            self.written.push('\n');
        }
        if character != '\r' {
            self.written.push(character);
        }
    }

    fn control(&mut self, sequence: &str) {
        let Some(sequence) = sequence.strip_prefix('[') else { return };
        let (numbers, last) = sequence.split_at(sequence.len() - 1);
        let number = |place: usize, default: usize| {
            numbers.split(';').nth(place).and_then(|number| number.parse().ok()).unwrap_or(default)
        };
        match last {
            "m" => self.has_colours |= !matches!(numbers, "" | "0"),
            "H" | "f" => (self.row, self.column) = (number(0, 1) - 1, number(1, 1) - 1),
            "A" => self.row = self.row.saturating_sub(number(0, 1)),
            "B" => self.row = (self.row + number(0, 1)).min(self.cells.len() - 1),
            "C" => self.column += number(0, 1),
            "D" => self.column = self.column.saturating_sub(number(0, 1)),
            "G" => self.column = number(0, 1) - 1,
            "J" => {
                let from = if number(0, 0) == 2 { 0 } else { self.row };
                for row in &mut self.cells[from..] {
                    row.fill(' ');
                }
            }
            "K" => {
                let from = self.column.min(self.cells[self.row].len());
                self.cells[self.row][from..].fill(' ');
            }
            _ => {}
        }
    }
}

#[test]
fn a_screen_shows_text_where_the_cursor_is() {
    let mut screen = Screen::new(10, 3);
    screen.show("one\r\ntwo\x1b[31m!\x1b[0m\x1b[1;6Hä\x1b[3;1Hlast\r\nnext\x1b[2;2H\x1b[K".as_bytes());
    assert_eq!(screen.text(), "two!\nl\nnext");
    assert!(screen.has_colours);
    assert_eq!(screen.written, "one\ntwo!älast\nnext");
    screen.show(b"\r10 %\r20 %\r\n");
    assert!(screen.written.ends_with("next\n10 %\n20 %\n"), "{}", screen.written);
}
