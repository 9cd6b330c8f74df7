//! `madako kube`, `infra`, `os` and `core`: placement's resources, with krakectl's words and options.
//!
//! For: people and scripts that know krakectl. The commands are one table (a [`Resource`] a kind); what is done to a
//! resource is the same for all kinds, and only what a kind is made of has code of its own.
//!
//! Guarantees: what is sent is what krakectl sends, as far as that says what was typed; an update changes only what was
//! asked for, of exactly the resource that was read, where the service knows `ETag`s; every request has a deadline, and
//! every answer a limit; passwords are in no message and no `Debug` output.
//! Does not: judge a resource. The service does, and its every complaint is shown.

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
mod os;
mod password;
mod show;
#[cfg(test)]
mod tests;
mod words;

use std::fmt;
use std::path::Path;

use clap::ArgMatches;
use madako_domain::placement::kind::Kind;
use serde_json::Value;

use self::client::{Api, Request};
use self::config::Settings;
use self::given::Given;
use self::words::{Create, GROUPS, Resource, Verb};
use crate::failure::Failure;
use crate::limits::MAX_TRIES;
use crate::output::{Format, printable, warn};

/// One of krakectl's commands, as it was typed.
pub(crate) struct Command {
    resource: &'static Resource,
    verb: Verb,
    given: Given,
}

impl fmt::Debug for Command {
    /// Without the options: there may be a password among them.
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
        let (verb, matches) = matches.subcommand().ok_or_else(missing)?;
        let group = GROUPS.iter().find(|known| known.word == group).ok_or_else(missing)?;
        let resource = group.resources.iter().find(|known| known.word == word).ok_or_else(missing)?;
        let verb =
            Verb::ALL.into_iter().find(|known| resource.word_of(*known) == Some(verb)).ok_or_else(missing)?;
        Ok(Self { resource, verb, given: Given::new(matches.clone()) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Subcommand for Command {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        command.subcommands(GROUPS.iter().map(words::group))
    }

    fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        GROUPS.iter().any(|group| group.word == name)
    }
}

/// Which resources a command is about.
#[derive(Debug, Clone)]
struct Place {
    kind: Kind,
    namespace: Option<String>,
}

impl Place {
    fn segments(&self, rest: &[&str]) -> Vec<String> {
        let mut segments = vec![self.kind.api().name()];
        if let Some(namespace) = &self.namespace {
            segments.extend(["namespaces", namespace.as_str()]);
        }
        segments.push(self.kind.plural());
        segments.iter().chain(rest).map(|segment| (*segment).to_owned()).collect()
    }

    /// What a resource is called in messages.
    fn called(&self, name: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{name}", self.kind),
            None => format!("{} {name}", self.kind),
        }
    }
}

/// Runs the command; `config` is the file that was named.
pub(crate) async fn run(command: Command, config: Option<&Path>) -> Result<(), Failure> {
    let Command { resource, verb, given } = command;
    let settings = Settings::load(config, given.text("api-url"))?;
    let format = given.format();
    let namespace = if resource.kind.namespaced() && !given.flag("all") {
        Some(given.text("namespace").map_or_else(|| settings.user(), |named| Ok(named.to_owned()))?)
    } else {
        None
    };
    let place = Place { kind: resource.kind, namespace };
    let answer = match verb {
        Verb::List => return list(&Api::new(&settings)?, &place, resource, format).await,
        Verb::Explain => return explain::run(&settings, &place, &given, format).await,
        Verb::Create | Verb::Register => {
            let how =
                resource.creation(verb).ok_or_else(|| Failure::bad_input("there is no such command"))?;
            create(&settings, &place, how, &given).await?
        }
        Verb::Get => {
            let api = Api::new(&settings)?;
            let mut document = read(&api, &place, given.name()?).await?.body;
            if resource.kind == Kind::Cluster {
                cluster::add_inherited(&api, &mut document).await?;
            }
            Some(document)
        }
        Verb::Update => update(&settings, &place, resource, &given).await?,
        Verb::Delete => delete::run(&Api::new(&settings)?, &place, &given, format).await?,
        Verb::SetState => Some(cluster::set_state(&Api::new(&settings)?, &place, &given).await?),
        Verb::Retry => {
            let name = given.name()?;
            let path = place.segments(&[name, "retry"]);
            Api::new(&settings)?.send(&Request::new("PUT", path, place.called(name))).await?.document()
        }
    };
    let waited = given.text("wait").filter(|_| verb != Verb::Delete);
    if let (Some(waited), Some(state)) =
        (waited, answer.as_ref().and_then(|it| it["status"]["state"].as_str()))
        && !state.eq_ignore_ascii_case(waited)
    {
        warn(format_args!("it is {} now, not {waited}", printable(state)));
    }
    match answer {
        Some(document) => show::one(resource, format, &document),
        None => Ok(()),
    }
}

async fn list(api: &Api, place: &Place, resource: &Resource, format: Format) -> Result<(), Failure> {
    let request = Request::new("GET", place.segments(&[]), format!("the list of {}", resource.many));
    let mut answer = api.send(&request).await?;
    match answer.body.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => show::many(resource, format, &items),
        _ => Err(Failure::failed(format_args!("{} has no items: is this Krake's API?", request.subject))),
    }
}

async fn read(api: &Api, place: &Place, name: &str) -> Result<client::Answer, Failure> {
    api.send(&Request::new("GET", place.segments(&[name]), place.called(name))).await
}

async fn create(
    settings: &Settings,
    place: &Place,
    how: &Create,
    given: &Given,
) -> Result<Option<Value>, Failure> {
    let document = (how.build)(given)?;
    let name = document["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut request = Request::new("POST", place.segments(&[]), place.called(&name));
    let api = Api::new(settings)?;
    core::check_provider(&api, place, &document).await?;
    request.query = given.query();
    request.body = Some(document);
    Ok(api.send(&request).await?.document())
}

/// Changes what was typed.
async fn update(
    settings: &Settings,
    place: &Place,
    resource: &Resource,
    given: &Given,
) -> Result<Option<Value>, Failure> {
    let change = (resource.update.changes)(given)?;
    let name = match given.text("name") {
        Some(_) => given.name()?.to_owned(),
        // The document itself says which resource it is.
        None => change.name.clone().ok_or_else(|| Failure::bad_input("a name is missing"))?,
    };
    let api = Api::new(settings)?;
    match rewrite(&api, place, &[&name], given.query(), &change.apply).await? {
        Rewritten::Changed(document) => Ok(document),
        Rewritten::Same(_) => Err(Failure::bad_input(format_args!(
            "nothing of {} would change: say what is to be changed (--help tells how)",
            place.called(&name)
        ))),
    }
}

/// What became of a resource that was read.
enum Rewritten {
    /// It was written; the document that the API answered.
    Changed(Option<Value>),
    /// Nothing would have changed, and nothing was sent.
    Same(Value),
}

/// Reads the resource that `path` begins with, changes it, and writes it back to `path`, as long as it is still what was
/// read.
async fn rewrite(
    api: &Api,
    place: &Place,
    path: &[&str],
    query: Vec<(&'static str, String)>,
    apply: &edit::Apply,
) -> Result<Rewritten, Failure> {
    let name = path.first().copied().unwrap_or_default();
    for _ in 0..MAX_TRIES {
        let read = read(api, place, name).await?;
        let mut document = read.body.clone();
        apply(&mut document)?;
        if document == read.body {
            return Ok(Rewritten::Same(document));
        }
        if document["spec"]["provider"] != read.body["spec"]["provider"] {
            core::check_provider(api, place, &document).await?;
        }
        let mut request = Request::new("PUT", place.segments(path), place.called(name));
        request.query.clone_from(&query);
        request.if_match = read.etag;
        request.body = Some(document);
        if let Some(answer) = api.send_unless_changed(&request).await? {
            return Ok(Rewritten::Changed(answer.document()));
        }
    }
    Err(Failure::failed(format_args!(
        "other clients changed {} each of {MAX_TRIES} times that it was read; nothing was changed",
        place.called(name)
    )))
}
