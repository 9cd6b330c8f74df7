//! Checks that messages, faults and actors reach no I/O. A pure crate that cannot open a socket needs no review for it.
//!
//! Two rules, because cargo builds the workspace with one union of features: an actor's own dependencies must not do
//! I/O, and its code must not name features that another crate has enabled.

use std::collections::{BTreeMap, BTreeSet};

use crate::repository::{cargo, members, texts};
use crate::{nothing, one};

/// Packages that do I/O.
const IO_PACKAGES: [&str; 18] = [
    "async-process",
    "axum",
    "etcd-client",
    "h2",
    "hyper",
    "hyper-util",
    "kube",
    "mio",
    "polling",
    "redb",
    "reqwest",
    "ring",
    "russh",
    "rustix",
    "rustls",
    "signal-hook",
    "socket2",
    "tonic",
];
/// Features of tokio that do I/O or start threads.
const IO_FEATURES: [&str; 7] = ["fs", "full", "io-std", "net", "process", "rt-multi-thread", "signal"];
/// Modules for I/O, threads or the process's surroundings.
const IO_MODULES: [&str; 14] = [
    "std::env",
    "std::fs",
    "std::io",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::ToSocketAddrs",
    "std::net::UdpSocket",
    "std::process",
    "std::thread",
    "tokio::fs",
    "tokio::io",
    "tokio::net",
    "tokio::process",
    "tokio::signal",
];

/// Items of these modules without I/O: serde's formatters and other writers into memory use them.
const NOT_IO: [&str; 2] = ["std::io::Result", "std::io::Write"];

/// Crates that only an actor's shell uses: mailboxes, timers, metrics, logs.
const SHELL_CRATES: [&str; 4] = ["metrics", "ractor", "tokio", "tracing"];

/// Packages of `tree` (lines `name vVERSION|feature,feature`) that do I/O.
fn io_dependencies(tree: &str) -> Vec<String> {
    let mut findings = BTreeSet::new();
    for line in tree.lines() {
        let (package, features) = line.split_once('|').unwrap_or((line, ""));
        let name = package.split(' ').next().unwrap_or(package);
        if IO_PACKAGES.contains(&name) {
            findings.insert(format!("reaches {package}"));
        }
        if name == "tokio" {
            // A package printed before has " (*)" after its last feature.
            for feature in
                features.trim_end_matches(" (*)").split(',').filter(|feature| IO_FEATURES.contains(feature))
            {
                findings.insert(format!("reaches {package} with \"{feature}\""));
            }
        }
    }
    findings.into_iter().collect()
}

/// The code without comments and string literals, so that only compiled text counts.
fn code_only(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut characters = source.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '/' if characters.peek() == Some(&'/') => {
                for skipped in characters.by_ref() {
                    if skipped == '\n' {
                        code.push('\n');
                        break;
                    }
                }
            }
            '"' => {
                // A raw string ends with as many hashes as it began with, and has no escapes.
                let before = code.trim_end_matches('#');
                let hashes = before.ends_with('r').then(|| code.len() - before.len());
                while let Some(skipped) = characters.next() {
                    match skipped {
                        '\\' if hashes.is_none() => drop(characters.next()),
                        '"' if (0..hashes.unwrap_or(0)).all(|_| characters.next_if_eq(&'#').is_some()) => {
                            break;
                        }
                        _ => {}
                    }
                }
                code.push_str("\"\"");
            }
            '\'' => {
                // A quoted character, or a lifetime, which has no closing quote.
                let mut ahead = characters.clone();
                let escaped = ahead.next() == Some('\\');
                if escaped {
                    ahead.next();
                }
                if ahead.next() == Some('\'') {
                    characters = ahead;
                }
            }
            _ => code.push(character),
        }
    }
    code
}

/// Every path in the code, with grouped imports expanded: `use std::{fs, net::TcpStream}` gives `std::fs` and
/// `std::net::TcpStream`.
fn paths(source: &str) -> BTreeSet<String> {
    let code = code_only(source);
    let mut found = BTreeSet::new();
    // For each open brace: the path before `::{`, or nothing.
    let mut braces: Vec<Option<String>> = Vec::new();
    let mut path = String::new();
    let characters: Vec<char> = code.chars().collect();
    let mut at = 0;
    while at < characters.len() {
        let character = characters[at];
        match character {
            _ if character.is_alphanumeric() || character == '_' => path.push(character),
            ':' if characters.get(at + 1) == Some(&':') => {
                path.push_str("::");
                at += 1;
            }
            '{' => {
                let prefix = path.ends_with("::").then(|| path.clone());
                path = prefix.clone().unwrap_or_default();
                braces.push(prefix);
            }
            _ if character.is_whitespace() && path.ends_with("::") => {}
            _ => {
                found.insert(std::mem::take(&mut path));
                if character == '}' {
                    braces.pop();
                }
                path = braces.last().cloned().flatten().unwrap_or_default();
            }
        }
        at += 1;
    }
    found.insert(path);
    found.retain(|path| path.contains("::"));
    found
}

/// Each file of `sources` that names a module of I/O.
fn io_in_code(sources: &BTreeMap<String, String>) -> Vec<String> {
    let mut findings = Vec::new();
    for (file, source) in sources {
        let mut named = paths(source);
        named.retain(|path| !NOT_IO.contains(&path.as_str()));
        for module in IO_MODULES {
            let below = format!("{module}::");
            if named.iter().any(|path| path == module || path.starts_with(&below)) {
                findings.push(format!("{file} names {module}"));
            }
        }
    }
    findings
}

/// Each file of an actor except its shell that names a crate of the shell.
fn impure_decisions(sources: &BTreeMap<String, String>) -> Vec<String> {
    let mut findings = Vec::new();
    for (file, source) in sources {
        if file.ends_with("/actor.rs") || file.contains("/actor/") {
            continue;
        }
        let named = paths(source);
        for shell_crate in SHELL_CRATES {
            let below = format!("{shell_crate}::");
            if named.iter().any(|path| path.starts_with(&below)) {
                findings.push(format!("{file} belongs to the pure half of an actor and names {shell_crate}"));
            }
        }
        // A metric's function, such as `crate::actor::madako_polls_total`, is in the shell.
        let is_metric = |path: &&String| path.contains("::madako_") || path.contains("::cke_");
        findings.extend(
            named
                .iter()
                .find(is_metric)
                .map(|path| format!("{file} belongs to the pure half of an actor and names {path}")),
        );
    }
    findings
}

#[test]
fn messages_faults_and_actors_depend_on_no_io() {
    let mut findings = Vec::new();
    for member in members() {
        let is_pure = |directory: &str| member.directory.starts_with(directory);
        if ["messages/", "verification/faults", "actors/"].into_iter().any(is_pure) {
            let tree = cargo(&[
                "tree",
                "--package",
                &member.name,
                "--edges",
                "normal,no-proc-macro",
                "--prefix",
                "none",
                "--format",
                "{p}|{f}",
            ]);
            assert!(
                tree.contains("madako-json v"),
                "the tree of {} has the first crate: {tree}",
                member.name
            );
            findings.extend(
                io_dependencies(&tree).into_iter().map(|finding| format!("{} {finding}", member.name)),
            );
        }
    }
    nothing(&findings);
}

#[test]
fn a_dependency_that_does_io_is_found() {
    let tree =
        "madako-leader v0.1.0 (somewhere)|\nserde v1.0.0|default,std\ntokio v1.54.1|default,rt,time (*)\n";
    nothing(&io_dependencies(tree));
    for package in IO_PACKAGES {
        one(&io_dependencies(&format!("{tree}{package} v1.0.0|default\n")), &[package]);
    }
    for feature in IO_FEATURES {
        one(&io_dependencies(&format!("{tree}tokio v1.54.1|default,{feature}\n")), &["tokio", feature]);
    }
    one(&io_dependencies(&format!("{tree}tokio v1.54.1|default,net (*)\n")), &["tokio", "net"]);
}

#[test]
fn messages_faults_and_actors_name_no_io() {
    let mut sources = texts("messages", ".rs");
    sources.append(&mut texts("verification/faults/src", ".rs"));
    sources.append(&mut texts("actors", ".rs"));
    // Tests may read their number of cases from the environment, and benchmarks may use the clock.
    sources.retain(|file, _| !["/tests/", "/tests.rs", "/benches/"].iter().any(|part| file.contains(part)));
    nothing(&io_in_code(&sources));
}

#[test]
fn code_that_names_io_is_found() {
    let valid = r##"//! Not std::fs.
use std::{collections::BTreeMap, net::Ipv4Addr};
use tokio::{sync::mpsc, time};
fn work() { let text = "std::fs::read \" std::fs"; if a { b::c() } else { std::mem::drop(text) } }
fn quoted<'a>(text: &'a str) { let c = '"'; let d = '\''; let raw = r#"a " std::fs::write"#; }
"##;
    let file = |code: &str| BTreeMap::from([("actor.rs".to_owned(), format!("{valid}{code}"))]);
    nothing(&io_in_code(&file("")));
    for (code, module) in [
        ("fn leak() { std::fs::read(path); }", "std::fs"),
        ("use std::{cmp, fs};", "std::fs"),
        ("use std::io::{Result, Write, stdout};", "std::io"),
        ("use std::net::{Ipv4Addr, TcpStream};", "std::net::TcpStream"),
        ("use tokio::{\n    net::TcpStream,\n    time,\n};", "tokio::net"),
        ("use tokio::{sync::{mpsc, watch}, io::AsyncReadExt};", "tokio::io"),
        ("fn f() { match x { A => { std::thread::yield_now() } } }", "std::thread"),
    ] {
        one(&io_in_code(&file(code)), &["actor.rs", module]);
    }
}

#[test]
fn decisions_use_no_actors_timers_or_logs() {
    let mut sources = BTreeMap::new();
    for member in members().iter().filter(|member| member.directory.starts_with("actors/")) {
        let mut own = texts(&format!("{}/src", member.directory), ".rs");
        assert!(
            own.keys().any(|file| file.ends_with("/actor.rs")),
            "{} and its shell: {:?}",
            member.name,
            own.keys()
        );
        sources.append(&mut own);
    }
    // These files of the crate of effects are the shell.
    let mut effects = texts("messages/effects/src", ".rs");
    for shell in ["shell.rs", "permits.rs", "host.rs", "drain.rs"] {
        assert!(effects.remove(&format!("messages/effects/src/{shell}")).is_some(), "{:?}", effects.keys());
    }
    sources.append(&mut effects);
    nothing(&impure_decisions(&sources));
}

#[test]
fn a_decision_that_waits_or_logs_is_found() {
    let files = |decision: &str| {
        BTreeMap::from([
            ("actors/a/src/actor.rs".to_owned(), "use ractor::Actor;\nuse tokio::time;\n".to_owned()),
            ("actors/a/src/guard.rs".to_owned(), format!("use std::time::Duration;\n{decision}\n")),
        ])
    };
    nothing(&impure_decisions(&files("use madako_domain::plan;\n/// As tokio::time has it.")));
    let metric = "use crate::actor::{PollerState, madako_polls_total};";
    one(&impure_decisions(&files(metric)), &["guard.rs", "madako_polls_total"]);
    for shell_crate in SHELL_CRATES {
        one(&impure_decisions(&files(&format!("use {shell_crate}::thing;"))), &["guard.rs", shell_crate]);
        one(
            &impure_decisions(&files(&format!("fn f() {{ {shell_crate}::thing!(); }}"))),
            &["guard.rs", shell_crate],
        );
    }
}
