//! Checks whether the etcd programs on this host can restore a backup.

use std::time::Duration;

use madako_protocol::backup::{BackupError, PermitSource};
use madako_protocol::host::{Host, HostCommand, HostError, HostOutcome};

use crate::limits::{LONGEST_ERROR, MOST_LINES, VERSION};

pub(crate) const ETCD: &str = "etcd";
pub(crate) const ETCDCTL: &str = "etcdctl";

/// Minor versions of etcd 3 whose `etcdctl` restores snapshots as this crate asks for it.
const KNOWN: std::ops::RangeInclusive<u64> = 3..=5;
const OLDEST: u64 = 4;

/// Major and minor number.
type Version = (u64, u64);

/// Checks that both programs are there, and that they are neither too old nor too new for the cluster.
pub(crate) async fn check_programs(
    host: &dyn Host,
    permits: &dyn PermitSource,
    cluster: Option<String>,
) -> Result<(), BackupError> {
    let cluster = cluster.as_deref().and_then(parse_version);
    for (program, question) in [(ETCD, "--version"), (ETCDCTL, "version")] {
        let output = run(host, permits, program, &[question.to_owned()], VERSION).await?;
        let answered = output.stdout.lines().find_map(|line| parse_version(line.split_once(": ")?.1));
        let version = answered.filter(|_| output.succeeded()).ok_or_else(|| BackupError::Program {
            program,
            why: format!("{program} {question} does not tell its version: {}", last_message(&output)),
        })?;
        check_version(version, cluster).map_err(|why| BackupError::Program { program, why })?;
    }
    Ok(())
}

fn parse_version(text: &str) -> Option<Version> {
    let mut numbers = text.trim().split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// True if programs of this version can restore a snapshot of the cluster's version.
fn check_version((major, minor): Version, cluster: Option<Version>) -> Result<(), String> {
    if major != 3 || !KNOWN.contains(&minor) || minor < OLDEST {
        return Err(format!(
            "its version is {major}.{minor}: install the programs of etcd 3.{OLDEST} or 3.{}",
            KNOWN.end()
        ));
    }
    // etcd supports a difference of one minor version.
    match cluster {
        Some((of_major, of_minor)) if of_major != 3 || of_minor > minor + 1 => Err(format!(
            "its version is {major}.{minor}, and the cluster has etcd {of_major}.{of_minor}: install the programs of etcd \
             {of_major}.{of_minor}"
        )),
        _ => Ok(()),
    }
}

/// Runs a program of etcd. It gets no settings from the environment: etcd ends when a variable and a flag name the same
/// setting.
pub(crate) async fn run(
    host: &dyn Host,
    permits: &dyn PermitSource,
    program: &'static str,
    arguments: &[String],
    deadline: Duration,
) -> Result<HostOutcome, BackupError> {
    let mut words = vec!["env".to_owned(), "-i".to_owned()];
    for name in ["PATH", "ETCD_UNSUPPORTED_ARCH"] {
        words.extend(std::env::var(name).ok().map(|value| format!("{name}={value}")));
    }
    // etcdctl 3.3 would speak the API of etcd 2.
    words.extend(["ETCDCTL_API=3".to_owned(), program.to_owned()]);
    words.extend(arguments.iter().cloned());
    let permit = permits.permit().await?;
    match host.run(&permit, HostCommand { words, deadline }).await {
        // The exit code of `env` for a program that is not there.
        Ok(ended) if ended.end == (madako_protocol::host::HostEnd::Exited { code: 127 }) => {
            Err(BackupError::Program {
                program,
                why: "there is no such program on PATH: install etcd (Debian: etcd-server and etcd-client)"
                    .to_owned(),
            })
        }
        Ok(ended) => Ok(ended),
        Err(HostError::Permit(ended)) => Err(ended.into()),
        Err(error) => Err(BackupError::Program { program, why: error.to_string() }),
    }
}

/// The last lines of a program's output, on one line.
pub(crate) fn last_message(ended: &HostOutcome) -> String {
    let texts = [&ended.stderr, &ended.stdout];
    let message = texts.into_iter().find(|text| !text.trim().is_empty());
    let lines: Vec<&str> = message.map(|text| text.trim().lines().collect()).unwrap_or_default();
    let last = &lines[lines.len().saturating_sub(MOST_LINES)..];
    let mut text = last.join("; ");
    text.truncate(text.floor_char_boundary(LONGEST_ERROR));
    match text.is_empty() {
        true => format!("{:?} without a message", ended.end),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_the_words_of_the_programs() {
        assert_eq!(parse_version("3.4.23"), Some((3, 4)));
        assert_eq!(parse_version(" 3.5.15\n"), Some((3, 5)));
        assert_eq!(parse_version("3"), None);
        assert_eq!(parse_version("unknown"), None);
    }

    #[test]
    fn programs_that_are_too_old_or_too_new_are_refused_with_the_version_to_install() {
        for (version, cluster, part) in [
            ((3, 4), None, None),
            ((3, 4), Some((3, 5)), None),
            ((3, 5), Some((3, 4)), None),
            ((3, 3), None, Some("install the programs of etcd 3.4 or 3.5")),
            ((3, 6), Some((3, 6)), Some("its version is 3.6: install the programs of etcd 3.4 or 3.5")),
            ((4, 4), None, Some("its version is 4.4")),
            ((3, 4), Some((3, 6)), Some("the cluster has etcd 3.6: install the programs of etcd 3.6")),
        ] {
            let refused = check_version(version, cluster).err();
            match part {
                None => assert_eq!(refused, None, "{version:?} {cluster:?}"),
                Some(part) => assert!(refused.as_ref().is_some_and(|why| why.contains(part)), "{refused:?}"),
            }
        }
    }
}
