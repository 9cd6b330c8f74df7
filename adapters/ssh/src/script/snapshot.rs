//! The scripts that restore a snapshot of etcd, and the script that reads the status of a snapshot.
//!
//! A restore has two steps. The first one restores the snapshot into a directory of its own beside the data of etcd: the
//! checksum of the snapshot is proved, and the data stay. The second one exchanges the directories by renaming them, while
//! etcd does not run. The former data stay in the volume, in the directory `before-restore-ID`, until an operator or the
//! removal of the volume removes them.
//!
//! Assumes: etcd's image has etcdctl (or etcdutl), a shell, and the commands chown, mkdir, mv, rm, rmdir and stat.

use madako_protocol::node::{SnapshotContent, SnapshotRestore};
use serde::Deserialize;
use time::OffsetDateTime;

use super::{BAD_SNAPSHOT, DATA, quote};

/// The container of both steps; two never run at the same time.
const NAME: &str = "madako-etcd-restore";
/// Path of the snapshot in the container.
const SNAPSHOT: &str = "/snapshot.db";
/// docker's exit codes if it cannot run a container or its program.
const CANNOT_RUN: &str = "125";
const NO_PROGRAM: &str = "126 | 127";

/// Runs `$tool snapshot` with the program that restores snapshots: etcdctl of etcd 3.6 does not.
const TOOL: &str =
    "tool=etcdctl; if command -v etcdutl >/dev/null; then tool=etcdutl; fi; export ETCDCTL_API=3";

/// Restores the snapshot into `restored-$1`, which exists only with the whole result. A directory `before-restore-$1`
/// shows that the second step has begun.
fn stage_script() -> String {
    format!(
        r#"set -eu
cd {DATA}
[ ! -d "before-restore-$1" ] || exit 0
[ ! -d "restored-$1" ] || exit 0
rm -rf restoring-* restored-*
{TOOL}
if ! $tool snapshot restore {SNAPSHOT} --name "$2" --initial-cluster "$2=$3" --initial-advertise-peer-urls "$3" \
  --initial-cluster-token "madako-restore-$1" --data-dir "{DATA}/restoring-$1" >&2
then
  rm -rf "restoring-$1"
  exit {BAD_SNAPSHOT}
fi
chown -R "$(stat -c %u:%g .)" "restoring-$1"
mv "restoring-$1" "restored-$1""#
    )
}

/// Exchanges the directories. After an interruption, each step goes on where it ended.
fn swap_directories_script() -> String {
    format!(
        r#"set -eu
cd {DATA}
if [ ! -d "restored-$1" ]; then
  [ ! -d "before-restore-$1" ] || exit 0
  echo 'there is no restored snapshot in the volume of etcd' >&2
  exit 1
fi
mkdir -p "before-restore-$1"
if [ -d "restored-$1/member" ]; then
  if [ -e member ]; then
    if [ -e "before-restore-$1/member" ]; then
      echo "the volume of etcd has both member and before-restore-$1/member: remove the one that is not needed" >&2
      exit 1
    fi
    mv member "before-restore-$1/member"
  fi
  mv "restored-$1/member" member
fi
rm -rf "restored-$1""#
    )
}

/// The words of `docker run` before the image. The user root reads snapshots of any owner.
fn run_words(volume: &str, more: &str) -> String {
    format!(
        "docker run --rm --name={NAME} --log-driver=none --network=none --read-only --user=0:0 \
         --security-opt=label=disable --entrypoint=sh {}{more}",
        quote(&format!("--mount=type=volume,src={volume},dst={DATA}")),
    )
}

fn snapshot_mount_option(path: &str) -> String {
    quote(&format!("--mount=type=bind,src={path},dst={SNAPSHOT},readonly"))
}

/// Ends a container of an earlier attempt, whose client may be gone.
fn remove_earlier_container() -> String {
    format!("docker container rm --force {NAME} >/dev/null 2>&1 || :")
}

/// Distinguishes failures of the snapshot from those of the engine, by the exit code and the messages of docker.
fn snapshot_check_script(path: &str) -> String {
    format!(
        r#"printf '%s\n' "$said" | tail -n 3 >&2
case $code in
  0) exit 0;;
  {NO_PROGRAM}) echo 'the image of etcd has no shell, or lacks a command' >&2; exit {BAD_SNAPSHOT};;
  {CANNOT_RUN}) case $said in *'bind source path does not exist'*) echo {missing} >&2; exit {BAD_SNAPSHOT};; esac;;
esac
exit "$code"
"#,
        missing = quote(&format!("there is no file {path}")),
    )
}

/// The script of the first step.
pub(crate) fn stage_snapshot(restore: &SnapshotRestore) -> String {
    let SnapshotRestore { image, volume, path, id, name, peer_url } = restore;
    format!(
        "set -u\n{forget}\nsaid=$({run} {image} -c {inside} sh {id} {name} {url} 2>&1)\ncode=$?\n{check}",
        forget = remove_earlier_container(),
        run = run_words(volume, &format!(" {}", snapshot_mount_option(path))),
        image = quote(image),
        inside = quote(&stage_script()),
        id = quote(id),
        name = quote(name),
        url = quote(peer_url),
        check = snapshot_check_script(path),
    )
}

/// The script of the second step. It refuses to run beside etcd.
pub(crate) fn swap(restore: &SnapshotRestore) -> String {
    let SnapshotRestore { image, volume, id, .. } = restore;
    format!(
        r#"set -u
running=$(docker container ls --quiet --filter 'name=^/etcd$') || exit 1
if [ -n "$running" ]; then echo 'etcd runs, and its data cannot be replaced' >&2; exit 1; fi
{forget}
exec {run} {image} -c {inside} sh {id} >/dev/null
"#,
        forget = remove_earlier_container(),
        run = run_words(volume, ""),
        image = quote(image),
        inside = quote(&swap_directories_script()),
        id = quote(id),
    )
}

/// The script that inspects a snapshot prints a line with time and size of the file, and one with etcd's own description. The restore on trial
/// proves the checksum.
pub(crate) fn describe_snapshot(image: &str, path: &str) -> String {
    let inside = format!(
        r#"set -eu
{TOOL}
stat -c 'FILE %Y %s' {SNAPSHOT}
$tool snapshot status {SNAPSHOT} --write-out=json || exit {BAD_SNAPSHOT}
$tool snapshot restore {SNAPSHOT} --data-dir /tmp/trial >&2 || exit {BAD_SNAPSHOT}"#
    );
    format!(
        "set -u\nerrors=$(mktemp) || exit 1\ntrap 'rm -f \"$errors\"' EXIT\n\
         docker run --rm --pull=never --log-driver=none --network=none --user=0:0 --security-opt=label=disable \
         --entrypoint=sh {mount} {image} -c {inside} 2>\"$errors\"\ncode=$?\nsaid=$(cat \"$errors\")\n{check}",
        mount = snapshot_mount_option(path),
        image = quote(image),
        inside = quote(&inside),
        check = snapshot_check_script(path),
    )
}

/// etcd's description of a snapshot.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SnapshotDescription {
    revision: i64,
    total_key: u64,
}

/// Reads the answer of [`describe_snapshot`].
///
/// # Errors
/// The fault of an unexpected answer.
pub(crate) fn read_description(answer: &str) -> Result<SnapshotContent, String> {
    let mut lines = answer.lines();
    let file =
        lines.next().and_then(|line| line.strip_prefix("FILE ")).ok_or("the first line is another one")?;
    let (modified, bytes) = file.split_once(' ').ok_or("the size of the file is missing")?;
    let number = |error: std::num::ParseIntError| error.to_string();
    let modified: i64 = modified.parse().map_err(number)?;
    let modified = OffsetDateTime::from_unix_timestamp(modified).map_err(|error| error.to_string())?;
    let bytes = bytes.parse().map_err(number)?;
    let described = lines.next().ok_or("the description of the snapshot is missing")?;
    let described: SnapshotDescription =
        serde_json::from_str(described).map_err(|error| error.to_string())?;
    Ok(SnapshotContent { revision: described.revision, keys: described.total_key, bytes, modified })
}

#[cfg(test)]
mod tests;
