//! Tests of the repository's own rules: dependencies between crates, purity of decisions, manifests, and the truth of
//! documents.
//!
//! Each rule is a function from plain data to a list of findings. Its tests run it on the repository, where it must
//! find nothing, and on a valid example with one spoiled line, where it must find that line: a rule that cannot fail
//! would prove nothing.
//!
//! Not here: the format (`cargo fmt`), lints (`cargo clippy`), outside dependencies (`cargo deny`).

mod architecture;
mod commands;
mod documents;
mod faults;
mod limits;
mod manifests;
mod named_tests;
mod reach;
mod repository;
mod settings;
mod tables;

/// Fails with each finding on a line of its own.
#[track_caller]
fn nothing(findings: &[String]) {
    assert!(findings.is_empty(), "{} finding(s):\n{}\n", findings.len(), findings.join("\n"));
}

/// Fails unless there is exactly one finding and it names all of `words`.
#[track_caller]
fn one(findings: &[String], words: &[&str]) {
    assert_eq!(findings.len(), 1, "one finding was expected: {findings:?}");
    for word in words {
        assert!(findings[0].contains(word), "'{word}' is not in: {}", findings[0]);
    }
}
