//! The table of the placement commands and their options.

use std::path::PathBuf;

use clap::{Arg, ArgAction, Args as _, Command, ValueHint, value_parser};
use madako_domain::placement::kind::Kind;
use madako_json::krake::tagged::Variants;
use madako_json::named;
use serde_json::Value;
use strum::{IntoStaticStr, VariantArray};

use super::edit::Change;
use super::given::GivenOptions;
use super::show::Column;
use super::{API_URL, application, cluster, core, infra, os};
use crate::failure::Failure;
use crate::list::ListArgs;
use crate::output::Format;

pub(super) const GROUPS: [Group; 4] = [
    Group {
        word: "kube",
        alias: Some("kubernetes"),
        about: "Manages applications and Kubernetes clusters of placement",
        resources: &[application::APPLICATION, cluster::CLUSTER],
    },
    Group {
        word: "infra",
        alias: Some("infrastructure"),
        about: "Manages clouds and infrastructure providers of placement",
        resources: &[infra::PROVIDER, infra::GLOBAL_PROVIDER, infra::CLOUD, infra::GLOBAL_CLOUD],
    },
    Group {
        word: "os",
        alias: Some("openstack"),
        about: "Manages OpenStack projects and Magnum clusters of placement",
        resources: &[os::PROJECT, os::MAGNUM_CLUSTER],
    },
    Group {
        word: "core",
        alias: None,
        about: "Manages metrics, metrics providers and roles of placement",
        resources: &[
            core::METRIC,
            core::GLOBAL_METRIC,
            core::METRICS_PROVIDER,
            core::GLOBAL_METRICS_PROVIDER,
            core::ROLE,
            core::ROLE_BINDING,
        ],
    },
];

/// Kinds that become owners when the service binds a resource to them.
const OWNERS: [Kind; 4] = [Kind::Cluster, Kind::Cloud, Kind::GlobalCloud, Kind::Project];

/// Commands with a common first word.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) word: &'static str,
    alias: Option<&'static str>,
    about: &'static str,
    pub(super) resources: &'static [Resource],
}

#[derive(Debug)]
pub(super) struct Resource {
    pub(super) kind: Kind,
    /// The word, and krakectl's aliases.
    pub(super) word: &'static str,
    pub(super) aliases: &'static [&'static str],
    /// Singular with its article, and plural.
    pub(super) one: &'static str,
    pub(super) many: &'static str,
    /// Columns of a list, and further lines of one resource.
    pub(super) columns: &'static [Column],
    pub(super) details: &'static [Column],
    /// Ways of creation: `create`, and `register` for an existing one.
    pub(super) create: Option<Create>,
    pub(super) register: Option<Create>,
    pub(super) update: Update,
    /// Options of the deletion.
    pub(super) delete: fn() -> Vec<Arg>,
    /// True if the user can request a retry.
    pub(super) retry: bool,
}

#[derive(Debug)]
pub(super) struct Create {
    /// Further explanation for the help.
    pub(super) more: &'static str,
    pub(super) options: fn() -> Vec<Arg>,
    /// The document for the request.
    pub(super) build: fn(&GivenOptions) -> Result<Value, Failure>,
    /// The arguments in the example.
    pub(super) example: &'static str,
}

#[derive(Debug)]
pub(super) struct Update {
    pub(super) more: &'static str,
    pub(super) options: fn() -> Vec<Arg>,
    /// The change of the existing document.
    pub(super) changes: fn(&GivenOptions) -> Result<Change, Failure>,
    pub(super) example: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum Verb {
    List,
    Register,
    Create,
    Get,
    Update,
    Delete,
    Retry,
    Explain,
    SetState,
}

named!(Verb all);

impl Resource {
    /// The command of a verb; `None`: the kind does not have it.
    pub(super) fn command_word(&self, verb: Verb) -> Option<&'static str> {
        let has = match verb {
            Verb::List | Verb::Get | Verb::Update | Verb::Delete => true,
            Verb::Create => self.create.is_some(),
            Verb::Register => self.register.is_some(),
            Verb::Retry => self.retry,
            Verb::Explain => self.kind == Kind::Application,
            Verb::SetState => self.kind == Kind::Cluster,
        };
        has.then(|| verb.name())
    }

    /// The creation by `create` or `register`.
    pub(super) fn creation_of_verb(&self, verb: Verb) -> Option<&Create> {
        match verb {
            Verb::Create => self.create.as_ref(),
            Verb::Register => self.register.as_ref(),
            _ => None,
        }
    }

    fn further_help(&self, verb: Verb) -> &'static str {
        self.creation_of_verb(verb).map_or("", |how| how.more)
    }

    fn describe_verb(&self, verb: Verb) -> (String, &'static str) {
        let (one, many) = (self.one, self.many);
        match verb {
            Verb::List if self.kind == Kind::Application => (
                format!("Lists {many}"),
                "CLUSTER, SCORE and SINCE name the cluster that the application is bound to, its score, and the age of \
                 that binding. WHY NOT RUNNING comes from the explanation of the application, as SCORE does, for up to 500 \
                 applications and 5 s: those that do not run come first.",
            ),
            Verb::List => (format!("Lists {many}"), ""),
            Verb::Register => (format!("Registers {one} that already exists"), self.further_help(verb)),
            Verb::Create => (format!("Creates {one}"), self.further_help(verb)),
            Verb::Get => (format!("Shows {one}"), ""),
            Verb::Update => (format!("Changes the given fields of {one}"), self.update.more),
            Verb::Delete if OWNERS.contains(&self.kind) => (
                format!("Deletes {one}, and the resources that it owns"),
                "The service also deletes the clusters of a cloud, the Magnum clusters of a project, and the \
                 applications that are bound to a cluster. The command names these resources and asks first. Without \
                 a terminal, it refuses with exit code 2, unless --yes is given or nothing else would be deleted.",
            ),
            Verb::Delete => (format!("Deletes {one}"), ""),
            Verb::Retry => (format!("Retries the failed move or deletion of {one}"), ""),
            Verb::Explain => (
                format!("Explains the placement of {one}"),
                "The command shows the best cluster with its score and metrics, and a line for each other one with \
                 its metrics or its obstacle. --all shows all metrics and obstacles of each cluster. --with and \
                 --without show the effect of another value or of one cluster less. An instance that does \
                 not lead answers with the last decision and the host of the leader. Krake has no such \
                 command.",
            ),
            Verb::SetState => (
                format!("Sets whether {one} accepts applications"),
                "The scheduler binds applications to clusters that are online. Krake's cluster observer \
                 writes the state of a cluster; Madako has no observer yet, so a registered cluster stays \
                 PENDING until this command or an observer of Krake sets its state. Once a cluster has been \
                 offline for reschedule_after, its applications move to other clusters that fit. The role \
                 needs the verb update on clusters/status. krakectl has no such command.",
            ),
        }
    }

    pub(super) fn build_options(&self, verb: Verb) -> Vec<Arg> {
        let name = || Arg::new("name").value_name("NAME").required(true).help("Name of the resource");
        match verb {
            Verb::List if self.kind.namespaced() => {
                vec![
                    switch_option("all", "Lists the resources of all namespaces")
                        .short('a')
                        .conflicts_with("namespace"),
                ]
            }
            Verb::List => Vec::new(),
            Verb::Create | Verb::Register => {
                self.creation_of_verb(verb).map(|how| (how.options)()).unwrap_or_default()
            }
            Verb::Get | Verb::Retry => vec![name()],
            Verb::Explain => vec![
                name(),
                repeated_text_option(
                    "with",
                    "METRIC=VALUE",
                    "Assumes this value of a metric; may be given several times",
                ),
                repeated_text_option("without", "CLUSTER", "Excludes a cluster; may be given several times"),
                switch_option("candidates", "Shows all metrics and all obstacles of each candidate")
                    .long("all"),
            ],
            Verb::Update => (self.update.options)(),
            Verb::Delete => {
                let asks = [
                    switch_option("yes", "Deletes all dependent resources without a question").short('y'),
                    switch_option("dry-run", "Shows the dependent resources, and deletes nothing"),
                ];
                [vec![name()], (self.delete)(), asks.to_vec()].concat()
            }
            Verb::SetState => cluster::state_options().to_vec(),
        }
    }

    fn example_arguments(&self, verb: Verb) -> &'static str {
        match verb {
            Verb::List if self.kind == Kind::Application => "--all --sort-by state",
            Verb::List if self.kind.namespaced() => "--all --watch",
            Verb::List => "-o json",
            Verb::Create | Verb::Register => self.creation_of_verb(verb).map_or("", |how| how.example),
            Verb::Update => self.update.example,
            Verb::Get => "example -o yaml",
            Verb::Delete => "example --dry-run",
            Verb::Retry => "example",
            Verb::SetState => "example online",
            Verb::Explain => "example --with heat_demand=0.2",
        }
    }

    fn build_command(&self, group: &str, verb: Verb, word: &'static str) -> Command {
        let (about, more) = self.describe_verb(verb);
        let example =
            format!("Example:\n  madako {group} {} {word} {}", self.word, self.example_arguments(verb));
        let mut command = Command::new(word).after_help(example).args(self.build_options(verb));
        if !more.is_empty() {
            command = command.long_about(format!("{about}.\n\n{more}"));
        }
        if self.kind.namespaced() {
            command = command.arg(
                text_option("namespace", "NAMESPACE", "Namespace [default: the user of krakectl.yaml]")
                    .short('n'),
            );
        }
        command = match verb {
            // The documentation of the options is not a text of the command.
            Verb::List => ListArgs::augment_args(command),
            _ => command.arg(output_option()),
        };
        command.about(about).args(api_options())
    }
}

pub(super) fn group_command(group: &Group) -> Command {
    let resources = group.resources.iter().map(|resource| {
        let verbs = Verb::ALL
            .iter()
            .filter_map(|&verb| Some(resource.build_command(group.word, verb, resource.command_word(verb)?)));
        Command::new(resource.word)
            .about(format!("Manages {}", resource.many))
            .visible_aliases(resource.aliases.iter().copied())
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommands(verbs)
    });
    Command::new(group.word)
        .about(group.about)
        .args(api_options().map(|arg| arg.global(true)))
        .visible_aliases(group.alias)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(resources)
}

fn output_option() -> Arg {
    Arg::new("output")
        .short('o')
        .long("output")
        .value_name("FORM")
        .value_parser(value_parser!(Format))
        .default_value("table")
        .help("Form of the output")
}

/// Options for the API: krakectl's file instead of CKE's, under the same name, and the address.
fn api_options() -> [Arg; 2] {
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .value_hint(ValueHint::FilePath)
        .help(
            "krakectl's configuration file [default: krakectl.yaml here, in ~/.config or in /etc/krakectl]",
        );
    let url = text_option(API_URL, "URL", "Address of the API, instead of api_url of the configuration file");
    [config, url.value_hint(ValueHint::Url)]
}

pub(super) fn text_option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

/// The values of `--type`: the types that the domain has.
pub(super) fn provider_types<T: Variants>() -> Vec<&'static str> {
    T::VARIANTS.iter().map(|(of_type, _)| *of_type).collect()
}

/// An option that may be repeated.
pub(super) fn repeated_text_option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    text_option(name, value, help).action(ArgAction::Append)
}

pub(super) fn switch_option(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

pub(super) fn integer_option(name: &'static str, help: &'static str) -> Arg {
    text_option(name, "NUMBER", help)
        .value_parser(|text: &str| text.parse::<i64>().map_err(|_| "expected a whole number".to_owned()))
}

pub(super) fn decimal_option(name: &'static str, help: &'static str) -> Arg {
    text_option(name, "NUMBER", help).value_parser(|text: &str| {
        let number = text.parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| "expected a finite decimal number".to_owned())
    })
}

/// The name of a resource to be created.
pub(super) fn name_argument(help: &'static str) -> Arg {
    Arg::new("name").value_name("NAME").required(true).help(help)
}

pub(super) fn label_option() -> Arg {
    repeated_text_option("label", "KEY=VALUE", "Label of the resource; may be given several times").short('l')
}

/// Metrics of the namespace with their weights.
pub(super) fn metric_option() -> Arg {
    weighted_option("metric", "WEIGHT", "Metric of the namespace and its weight; may be given several times")
}

/// Global metrics with their weights.
pub(super) fn global_metric() -> Arg {
    weighted_option("global-metric", "WEIGHT", "Global metric and its weight; may be given several times")
}

/// Pairs of a name and a number.
pub(super) fn weighted_option(name: &'static str, number: &'static str, help: &'static str) -> Arg {
    repeated_text_option(name, "METRIC", help).num_args(2).value_names(["METRIC", number])
}

/// Back-off options. Without defaults in an update: an option that is not given leaves its field.
pub(super) fn backoff_options(defaults: bool) -> [Arg; 3] {
    let one = |arg: Arg, default: &'static str| if defaults { arg.default_value(default) } else { arg };
    [
        one(integer_option("backoff", "Factor by which the delay between attempts grows"), "1"),
        one(integer_option("backoff_delay", "Seconds between attempts").alias("backoff-delay"), "1"),
        one(
            integer_option("backoff_limit", "Maximum number of attempts; -1 is no limit")
                .alias("backoff-limit"),
            "-1",
        ),
    ]
}

/// Waiting for a state; the last of `states` is the default.
pub(super) fn wait(states: &'static [&'static str]) -> Arg {
    let last = states.last().copied().unwrap_or_default();
    text_option("wait", "STATE", "Waits up to a minute for a state; without a value, for the last of these")
        .num_args(0..=1)
        .default_missing_value(last)
        .value_parser(states.to_vec())
}

pub(super) fn empty_options() -> Vec<Arg> {
    Vec::new()
}
