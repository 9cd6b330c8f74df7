//! The section `etcd_backup`: when the leader makes backups of the cluster's etcd, and where.

use std::time::Duration;

use madako_domain::backup::{BACKUP_DIRECTORY, BACKUP_EVERY, BACKUPS_KEPT, BackupSchedule, DEFAULT_KEPT};
use madako_json::strict::Kind;
use madako_operation_runner::page::Mode;

use super::settings::{ABSOLUTE_PATH, ConfigFindings, is_span, read_span, section};

section! {
    it: BackupSchedule = BackupSchedule {
        // Not given.
        every: Duration::ZERO,
        dir: BACKUP_DIRECTORY.to_owned(),
        keep: DEFAULT_KEPT,
        prove: true,
    } => {
        "every": EVERY => it.every, by read_span;
        "dir": ABSOLUTE_PATH => it.dir;
        "keep": KEPT => it.keep;
        "prove": Kind::Bool => it.prove;
    }
}

const EVERY: Kind =
    Kind::Checked("a duration from 10m to 720h, such as 6h", |text| is_span(text, &BACKUP_EVERY));
const KEPT: Kind = Kind::Whole(*BACKUPS_KEPT.start() as i64, *BACKUPS_KEPT.end() as i64);

/// Backups need operations on nodes, whose authorities give access to etcd.
pub(super) fn read_backup(
    schedule: BackupSchedule,
    mode: Option<Mode>,
    findings: &mut ConfigFindings,
) -> Option<BackupSchedule> {
    let field = "etcd_backup.every";
    match mode {
        Some(Mode::Act) => {}
        Some(Mode::Observe) => {
            findings.warn("Madako makes no backups of etcd while it observes (`operations.mode`)");
        }
        None => findings.report(
            field,
            "a schedule",
            "no section `etcd_backup` while operations on nodes are off: they give access to etcd",
        ),
    }
    if schedule.every.is_zero() {
        findings.report_missing(field, "the time between two backups, such as 6h");
        return None;
    }
    Some(schedule)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::{Config, settings};
    use super::*;

    /// Reads a section as the only one of a file.
    fn schedule(text: &str, mode: Option<Mode>) -> (Option<BackupSchedule>, Vec<String>, Vec<String>) {
        let mut findings = ConfigFindings::default();
        let text = format!("etcd_backup: {text}");
        let tree = settings::read_settings(&text, super::super::schema(), &mut findings).unwrap();
        let section = tree.get("etcd_backup").unwrap();
        let schedule = read_backup(from_tree(section), mode, &mut findings);
        let problems = findings.problems.finish("x").err().map(|error| error.problems).unwrap_or_default();
        (schedule, problems.iter().map(ToString::to_string).collect(), findings.warnings)
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
    fn every_problem_of_a_schedule_is_reported() {
        let (_, problems, _) =
            schedule("{every: 5m, dir: backups, keep: 0, prove: often, compress: true}", Some(Mode::Act));
        for part in [
            "etcd_backup.every: got \"5m\", expected a duration from 10m to 720h",
            "etcd_backup.dir: got \"backups\", expected an absolute path",
            "etcd_backup.keep: got the number 0, expected a whole number from 1 to 1000",
            "etcd_backup.prove: got \"often\", expected true or false, without quotes",
            "etcd_backup.compress: got an unknown field, expected one of every, dir, keep, prove",
        ] {
            assert!(
                problems.iter().any(|problem| problem.starts_with(part)),
                "{part:?} is not in {problems:?}"
            );
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
