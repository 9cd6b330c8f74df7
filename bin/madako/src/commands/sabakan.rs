//! `madako sabakan`: switches the use of the machine registry sabakan on and off, and shows and sets its URL, query and
//! template.

mod removal;

use clap::Subcommand;
use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_domain::template::Template;
use madako_json::go::stored_json;
use madako_protocol::store::Store;
use madako_sabakan::endpoint_url;
use serde_json::json;

use crate::access::decode;
use crate::commands::cluster::show_cluster;
use crate::commands::settings::{
    is_enabled, print_scalar, replace_and_report, set_variables, show_variables, stored_setting,
    switch_setting,
};
use crate::failure::Failure;
use crate::input::read_text;
use crate::output::{OutputArgs, print_warning};

/// Shows or changes the integration with sabakan, the registry of machines.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    /// Switches the integration with sabakan on.
    #[command(after_help = "Example:\n  madako sabakan enable")]
    Enable,
    /// Switches the integration with sabakan off: the leader neither polls the registry nor plans.
    #[command(after_help = "Example:\n  madako sabakan disable")]
    Disable,
    /// Shows whether the integration with sabakan is on: true or false.
    #[command(after_help = "Example:\n  madako sabakan is-enabled")]
    IsEnabled(OutputArgs),
    /// Stores the URL of sabakan.
    ///
    /// The command appends /graphql unless the path ends with it.
    #[command(after_help = "Example:\n  madako sabakan set-url http://10.0.0.1:10080")]
    SetUrl {
        /// An absolute http or https URL
        url: String,
    },
    /// Shows the stored URL of sabakan's GraphQL API.
    #[command(after_help = "Example:\n  madako sabakan get-url")]
    GetUrl(OutputArgs),
    /// Stores the template of the cluster.
    ///
    /// A template is a cluster configuration with one control plane node and at least one other node, all without
    /// addresses. The command validates the whole template. The service regenerates the cluster from it at once.
    #[command(after_help = "Example:\n  madako sabakan set-template template.yml")]
    SetTemplate {
        /// Template in YAML or JSON; - reads standard input
        file: String,
    },
    /// Shows the stored template.
    #[command(after_help = "Example:\n  madako sabakan get-template > template.yml")]
    GetTemplate(OutputArgs),
    /// Stores the variables of the query for machines.
    ///
    /// FILE contains a JSON object like this: {"having": {"roles": ["compute"], "racks": [0, 1], "states": ["HEALTHY"],
    /// "labels": [{"name": "foo", "value": "bar"}], "minDaysBeforeRetire": 90}, "notHaving": {"roles": ["boot"],
    /// "states": ["RETIRED"]}}.
    ///
    /// Stored variables replace all defaults of the query: the service sends null for an absent field.
    #[command(after_help = "Example:\n  madako sabakan set-variables variables.json")]
    SetVariables {
        /// Variables in JSON; - reads standard input
        file: String,
    },
    /// Shows the stored variables of the query.
    #[command(after_help = "Example:\n  madako sabakan get-variables")]
    GetVariables(OutputArgs),
    /// Confirms the removal of many nodes that vanished from the registry at once.
    ///
    /// The removal guard holds back an observation in which more than a tenth of the cluster's nodes (and more than
    /// one) are gone, until three polls in a row agree. This command releases it at once.
    #[command(after_help = "Example:\n  madako sabakan confirm-removal --dry-run")]
    ConfirmRemoval(removal::Args),
}

pub(crate) async fn run(command: Command, store: &dyn Store) -> Result<(), Failure> {
    match command {
        Command::Enable => switch_setting(store, keys::SABAKAN_DISABLED, false).await,
        Command::Disable => switch_setting(store, keys::SABAKAN_DISABLED, true).await,
        Command::IsEnabled(args) => is_enabled(&args, store, keys::SABAKAN_DISABLED).await,
        Command::SetUrl { url } => {
            replace_and_report("URL", store, keys::SABAKAN_URL, endpoint_url(&url)?.into_bytes()).await
        }
        Command::GetUrl(args) => get_url(&args, store).await,
        Command::SetTemplate { file } => set_template(&read_text(&file)?, store).await,
        Command::GetTemplate(args) => {
            let entry =
                stored_setting(store, keys::SABAKAN_TEMPLATE, "cluster template", "sabakan set-template")
                    .await?;
            show_cluster(&args, &decode::<Cluster>(keys::SABAKAN_TEMPLATE, &entry)?)
        }
        Command::SetVariables { file } => {
            set_variables(&read_text(&file)?, store, keys::SABAKAN_VARIABLES).await
        }
        Command::GetVariables(args) => {
            const KEY: &str = keys::SABAKAN_VARIABLES;
            let entry = stored_setting(store, KEY, "query variables", "sabakan set-variables").await?;
            show_variables(&args, KEY, &entry)
        }
        Command::ConfirmRemoval(args) => removal::run(&args, store).await,
    }
}

async fn get_url(args: &OutputArgs, store: &dyn Store) -> Result<(), Failure> {
    let entry = stored_setting(store, keys::SABAKAN_URL, "URL of the registry", "sabakan set-url").await?;
    let url = String::from_utf8_lossy(&entry.value);
    print_scalar(args, "url", &url, &json!(url))
}

async fn set_template(text: &str, store: &dyn Store) -> Result<(), Failure> {
    let template = Template::from_yaml(text)?;
    for warning in template.warnings() {
        print_warning(warning);
    }
    let value = stored_json(template.cluster())?.into_bytes();
    replace_and_report("template", store, keys::SABAKAN_TEMPLATE, value).await
}
