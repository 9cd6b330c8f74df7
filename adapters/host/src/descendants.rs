//! Finds and kills descendants of this process through `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use tokio::time::Instant;

use crate::limits::{EAGER_PAUSE, MAX_NAMED, MAX_STAT, PATIENT_PAUSE};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Process {
    parent: i32,
    pub(crate) session: i32,
    name: String,
}

/// Kills descendants repeatedly until none is left.
pub(crate) struct DescendantKiller {
    since: Instant,
    /// Descendants of the latest scan: name, and the error if the kill failed.
    present: BTreeMap<i32, (String, Option<rustix::io::Errno>)>,
    pause: Duration,
}

impl DescendantKiller {
    pub(crate) fn begin() -> Self {
        Self { since: Instant::now(), present: BTreeMap::new(), pause: EAGER_PAUSE }
    }

    pub(crate) fn start_time(&self) -> Instant {
        self.since
    }

    /// Time until the next scan, unless a child ends earlier.
    pub(crate) fn time_until_next_scan(&self) -> Duration {
        self.pause
    }

    /// Kills every child of this process that satisfies `is_meant`, with all descendants. The next scan finds processes
    /// that are forked meanwhile.
    pub(crate) fn kill(&mut self, is_meant: impl Fn(i32, &Process) -> bool) {
        let processes = read_processes();
        let descendants = find_descendants(own_id(), &processes, is_meant);
        let mut present = BTreeMap::new();
        for id in &descendants {
            let refused = kill(*id, &descendants).err();
            let name = processes.get(id).map(|process| process.name.clone()).unwrap_or_default();
            present.insert(*id, (name, refused));
        }
        let is_new = present.keys().any(|id| !self.present.contains_key(id));
        self.pause = if is_new { EAGER_PAUSE } else { (self.pause * 2).min(PATIENT_PAUSE) };
        self.present = present;
    }

    pub(crate) fn process_ids(&self) -> impl Iterator<Item = i32> {
        self.present.keys().copied()
    }

    /// The descendants of the latest scan, for an error message.
    pub(crate) fn describe_survivors(&self) -> String {
        let named = self.present.iter().take(MAX_NAMED).map(|(id, (name, refused))| match refused {
            None => format!("{name} ({id})"),
            Some(refused) => format!("{name} ({id}: {refused})"),
        });
        let named = named.collect::<Vec<_>>().join(", ");
        format!("{} of its processes cannot be killed: {named}", self.present.len())
    }
}

pub(crate) fn check_proc() -> io::Result<()> {
    match read_process(own_id()) {
        Some(_) => Ok(()),
        None => Err(io::Error::other("cannot read the processes: /proc does not show this one")),
    }
}

pub(crate) fn own_id() -> i32 {
    getpid().as_raw_nonzero().get()
}

/// Kills one of `descendants`; spares a later process with the same id.
fn kill(id: i32, descendants: &BTreeSet<i32>) -> rustix::io::Result<()> {
    let Some(pid) = Pid::from_raw(id) else { return Ok(()) };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error),
    };
    // A pidfd stays with one process. That process is a descendant if its parent still is one.
    let is_descendant = read_process(id)
        .is_some_and(|process| process.parent == own_id() || descendants.contains(&process.parent));
    if !is_descendant {
        return Ok(());
    }
    match pidfd_send_signal(&handle, Signal::KILL) {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        killed => killed,
    }
}

/// The children of `root` that satisfy `is_meant`, with all descendants.
fn find_descendants(
    root: i32,
    processes: &BTreeMap<i32, Process>,
    is_meant: impl Fn(i32, &Process) -> bool,
) -> BTreeSet<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (id, process) in processes {
        if process.parent != root || is_meant(*id, process) {
            children.entry(process.parent).or_default().push(*id);
        }
    }
    let mut found = BTreeSet::new();
    let mut waiting = vec![root];
    while let Some(parent) = waiting.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            // Ids that are reused during the scan of `/proc` can form a cycle.
            if *child != root && found.insert(*child) {
                waiting.push(*child);
            }
        }
    }
    found
}

fn read_processes() -> BTreeMap<i32, Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(|id| Some((id, read_process(id)?))).collect()
}

/// A process; `None` if it has ended.
pub(crate) fn read_process(id: i32) -> Option<Process> {
    let mut stat = Vec::new();
    File::open(format!("/proc/{id}/stat")).ok()?.take(MAX_STAT).read_to_end(&mut stat).ok()?;
    parse(&String::from_utf8_lossy(&stat))
}

/// Parses `ID (NAME) STATE PARENT GROUP SESSION ...`. The name may contain any character, including a closing
/// parenthesis.
fn parse(stat: &str) -> Option<Process> {
    let (before, after) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    let mut numbers = after.split_ascii_whitespace().skip(1).map(str::parse);
    let (parent, session) = (numbers.next()?.ok()?, numbers.nth(1)?.ok()?);
    Some(Process { parent, session, name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_line_is_parsed_with_any_process_name() {
        for (line, expected) in [
            ("12 (sh) S 7 11 10 0 -1", Some((7, 10, "sh"))),
            ("12 (a) S 1 (b) R 7 12 12", Some((7, 12, "a) S 1 (b"))),
            ("12 (tmux: server) S 1 9 8", Some((1, 8, "tmux: server"))),
            ("12 (sh) S 7 11", None),
            ("12 (sh) S", None),
            ("", None),
        ] {
            let expected =
                expected.map(|(parent, session, name)| Process { parent, session, name: name.to_owned() });
            assert_eq!(parse(line), expected, "{line}");
        }
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_others_are_not() {
        let processes = |parents: &[(i32, i32)]| {
            parents
                .iter()
                .map(|(id, parent)| (*id, Process { parent: *parent, ..Process::default() }))
                .collect::<BTreeMap<_, _>>()
        };
        let tree = processes(&[(1, 0), (5, 1), (6, 5), (7, 6), (8, 5), (9, 1), (10, 9)]);
        let all = |_, _: &Process| true;
        assert_eq!(find_descendants(5, &tree, all), BTreeSet::from([6, 7, 8]));
        assert_eq!(find_descendants(7, &tree, all), BTreeSet::new());
        // A child that does not satisfy the predicate is spared with all its descendants.
        assert_eq!(find_descendants(5, &tree, |id, _| id != 6), BTreeSet::from([8]));
        assert_eq!(find_descendants(1, &tree, |id, _| id != 5), BTreeSet::from([9, 10]));
        // Ids were reused during a slow scan.
        assert_eq!(find_descendants(5, &processes(&[(5, 6), (6, 5)]), all), BTreeSet::from([6]));
    }

    #[test]
    fn the_own_process_is_found_in_proc() {
        check_proc().unwrap();
        assert!(read_processes().contains_key(&own_id()));
    }
}
