//! The script that reads the state of a node, and the parser of its answer. The answer has one line a fact, and a last
//! line that shows that nothing is missing:
//!
//! ```text
//! C ["/etcd",true,"IMAGE","LABEL",[MOUNT, ...],"TIME"]   a container, with the time of its last start
//! V NAME                                          a volume (also others with a similar name)
//! E empty | content | unknown                     the content of etcd's volume, if there is one
//! F NAME TEXT                                     a certificate of etcd, with `|` in place of line ends
//! P PATH TEXT                                     a certificate of Kubernetes, in a file of its own or in a kubeconfig
//! K NAME BASE64                                   the configuration file of a component of Kubernetes, or `-` if it is missing
//! END
//! ```

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use madako_domain::certificate::NodeCertificate;
use madako_domain::component::{self, Component, KUBECONFIGS};
use madako_domain::containers::{
    Container, ContainerName, DEFAULT_ETCD_VOLUME, ETCD_CLIENT_CA, ETCD_MARK, ETCD_PEER, ETCD_PEER_CA,
    ETCD_PKI, ETCD_SERVER,
};
use madako_domain::node_status::{ContainerStatus, NodeStatus};
use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::label::{self, LABEL};
use crate::limits::{COPY_PATIENCE, MAX_CERTIFICATE, MAX_CONFIGURATION, SIZE_PATIENCE};
use crate::script::{DATA, PLACE, quote};

/// Exit code of the script if the container engine does not work.
pub(crate) const NO_ENGINE: u32 = 81;
/// The certificates in an answer. Each of the first two has a private key beside it.
const CERTIFICATES: [&str; 4] = [ETCD_SERVER, ETCD_PEER, ETCD_PEER_CA, ETCD_CLIENT_CA];

/// Renders the script. It changes nothing.
pub(crate) fn render(volume: &str) -> String {
    let containers: Vec<String> =
        ContainerName::all().map(|name| format!("--filter 'name=^/{name}$'")).collect();
    let containers = containers.join(" ");
    let volumes = BTreeSet::from([volume, ETCD_MARK, DEFAULT_ETCD_VOLUME]);
    let volumes: Vec<String> =
        volumes.into_iter().map(|name| format!("--filter name={}", quote(name))).collect();
    format!(
        r#"set -u
docker version >/dev/null || exit {NO_ENGINE}
ids=$(docker container ls --all --quiet --no-trunc {containers}) || exit 1
[ -z "$ids" ] || docker container inspect --format 'C [{{{{json .Name}}}},{{{{json .State.Running}}}},{{{{json .Config.Image}}}},{{{{json (index .Config.Labels "{LABEL}")}}}},{{{{json .Mounts}}}},{{{{json .State.StartedAt}}}}]' $ids || exit 1
docker volume ls --format 'V {{{{.Name}}}}' {volumes} || exit 1
{content}
{certificates}
{kubernetes}
{configurations}
echo END
"#,
        volumes = volumes.join(" "),
        content = read_volume_content(volume),
        certificates = read_certificates(),
        kubernetes = read_kubernetes_certificates(),
        configurations = configuration_arguments(),
    )
}

/// Looks into a volume. A volume of another driver, or one with options, may be mounted only while a container runs, and
/// a directory without a member may hold a backup: their content is unknown.
///
/// A login without root's rights cannot read the directory. The engine then reports the size of the files, for which it
/// reads all its volumes and images; so it is asked only while etcd does not run, and may fail.
fn read_volume_content(volume: &str) -> String {
    format!(
        r#"if look=$(docker volume inspect --format '{PLACE}' -- {name} 2>/dev/null); then
  found=unknown
  case $look in
    'local 0 /'*)
      dir=${{look#local 0 }}
      if [ -d "$dir" ] && [ -r "$dir" ] && [ -x "$dir" ] && entries=$(ls -A -- "$dir" 2>/dev/null); then
        if [ -z "$entries" ]; then found=empty; elif [ -e "$dir/member" ]; then found=content; fi
      else
        running=$(docker container ls --quiet --filter 'name=^/{etcd}$') || exit 1
        if [ -z "$running" ] && timeout {SIZE_PATIENCE} docker system df --verbose --format '{sizes}' 2>/dev/null |
          grep -Fxq -e {empty}
        then found=empty
        fi
      fi;;
  esac
  echo "E $found"
fi"#,
        name = quote(volume),
        etcd = Container::Etcd,
        sizes = "{{range .Volumes}}{{.Name}} {{.Size}}{{println}}{{end}}",
        empty = quote(&format!("{volume} 0B")),
    )
}

/// Prints the readable certificates, never a key. A file of any content and length is at most one line of printable
/// characters.
fn read_certificates() -> String {
    format!(
        r#"for file in {names}; do
  path={ETCD_PKI}/$file
  case $file in ca-*) ;; *) [ -s "${{path%.crt}}.key" ] || continue;; esac
  if [ -f "$path" ] && [ -r "$path" ]; then
    printf 'F %s %s\n' "$file" "$(head -c {MAX_CERTIFICATE} "$path" | tr -cd '\n -~' | tr '\n' '|')"
  fi
done"#,
        names = CERTIFICATES.join(" "),
    )
}

/// Prints the readable certificates of Kubernetes, never a key, as those of etcd.
///
/// A kubeconfig has a private key in it, so a login without root's rights cannot read it. The engine then copies it out of the
/// container that reads it, as an archive whose only other lines are its header. This may fail.
fn read_kubernetes_certificates() -> String {
    let kubeconfigs: Vec<String> =
        KUBECONFIGS.iter().map(|(path, component)| format!("{component}={path}")).collect();
    format!(
        r#"for path in {files}; do
  [ -s "${{path%.crt}}.key" ] || continue
  if [ -f "$path" ] && [ -r "$path" ]; then
    printf 'P %s %s\n' "$path" "$(head -c {MAX_CERTIFICATE} "$path" | tr -cd '\n -~' | tr '\n' '|')"
  fi
done
in_kubeconfig() {{
  head -c {MAX_CONFIGURATION} | tr -d '\0' | sed -n 's/^ *client-certificate-data: *//p' | base64 -d 2>/dev/null |
    head -c {MAX_CERTIFICATE} | tr -cd '\n -~' | tr '\n' '|'
}}
for file in {kubeconfigs}; do
  path=${{file#*=}}
  if [ -f "$path" ] && [ -r "$path" ]; then
    printf 'P %s %s\n' "$path" "$(in_kubeconfig <"$path")"
  elif [ -e "$path" ]; then
    text=$(timeout {COPY_PATIENCE} docker container cp "${{file%%=*}}:$path" - 2>/dev/null | in_kubeconfig)
    [ -z "$text" ] || printf 'P %s %s\n' "$path" "$text"
  fi
done"#,
        files = component::CERTIFICATES.join(" "),
        kubeconfigs = kubeconfigs.join(" "),
    )
}

/// Prints the readable configuration files of Kubernetes' components. A file that is too long is not printed.
fn configuration_arguments() -> String {
    let files =
        Component::ALL.into_iter().filter_map(|it| Some(format!("{it}={}", it.configuration_path()?)));
    format!(
        r#"for file in {files}; do
  path=${{file#*=}}
  if [ -f "$path" ] && [ -r "$path" ]; then
    [ "$(wc -c <"$path")" -gt {MAX_CONFIGURATION} ] ||
      printf 'K %s %s\n' "${{file%%=*}}" "$(base64 <"$path" | tr -d '\n')"
  elif ! [ -e "$path" ]; then
    echo "K ${{file%%=*}} -"
  fi
done"#,
        files = files.collect::<Vec<_>>().join(" "),
    )
}

/// A container in the answer: name, running, image, label, mounts, time of its last start.
#[derive(Deserialize)]
struct InspectedContainer(
    String,
    bool,
    String,
    Option<String>,
    Option<Vec<MountedVolume>>,
    #[serde(default)] String,
);

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct MountedVolume {
    #[serde(rename = "Type")]
    kind: String,
    #[serde(default)]
    name: String,
    destination: String,
}

impl InspectedContainer {
    fn to_status(&self) -> ContainerStatus {
        let read = self.3.as_deref().and_then(label::read_label);
        let foreign = read.is_none();
        let label = read.unwrap_or_default();
        ContainerStatus {
            running: self.1,
            image: self.2.clone(),
            builtin: label.builtin,
            extra: label.extra,
            foreign,
            started_at: self.start_time(),
        }
    }

    /// docker writes the year 1 for a container that never started.
    fn start_time(&self) -> Option<OffsetDateTime> {
        let time = OffsetDateTime::parse(&self.5, &Rfc3339).ok();
        time.filter(|time| *time > OffsetDateTime::UNIX_EPOCH)
    }

    /// True if the data of etcd are in a volume of another name.
    fn has_other_volume(&self, volume: &str) -> bool {
        let is_other = |mount: &MountedVolume| {
            mount.kind == "volume" && mount.destination == DATA && mount.name != volume
        };
        self.3.as_deref().and_then(label::read_label).is_some() && self.4.iter().flatten().any(is_other)
    }
}

/// Reads an answer.
///
/// # Errors
/// The fault of an incomplete or unexpected answer.
pub(crate) fn parse_status(answer: &str, volume: &str) -> Result<NodeStatus, String> {
    let mut status = NodeStatus { reachable: true, ..NodeStatus::default() };
    let mut volumes = BTreeSet::new();
    let mut lines = answer.lines();
    loop {
        let line = lines.next().ok_or("the last line is missing")?;
        match line.split_once(' ') {
            Some(("C", json)) => add_container(&mut status, json, volume)?,
            Some(("V", name)) => drop(volumes.insert(name)),
            Some(("E", content)) => status.etcd_empty = read_content(content)?,
            Some(("F", file)) => add_certificate(&mut status, file)?,
            Some(("P", file)) => add_kubernetes_certificate(&mut status, file)?,
            Some(("K", file)) => add_configuration(&mut status, file)?,
            None if line == "END" => break,
            _ => return Err("a line has an unknown form".to_owned()),
        }
    }
    if lines.next().is_some() {
        return Err("lines follow the last line".to_owned());
    }
    status.etcd_data = volumes.contains(volume);
    status.etcd_mark = volumes.contains(ETCD_MARK);
    status.etcd_other_volume |= !status.etcd_data && volumes.contains(DEFAULT_ETCD_VOLUME);
    // The volume may appear or vanish between the two queries.
    status.etcd_empty = status.etcd_empty.filter(|_| status.etcd_data);
    Ok(status)
}

fn add_container(status: &mut NodeStatus, json: &str, volume: &str) -> Result<(), String> {
    let inspected: InspectedContainer =
        serde_json::from_str(json).map_err(|error| format!("a container: {error}"))?;
    let name = inspected.0.trim_start_matches('/');
    if !ContainerName::all().any(|known| known.as_str() == name) {
        return Err("a container has an unexpected name".to_owned());
    }
    status.etcd_other_volume |= name == Container::Etcd.name() && inspected.has_other_volume(volume);
    match status.containers.insert(name.to_owned(), inspected.to_status()) {
        None => Ok(()),
        Some(_) => Err(format!("two containers have the name {name}")),
    }
}

fn add_certificate(status: &mut NodeStatus, file: &str) -> Result<(), String> {
    let (name, text) = file.split_once(' ').ok_or("a certificate has no text")?;
    if !CERTIFICATES.contains(&name) {
        return Err("a certificate has an unexpected name".to_owned());
    }
    let certificate = NodeCertificate { text: text.replace('|', "\n"), validity: None };
    match status.etcd_certificates.insert(name.to_owned(), certificate) {
        None => Ok(()),
        Some(_) => Err(format!("two certificates have the name {name}")),
    }
}

fn add_kubernetes_certificate(status: &mut NodeStatus, file: &str) -> Result<(), String> {
    let (path, text) = file.split_once(' ').ok_or("a certificate of Kubernetes has no text")?;
    let is_known =
        component::CERTIFICATES.contains(&path) || KUBECONFIGS.iter().any(|(known, _)| *known == path);
    if !is_known {
        return Err("a certificate of Kubernetes has an unexpected path".to_owned());
    }
    let certificate = NodeCertificate { text: text.replace('|', "\n"), validity: None };
    match status.kubernetes_certificates.insert(path.to_owned(), certificate) {
        None => Ok(()),
        Some(_) => Err(format!("two certificates have the path {path}")),
    }
}

/// A file that is not UTF-8 has no form that its component reads, as an empty one.
fn add_configuration(status: &mut NodeStatus, file: &str) -> Result<(), String> {
    let (name, text) = file.split_once(' ').ok_or("a configuration file has no text")?;
    let component: Component =
        name.parse().map_err(|_| "a configuration file has an unexpected name".to_owned())?;
    let content = match text {
        "-" => None,
        text => {
            let bytes = STANDARD.decode(text).map_err(|_| "a configuration file is not in Base64")?;
            Some(String::from_utf8(bytes).unwrap_or_default())
        }
    };
    match status.configurations.insert(component, content) {
        None => Ok(()),
        Some(_) => Err(format!("two configuration files have the name {name}")),
    }
}

fn read_content(text: &str) -> Result<Option<bool>, String> {
    match text {
        "empty" => Ok(Some(true)),
        "content" => Ok(Some(false)),
        "unknown" => Ok(None),
        _ => Err("the content of the volume has an unknown form".to_owned()),
    }
}

#[cfg(test)]
mod tests;
