//! Faults of the processes of a run that the language of scenarios has no word for: commands and the watcher of one are killed,
//! and a process may open hardly more files than it has.
//!
//! The saboteur finds the processes by the addresses that the run tells: no other process has them on its command line.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::processes::{found, parent, processes, with_word, words};

/// How often it is looked for: a command that is not held up is over in some milliseconds.
const GLANCE: Duration = Duration::from_millis(5);
/// Files are scarce for at most this long: the hurried Prometheus waits for ten seconds of it.
const SCARCE: Duration = Duration::from_secs(40);
/// Files stay scarce for this long once the alert fires: what Prometheus gathered is read at steps of a second.
const SHOWN: Duration = Duration::from_secs(3);
/// How often the limit follows what is open.
const AGAIN: Duration = Duration::from_millis(200);
/// The word that a command of this run's repairs has on its command line, and what the word begins with that one has which is
/// about to become a command.
const COMMAND: &str = "__repair";
const STARTS: &str = "__start";
/// How many are killed: more than three are too many, and some are over before.
const COMMANDS: u32 = 10;
/// How many lose their watcher: one that is lost is one too many.
const WATCHERS: u32 = 3;

/// Does all of it, once the run has begun. `told` answers whether the alert of scarce files fires.
pub(crate) async fn work(targets: &Path, told: impl Fn() -> bool) {
    let text = found("the file of the targets", GLANCE, || fs::read_to_string(targets).ok()).await;
    let targets: Vec<Value> = serde_json::from_str(&text).unwrap();
    let addresses: Vec<&str> = targets.iter().map(|target| target["targets"][0].as_str().unwrap()).collect();
    let instances = found("the instances", GLANCE, || {
        let pids: Vec<i32> = addresses.iter().filter_map(|address| with_word(address)).collect();
        (pids.len() == addresses.len()).then_some(pids)
    })
    .await;
    scarce_files(&instances, told).await;
    for nth in 0..COMMANDS + WATCHERS {
        let command = found("a command", GLANCE, || {
            processes().find(|process| is_command(*process) && instances.contains(&parent(parent(*process))))
        })
        .await;
        let watcher = parent(command);
        let victim = if nth < COMMANDS { command } else { watcher };
        // One that is over by now is none to be killed, and the next one is as good.
        let _ = Pid::from_raw(victim).map(|victim| kill_process(victim, Signal::KILL));
        while is_command(command) {
            sleep(GLANCE).await;
        }
    }
}

/// Whether it runs a command, and is no more about to.
fn is_command(process: i32) -> bool {
    let words = words(process);
    words.iter().any(|word| word == COMMAND) && !words.iter().any(|word| word.starts_with(STARTS))
}

/// The process that has the fewest files open may open a sixth more, until that is told: the number of a process that starts
/// commands changes too much for a share of the limit to stay high.
async fn scarce_files(processes: &[i32], told: impl Fn() -> bool) {
    let open = |process: i32| fs::read_dir(format!("/proc/{process}/fd")).unwrap().count() as u64;
    let limit =
        |process: i32, limit: Rlimit| prlimit(Pid::from_raw(process), Resource::Nofile, limit).unwrap();
    let usual = getrlimit(Resource::Nofile);
    let mut scarce = None;
    let mut until = Instant::now() + SCARCE;
    let mut is_told = false;
    while Instant::now() < until {
        if !is_told && told() {
            is_told = true;
            until = Instant::now() + SHOWN;
        }
        let calm = *processes.iter().min_by_key(|process| open(**process)).unwrap();
        if let Some((process, before)) = scarce.filter(|(process, _)| *process != calm) {
            limit(process, before);
            scarce = None;
        }
        // The limit follows what is open: what the process opens meanwhile must not be the last that it can.
        let open = open(calm);
        let before = limit(calm, Rlimit { current: Some(open + open / 6), ..usual });
        scarce.get_or_insert((calm, before));
        sleep(AGAIN).await;
    }
    if let Some((process, before)) = scarce {
        limit(process, before);
    }
}
