//! The Debian package: built from the program of the tests, inspected, installed into an empty root, and removed; and the
//! image of the service, whose program runs in a root of the image's files alone.
//!
//! Nothing of this system is changed. Without dpkg-deb the test of the package is skipped.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::program::{Files, PATIENCE, free_port};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|place| place.join(program).is_file())
}

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .current_dir(ROOT)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// The output, after success.
fn done(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Builds the package without compression, which takes less time.
fn build(files: &Files) -> String {
    let program = env!("CARGO_BIN_EXE_madako");
    done("scripts/package", &[program, &files.path("out"), "none"]).trim().to_owned()
}

/// A root in which a package can be installed: the database of dpkg, and users.
fn empty_root(files: &Files) -> PathBuf {
    let root = Path::new(&files.path("root")).to_owned();
    for directory in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "etc"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    for file in ["var/lib/dpkg/status", "var/lib/dpkg/available"] {
        std::fs::write(root.join(file), "").unwrap();
    }
    root
}

fn dpkg(root: &Path, args: &[&str]) -> String {
    let root = format!("--root={}", root.display());
    // Scripts run outside the root, which has no shell; they heed DPKG_ROOT.
    let options =
        [&root, "--force-script-chrootless", "--force-not-root", "--force-depends", "--log=/dev/null"];
    done("dpkg", &[&options[..], args].concat())
}

#[test]
fn the_package_installs_a_service_that_systemd_accepts_and_is_removed_without_its_data() {
    if !has("dpkg-deb") {
        assert!(
            std::env::var_os("CI").is_none(),
            "dpkg-deb is not installed, and CI must not skip this test"
        );
        println!("skipped: dpkg-deb is not installed");
        return;
    }
    let files = Files::new();
    let package = build(&files);
    assert!(
        package.ends_with(&format!(
            "madako_{}_{}.deb",
            env!("CARGO_PKG_VERSION"),
            done("dpkg", &["--print-architecture"]).trim()
        )),
        "{package}"
    );
    let control = done("dpkg-deb", &["--field", &package]);
    assert!(control.contains("\nDepends: libc6 (>= 2."), "{control}");
    let is_filled = |line: &str| !line.contains('@') || line.starts_with("Maintainer: ");
    assert!(control.lines().all(is_filled), "{control}");
    let contents = done("dpkg-deb", &["--contents", &package]);
    for file in [
        " ./usr/bin/madako\n",
        " ./lib/systemd/system/madako.service\n",
        " ./usr/lib/sysusers.d/madako.conf\n",
        " ./etc/default/madako\n",
        " ./usr/share/doc/madako/examples/config-repair.yml\n",
        " ./usr/share/doc/madako/examples/template-cluster.yml\n",
        " ./usr/share/doc/madako/GUIDE.md\n",
        " ./usr/share/doc/madako/copyright\n",
        " ./usr/share/man/man1/madako.1.gz\n",
        " ./usr/share/man/man1/madako-machine-list.1.gz\n",
        " ./usr/share/bash-completion/completions/madako\n",
        " ./usr/share/zsh/vendor-completions/_madako\n",
        " ./usr/share/fish/vendor_completions.d/madako.fish\n",
        " ./usr/share/madako/grafana/dashboards/overview.json\n",
        " ./usr/share/madako/grafana/rules/service.yml\n",
    ] {
        assert!(contents.contains(file), "{file:?} is not in\n{contents}");
    }
    assert!(!contents.contains("/etc/cke"), "CKE owns that directory");
    assert!(contents.lines().all(|line| line.contains(" root/root ")), "{contents}");

    let root = empty_root(&files);
    dpkg(&root, &["--install", &package]);
    let users = std::fs::read_to_string(root.join("etc/passwd")).unwrap();
    let user = users.lines().find(|line| line.starts_with("madako:")).expect("the service has a user");
    assert!(user.ends_with("/var/lib/madako:/usr/sbin/nologin"), "{user}");
    let installed = root.join("usr/bin/madako");
    let example = root.join("usr/share/doc/madako/examples/config-single.yml");
    done(installed.to_str().unwrap(), &["config", "check", example.to_str().unwrap()]);
    unit_is_accepted(&root);
    installed_service_starts_and_stops(&root, &files);

    // The state of clusters outlives the package.
    let data = root.join("var/lib/madako");
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(data.join("etcd.redb"), "").unwrap();
    dpkg(&root, &["--purge", "madako"]);
    let left: Vec<String> = ["usr", "lib", "etc/default"]
        .iter()
        .filter(|place| root.join(place).exists())
        .map(|place| (*place).to_owned())
        .collect();
    assert!(left.is_empty(), "{left:?} is left");
    assert!(data.join("etcd.redb").exists());
}

/// Starts the installed program with the command of the unit and the options of the package, as systemd does.
fn installed_service_starts_and_stops(root: &Path, files: &Files) {
    let unit = std::fs::read_to_string(root.join("lib/systemd/system/madako.service")).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/")).unwrap();
    let default = std::fs::read_to_string(root.join("etc/default/madako")).unwrap();
    let options = default.lines().find_map(|line| line.strip_prefix("MADAKO_OPTIONS=")).unwrap();
    let line = line.replace("$MADAKO_OPTIONS", options.trim_matches('"'));
    let (program, args) = line.split_once(' ').unwrap();
    // Only the places differ from those of an installed system.
    let embedded =
        format!("embedded: {{data-dir: {}, listen: '127.0.0.1:{}'}}\n", files.path("data"), free_port());
    let config = files.write("config.yml", embedded);
    let notified = files.path("notify");
    let socket = UnixDatagram::bind(&notified).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut service = Command::new(root.join(program))
        .args(args.split_whitespace())
        .args(["--config", &config, "--http", "127.0.0.1:0"])
        .env("NOTIFY_SOCKET", &notified)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut message = [0; 64];
    let count = socket.recv(&mut message).expect("the service tells systemd that it is ready");
    assert_eq!(&message[..count], b"READY=1");
    kill_process(Pid::from_child(&service), Signal::TERM).unwrap();
    let status = service.wait().unwrap();
    assert!(status.success(), "{status}");
}

fn unit_is_accepted(root: &Path) {
    if !has("systemd-analyze") {
        assert!(
            std::env::var_os("CI").is_none(),
            "systemd-analyze is not installed, and CI must not skip this part of the test"
        );
        println!("skipped: systemd-analyze is not installed");
        return;
    }
    // A copy with the path of the installed program, beside which systemd looks for no other unit.
    let unit = std::fs::read_to_string(root.join("lib/systemd/system/madako.service")).unwrap();
    let copy = root.join("madako.service");
    let program = root.join("usr/bin/madako");
    std::fs::write(&copy, unit.replace("/usr/bin/madako", program.to_str().unwrap())).unwrap();
    let verified =
        run("systemd-analyze", &["verify", "--man=no", "--recursive-errors=no", copy.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !text.contains("madako.service"), "{text}");
    // The exposure of a service without any protection is 96.
    let exposure =
        run("systemd-analyze", &["security", "--offline=yes", "--threshold=20", copy.to_str().unwrap()]);
    assert!(exposure.status.success(), "{}", String::from_utf8_lossy(&exposure.stdout));
}

#[test]
fn the_image_of_the_service_has_all_that_its_program_needs() {
    let files = Files::new();
    let [program, archive, image, root] =
        ["madako", "image.tar", "image", "image/root"].map(|name| files.path(name));
    done("strip", &["--output-file", &program, env!("CARGO_BIN_EXE_madako")]);
    done("scripts/service-image", &[&program, &archive, "registry.example.com/madako:1.0"]);
    std::fs::create_dir_all(&root).unwrap();
    done("tar", &["--extract", "--directory", &image, "--file", &archive]);
    let read = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(Path::new(&image).join(name)).unwrap()).unwrap()
    };
    let manifest = &read("manifest.json")[0];
    assert_eq!(manifest["RepoTags"][0], "registry.example.com/madako:1.0");
    let config = &read(manifest["Config"].as_str().unwrap())["config"];
    assert_eq!((&config["Entrypoint"][0], &config["Cmd"][0]), (&"/usr/bin/madako".into(), &"serve".into()));
    let layer = Path::new(&image).join(manifest["Layers"][0].as_str().unwrap());
    done("tar", &["--extract", "--no-same-owner", "--directory", &root, "--file", layer.to_str().unwrap()]);
    for file in ["etc/ssl/certs/ca-certificates.crt", "var/lib/madako", "tmp"] {
        assert!(Path::new(&root).join(file).exists(), "{file}");
    }
    let in_root = [&["--root", &root, "/usr/bin/madako", "--version"][..]].concat();
    let is_root = rustix::process::geteuid().is_root();
    let version = match is_root {
        true => done("chroot", &in_root[1..]),
        false => done("unshare", &[&["--user", "--map-root-user"][..], &in_root].concat()),
    };
    assert_eq!(version.trim(), format!("madako {}", env!("CARGO_PKG_VERSION")));
}
