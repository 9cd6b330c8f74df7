//! The scripts that run a program of the tools image, in CKE's words.

use std::collections::BTreeSet;

use super::{SELINUX, logging_options, quote};

/// Mount point of the node's file system in a container of the tools.
const HOST: &str = "/mnt";
/// Directory of the node's CNI plugins, and their place in the container.
const CNI_PROGRAMS: [&str; 2] = ["/opt/cni/bin", "/host/bin"];
/// Directory of the node's CNI configuration, and its place in the container.
const CNI_CONFIG: [&str; 2] = ["/etc/cni/net.d", "/host/net.d"];

/// The label `z` lets the containers of etcd and of Kubernetes read the files, too: with `Z` the engine would give them to
/// the tools alone.
pub(super) fn write_files(tools: &str, directory: &str) -> String {
    format!(
        "{logging}{SELINUX}docker run \"$@\" --rm -i --network=host --uts=host --read-only \
         {volume}\"${{se:+,z}}\" {tools} write_files {HOST} >/dev/null\n",
        logging = logging_options(),
        volume = quote(&format!("--volume={directory}:{HOST}{directory}:rw")),
        tools = quote(tools),
    )
}

pub(super) fn make_directories(tools: &str, directories: &[String], mode: u32) -> String {
    let parents: BTreeSet<&str> = directories
        .iter()
        .map(|path| path.rsplit_once('/').map_or("/", |(parent, _)| parent).trim_end_matches('/'))
        .collect();
    let volumes: Vec<(&str, String)> =
        parents.into_iter().map(|parent| (parent, format!("{HOST}{parent}"))).collect();
    let mut words = vec!["make_directories".to_owned(), format!("--mode={mode:o}")];
    words.extend(directories.iter().map(|path| format!("{HOST}{path}")));
    run(tools, &volumes, &words)
}

pub(super) fn empty_directory(tools: &str, directory: &str) -> String {
    let inside = format!("{HOST}{directory}");
    run(tools, &[(directory, inside.clone())], &["empty-dir".to_owned(), inside])
}

pub(super) fn install_cni(tools: &str) -> String {
    let volumes = [CNI_PROGRAMS, CNI_CONFIG].map(|[source, inside]| (source, inside.to_owned()));
    run(tools, &volumes, &["install-cni".to_owned()])
}

/// Runs a program without a label of SELinux: a label would change that of whole directories such as `/var/lib`.
fn run(tools: &str, volumes: &[(&str, String)], words: &[String]) -> String {
    let volumes: Vec<String> =
        volumes.iter().map(|(source, inside)| quote(&format!("--volume={source}:{inside}:rw"))).collect();
    let words: Vec<String> = words.iter().map(|word| quote(word)).collect();
    format!(
        "{logging}docker run \"$@\" --rm --network=host --uts=host --read-only --security-opt=label=disable \
         {volumes} {tools} {words} >/dev/null\n",
        logging = logging_options(),
        volumes = volumes.join(" "),
        tools = quote(tools),
        words = words.join(" "),
    )
}
