//! The section `etcd_backup`: when the leader makes backups of the cluster's etcd, and where.

use madako_domain::backup::{BACKUP_DIRECTORY, BACKUP_EVERY, BACKUPS_KEPT, BackupSchedule, DEFAULT_KEPT};
use madako_operation_runner::page::Mode;

use super::document::Fields;

/// Reads the section. Backups need operations on nodes, whose authorities give access to etcd.
pub(super) fn read(mut section: Fields, mode: Option<Mode>) -> Option<BackupSchedule> {
    let every = section.span("every", BACKUP_EVERY, "between 10m and 720h");
    if every.is_none() {
        section.report_missing("every", "the time between two backups, such as 6h");
    }
    let dir = section.absolute_path("dir").unwrap_or_else(|| BACKUP_DIRECTORY.to_owned());
    let keep = section.number("keep", BACKUPS_KEPT).unwrap_or(DEFAULT_KEPT);
    let prove = section.flag("prove").unwrap_or(true);
    section.finish();
    match mode {
        Some(Mode::Act) => {}
        Some(Mode::Observe) => {
            section.warn("Madako makes no backups of etcd while it observes (`operations.mode`)");
        }
        None => section.report(
            "every",
            "a schedule",
            "no section `etcd_backup` while operations on nodes are off: they give access to etcd",
        ),
    }
    Some(BackupSchedule { every: every?, dir, keep, prove })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::Config;
    use super::*;

    /// Reads a section as the only one of a file.
    fn schedule(text: &str, mode: Option<Mode>) -> (Option<BackupSchedule>, Vec<String>, Vec<String>) {
        let mut root = super::super::document::read(&format!("etcd_backup: {text}")).unwrap();
        let section = root.section("etcd_backup").unwrap();
        let schedule = read(section, mode);
        let findings = root.take_findings();
        let problems = findings.problems.finish("x").err().map(|error| error.problems).unwrap_or_default();
        let problems = problems
            .iter()
            .map(|problem| format!("{}: got {}, expected {}", problem.field, problem.got, problem.expected));
        (schedule, problems.collect(), findings.warnings)
    }

    #[test]
    fn a_schedule_has_ckes_directory_and_number_and_proves() {
        let (given, problems, warnings) = schedule("{every: 6h}", Some(Mode::Act));
        assert!(problems.is_empty() && warnings.is_empty(), "{problems:?} {warnings:?}");
        let expected = BackupSchedule {
            every: Duration::from_secs(6 * 3600),
            dir: "/var/cke/etcd-backups".to_owned(),
            keep: 10,
            prove: true,
        };
        assert_eq!(given, Some(expected));
        let (given, problems, _) =
            schedule("{every: 10m, dir: /b, keep: 1000, prove: false}", Some(Mode::Act));
        let expected = BackupSchedule {
            every: Duration::from_secs(600),
            dir: "/b".to_owned(),
            keep: 1000,
            prove: false,
        };
        assert_eq!((given, problems.len()), (Some(expected), 0));
    }

    #[test]
    fn every_problem_of_a_schedule_is_told() {
        let (_, problems, _) =
            schedule("{every: 5m, dir: backups, keep: 0, prove: often, compress: true}", Some(Mode::Act));
        for part in [
            "etcd_backup.every: got \"5m\", expected between 10m and 720h",
            "etcd_backup.dir: got \"backups\", expected an absolute path",
            "etcd_backup.keep: got 0, expected a whole number from 1 to 1000",
            "etcd_backup.prove: got \"often\", expected true or false",
            "etcd_backup.compress: got an unknown key, expected one of every, dir, keep, prove",
        ] {
            assert!(problems.iter().any(|problem| problem == part), "{part:?} is not in {problems:?}");
        }
        let (given, problems, _) = schedule("{}", Some(Mode::Act));
        assert!(
            given.is_none() && problems[0].contains("expected the time between two backups"),
            "{problems:?}"
        );
    }

    #[test]
    fn a_schedule_without_operations_is_an_error_and_an_observer_makes_no_backups() {
        let (_, problems, _) = schedule("{every: 6h}", None);
        assert!(problems[0].contains("while operations on nodes are off"), "{problems:?}");
        let (given, problems, warnings) = schedule("{every: 6h}", Some(Mode::Observe));
        assert!(given.is_some() && problems.is_empty(), "{problems:?}");
        assert!(warnings[0].contains("no backups of etcd while it observes"), "{warnings:?}");
        let refused = Config::parse("etcd_backup: {every: 6h}", Path::new("c.yml"), None).unwrap_err();
        assert!(refused.to_string().contains("etcd_backup.every"), "{refused}");
        let config = Config::parse("", Path::new("c.yml"), None).unwrap();
        assert!(config.operations.backup.is_none());
    }
}
