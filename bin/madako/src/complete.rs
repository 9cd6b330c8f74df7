//! Completion of command lines, with the names of machines, nodes, applications and clusters as they are now.
//!
//! The script of a shell (`madako completion`) starts the program again at each completion, with [`VARIABLE`] set.
//!
//! Guarantees: a completion takes at most [`COMPLETION_DEADLINE`]. A store, a registry or an API that does not answer gives no
//! names and no message: the shell would write it into the line of the user.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Command, CommandFactory};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _};
use madako_domain::cluster::Cluster;
use madako_domain::constraints::Constraints;
use madako_domain::keys;
use madako_domain::placement::kind::Kind;
use madako_faults::SHIPPED;

use crate::access::{decode, get_entry, open_store};
use crate::cli::{Cli, Global};
use crate::commands::{machine, placement};
use crate::failure::Failure;
use crate::limits::{COMPLETION_DEADLINE, MAX_COMPLETED};

/// The variable of the environment by which a shell asks for a completion.
pub(crate) const VARIABLE: &str = "MADAKO_COMPLETE";

/// The names that an argument may have.
#[derive(Debug, Clone, Copy)]
enum Names {
    Constraints,
    Scenarios,
    /// Addresses and serials of machines of the registry.
    Machines,
    /// Addresses of nodes of the cluster.
    Nodes,
    Resources(Kind),
}

/// The completed arguments: words of the command, id of the argument.
const COMPLETED: [(&[&str], &str, Names); 19] = [
    (&["constraints", "set"], "name", Names::Constraints),
    (&["rehearse"], "scenario", Names::Scenarios),
    (&["machine", "show"], "machine", Names::Machines),
    (&["repair-queue", "add"], "address", Names::Machines),
    (&["node", "show"], "address", Names::Nodes),
    (&["ssh", "forget"], "address", Names::Nodes),
    (&["kube", "app", "get"], "name", Names::Resources(Kind::Application)),
    (&["kube", "app", "update"], "name", Names::Resources(Kind::Application)),
    (&["kube", "app", "delete"], "name", Names::Resources(Kind::Application)),
    (&["kube", "app", "retry"], "name", Names::Resources(Kind::Application)),
    (&["kube", "app", "explain"], "name", Names::Resources(Kind::Application)),
    (&["kube", "app", "explain"], "without", Names::Resources(Kind::Cluster)),
    (&["kube", "cluster", "get"], "name", Names::Resources(Kind::Cluster)),
    (&["kube", "cluster", "update"], "name", Names::Resources(Kind::Cluster)),
    (&["kube", "cluster", "delete"], "name", Names::Resources(Kind::Cluster)),
    (&["kube", "cluster", "set-state"], "name", Names::Resources(Kind::Cluster)),
    (&["os", "cluster", "get"], "name", Names::Resources(Kind::MagnumCluster)),
    (&["os", "cluster", "update"], "name", Names::Resources(Kind::MagnumCluster)),
    (&["os", "cluster", "delete"], "name", Names::Resources(Kind::MagnumCluster)),
];

/// Answers a shell that asks for a completion, and ends the process then.
pub(crate) fn answer_completion() {
    CompleteEnv::with_factory(build_command).var(VARIABLE).complete();
}

/// The commands with the names of their arguments.
fn build_command() -> Command {
    COMPLETED
        .into_iter()
        .fold(Cli::command(), |command, (words, argument, names)| complete(command, words, argument, names))
}

fn complete(command: Command, words: &[&str], argument: &'static str, names: Names) -> Command {
    match words.split_first() {
        Some((word, rest)) => {
            let rest = rest.to_vec();
            command.mut_subcommand(word, move |command| complete(command, &rest, argument, names))
        }
        None => {
            // Not `mut_arg`, which moves the argument behind the others.
            command.mut_args(move |arg| match arg.get_id() == argument {
                true => arg.add(ArgValueCompleter::new(move |typed: &OsStr| find_candidates(names, typed))),
                false => arg,
            })
        }
    }
}

fn find_candidates(names: Names, typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let line: Vec<OsString> = std::env::args_os().collect();
    let found = names.find(&line).unwrap_or_default();
    let fits = found.into_iter().filter(|name| name.starts_with(typed));
    let names_of_line = fits.take(MAX_COMPLETED).map(CompletionCandidate::new);
    match names {
        // A scenario may also be a file.
        Names::Scenarios => names_of_line.chain(PathCompleter::file().complete(typed.as_ref())).collect(),
        _ => names_of_line.collect(),
    }
}

impl Names {
    fn find(self, line: &[OsString]) -> Result<Vec<String>, Failure> {
        match self {
            Self::Constraints => return Ok(Constraints::names().map(str::to_owned).collect()),
            Self::Scenarios => return Ok(SHIPPED.iter().map(|shipped| shipped.name.to_owned()).collect()),
            _ => {}
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let found = async { tokio::time::timeout(COMPLETION_DEADLINE, self.ask(line)).await };
        runtime.block_on(found).unwrap_or(Ok(Vec::new()))
    }

    async fn ask(self, line: &[OsString]) -> Result<Vec<String>, Failure> {
        let config = value_of_option(line, &["--config"]).map(PathBuf::from);
        let global = Global { config: config.clone(), ..Global::default() };
        match self {
            Self::Constraints | Self::Scenarios => Ok(Vec::new()),
            Self::Machines => machine::read_machine_names(&open_store(&global)?).await,
            Self::Nodes => match get_entry(&open_store(&global)?, keys::CLUSTER).await? {
                Some(entry) => {
                    let cluster: Cluster = decode(keys::CLUSTER, &entry)?;
                    Ok(cluster.nodes.iter().map(|node| node.address.clone()).collect())
                }
                None => Ok(Vec::new()),
            },
            Self::Resources(kind) => {
                let text =
                    |names: &[&str]| value_of_option(line, names).and_then(|text| text.into_string().ok());
                let (api_url, namespace) = (text(&["--api-url"]), text(&["--namespace", "-n"]));
                placement::read_resource_names(kind, config.as_deref(), api_url.as_deref(), namespace).await
            }
        }
    }
}

/// The value of an option in the line that is completed, behind a space or an equals sign; the last one counts.
fn value_of_option(line: &[OsString], names: &[&str]) -> Option<OsString> {
    let mut found = None;
    for (place, word) in line.iter().enumerate() {
        if names.iter().any(|name| word == name) {
            found = line.get(place + 1).cloned();
        }
        let value = word.to_str().and_then(|word| {
            let (name, value) = word.split_once('=')?;
            names.contains(&name).then(|| value.into())
        });
        found = value.or(found);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_completed_argument_exists() {
        for (words, argument, _) in COMPLETED {
            let mut found = Cli::command();
            for word in words {
                found = found.find_subcommand(word).unwrap_or_else(|| panic!("{words:?}")).clone();
            }
            assert!(found.get_arguments().any(|arg| arg.get_id() == argument), "{words:?}: {argument}");
        }
        build_command().debug_assert();
    }

    #[test]
    fn options_of_the_line_count() {
        let option = |line: &str, names: &[&str]| {
            let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            value_of_option(&line, names).map(|value| value.into_string().unwrap())
        };
        assert_eq!(option("madako -- madako --config a kube", &["--config"]).as_deref(), Some("a"));
        assert_eq!(option("madako --config=a --config b", &["--config"]).as_deref(), Some("b"));
        assert_eq!(option("madako kube app get -n other", &["--namespace", "-n"]).as_deref(), Some("other"));
        assert_eq!(option("madako kube app get -n", &["--namespace", "-n"]), None);
    }
}
