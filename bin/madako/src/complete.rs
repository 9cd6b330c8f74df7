//! Completion of command lines, with the names of machines, nodes, applications and clusters as they are now.
//!
//! The script of a shell (`madako completion`) starts the program again at each completion, with [`VARIABLE`] set.
//!
//! Guarantees: a completion takes at most [`COMPLETION_DEADLINE`]. A store, a registry or an API that does not answer gives no
//! names and no message: the shell would write it into the line of the user.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Command, CommandFactory};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _};
use madako_domain::cluster::{Cluster, Node};
use madako_domain::constraints::Constraints;
use madako_domain::images::ImageName;
use madako_domain::keys;
use madako_domain::machine::MachineState;
use madako_domain::placement::kind::Kind;
use madako_domain::reboot::RebootQueueEntry;
use madako_domain::repair::RepairQueueEntry;
use madako_domain::repair::config::{RepairConfig, RepairProcedure};
use madako_faults::SHIPPED;
use madako_protocol::store::Store;

use crate::access::{decode, get_entry, list_entries, open_store};
use crate::cli::{Cli, Global};
use crate::commands::queue::queue_entries;
use crate::commands::{
    history, images, kubernetes, machine, node, ops, placement, reboot_queue, repair_queue, resource,
};
use crate::failure::Failure;
use crate::limits::{COMPLETION_DEADLINE, MAX_COMPLETED};
use crate::list::List;

/// The variable of the environment by which a shell asks for a completion.
pub(crate) const VARIABLE: &str = "MADAKO_COMPLETE";

/// The names that an argument may have.
#[derive(Debug, Clone)]
pub(crate) enum Names {
    Constraints,
    Scenarios,
    /// Columns of a list, for its order.
    Columns(Vec<String>),
    /// Addresses and serials of machines of the registry.
    Machines,
    /// Addresses, racks and roles of machines of the registry.
    MachineSelectors,
    /// Numbers of racks of machines of the registry.
    Racks,
    /// Roles of machines of the registry.
    Roles,
    /// States of machines, as sabakan spells them.
    MachineStates,
    /// Names of container images, each with an equals sign.
    Images,
    /// Keys of user-defined resources.
    ResourceKeys,
    /// Operations of the repair procedures of the cluster.
    RepairOperations,
    /// Types of machines in the repair procedures of the cluster.
    MachineTypes,
    /// Addresses of nodes of the cluster.
    Nodes,
    /// Addresses of control plane nodes.
    ControlPlane,
    /// Numbers of entries of the repair queue.
    Repairs,
    /// Racks that the repair queue holds.
    HeldRacks,
    /// Numbers of entries of the reboot queue.
    Reboots,
    /// Addresses of nodes with an entry in the reboot queue.
    RebootedNodes,
    Resources(Kind),
}

/// A completed argument: words of the command, id of the argument, its names.
pub(crate) type Completed = (Vec<&'static str>, &'static str, Names);

/// The option for the order of a list, as an argument of clap.
pub(crate) const SORT_BY: &str = "sort_by";

fn completed_arguments() -> Vec<Completed> {
    let arguments: [(&[&str], &str, Names); 25] = [
        (&["constraints", "set"], "name", Names::Constraints),
        (&["rehearse"], "scenario", Names::Scenarios),
        (&["what-if"], "lose", Names::MachineSelectors),
        (&["what-if"], "remove", Names::MachineSelectors),
        (&["machine", "show"], "machine", Names::Machines),
        (&["repair-queue", "add"], "address", Names::Machines),
        (&["repair-queue", "explain"], "address", Names::Machines),
        (&["repair-queue", "delete"], "index", Names::Repairs),
        (&["repair-queue", "release"], "rack", Names::HeldRacks),
        (&["reboot-queue", "explain"], "address", Names::RebootedNodes),
        (&["reboot-queue", "cancel"], "index", Names::Reboots),
        (&["node", "show"], "address", Names::Nodes),
        (&["ssh"], "node", Names::Nodes),
        (&["ssh", "forget"], "address", Names::Nodes),
        (&["etcd", "restart"], "address", Names::ControlPlane),
        (&["etcd", "restore"], "node", Names::ControlPlane),
        (&["machine", "list"], "rack", Names::Racks),
        (&["machine", "list"], "role", Names::Roles),
        (&["machine", "list"], "state", Names::MachineStates),
        (&["repair-queue", "add"], "operation", Names::RepairOperations),
        (&["repair-queue", "add"], "machine_type", Names::MachineTypes),
        (&["images", "set"], "images", Names::Images),
        (&["resource", "get"], "key", Names::ResourceKeys),
        (&["ssh", "key", "set"], "host", Names::Nodes),
        (&["vault", "ssh-privkey"], "host", Names::Nodes),
    ];
    let lists: [(&[&str], List); 11] = [
        (&["machine", "list"], machine::list::list_columns()),
        (&["node", "list"], node::list::list_columns()),
        (&["images", "list"], images::list_columns()),
        (&["history"], history::list_columns()),
        (&["repair-queue", "list"], repair_queue::list_columns()),
        (&["reboot-queue", "list"], reboot_queue::list_columns()),
        (&["reboot-queue", "explain"], reboot_queue::explain::list_columns()),
        (&["resource", "list"], resource::list_columns()),
        (&["resource", "status"], resource::status::list_columns()),
        (&["ops"], ops::running::list_columns()),
        (&["kube", "status"], kubernetes::status::list_columns()),
    ];
    let arguments = arguments.into_iter().map(|(words, id, names)| (words.to_vec(), id, names));
    let lists =
        lists.into_iter().map(|(words, list)| (words.to_vec(), SORT_BY, Names::Columns(list.column_names())));
    arguments.chain(lists).chain(placement::completed_arguments()).collect()
}

/// Answers a shell that asks for a completion, and ends the process then.
pub(crate) fn answer_completion() {
    CompleteEnv::with_factory(build_command).var(VARIABLE).complete();
}

/// The commands with the names of their arguments.
fn build_command() -> Command {
    completed_arguments()
        .into_iter()
        .fold(Cli::command(), |command, (words, argument, names)| complete(command, &words, argument, names))
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
                true => {
                    let names = names.clone();
                    arg.add(ArgValueCompleter::new(move |typed: &OsStr| find_candidates(&names, typed)))
                }
                false => arg,
            })
        }
    }
}

fn find_candidates(names: &Names, typed: &OsStr) -> Vec<CompletionCandidate> {
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
    fn find(&self, line: &[OsString]) -> Result<Vec<String>, Failure> {
        match self {
            Self::Constraints => return Ok(Constraints::names().map(str::to_owned).collect()),
            Self::Scenarios => return Ok(SHIPPED.iter().map(|shipped| shipped.name.to_owned()).collect()),
            Self::Columns(names) => return Ok(names.clone()),
            Self::MachineStates => {
                return Ok(MachineState::NAMES.iter().map(|name| (*name).to_owned()).collect());
            }
            Self::Images => return Ok(ImageName::ALL.map(|name| format!("{}=", name.name())).to_vec()),
            _ => {}
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let found = async { tokio::time::timeout(COMPLETION_DEADLINE, self.ask(line)).await };
        runtime.block_on(found).unwrap_or(Ok(Vec::new()))
    }

    async fn ask(&self, line: &[OsString]) -> Result<Vec<String>, Failure> {
        let config = value_of_option(line, &["--config"]).map(PathBuf::from);
        if let Self::Resources(kind) = self {
            let text = |names: &[&str]| value_of_option(line, names).and_then(|text| text.into_string().ok());
            let (api_url, namespace) = (text(&["--api-url"]), text(&["--namespace", "-n"]));
            return placement::read_resource_names(*kind, config.as_deref(), api_url.as_deref(), namespace)
                .await;
        }
        let store = &open_store(&Global { config, ..Global::default() })?;
        Ok(match self {
            Self::Constraints
            | Self::Scenarios
            | Self::Columns(_)
            | Self::Resources(_)
            | Self::MachineStates
            | Self::Images => Vec::new(),
            Self::Machines => machine::read_machine_names(store).await?,
            Self::MachineSelectors => machine::read_machine_selectors(store).await?,
            Self::Racks => selectors_of(store, "rack=").await?,
            Self::Roles => selectors_of(store, "role=").await?,
            Self::ResourceKeys => {
                let stored = list_entries(store, keys::RESOURCES).await?;
                stored.keys().filter_map(|key| Some(key.strip_prefix(keys::RESOURCES)?.to_owned())).collect()
            }
            Self::RepairOperations => {
                let operations = repair_procedures(store).await?.into_iter().flat_map(|it| it.operations);
                distinct(operations.map(|operation| operation.name))
            }
            Self::MachineTypes => {
                distinct(repair_procedures(store).await?.into_iter().flat_map(|it| it.machine_types))
            }
            Self::Nodes => nodes(store).await?.into_iter().map(|node| node.address).collect(),
            Self::ControlPlane => {
                let control_plane = nodes(store).await?.into_iter().filter(|node| node.control_plane);
                control_plane.map(|node| node.address).collect()
            }
            Self::Repairs => {
                let entries = queue_entries::<RepairQueueEntry>(store).await?;
                entries.into_iter().map(|entry| entry.index.to_string()).collect()
            }
            Self::HeldRacks => {
                let held = list_entries(store, keys::REPAIR_HOLDS).await?;
                held.keys().filter_map(|key| Some(key.strip_prefix(keys::REPAIR_HOLDS)?.to_owned())).collect()
            }
            Self::Reboots => {
                let entries = queue_entries::<RebootQueueEntry>(store).await?;
                entries.into_iter().map(|entry| entry.index.to_string()).collect()
            }
            Self::RebootedNodes => {
                let entries = queue_entries::<RebootQueueEntry>(store).await?;
                entries.into_iter().map(|entry| entry.node).collect()
            }
        })
    }
}

/// The nodes of the cluster, of which there may be none yet.
async fn nodes(store: &dyn Store) -> Result<Vec<Node>, Failure> {
    Ok(cluster(store).await?.map(|cluster| cluster.nodes).unwrap_or_default())
}

async fn cluster(store: &dyn Store) -> Result<Option<Cluster>, Failure> {
    let stored = get_entry(store, keys::CLUSTER).await?;
    stored.map(|entry| decode::<Cluster>(keys::CLUSTER, &entry)).transpose()
}

async fn repair_procedures(store: &dyn Store) -> Result<Vec<RepairProcedure>, Failure> {
    let Some(cluster) = cluster(store).await? else { return Ok(Vec::new()) };
    let config = RepairConfig::read(&cluster.repair).map_err(Failure::failed)?;
    Ok(config.procedures)
}

/// Each name once, in alphabetical order.
fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The values of selectors such as `rack=3`.
async fn selectors_of(store: &dyn Store, prefix: &str) -> Result<Vec<String>, Failure> {
    let selectors = machine::read_machine_selectors(store).await?;
    Ok(selectors.iter().filter_map(|selector| Some(selector.strip_prefix(prefix)?.to_owned())).collect())
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
    use clap::Subcommand as _;

    use super::*;

    #[test]
    fn every_completed_argument_exists() {
        for (words, argument, _) in completed_arguments() {
            let mut found = Cli::command();
            for word in &words {
                found = found.find_subcommand(word).unwrap_or_else(|| panic!("{words:?}")).clone();
            }
            assert!(found.get_arguments().any(|arg| arg.get_id() == argument), "{words:?}: {argument}");
        }
        build_command().debug_assert();
    }

    #[test]
    fn the_columns_of_every_list_and_every_name_of_a_resource_are_completed() {
        fn check(words: &[String], command: &Command) {
            let is_of_placement =
                words.first().is_some_and(|group| placement::Command::has_subcommand(group));
            let is_new = words.last().is_some_and(|verb| ["create", "register"].contains(&verb.as_str()));
            for arg in command.get_arguments() {
                let is_completed = arg.get::<ArgValueCompleter>().is_some();
                let is_name = arg.get_id() == "name" && is_of_placement && !is_new;
                assert!(is_completed || !(is_name || arg.get_id() == SORT_BY), "{words:?}: {}", arg.get_id());
            }
            for inner in command.get_subcommands() {
                check(&[words, &[inner.get_name().to_owned()]].concat(), inner);
            }
        }
        check(&[], &build_command());
        let columns =
            completed_arguments().into_iter().find(|(words, ..)| words == &["reboot-queue", "list"]);
        let Some((_, _, Names::Columns(columns))) = columns else { panic!("{columns:?}") };
        assert_eq!(columns, ["index", "node", "status", "since", "aborted-drains", "back-off"]);
    }

    #[test]
    fn options_on_the_command_line_are_found() {
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
