//! Tests of `write_files`, `make_directories`, `empty-dir` and `install-cni` as processes.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_madako-tools");

/// An archive of files: path, mode, owner and content.
fn archive(files: &[(&str, u32, u32, &str)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (path, mode, owner, content) in files {
        let mut header = [0; 512];
        let mut put = |start: usize, text: &str| {
            header[start..start + text.len()].copy_from_slice(text.as_bytes());
        };
        put(0, path);
        put(
            100,
            &format!("{mode:07o}\0{owner:07o}\0{owner:07o}\0{:011o}\000000000000\0        0", content.len()),
        );
        put(257, "ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend(header);
        archive.extend(content.as_bytes());
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

/// Runs the program under a name, with an input.
fn run(program: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that refuses its command line does not read its input.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    child.wait_with_output().expect("the program ends")
}

fn write_files(arguments: &[&str], input: &[u8]) -> Output {
    run(Path::new(PROGRAM), &[&["write_files"], arguments].concat(), input)
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The messages of a run that ended with `code`.
fn failed(output: &Output, code: i32) -> String {
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{messages}");
    messages
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("the file exists").permissions().mode() & 0o7777
}

#[test]
fn files_get_their_modes_and_replace_old_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().join("new");
    let target = root.to_str().expect("a UTF-8 path");
    let own = fs::metadata(directory.path()).expect("it exists");
    // Only root can give a file away.
    let owner = if own.uid() == 0 { 10000 } else { own.uid() };
    fs::create_dir(&root).expect("a new directory");
    fs::write(root.join("a.crt"), "old").expect("a writable directory");
    fs::write(root.join("a.crt.tmp"), "left by a crash").expect("a writable directory");
    let files = archive(&[
        ("a.crt", 0o444, 0, "new"),
        ("/etc/pki/a.key", 0o600, owner, "key"),
        ("empty", 0o640, 0, ""),
    ]);
    succeeded(&write_files(&["--mode", "640", target], &files));
    assert_eq!(fs::read_to_string(root.join("a.crt")).expect("it exists"), "new");
    assert_eq!(fs::read_to_string(root.join("etc/pki/a.key")).expect("it exists"), "key");
    assert_eq!(fs::read_to_string(root.join("empty")).expect("it exists"), "");
    assert_eq!(mode(&root.join("a.crt")), 0o640);
    assert_eq!(mode(&root.join("etc/pki/a.key")), 0o600);
    assert_eq!(mode(&root.join("etc/pki")), 0o755);
    let key = fs::metadata(root.join("etc/pki/a.key")).expect("it exists");
    assert_eq!((key.uid(), fs::metadata(root.join("a.crt")).expect("it exists").uid()), (owner, own.uid()));
    assert!(!root.join("a.crt.tmp").exists());
}

#[test]
fn nothing_is_written_of_a_refused_archive() {
    let directory = tempfile::tempdir().expect("a directory");
    let target = directory.path().to_str().expect("a UTF-8 path");
    let outside = archive(&[("a", 0o644, 0, "x"), ("b/../../c", 0o644, 0, "x")]);
    assert!(failed(&write_files(&[target], &outside), 1).contains("leaves the directory"));
    let whole = archive(&[("a", 0o644, 0, "x"), ("b", 0o644, 0, "x")]);
    assert!(failed(&write_files(&[target], &whole[..1024]), 1).contains("end mark"));
    assert!(failed(&write_files(&[target], &vec![0; 17 << 20]), 1).contains("more than 16777216 bytes"));
    assert_eq!(fs::read_dir(directory.path()).expect("it exists").count(), 0);
}

#[test]
fn symbolic_links_lead_nowhere() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().join("root");
    let target = root.to_str().expect("a UTF-8 path");
    fs::create_dir(&root).expect("a new directory");
    fs::create_dir(directory.path().join("outside")).expect("a new directory");
    symlink("../outside", root.join("link")).expect("a new link");
    symlink("../outside/b", root.join("b")).expect("a new link");
    symlink("../outside/b", root.join("b.tmp")).expect("a new link");
    let through = archive(&[("link/a", 0o644, 0, "x")]);
    assert!(failed(&write_files(&[target], &through), 1).contains("\"link\" is not a directory"));
    succeeded(&write_files(&[target], &archive(&[("b", 0o644, 0, "x")])));
    assert_eq!(fs::read_dir(directory.path().join("outside")).expect("it exists").count(), 0);
    assert!(fs::symlink_metadata(root.join("b")).expect("it exists").is_file());
}

#[test]
fn directories_are_created_with_the_mode() {
    let directory = tempfile::tempdir().expect("a directory");
    let make =
        |arguments: &[&str]| run(Path::new(PROGRAM), &[&["make_directories"], arguments].concat(), b"");
    let path = |name: &str| directory.path().join(name).to_str().expect("a UTF-8 path").to_owned();
    succeeded(&make(&["--mode=700", &path("a/b"), &path("c")]));
    succeeded(&make(&[&path("a")]));
    assert_eq!(mode(&directory.path().join("a")), 0o700);
    assert_eq!(mode(&directory.path().join("a/b")), 0o700);
    fs::write(path("file"), "x").expect("a writable directory");
    assert!(failed(&make(&[&path("file/d")]), 1).contains("cannot create the directory"));
    assert!(failed(&make(&["relative"]), 2).contains("not an absolute path"));
}

#[test]
fn a_directory_is_emptied_without_following_links() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a UTF-8 path").to_owned();
    let empty = |arguments: &[&str]| run(Path::new(PROGRAM), &[&["empty-dir"], arguments].concat(), b"");
    fs::create_dir_all(path("net.d/below/deep")).expect("a writable directory");
    fs::create_dir(path("outside")).expect("a writable directory");
    for file in ["net.d/10-lab.conflist", "net.d/.hidden", "net.d/below/deep/a", "outside/kept"] {
        fs::write(path(file), "x").expect("a writable directory");
    }
    symlink("../outside", path("net.d/link")).expect("a new link");
    succeeded(&empty(&[&path("net.d")]));
    assert_eq!(fs::read_dir(path("net.d")).expect("it stays").count(), 0);
    assert!(Path::new(&path("outside/kept")).exists());
    succeeded(&empty(&[&path("missing")]));
    assert!(!Path::new(&path("missing")).exists());
    assert!(failed(&empty(&[&path("outside/kept")]), 1).contains("cannot read the directory"));
    assert!(failed(&empty(&["net.d"]), 2).contains("not an absolute path"));
    assert!(failed(&empty(&[]), 2).contains("expected one directory"));
}

#[test]
fn network_plugins_come_from_the_image_alone() {
    let install = |arguments: &[&str]| run(Path::new(PROGRAM), &[&["install-cni"], arguments].concat(), b"");
    assert!(failed(&install(&["/elsewhere"]), 2).contains("the directories of the plugins are fixed"));
    // The machine of this test is not an image.
    assert!(failed(&install(&[]), 1).contains("make tools-image PLUGINS=DIR"));
}

#[test]
fn the_name_of_the_program_chooses_the_tool() {
    let directory = tempfile::tempdir().expect("a directory");
    for tool in ["rivers", "write_files", "make_directories", "empty-dir", "install-cni"] {
        let link = directory.path().join(tool);
        symlink(PROGRAM, &link).expect("a new link");
        let help = run(&link, &["--help"], b"");
        succeeded(&help);
        assert!(String::from_utf8_lossy(&help.stdout).contains("Example: "), "{tool}");
        let wrong = failed(&run(&link, &["--wrong=1"], b""), 2);
        assert!(wrong.contains("unknown flag --wrong=1") && wrong.contains("Example: "), "{wrong}");
    }
    assert!(failed(&run(Path::new(PROGRAM), &["other"], b""), 2).contains("\"other\""));
    assert!(failed(&run(Path::new(PROGRAM), &[], b""), 2).contains("Example: "));
}
