//! `madako kube`, `infra`, `os` and `core`: placement's resources, with krakectl's words and options.
//!
//! For users and scripts of krakectl. The commands are one table (a [`Resource`] a kind); the verbs are the same for
//! all kinds, and each kind has code only for its own fields.
//!
//! Guarantees: a request equals krakectl's for the same words, unless krakectl drops one of them. An update changes only
//! the requested fields of exactly the resource that was read, if the service supports `ETag`s. Every request has a
//! deadline, and every answer a size limit. No message and no `Debug` output contains a password.
//! Does not: validate a resource. The service does, and each of its complaints is shown.

mod application;
mod client;
mod cluster;
mod config;
mod core;
mod delete;
mod edit;
mod explain;
mod given;
mod infra;
mod kubeconfig;
mod list;
mod os;
mod password;
mod show;
#[cfg(test)]
mod tests;
mod words;

use std::fmt;
use std::path::Path;

use clap::{ArgMatches, Args as _};
use madako_domain::placement::kind::Kind;
use madako_protocol::ports::Clock as _;
use madako_supervisor::clock::SystemClock;
use serde_json::Value;

use self::client::{ApiClient, Request};
use self::config::Settings;
use self::given::GivenOptions;
pub(crate) use self::password::read_hidden;
use self::words::{Create, GROUPS, Resource, Verb};
use super::kubernetes;
use crate::cli::Global;
use crate::complete::{Completed, Names, SORT_BY};
use crate::failure::Failure;
use crate::limits::MAX_TRIES;
use crate::output::{escape_unprintable, print_warning};

#[derive(Debug)]
pub(crate) enum Command {
    Resource(ResourceCommand),
    /// ckecli's `kubernetes issue`: `kubernetes` is krakectl's other word for `kube`.
    Issue(kubernetes::Args),
    /// The components of Kubernetes, in the group of krakectl's word.
    Status(kubernetes::status::Args),
    /// The restarts of components, in their order.
    Plan(kubernetes::plan::Args),
    /// No further wave of kubelets or proxies.
    Pause(kubernetes::rollout::PauseArgs),
    /// The waves go on.
    Resume(kubernetes::rollout::ResumeArgs),
    /// Another key for Secrets.
    Rotate(kubernetes::rotate::Args),
}

/// The group of krakectl with ckecli's word.
const KUBE: &str = "kube";
/// ckecli's word.
const ISSUE: &str = "issue";
const STATUS: &str = "status";
const PLAN: &str = "plan";
const PAUSE: &str = "pause";
const RESUME: &str = "resume";
const ROTATE: &str = "rotate-encryption-key";
/// The option for the address of the API.
const API_URL: &str = "api-url";

/// A parsed command of krakectl.
pub(crate) struct ResourceCommand {
    resource: &'static Resource,
    verb: Verb,
    given: GivenOptions,
}

impl fmt::Debug for ResourceCommand {
    /// Without the options: they may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("kind", &self.resource.kind)
            .field("verb", &self.verb)
            .finish_non_exhaustive()
    }
}

impl clap::FromArgMatches for Command {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::new(clap::error::ErrorKind::MissingSubcommand);
        let (group, matches) = matches.subcommand().ok_or_else(missing)?;
        let (word, matches) = matches.subcommand().ok_or_else(missing)?;
        if group == KUBE && [ISSUE, STATUS, PLAN, PAUSE, RESUME, ROTATE].contains(&word) {
            // An option of the group: krakectl's words take it.
            if matches.contains_id(API_URL) {
                let message = format!(
                    "--{API_URL} has no effect on `madako kube {word}`, which asks no API of placement"
                );
                return Err(clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, message));
            }
            return match word {
                ISSUE => kubernetes::Args::from_arg_matches(matches).map(Self::Issue),
                PLAN => kubernetes::plan::Args::from_arg_matches(matches).map(Self::Plan),
                PAUSE => kubernetes::rollout::PauseArgs::from_arg_matches(matches).map(Self::Pause),
                RESUME => kubernetes::rollout::ResumeArgs::from_arg_matches(matches).map(Self::Resume),
                ROTATE => kubernetes::rotate::Args::from_arg_matches(matches).map(Self::Rotate),
                _ => kubernetes::status::Args::from_arg_matches(matches).map(Self::Status),
            };
        }
        let (verb, matches) = matches.subcommand().ok_or_else(missing)?;
        let group = GROUPS.iter().find(|known| known.word == group).ok_or_else(missing)?;
        let resource = group.resources.iter().find(|known| known.word == word).ok_or_else(missing)?;
        let verb = Verb::ALL
            .iter()
            .copied()
            .find(|known| resource.command_word(*known) == Some(verb))
            .ok_or_else(missing)?;
        Ok(Self::Resource(ResourceCommand { resource, verb, given: GivenOptions::new(matches.clone()) }))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Subcommand for Command {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        let issue = kubernetes::Args::augment_args(with_cke_options(ISSUE));
        let status = kubernetes::status::Args::augment_args(with_cke_options(STATUS));
        let plan = kubernetes::plan::Args::augment_args(with_cke_options(PLAN));
        let pause = kubernetes::rollout::PauseArgs::augment_args(with_cke_options(PAUSE));
        let resume = kubernetes::rollout::ResumeArgs::augment_args(with_cke_options(RESUME));
        let rotate = kubernetes::rotate::Args::augment_args(with_cke_options(ROTATE));
        let group = |group: &words::Group| match group.word {
            KUBE => words::group_command(group)
                .subcommand(issue.clone())
                .subcommand(status.clone())
                .subcommand(plan.clone())
                .subcommand(pause.clone())
                .subcommand(resume.clone())
                .subcommand(rotate.clone()),
            _ => words::group_command(group),
        };
        command.subcommands(GROUPS.iter().map(group))
    }

    fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        GROUPS.iter().any(|group| group.word == name)
    }
}

/// A command in krakectl's group that reads CKE's configuration file, as the commands outside of the group do.
fn with_cke_options(word: &'static str) -> clap::Command {
    let global = Global::augment_args(clap::Command::new(word));
    let config = global.get_arguments().find(|arg| arg.get_id() == "config").cloned();
    // The options of the group stay out of a command that has its own options of these names.
    let url = clap::Arg::new(API_URL).long(API_URL).hide(true);
    clap::Command::new(word).args(config.map(|arg| arg.global(false))).arg(url)
}

/// The scope of a command: one resource or all of a kind, in a namespace or global.
#[derive(Debug, Clone)]
struct CommandScope {
    kind: Kind,
    namespace: Option<String>,
}

impl CommandScope {
    fn path_segments(&self, rest: &[&str]) -> Vec<String> {
        let mut segments = vec![self.kind.api().name()];
        if let Some(namespace) = &self.namespace {
            segments.extend(["namespaces", namespace.as_str()]);
        }
        segments.push(self.kind.plural());
        segments.iter().chain(rest).map(|segment| (*segment).to_owned()).collect()
    }

    /// The description of a resource in messages.
    fn name_of_resource(&self, name: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{name}", self.kind),
            None => format!("{} {name}", self.kind),
        }
    }
}

/// `config`: the file of `--config`.
pub(crate) async fn run(command: ResourceCommand, config: Option<&Path>) -> Result<(), Failure> {
    let ResourceCommand { resource, verb, given } = command;
    let settings = Settings::load(config, given.text_value(API_URL))?;
    let format = given.format();
    let namespace = if resource.kind.namespaced() && !given.is_flag_set("all") {
        Some(
            given
                .text_value("namespace")
                .map_or_else(|| settings.required_user(), |named| Ok(named.to_owned()))?,
        )
    } else {
        None
    };
    let place = CommandScope { kind: resource.kind, namespace };
    let answer = match verb {
        Verb::List => {
            return list::run(&ApiClient::new(&settings)?, &place, resource, &given.list()?, &SystemClock)
                .await;
        }
        Verb::Explain => return explain::run(&settings, &place, &given, format).await,
        Verb::Create | Verb::Register => {
            let how = resource.creation_of_verb(verb).ok_or_else(|| {
                Failure::bad_input(
                    "this command cannot create resources of this kind: see --help for its verbs",
                )
            })?;
            create(&settings, &place, how, &given).await?
        }
        Verb::Get => {
            let api = ApiClient::new(&settings)?;
            let mut document = read_resource(&api, &place, given.name()?).await?.body;
            if resource.kind == Kind::Cluster {
                cluster::add_inherited(&api, &mut document).await?;
            }
            Some(document)
        }
        Verb::Update => update(&settings, &place, resource, &given).await?,
        Verb::Delete => delete::run(&ApiClient::new(&settings)?, &place, &given, format).await?,
        Verb::SetState => Some(cluster::set_state(&ApiClient::new(&settings)?, &place, &given).await?),
        Verb::Retry => {
            let name = given.name()?;
            let path = place.path_segments(&[name, "retry"]);
            ApiClient::new(&settings)?
                .send(&Request::new("PUT", path, place.name_of_resource(name)))
                .await?
                .into_document()
        }
    };
    let waited = given.text_value("wait").filter(|_| verb != Verb::Delete);
    if let (Some(waited), Some(state)) =
        (waited, answer.as_ref().and_then(|it| it["status"]["state"].as_str()))
        && !state.eq_ignore_ascii_case(waited)
    {
        print_warning(format_args!("the state is {} now, not {waited}", escape_unprintable(state)));
    }
    match answer {
        Some(document) => show::show_one(resource, format, &document, SystemClock.now()),
        None => Ok(()),
    }
}

/// The arguments that name an existing resource, and the columns of the lists.
pub(crate) fn completed_arguments() -> Vec<Completed> {
    let mut completed = vec![(vec![KUBE, "app", "explain"], "without", Names::Resources(Kind::Cluster))];
    for (group, resource) in GROUPS.iter().flat_map(|group| group.resources.iter().map(move |it| (group, it)))
    {
        for verb in Verb::ALL.iter().copied() {
            let Some(word) = resource.command_word(verb) else { continue };
            let words = vec![group.word, resource.word, word];
            let has_name = || resource.build_options(verb).iter().any(|option| option.get_id() == "name");
            match verb {
                Verb::List => {
                    completed.push((
                        words,
                        SORT_BY,
                        Names::Columns(list::list_columns(resource).column_names()),
                    ));
                }
                Verb::Create | Verb::Register => {}
                _ if has_name() => completed.push((words, "name", Names::Resources(resource.kind))),
                _ => {}
            }
        }
    }
    completed
}

/// The names of all resources of a kind, in a namespace or in that of the user.
///
/// # Errors
/// The API does not answer.
pub(crate) async fn read_resource_names(
    kind: Kind,
    config: Option<&Path>,
    api_url: Option<&str>,
    namespace: Option<String>,
) -> Result<Vec<String>, Failure> {
    let settings = Settings::load(config, api_url)?;
    let namespace = match kind.namespaced() {
        true => Some(namespace.map_or_else(|| settings.required_user(), Ok)?),
        false => None,
    };
    let place = CommandScope { kind, namespace };
    list::read_names(&ApiClient::new(&settings)?, &place).await
}

async fn read_resource(api: &ApiClient, place: &CommandScope, name: &str) -> Result<client::Answer, Failure> {
    api.send(&Request::new("GET", place.path_segments(&[name]), place.name_of_resource(name))).await
}

async fn create(
    settings: &Settings,
    place: &CommandScope,
    how: &Create,
    given: &GivenOptions,
) -> Result<Option<Value>, Failure> {
    let document = (how.build)(given)?;
    let name = document["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut request = Request::new("POST", place.path_segments(&[]), place.name_of_resource(&name));
    let api = ApiClient::new(settings)?;
    core::check_provider(&api, place, &document).await?;
    request.query = given.query();
    request.body = Some(document);
    Ok(api.send(&request).await?.into_document())
}

async fn update(
    settings: &Settings,
    place: &CommandScope,
    resource: &Resource,
    given: &GivenOptions,
) -> Result<Option<Value>, Failure> {
    let change = (resource.update.changes)(given)?;
    let name = match given.text_value("name") {
        Some(_) => given.name()?.to_owned(),
        // The document names its resource.
        None => change.name.clone().ok_or_else(|| Failure::bad_input("the given document has no metadata.name: add the name of the resource, or give NAME on the command line"))?,
    };
    let api = ApiClient::new(settings)?;
    match rewrite_resource(&api, place, &[&name], given.query(), &change.apply).await? {
        RewriteOutcome::Changed(document) => Ok(document),
        RewriteOutcome::Same(_) => Err(Failure::bad_input(format_args!(
            "nothing to change in {}: give an option with a new value (see --help)",
            place.name_of_resource(&name)
        ))),
    }
}

/// Outcome of a read and write of a resource.
enum RewriteOutcome {
    /// Written; with the document in the API's answer.
    Changed(Option<Value>),
    /// Unchanged, so that nothing was sent.
    Same(Value),
}

/// Reads the resource at the beginning of `path`, changes it, and writes it to `path`, provided that it has not changed
/// since it was read.
async fn rewrite_resource(
    api: &ApiClient,
    place: &CommandScope,
    path: &[&str],
    query: Vec<(&'static str, String)>,
    apply: &edit::Apply,
) -> Result<RewriteOutcome, Failure> {
    let name = path.first().copied().unwrap_or_default();
    for _ in 0..MAX_TRIES {
        let read = read_resource(api, place, name).await?;
        let mut document = read.body.clone();
        apply(&mut document)?;
        if document == read.body {
            return Ok(RewriteOutcome::Same(document));
        }
        if document["spec"]["provider"] != read.body["spec"]["provider"] {
            core::check_provider(api, place, &document).await?;
        }
        let mut request = Request::new("PUT", place.path_segments(path), place.name_of_resource(name));
        request.query.clone_from(&query);
        request.if_match = read.etag;
        request.body = Some(document);
        if let Some(answer) = api.send_unless_changed(&request).await? {
            return Ok(RewriteOutcome::Changed(answer.into_document()));
        }
    }
    Err(Failure::failed(format_args!(
        "other clients changed {} each of {MAX_TRIES} times that it was read; nothing was changed",
        place.name_of_resource(name)
    )))
}
