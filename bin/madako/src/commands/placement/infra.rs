//! `madako infra`: infrastructure providers and clouds, namespaced or global.

use clap::Arg;
use madako_domain::placement::kind::Kind;
use serde_json::{Value, json};

use super::edit::{Change, put_value, put_values_unless_empty, value_at_path};
use super::given::GivenOptions;
use super::password::read_password;
use super::show::Column;
use super::words::{
    Create, Resource, Update, empty_options, global_metric, label_option, metric_option, name_argument,
    text_option,
};
use crate::failure::Failure;

const PROVIDER_COLUMNS: &[Column] = &[Column::new("type", "/spec/type"), Column::new("url", "/spec/im/url")];
const CLOUD_COLUMNS: &[Column] = &[
    Column::new("type", "/spec/type"),
    Column::new("metrics", "/spec/openstack/metrics"),
    Column::new("infra_provider", "/spec/openstack/infrastructure_provider/name"),
    Column::new("state", "/status/state"),
];
const PROVIDER_EXAMPLE: &str = "example --type im --url https://im.example.org:8800 --username me";
const CLOUD_MORE: &str = "Without --password the command asks for the password, or reads it from standard \
                          input.";

const fn provider_resource(
    kind: Kind,
    word: &'static str,
    aliases: &'static [&'static str],
    one: &'static str,
    many: &'static str,
) -> Resource {
    Resource {
        kind,
        word,
        aliases,
        one,
        many,
        columns: PROVIDER_COLUMNS,
        details: &[],
        create: None,
        register: Some(Create {
            more: CLOUD_MORE,
            options: || provider_options(true),
            build: build_provider,
            example: PROVIDER_EXAMPLE,
        }),
        update: Update {
            more: "",
            options: || provider_options(false),
            changes: change_provider,
            example: "example --url https://im.example.org:8800",
        },
        delete: empty_options,
        retry: false,
    }
}

pub(super) const PROVIDER: Resource = provider_resource(
    Kind::InfrastructureProvider,
    "provider",
    &["infrastructureprovider", "ip"],
    "an infrastructure provider",
    "infrastructure providers",
);

pub(super) const GLOBAL_PROVIDER: Resource = provider_resource(
    Kind::GlobalInfrastructureProvider,
    "globalprovider",
    &["globalinfrastructureprovider", "gprovider", "gip"],
    "a global infrastructure provider",
    "global infrastructure providers",
);

fn provider_options(new: bool) -> Vec<Arg> {
    let mut options = vec![name_argument("Name of the infrastructure provider")];
    if new {
        options.push(text_option("type", "TYPE", "Type of the provider").required(true).value_parser(["im"]));
    }
    options.extend([
        text_option("url", "URL", "Address of the provider's API").required(new),
        text_option("username", "NAME", "User of the provider's API"),
        text_option("password", "PASSWORD", "Password of the provider's API"),
        text_option("token", "TOKEN", "Token of the provider's API"),
    ]);
    options
}

fn build_provider(given: &GivenOptions) -> Result<Value, Failure> {
    let password = read_password(given.text_value("password"), "the infrastructure provider")?;
    Ok(json!({
        "metadata": { "name": given.name()? },
        "spec": {
            "type": "im",
            "im": {
                "url": given.json_value("url"),
                "username": given.json_value("username"),
                "password": password,
                "token": given.json_value("token"),
            },
        },
    }))
}

#[expect(clippy::unnecessary_wraps, reason = "other kinds' changes can be wrong")]
fn change_provider(given: &GivenOptions) -> Result<Change, Failure> {
    let given = given.clone();
    Ok(Change::new(move |provider| {
        for field in ["url", "username", "password", "token"] {
            put_value(provider, &["spec", "im", field], given.text_value(field));
        }
    }))
}

pub(super) const CLOUD: Resource = Resource {
    kind: Kind::Cloud,
    word: "cloud",
    aliases: &[],
    one: "a cloud",
    many: "clouds",
    columns: CLOUD_COLUMNS,
    details: &[],
    create: None,
    register: Some(Create {
        more: CLOUD_MORE,
        options: || cloud_options(true, true),
        build: build_cloud,
        example: "example --type openstack --infra-provider im --url https://keystone.example.org:5000/v3 \
                  --username me --project ours --metric heat 0.5",
    }),
    update: Update {
        more: "Labels and metrics are replaced.",
        options: || cloud_options(false, true),
        changes: change_cloud,
        example: "example -l location=DE",
    },
    delete: empty_options,
    retry: false,
};

pub(super) const GLOBAL_CLOUD: Resource = Resource {
    kind: Kind::GlobalCloud,
    word: "globalcloud",
    aliases: &["gcloud", "gc"],
    one: "a global cloud",
    many: "global clouds",
    columns: CLOUD_COLUMNS,
    details: &[],
    create: None,
    register: Some(Create {
        more: CLOUD_MORE,
        options: || cloud_options(true, false),
        build: build_cloud,
        example: "example --type openstack --global-infra-provider im --url https://keystone.example.org:5000/v3 \
                  --username me --project ours --global-metric heat 0.5",
    }),
    update: Update {
        more: "Labels and metrics are replaced.",
        options: || cloud_options(false, false),
        changes: change_cloud,
        example: "example -l location=DE",
    },
    delete: empty_options,
    retry: false,
};

fn cloud_options(new: bool, namespaced: bool) -> Vec<Arg> {
    let default = |arg: Arg, value: &'static str| if new { arg.default_value(value) } else { arg };
    let mut options = vec![name_argument("Name of the cloud")];
    if new {
        options.push(
            text_option("type", "TYPE", "Type of the cloud").required(true).value_parser(["openstack"]),
        );
    }
    let of_everybody =
        text_option("global-infra-provider", "NAME", "Global infrastructure provider that manages the cloud");
    if namespaced {
        let own = text_option(
            "infra-provider",
            "NAME",
            "Infrastructure provider of the namespace that manages the cloud",
        )
        .conflicts_with("global-infra-provider");
        options.push(if new { own.required_unless_present("global-infra-provider") } else { own });
        options.push(of_everybody);
    } else {
        options.push(of_everybody.required(new));
    }
    options.extend([
        text_option("url", "URL", "Address of OpenStack's identity service (Keystone)").required(new),
        text_option("username", "NAME", "Name or UUID of the OpenStack user").required(new),
        text_option("password", "PASSWORD", "Password of the OpenStack user"),
        text_option("project", "NAME", "Name or UUID of the OpenStack project").required(new),
        default(text_option("domain-name", "NAME", "Domain of the OpenStack user"), "Default"),
        default(text_option("domain-id", "ID", "Id of the domain of the OpenStack project"), "default"),
        global_metric(),
        label_option(),
    ]);
    if namespaced {
        options.push(metric_option());
    }
    options
}

/// The reference to the named provider.
fn provider_of(given: &GivenOptions) -> Option<Value> {
    let own = given.text_value("infra-provider").map(|name| (name, true));
    let (name, namespaced) = own.or_else(|| Some((given.text_value("global-infra-provider")?, false)))?;
    Some(json!({ "name": name, "namespaced": namespaced }))
}

fn build_cloud(given: &GivenOptions) -> Result<Value, Failure> {
    let metrics = given.read_metrics()?;
    let labels = given.read_entries("label")?;
    let password = read_password(given.text_value("password"), "the OpenStack user")?;
    Ok(json!({
        "metadata": { "name": given.name()?, "labels": labels },
        "spec": {
            "type": "openstack",
            "openstack": {
                "url": given.json_value("url"),
                "metrics": metrics,
                "infrastructure_provider": provider_of(given),
                "auth": {
                    "type": "password",
                    "password": {
                        "version": "3",
                        "user": {
                            "username": given.json_value("username"),
                            "password": password,
                            "domain_name": given.json_value("domain-name"),
                        },
                        "project": { "name": given.json_value("project"), "domain_id": given.json_value("domain-id") },
                    },
                },
            },
        },
    }))
}

fn change_cloud(given: &GivenOptions) -> Result<Change, Failure> {
    let (metrics, labels, provider) =
        (given.read_metrics()?, given.read_entries("label")?, provider_of(given));
    let given = given.clone();
    Ok(Change::new(move |cloud| {
        if !labels.is_empty() {
            *value_at_path(cloud, &["metadata", "labels"]) = labels.clone().into();
        }
        let openstack = value_at_path(cloud, &["spec", "openstack"]);
        put_value(openstack, &["url"], given.text_value("url"));
        put_values_unless_empty(openstack, &["metrics"], &metrics);
        if let Some(provider) = &provider {
            for field in ["name", "namespaced"] {
                *value_at_path(openstack, &["infrastructure_provider", field]) = provider[field].clone();
            }
        }
        let auth = |path: [&'static str; 2]| [&["auth", "password"][..], &path[..]].concat();
        put_value(openstack, &auth(["user", "username"]), given.text_value("username"));
        put_value(openstack, &auth(["user", "password"]), given.text_value("password"));
        put_value(openstack, &auth(["user", "domain_name"]), given.text_value("domain-name"));
        put_value(openstack, &auth(["project", "name"]), given.text_value("project"));
        put_value(openstack, &auth(["project", "domain_id"]), given.text_value("domain-id"));
    }))
}
