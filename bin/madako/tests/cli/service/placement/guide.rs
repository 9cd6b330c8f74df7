//! Test of the commands of the guide's chapter on placement, from nothing to a placed application and its deletion.
//!
//! The test writes each file that the chapter shows (its first line is its name), runs each line after `$ ` in a shell,
//! and waits until the output contains the lines below a command. Nothing else is written or run before the chapter
//! ends. Only directories and ports are replaced: tests run side by side on one machine.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use tokio::process::{Child, Command};

use super::super::stage::eventually;
use crate::program::{Files, free_port};

const GUIDE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/GUIDE.md"));

/// A fenced block of the chapter: the word behind its fence, and its lines.
struct Block<'a> {
    kind: &'a str,
    lines: Vec<&'a str>,
}

fn blocks(chapter: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut lines = chapter.lines();
    while let Some(line) = lines.next() {
        let Some((indent, kind)) = line.split_once("```") else { continue };
        let inside = lines.by_ref().take_while(|line| !line.trim_start().starts_with("```"));
        let lines = inside.map(|line| line.strip_prefix(indent).unwrap_or(line)).collect();
        blocks.push(Block { kind, lines });
    }
    blocks
}

/// Runs the chapter, as an operator would.
struct Operator {
    files: Files,
    replaced: Vec<(&'static str, String)>,
    service: Option<Child>,
    commands: usize,
}

impl Operator {
    fn new() -> Self {
        let files = Files::new();
        let mut replaced =
            ["2379", "8080", "10180", "10080"].map(|port| (port, free_port().to_string())).to_vec();
        replaced.extend(
            ["/var/lib/madako", "/var/tmp/madako-first", "/etc/madako"]
                .map(|path| (path, files.path(path.trim_start_matches('/')))),
        );
        Self { files, replaced, service: None, commands: 0 }
    }

    fn replaced(&self, text: &str) -> String {
        self.replaced.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// A line of the chapter in a shell that finds the program, in the directory of the files.
    fn shell(&self, line: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_madako")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let home = self.files.path("");
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &self.replaced(line)])
            .current_dir(&home)
            .env("PATH", format!("{}:{path}", program.display()))
            .env("HOME", &home)
            .env_remove("XDG_CONFIG_HOME")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        shell
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.files.path("log")).unwrap_or_default()
    }

    /// Starts the service, which runs until the end.
    async fn serve(&mut self, line: &str) {
        let log = File::create(self.files.path("log")).unwrap();
        let mut child = self.shell(&format!("exec {line}")).stderr(log).spawn().unwrap();
        eventually("the service starts", async || {
            assert!(child.try_wait().unwrap().is_none(), "{}", self.log());
            self.log().contains("the service started").then_some(())
        })
        .await;
        self.service = Some(child);
    }

    /// Runs a command. Repeats it until its output has the lines that the chapter shows.
    async fn run(&self, line: &str, shows: &[&str]) {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        eventually(&format!("{line} shows {shows:?}"), async || {
            let output = self.shell(line).output().await.unwrap();
            assert!(output.status.success(), "{line}: {output:?}\n{}", self.log());
            let shown = words(&String::from_utf8_lossy(&output.stdout));
            shows.iter().all(|part| shown.contains(&words(part))).then_some(())
        })
        .await;
    }

    async fn follow(&mut self, block: &Block<'_>) {
        match (block.kind, block.lines.first().and_then(|line| line.strip_prefix("# "))) {
            ("console", _) => {
                let mut lines = block.lines.iter().peekable();
                while let Some(line) = lines.next() {
                    let line = line.strip_prefix("$ ").expect("a block of commands begins with one");
                    let mut shows = Vec::new();
                    while let Some(shown) = lines.next_if(|line| !line.starts_with("$ ")) {
                        shows.push(*shown);
                    }
                    self.commands += 1;
                    match line.starts_with("madako serve") {
                        true => self.serve(line).await,
                        false => self.run(line, &shows).await,
                    }
                }
            }
            (_, Some(name)) => {
                self.files.write(name, self.replaced(&block.lines.join("\n")));
            }
            // Part of a file, which shows a setting.
            (_, None) => {}
        }
    }
}

fn chapter(name: &str) -> &'static str {
    let (_, chapter) = GUIDE.split_once(&format!("\n## {name}\n")).unwrap();
    chapter.split_once("\n## ").map_or(chapter, |(chapter, _)| chapter)
}

#[tokio::test]
async fn six_commands_lead_from_an_installed_package_to_a_first_cluster_with_repairs_and_reboots() {
    let mut operator = Operator::new();
    for block in blocks(chapter("A first cluster without machines")) {
        operator.follow(&block).await;
    }
    assert!(operator.commands <= 6, "the chapter has {} commands", operator.commands);
    for block in blocks(chapter("Repairs and reboots without machines")) {
        operator.follow(&block).await;
    }
}

#[tokio::test]
async fn the_placement_chapter_leads_from_nothing_to_a_placed_application_and_its_deletion() {
    let mut operator = Operator::new();
    for block in blocks(chapter("Placement")) {
        operator.follow(&block).await;
    }
    assert!(operator.commands >= 15, "the chapter has {} commands", operator.commands);

    // As the chapter says, the cluster is gone with its application, and the log names the rule.
    operator.run("madako kube app list -o json", &["[]"]).await;
    operator.run("madako kube cluster list -o json", &["[]"]).await;
    let log = operator.log();
    for (resource, rule, part) in [
        ("Cluster system:admin/munich", "", "a client asked for a deletion"),
        ("Application system:admin/echo-demo", "owner", "Cluster system:admin/munich"),
        ("Application system:admin/echo-demo", "no-dependents", "deleted"),
        ("Cluster system:admin/munich", "no-dependents", "deleted"),
    ] {
        let is_reported = |line: &str| line.contains(resource) && line.contains(rule) && line.contains(part);
        assert!(log.lines().any(is_reported), "{resource} {rule} {part:?} is not in the log:\n{log}");
    }
}
