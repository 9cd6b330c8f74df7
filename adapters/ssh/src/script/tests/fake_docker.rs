//! A program `docker` for the tests of scripts: a shell script with its state in a directory.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use madako_protocol::node::NodeAction;

use crate::script::{Script, render};

/// Records commands that change something: one argument ends with the byte 1, a command with the byte 2. The second
/// word chooses a failure, a hang or an output.
const DOCKER: &str = r#"
case $1 in container|volume|image) verb=$2;; *) verb=$1;; esac
case $verb in ls|inspect|version) ;; *)
  for word; do printf '%s\001' "$word"; done >>"$FAKE/changes"; printf '\002' >>"$FAKE/changes";;
esac
[ -e "$FAKE/hang.$verb" ] && exec sleep 1000
[ -e "$FAKE/fail.$verb" ] && { echo 'the engine fails' >&2; exit 1; }
[ -e "$FAKE/output.$verb" ] && { cat "$FAKE/output.$verb"; exit 0; }
case "$1 $verb" in
  'container ls')
    for word; do case $word in 'name=^/'*) name=${word#'name=^/'}; name=${name%'$'};; esac; done
    [ -e "$FAKE/containers/$name" ] && echo "id-$name";;
  'container inspect')
    for id; do :; done
    name=${id#id-}
    case $4 in *Labels*) cat "$FAKE/containers/$name/label";; *Running*) cat "$FAKE/containers/$name/running";; esac;;
  'container rm') rm -r "$FAKE/containers/${4#id-}";;
  'image inspect') [ -e "$FAKE/image" ] && [ "$5" = "$(cat "$FAKE/image")" ] || exit 1;;
  'volume inspect') [ -e "$FAKE/place" ] || { echo "no such volume: $6" >&2; exit 1; }; cat "$FAKE/place";;
  'volume ls') cat "$FAKE/volumes" 2>/dev/null;;
  'run run') cat >"$FAKE/stdin";;
esac
exit 0
"#;

pub(in crate::script) struct FakeDocker(tempfile::TempDir);

#[derive(Debug, PartialEq, Eq)]
pub(in crate::script) struct Outcome {
    pub(in crate::script) code: Option<i32>,
    pub(in crate::script) stdout: String,
    pub(in crate::script) stderr: String,
}

impl Outcome {
    pub(in crate::script) fn success() -> Self {
        Self { code: Some(0), stdout: String::new(), stderr: String::new() }
    }
}

impl FakeDocker {
    pub(in crate::script) fn new() -> Self {
        let docker = Self(tempfile::tempdir().unwrap());
        fs::create_dir(docker.path().join("containers")).unwrap();
        docker.program("docker", DOCKER);
        docker.program("getenforce", "exit 1");
        docker.place("local", &docker.path().join("data"));
        fs::create_dir_all(docker.path().join("data/member")).unwrap();
        docker
    }

    pub(in crate::script) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Puts a program on the path of the scripts.
    pub(in crate::script) fn program(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(in crate::script) fn container(&self, name: &str, running: bool, label: &str) {
        let path = self.path().join("containers").join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("running"), format!("{running}\n")).unwrap();
        fs::write(path.join("label"), format!("{label}\n")).unwrap();
    }

    pub(in crate::script) fn volumes(&self, names: &[&str]) {
        fs::write(self.path().join("volumes"), names.join("\n") + "\n").unwrap();
    }

    /// Gives each volume this driver and directory.
    pub(in crate::script) fn place(&self, driver: &str, directory: &Path) {
        fs::write(self.path().join("place"), format!("{driver} 0 {}\n", directory.display())).unwrap();
    }

    pub(in crate::script) fn image(&self, name: &str) {
        fs::write(self.path().join("image"), name).unwrap();
    }

    pub(in crate::script) fn fail(&self, verb: &str) {
        fs::write(self.path().join(format!("fail.{verb}")), "").unwrap();
    }

    pub(in crate::script) fn hang(&self, verb: &str) {
        fs::write(self.path().join(format!("hang.{verb}")), "").unwrap();
    }

    pub(in crate::script) fn output(&self, verb: &str, text: &str) {
        fs::write(self.path().join(format!("output.{verb}")), text).unwrap();
    }

    pub(in crate::script) fn act(&self, action: &NodeAction, seconds: u64) -> Outcome {
        self.run(&render(action, seconds).unwrap())
    }

    pub(in crate::script) fn run(&self, script: &Script) -> Outcome {
        let path = format!("{}:/usr/bin:/bin", self.path().display());
        let mut shell = Command::new("/bin/sh")
            .args(["-c", &script.text])
            .env_clear()
            .env("PATH", path)
            .env("FAKE", self.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A script that fails early does not read its input.
        let written = shell.stdin.take().unwrap().write_all(&script.stdin);
        let output = shell.wait_with_output().unwrap();
        assert!(written.is_ok() || !output.status.success());
        Outcome {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The commands that would have changed something, in order.
    pub(in crate::script) fn changes(&self) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.path().join("changes")).unwrap_or_default();
        let commands = text.split_terminator('\u{2}');
        commands.map(|words| words.split_terminator('\u{1}').map(str::to_owned).collect()).collect()
    }

    /// The standard input of the last container.
    pub(in crate::script) fn stdin(&self) -> String {
        fs::read_to_string(self.path().join("stdin")).unwrap()
    }
}
