//! Reads the repository for the house rules: its files, and cargo's metadata of its members. Reads only; needs no
//! network.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// cargo's kinds of dependencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Of the crate itself, or of its build script.
    Normal,
    /// Of its tests only.
    Dev,
}

#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Relative to the root, with slashes.
    pub(crate) directory: String,
    /// Dependencies on other members.
    pub(crate) uses: BTreeSet<(String, Kind)>,
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

/// The text of a file; the path is relative to the root.
pub(crate) fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("cannot read {path}: {error}"))
}

/// Paths below `directory` (itself below the root) whose name ends with `ending`, in order, without build output.
pub(crate) fn files(directory: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![root().join(directory)];
    while let Some(next) = waiting.pop() {
        let entries =
            std::fs::read_dir(&next).unwrap_or_else(|error| panic!("cannot list {next:?}: {error}"));
        for entry in entries {
            let entry = entry.expect("the directory can be listed to its end");
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == "target" || name == ".git" {
                continue;
            }
            if entry.file_type().expect("the file system tells the type").is_dir() {
                waiting.push(entry.path());
            } else if name.ends_with(ending) {
                let path = entry.path();
                let below = path.strip_prefix(root()).expect("the walk began at the root");
                found.push(below.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

/// Path and text of each of `files`.
pub(crate) fn texts(directory: &str, ending: &str) -> BTreeMap<String, String> {
    files(directory, ending).into_iter().map(|path| (path.clone(), text(&path))).collect()
}

/// Standard output of cargo, offline and with the lock file unchanged.
pub(crate) fn cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(&cargo)
        .current_dir(root())
        .args(arguments)
        .args(["--locked", "--offline"])
        .output()
        .unwrap_or_else(|error| panic!("cannot run {cargo}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?} failed: {errors}");
    String::from_utf8(output.stdout).expect("cargo writes UTF-8")
}

/// The members of the workspace, by name.
pub(crate) fn members() -> Vec<Member> {
    let metadata: serde_json::Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version", "1"]))
            .expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("metadata has packages");
    let own: BTreeSet<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut members: Vec<Member> = packages
        .iter()
        .map(|package| {
            let manifest = Path::new(package["manifest_path"].as_str().expect("a package has a manifest"));
            let directory = manifest.parent().expect("a manifest lies in a directory");
            let directory = directory.strip_prefix(root()).expect("members lie below the root");
            let dependencies = package["dependencies"].as_array().expect("a package lists dependencies");
            let uses = dependencies
                .iter()
                .filter_map(|dependency| {
                    let name = own.get(dependency["name"].as_str()?)?;
                    let kind = if dependency["kind"] == "dev" { Kind::Dev } else { Kind::Normal };
                    Some(((*name).to_owned(), kind))
                })
                .collect();
            Member {
                name: package["name"].as_str().expect("a package has a name").to_owned(),
                directory: directory.to_string_lossy().into_owned(),
                uses,
            }
        })
        .collect();
    members.sort_by(|one, other| one.name.cmp(&other.name));
    members
}
