//! Faults of a run's processes that the scenario language does not have: commands and their watchers are killed, and
//! the limit on open files of a process is lowered.
//!
//! The saboteur finds the processes by the addresses in the run's file: no other process has them on its command line.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::processes::{found, parent, processes, with_word, words};

/// Interval of the search: an undisturbed command ends after some milliseconds.
const GLANCE: Duration = Duration::from_millis(5);
/// Maximum time of scarce files: the hurried Prometheus waits for ten seconds of it.
const SCARCE: Duration = Duration::from_secs(40);
/// Files stay scarce for this long after the alert fires: queries of Prometheus have steps of a second.
const SHOWN: Duration = Duration::from_secs(3);
/// Interval at which the limit follows the number of open files.
const AGAIN: Duration = Duration::from_millis(200);
/// The word on the command line of this run's repair commands, and the prefix of the word on the command line of a
/// process that is about to become such a command.
const COMMAND: &str = "__repair";
const STARTS: &str = "__start";
/// Killed commands: the alert fires above three, and some end before they are killed.
const COMMANDS: u32 = 10;
/// Commands whose watcher is killed: the alert fires at one.
const WATCHERS: u32 = 3;

/// Causes all of these faults, once the run has begun. `fires` returns whether the alert of scarce files fires.
pub(crate) async fn work(targets: &Path, fires: impl Fn() -> bool) {
    let text = found("the file of the targets", GLANCE, || fs::read_to_string(targets).ok()).await;
    let targets: Vec<Value> = serde_json::from_str(&text).unwrap();
    let addresses: Vec<&str> = targets.iter().map(|target| target["targets"][0].as_str().unwrap()).collect();
    let instances = found("the instances", GLANCE, || {
        let pids: Vec<i32> = addresses.iter().filter_map(|address| with_word(address)).collect();
        (pids.len() == addresses.len()).then_some(pids)
    })
    .await;
    scarce_files(&instances, fires).await;
    for nth in 0..COMMANDS + WATCHERS {
        let command = found("a command", GLANCE, || {
            processes().find(|process| is_command(*process) && instances.contains(&parent(parent(*process))))
        })
        .await;
        let watcher = parent(command);
        let victim = if nth < COMMANDS { command } else { watcher };
        // If the process has ended, the next one serves as well.
        let _ = Pid::from_raw(victim).map(|victim| kill_process(victim, Signal::KILL));
        while is_command(command) {
            sleep(GLANCE).await;
        }
    }
}

/// True if the process runs a command already.
fn is_command(process: i32) -> bool {
    let words = words(process);
    words.iter().any(|word| word == COMMAND) && !words.iter().any(|word| word.starts_with(STARTS))
}

/// Lowers the limit of the process with the fewest open files to a sixth more, until the alert fires: a process that
/// starts commands varies too much for a high share of its limit.
async fn scarce_files(processes: &[i32], fires: impl Fn() -> bool) {
    let open = |process: i32| fs::read_dir(format!("/proc/{process}/fd")).unwrap().count() as u64;
    let limit =
        |process: i32, limit: Rlimit| prlimit(Pid::from_raw(process), Resource::Nofile, limit).unwrap();
    let usual = getrlimit(Resource::Nofile);
    let mut scarce = None;
    let mut until = Instant::now() + SCARCE;
    let mut is_firing = false;
    while Instant::now() < until {
        if !is_firing && fires() {
            is_firing = true;
            until = Instant::now() + SHOWN;
        }
        let calm = *processes.iter().min_by_key(|process| open(**process)).unwrap();
        if let Some((process, before)) = scarce.filter(|(process, _)| *process != calm) {
            limit(process, before);
            scarce = None;
        }
        // The limit follows the number of open files, so that the process never reaches it.
        let open = open(calm);
        let before = limit(calm, Rlimit { current: Some(open + open / 6), ..usual });
        scarce.get_or_insert((calm, before));
        sleep(AGAIN).await;
    }
    if let Some((process, before)) = scarce {
        limit(process, before);
    }
}
