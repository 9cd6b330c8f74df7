//! The shell script of each action.
//!
//! Guarantees: each text from outside is one quoted word. A private text is only in the standard input. A script acts
//! on a container by its id, after it has found CKE's label on that container. It may run twice. etcd starts without a
//! list of first members only on data, as far as the login can read the volume.
//!
//! Assumes: a POSIX shell, docker's command line, and coreutils.

use madako_domain::component::Component;
use madako_domain::containers::{Container, ContainerName, Mount};
use madako_protocol::node::{ContainerSpec, NodeAction, RUNNING};

use crate::label;
use crate::limits::{AFTER_GRACE, PULL_PAUSE, PULL_TRIES, RIVERS_GRACE, STOP_GRACE};
use crate::tar::{self, TarError};

/// Exit code of a script that found a container of another program.
pub(crate) const FOREIGN: u32 = 80;
/// Exit code of a script that found no data for a member of etcd.
pub(crate) const NO_DATA: u32 = 82;
/// Exit code of a script whose snapshot of etcd cannot be restored.
pub(crate) const BAD_SNAPSHOT: u32 = 83;
/// The directory of etcd's data in its container.
pub(crate) const DATA: &str = "/var/lib/etcd";
/// Format of the place of a volume: driver, number of options, directory.
pub(crate) const PLACE: &str = "{{.Driver}} {{len .Options}} {{.Mountpoint}}";
/// The option with the first members of a cluster of etcd.
const FIRST_MEMBERS: &str = "--initial-cluster=";
/// journald listens here for the output of containers.
pub(crate) const JOURNAL: &str = "/run/systemd/journal/socket";

/// A script and its standard input.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) stdin: Vec<u8>,
}

impl From<String> for Script {
    fn from(text: String) -> Self {
        Self { text, stdin: Vec::new() }
    }
}

/// One word for a POSIX shell.
pub(crate) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Renders an action. `seconds` is the time that its permit leaves.
pub(crate) fn render(action: &NodeAction, seconds: u64) -> Result<Script, TarError> {
    Ok(match action {
        NodeAction::PullImage { image } => pull_image(image).into(),
        NodeAction::RunContainer { spec, restart } => run(spec, *restart, seconds).into(),
        NodeAction::StopContainer(container) => stop_container(*container, seconds).into(),
        NodeAction::EndContainer { container, ask } => await_end(*container, *ask, seconds).into(),
        NodeAction::KillContainer(container) => kill(*container).into(),
        NodeAction::CreateVolume { name } => {
            format!("docker volume create -- {} >/dev/null", quote(name)).into()
        }
        NodeAction::RemoveVolume { name } => remove_volume(name).into(),
        NodeAction::WriteFiles { tools, directory, files } => Script {
            text: tools::write_files(tools, directory),
            stdin: tar::write_archive(directory, files)?,
        },
        NodeAction::MakeDirectories { tools, directories, mode } => {
            tools::make_directories(tools, directories, *mode).into()
        }
        NodeAction::EmptyDirectory { tools, directory } => tools::empty_directory(tools, directory).into(),
        NodeAction::InstallCni { tools } => tools::install_cni(tools).into(),
        NodeAction::ImageVersion { image, program, pull } => image_version(image, *program, *pull).into(),
        NodeAction::StageSnapshot(restore) => snapshot::stage_snapshot(restore).into(),
        NodeAction::UseSnapshot(restore) => snapshot::swap(restore).into(),
    })
}

/// Sets `id` to the id of the container with exactly that name, or to nothing. Refuses a container without a label of
/// CKE. CKE and this service write a label in one form, of which the script demands the beginning and the end: a shell
/// cannot check the JSON between them.
fn find_container(name: ContainerName) -> String {
    format!(
        r#"set -u
id=$(docker container ls --all --quiet --no-trunc --filter 'name=^/{name}$') || exit 1
if [ -n "$id" ]; then
  label=$(docker container inspect --format '{{{{index .Config.Labels "{label}"}}}}' "$id") || exit 1
  case $label in
    '{{"builtin":{{'*'}}}}') ;;
    *) echo 'the container {name} belongs to another program: it has no label {label}' >&2; exit {FOREIGN};;
  esac
fi
"#,
        label = label::LABEL,
    )
}

/// Ends the container `id` with SIGTERM and removes it. The script waits itself: a waiting engine would go on when the
/// script is killed. An error of SIGTERM counts only if the container cannot be removed, because it may have ended.
fn end_container(container: ContainerName, seconds: u64) -> String {
    let wait = wait_for_end(container, seconds);
    format!("{ASK_TO_END}{wait}docker container rm --force \"$id\" >/dev/null || exit 1\n")
}

const ASK_TO_END: &str = "docker container kill --signal=TERM \"$id\" >/dev/null || :\n";

fn wait_for_end(container: ContainerName, seconds: u64) -> String {
    let is_of = |rivers: Container| container == ContainerName::for_container(rivers);
    let is_proxy = is_of(Container::Rivers) || is_of(Container::EtcdRivers);
    let most = if is_proxy { RIVERS_GRACE } else { STOP_GRACE };
    let grace = seconds.saturating_sub(AFTER_GRACE).clamp(1, most);
    format!("timeout {grace} docker container wait \"$id\" >/dev/null || :\n")
}

fn await_end(container: ContainerName, ask: bool, seconds: u64) -> String {
    let ask = if ask { ASK_TO_END } else { "" };
    format!(
        r#"{find}[ -n "$id" ] || exit 0
{ask}{wait}state=$(docker container inspect --format '{{{{.State.Running}}}}' "$id") || exit 1
if [ "$state" = true ]; then echo {RUNNING}; exit 0; fi
docker container rm "$id" >/dev/null || exit 1
"#,
        find = find_container(container),
        wait = wait_for_end(container, seconds),
    )
}

fn stop_container(container: ContainerName, seconds: u64) -> String {
    format!("{}[ -n \"$id\" ] || exit 0\n{}", find_container(container), end_container(container, seconds))
}

fn kill(container: ContainerName) -> String {
    format!(
        "{}[ -n \"$id\" ] || exit 0\ndocker container rm --force \"$id\" >/dev/null || exit 1\n",
        find_container(container)
    )
}

/// Sets the positional parameters to the options for the log of a container.
fn logging_options() -> String {
    format!(
        "if [ -S {JOURNAL} ]; then set -- --log-driver=journald\n\
         else set -- --log-driver=json-file --log-opt=max-size=10m --log-opt=max-file=3\nfi\n"
    )
}

/// Sets `se` if SELinux enforces.
const SELINUX: &str = "se=\nif [ \"$(getenforce 2>/dev/null)\" = Enforcing ]; then se=1; fi\n";

/// Refuses a start of etcd on a volume without data: without a list of first members, etcd would form a cluster of its
/// own. Any other file, such as `lost+found` or a backup, is not data of a member.
///
/// A volume that the login cannot read, or that the engine mounts only for a container, is not checked; neither is another
/// directory of data in the arguments of the operator.
fn require_data_script(spec: &ContainerSpec) -> String {
    let is_first = spec.builtin.args.iter().any(|arg| arg.starts_with(FIRST_MEMBERS));
    let is_elsewhere = spec.extra.args.iter().any(|arg| arg.trim_start_matches('-').starts_with("data-dir"));
    let volume = spec.volumes.iter().find(|(_, path)| path == DATA).map(|(name, _)| quote(name));
    let Some(name) = volume.filter(|_| {
        spec.container == ContainerName::for_container(Container::Etcd) && !is_first && !is_elsewhere
    }) else {
        return String::new();
    };
    format!(
        r#"place=$(docker volume inspect --format '{PLACE}' -- {name}) || exit 1
case $place in
  'local 0 /'*)
    dir=${{place#local 0 }}
    if [ -d "$dir" ] && [ -r "$dir" ] && [ -x "$dir" ] && ! [ -e "$dir/member" ]; then
      echo "etcd was not started: its volume $dir has no directory member, and etcd would form a cluster of its own" >&2
      exit {NO_DATA}
    fi;;
esac
"#
    )
}

fn run(spec: &ContainerSpec, restart: bool, seconds: u64) -> String {
    let keep = match restart {
        false => "[ \"$running\" = true ] && exit 0\n",
        // A node that has booted meanwhile gets its boot taints first (invariant I18).
        true if spec.container == ContainerName::from(Component::Kubelet) => {
            "[ \"$running\" = true ] || { echo 'the kubelet does not run, so that it boots instead' >&2; exit 1; }\n"
        }
        true => "",
    };
    format!(
        r#"{find}running=
if [ -n "$id" ]; then
  running=$(docker container inspect --format '{{{{.State.Running}}}}' "$id") || exit 1
fi
{keep}{data}if [ "$running" = true ]; then
{end}elif [ -n "$id" ]; then
docker container rm --force "$id" >/dev/null || exit 1
fi
{logging}{SELINUX}printf '%s\n' {label} | docker run "$@" {words} >/dev/null
"#,
        find = find_container(spec.container),
        data = require_data_script(spec),
        end = end_container(spec.container, seconds),
        logging = logging_options(),
        label = quote(&format!("{}={}", label::LABEL, label::write_label(&spec.builtin, &spec.extra))),
        words = run_words(spec).join(" "),
    )
}

/// The words after the options for the log, in the order of CKE.
fn run_words(spec: &ContainerSpec) -> Vec<String> {
    let name = format!("--name={}", spec.container);
    let mut words: Vec<String> =
        ["-d", &name, "--read-only", "--network=host", "--uts=host"].map(str::to_owned).into();
    words.extend(spec.engine_options.iter().map(|option| quote(option)));
    for (volume, path) in &spec.volumes {
        words.push("--mount".to_owned());
        words.push(quote(&format!("type=volume,src={volume},dst={path}")));
    }
    let parameters = [&spec.builtin, &spec.extra];
    words.extend(parameters.iter().flat_map(|params| &params.binds).map(volume_option));
    for (name, value) in parameters.iter().flat_map(|params| &params.env) {
        words.push("-e".to_owned());
        words.push(quote(&format!("{name}={value}")));
    }
    words.push("--label-file=/dev/stdin".to_owned());
    words.push(quote(&spec.image));
    words.extend(parameters.iter().flat_map(|params| &params.args).map(|arg| quote(arg)));
    words
}

fn volume_option(mount: &Mount) -> String {
    let access = if mount.read_only { "ro" } else { "rw" };
    let mut text = format!("--volume={}:{}:{access}", mount.source, mount.destination);
    if !mount.propagation.is_empty() {
        text = format!("{text},{}", mount.propagation);
    }
    match mount.selinux_label.as_str() {
        label @ ("z" | "Z") => format!("{}\"${{se:+,{label}}}\"", quote(&text)),
        _ => quote(&text),
    }
}

fn remove_volume(name: &str) -> String {
    let name = quote(name);
    format!(
        "volumes=$(docker volume ls --quiet --filter name={name}) || exit 1\n\
         printf '%s\\n' \"$volumes\" | grep -Fxq -e {name} || exit 0\n\
         docker volume rm -- {name} >/dev/null\n"
    )
}

fn pull_image(image: &str) -> String {
    let image = quote(image);
    format!(
        "docker image inspect --format '{{{{.Id}}}}' {image} >/dev/null 2>&1 && exit 0\n\
         try=1\n\
         until docker image pull --quiet {image} >/dev/null; do\n\
         \x20 [ $try -lt {PULL_TRIES} ] || exit 1\n\
         \x20 try=$((try + 1))\n\
         \x20 sleep {PULL_PAUSE}\n\
         done\n"
    )
}

/// The program needs neither a network nor a log.
fn image_version(image: &str, program: Option<Component>, pull: bool) -> String {
    let pull = if pull { "" } else { " --pull=never" };
    let program = program.map_or_else(String::new, |program| format!(" {program}"));
    let image = quote(image);
    format!("docker run --rm{pull} --log-driver=none --network=none --read-only {image}{program} --version\n")
}

pub(crate) mod snapshot;
#[cfg(test)]
mod tests;
mod tools;
