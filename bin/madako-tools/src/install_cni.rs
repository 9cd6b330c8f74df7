//! `install-cni`: copies the network plugins of the image to the node.
//!
//! Guarantees: a plugin on the node is the old or the new one, also after a crash, because it is written under a temporary
//! name, synced and renamed. Plugins with other names stay.
//!
//! Assumes: the image has plugins in [`PLUGINS`], and [`TARGET`] is a directory of the node. CKE's tool has the same paths.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::flags::{Failure, Flags};
use crate::limits::MAX_PLUGINS;
use crate::tar::TEMPORARY;

pub(crate) const HELP: &str = "Copies the CNI plugins of the image to the node.

Usage: install-cni

It copies each file of /cni_plugins/bin to /host/bin with mode 755.

Example: docker run --rm --volume=/opt/cni/bin:/host/bin madako-tools:1.0 install-cni
";

/// Directory of the image with plugins.
const PLUGINS: &str = "/cni_plugins/bin";
/// Directory of the node, which is `/opt/cni/bin` there.
const TARGET: &str = "/host/bin";
/// Permission bits of an installed plugin.
const MODE: u32 = 0o755;

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let flags = Flags::read(arguments, &[])?;
    if let Some(word) = flags.words.first() {
        return Err(Failure::Usage(format!(
            "unexpected argument {word:?}: the directories of the plugins are fixed"
        )));
    }
    Ok(install_plugins(Path::new(PLUGINS), Path::new(TARGET))?)
}

fn install_plugins(from: &Path, to: &Path) -> Result<()> {
    let read = || {
        format!(
            "cannot read {}: an image with plugins is made by `make tools-image PLUGINS=DIR`",
            from.display()
        )
    };
    let entries = fs::read_dir(from).with_context(read)?.take(MAX_PLUGINS + 1);
    let plugins = entries.collect::<io::Result<Vec<_>>>().with_context(read)?;
    ensure!(
        !plugins.is_empty(),
        "the directory {} has no CNI plugin: use an image with plugins",
        from.display()
    );
    ensure!(
        plugins.len() <= MAX_PLUGINS,
        "the directory {} has more than {MAX_PLUGINS} CNI plugins",
        from.display()
    );
    for plugin in plugins {
        let target = to.join(plugin.file_name());
        let mut temporary = plugin.file_name();
        temporary.push(TEMPORARY);
        replace(&plugin.path(), &to.join(temporary), &target)
            .with_context(|| format!("cannot install the CNI plugin {}", target.display()))?;
    }
    let synced = File::open(to).and_then(|directory| directory.sync_all());
    synced.with_context(|| format!("cannot sync the directory {}", to.display()))
}

fn replace(plugin: &Path, temporary: &Path, target: &Path) -> io::Result<()> {
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let copied = copy_plugin(plugin, temporary).and_then(|()| fs::rename(temporary, target));
    if copied.is_err() {
        // The first error counts. The next run removes the file, too.
        let _ = fs::remove_file(temporary);
    }
    copied
}

fn copy_plugin(plugin: &Path, temporary: &Path) -> io::Result<()> {
    let mut source = File::open(plugin)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(temporary)?;
    io::copy(&mut source, &mut file)?;
    // The umask does not apply.
    file.set_permissions(fs::Permissions::from_mode(MODE))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).expect("it exists");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    #[test]
    fn plugins_replace_those_of_the_node_and_others_stay() {
        let directory = tempfile::tempdir().expect("a directory");
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        for (path, content) in [
            ("from/ptp", "new"),
            ("from/loopback", "new"),
            ("to/ptp", "old"),
            ("to/ptp.tmp", ""),
            ("to/own", "own"),
        ] {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a writable directory");
            fs::write(path, content).expect("a writable directory");
        }
        let running = File::open(to.join("ptp")).expect("it exists");
        install_plugins(&from, &to).expect("both directories exist");
        assert_eq!(names(&to), ["loopback", "own", "ptp"]);
        assert_eq!(fs::read_to_string(to.join("ptp")).expect("it exists"), "new");
        let mode = fs::metadata(to.join("loopback")).expect("it exists").permissions().mode();
        assert_eq!(mode & 0o7777, MODE);
        let old = io::read_to_string(running).expect("the old file");
        assert_eq!(old, "old", "a process that runs the old plugin keeps it");
    }

    #[test]
    fn an_image_without_plugins_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = install_plugins(directory.path(), directory.path()).expect_err("no plugin");
        assert!(error.to_string().contains("has no CNI plugin"), "{error}");
        let missing =
            install_plugins(&directory.path().join("missing"), directory.path()).expect_err("no directory");
        assert!(missing.to_string().contains("PLUGINS=DIR"), "{missing}");
    }

    #[test]
    fn only_files_are_installed() {
        let directory = tempfile::tempdir().expect("a directory");
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        fs::create_dir_all(from.join("directory")).expect("a writable directory");
        fs::create_dir(&to).expect("a writable directory");
        let error = install_plugins(&from, &to).expect_err("a directory is not a plugin");
        assert!(error.to_string().contains("to/directory"), "{error}");
        assert!(names(&to).is_empty());
    }
}
