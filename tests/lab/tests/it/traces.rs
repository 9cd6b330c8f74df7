//! Finds the remains of a lab on the host: processes, mounts, network devices, cgroups and files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::eventually;

/// Kinds of namespaces that a lab has of its own.
const KINDS: [&str; 5] = ["net", "mnt", "pid", "uts", "ipc"];

/// The traces of a lab, collected while it runs.
#[derive(Debug)]
pub(crate) struct Traces {
    directory: PathBuf,
    name: String,
    /// Namespaces of the lab and its machines, in the form `net:[4026531840]`.
    pub(crate) namespaces: BTreeSet<String>,
}

impl Traces {
    /// The traces of a running lab.
    pub(crate) fn of(directory: &Path) -> Self {
        let name = directory.file_name().unwrap().to_string_lossy().into_owned();
        let machines = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path().join("pid"));
        let first = machines.chain([directory.join("pid")]).filter_map(|file| fs::read_to_string(file).ok());
        let found: BTreeSet<String> =
            first.flat_map(|pid| namespaces(&PathBuf::from("/proc").join(pid.trim()))).collect();
        let own: BTreeSet<String> = namespaces(Path::new("/proc/self")).collect();
        Self { directory: directory.to_owned(), name, namespaces: &found - &own }
    }

    /// Waits until no trace is left. The kernel may need a moment for the last process of a killed namespace.
    pub(crate) async fn vanish(&self) {
        eventually("nothing remains", async || self.left().is_empty().then_some(())).await;
    }

    pub(crate) fn left(&self) -> Vec<String> {
        let mut left = self.in_use();
        left.extend(self.cgroups());
        if self.directory.exists() {
            left.push(format!("the directory {}", self.directory.display()));
        }
        left
    }

    /// Processes in the namespaces, open files that hold one, and mounts.
    pub(crate) fn in_use(&self) -> Vec<String> {
        let mut found = Vec::new();
        let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        for process in processes.filter(|path| path.join("ns").exists()) {
            let command = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let says = |what: &str| format!("{} ({}) {what}", process.display(), command.trim());
            if namespaces(&process).any(|namespace| self.namespaces.contains(&namespace)) {
                found.push(says("is in a namespace"));
            }
            // A process may end meanwhile.
            let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
            let links = files.filter_map(|file| fs::read_link(file.path()).ok());
            if links.into_iter().any(|link| self.namespaces.contains(&*link.to_string_lossy())) {
                found.push(says("holds a namespace"));
            }
            if fs::read_to_string(process.join("mountinfo")).is_ok_and(|mounts| mounts.contains(&self.name)) {
                found.push(says("has a mount"));
            }
        }
        found
    }

    /// Cgroups of the lab, in all hierarchies.
    pub(crate) fn cgroups(&self) -> Vec<String> {
        let top = Path::new("/sys/fs/cgroup");
        let hierarchies = fs::read_dir(top).unwrap().map(|entry| entry.unwrap().path());
        let places = hierarchies.chain([top.to_owned()]).map(|hierarchy| hierarchy.join(&self.name));
        places.filter(|place| place.exists()).map(|place| format!("the cgroup {}", place.display())).collect()
    }
}

/// The namespaces of a process; none if it has ended.
fn namespaces(process: &Path) -> impl Iterator<Item = String> + use<> {
    let links = KINDS.map(|kind| process.join("ns").join(kind));
    links.into_iter().filter_map(|link| Some(fs::read_link(link).ok()?.to_string_lossy().into_owned()))
}
