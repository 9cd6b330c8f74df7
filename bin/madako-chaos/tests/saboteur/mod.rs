//! What happens to the processes of a run that no scenario has a word for: commands and the watcher of one are killed, and a
//! process may open hardly more files than it has.
//!
//! Finds them by the addresses that the run tells: no other process has them on its command line.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::processes::{found, parent, processes, with_word, words};

/// How often it is looked for: a command that is not held up is over in some milliseconds.
const GLANCE: Duration = Duration::from_millis(5);
/// For how long files are scarce: Prometheus, which hurries, waits for ten seconds.
const SCARCE: Duration = Duration::from_secs(15);
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

/// Does all of it, once the run has begun.
pub(crate) async fn work(targets: &Path) {
    let text = found("the file of the targets", GLANCE, || fs::read_to_string(targets).ok()).await;
    let targets: Vec<Value> = serde_json::from_str(&text).unwrap();
    let addresses: Vec<&str> = targets.iter().map(|target| target["targets"][0].as_str().unwrap()).collect();
    let instances = found("the instances", GLANCE, || {
        let pids: Vec<i32> = addresses.iter().filter_map(|address| with_word(address)).collect();
        (pids.len() == addresses.len()).then_some(pids)
    })
    .await;
    scarce_files(instances[0]).await;
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

/// A process may open a sixth more files than it has, for a while.
async fn scarce_files(process: i32) {
    let pid = Pid::from_raw(process);
    let usual = getrlimit(Resource::Nofile);
    let began = Instant::now();
    let mut before = None;
    while began.elapsed() < SCARCE {
        // What it opens meanwhile must not be the last that it can.
        let open = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count() as u64;
        let scarce = Rlimit { current: Some(open + open / 6), ..usual };
        let was = prlimit(pid, Resource::Nofile, scarce).unwrap();
        before.get_or_insert(was);
        sleep(AGAIN).await;
    }
    prlimit(pid, Resource::Nofile, before.unwrap()).unwrap();
}
