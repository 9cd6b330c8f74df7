//! `madako core`: metrics and their providers, namespaced or global, and roles.

use clap::Arg;
use madako_domain::placement::core::MetricsProviderKind;
use madako_domain::placement::kind::Kind;
use madako_json::krake::schema::{FieldSchema, Shape};
use madako_json::krake::tagged::Variants;
use serde_json::{Map, Value, json};

use super::CommandScope;
use super::client::{ApiClient, Request};
use super::edit::{Apply, Change, put_value, value_at_path};
use super::given::GivenOptions;
use super::show::Column;
use super::words::{
    Create, Resource, Update, decimal_option, empty_options, integer_option, name_argument, provider_types,
    text_option, weighted_option,
};
use crate::failure::Failure;
use crate::input::read_documents;
use crate::output::print_warning;

const METRIC_COLUMNS: &[Column] = &[
    Column::new("provider", "/spec/provider/name"),
    Column::new("min", "/spec/min"),
    Column::new("max", "/spec/max"),
    Column::new("allowed_values", "/spec/allowed_values"),
];

pub(super) const METRIC: Resource = Resource {
    kind: Kind::Metric,
    word: "metric",
    aliases: &[],
    one: "a metric",
    many: "metrics",
    columns: METRIC_COLUMNS,
    details: &[],
    create: Some(Create {
        more: "",
        options: || metric_options("mp-name", true),
        build: |given| build_metric(given, "mp-name"),
        example: "heat --mp-name prometheus --min 0 --max 5",
    }),
    register: None,
    update: Update {
        more: "",
        options: || metric_options("mp-name", false),
        changes: |given| Ok(change_metric(given, "mp-name")),
        example: "heat --max 10",
    },
    delete: empty_options,
    retry: false,
};

pub(super) const GLOBAL_METRIC: Resource = Resource {
    kind: Kind::GlobalMetric,
    word: "globalmetric",
    aliases: &["gm"],
    one: "a global metric",
    many: "global metrics",
    columns: METRIC_COLUMNS,
    details: &[],
    create: Some(Create {
        more: "",
        options: || metric_options("gmp-name", true),
        build: |given| build_metric(given, "gmp-name"),
        example: "heat --gmp-name prometheus --min 0 --max 5 --metric-name heat_demand",
    }),
    register: None,
    update: Update {
        more: "",
        options: || metric_options("gmp-name", false),
        changes: |given| Ok(change_metric(given, "gmp-name")),
        example: "heat --max 10",
    },
    delete: empty_options,
    retry: false,
};

fn metric_options(provider: &'static str, new: bool) -> Vec<Arg> {
    let named = if new {
        "Name of the metric at the provider [default: that of the metric]"
    } else {
        "Name of the metric at the provider"
    };
    vec![
        name_argument("Name of the metric"),
        text_option(provider, "NAME", "Metrics provider").required(new),
        decimal_option("min", "Least value").required(new),
        decimal_option("max", "Greatest value").required(new),
        integer_option("allowed-values", "Allowed values; without them, any value from least to greatest")
            .num_args(0..)
            .action(clap::ArgAction::Append),
        text_option("metric-name", "NAME", named),
    ]
}

fn allowed_numbers(given: &GivenOptions) -> Vec<i64> {
    let mut values = given.whole_numbers("allowed-values");
    values.sort_unstable();
    values
}

fn build_metric(given: &GivenOptions, provider: &str) -> Result<Value, Failure> {
    let name = given.name()?;
    let metric = json!({
        "metadata": { "name": name },
        "spec": {
            "min": given.decimal_value("min"),
            "max": given.decimal_value("max"),
            "allowed_values": allowed_numbers(given),
            "provider": { "name": given.json_value(provider), "metric": given.text_value("metric-name").unwrap_or(name) },
        },
    });
    check_range(&metric)?;
    Ok(metric)
}

/// Refuses a metric with an empty range of values. Krake's API would store it, and each fetch of the metric would fail.
fn check_range(metric: &Value) -> Result<(), Failure> {
    match (metric["spec"]["min"].as_f64(), metric["spec"]["max"].as_f64()) {
        (Some(min), Some(max)) if min > max => Err(Failure::bad_input(format_args!(
            "the metric would have no value: its least value {min} is above its greatest value {max} (--min, --max)"
        ))),
        _ => Ok(()),
    }
}

/// Refuses a metric whose provider does not exist. Krake's API would store it, and each fetch of the metric would fail.
pub(super) async fn check_provider(
    api: &ApiClient,
    at: &CommandScope,
    metric: &Value,
) -> Result<(), Failure> {
    let (kind, word) = match at.kind {
        Kind::Metric => (Kind::MetricsProvider, "mp"),
        Kind::GlobalMetric => (Kind::GlobalMetricsProvider, "gmp"),
        _ => return Ok(()),
    };
    let name = metric["spec"]["provider"]["name"].as_str().unwrap_or_default();
    let of = CommandScope { kind, namespace: at.namespace.clone() };
    match api.find(&Request::new("GET", of.path_segments(&[name]), of.name_of_resource(name))).await {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(Failure::bad_input(format_args!(
            "the metric would have no value: there is no {}; madako core {word} create creates it, madako \
             core {word} list shows the existing ones",
            of.name_of_resource(name)
        ))),
        // A role may allow access to metrics alone.
        Err(failure) => {
            let why = failure.message().unwrap_or_default();
            print_warning(format_args!("it is unknown whether the metrics provider exists: {why}"));
            Ok(())
        }
    }
}

fn change_metric(given: &GivenOptions, provider: &'static str) -> Change {
    let given = given.clone();
    let apply: Apply = Box::new(move |metric| {
        put_value(metric, &["spec", "min"], given.decimal_value("min"));
        put_value(metric, &["spec", "max"], given.decimal_value("max"));
        if given.has_option("allowed-values") {
            *value_at_path(metric, &["spec", "allowed_values"]) = allowed_numbers(&given).into();
        }
        put_value(metric, &["spec", "provider", "name"], given.text_value(provider));
        put_value(metric, &["spec", "provider", "metric"], given.text_value("metric-name"));
        check_range(metric)
    });
    Change { name: None, apply }
}

const PROVIDER_COLUMNS: &[Column] = &[Column::new("type", "/spec/type")];
const PROVIDER_DETAILS: &[Column] = &[Column::for_tagged_value("/spec", MetricsProviderKind::fields)];

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
        details: PROVIDER_DETAILS,
        create: Some(Create {
            more: "A provider needs every option whose help names its type.",
            options: || {
                let of_type = text_option("type", "TYPE", "Type of the provider").required(true);
                let mut options = provider_arguments();
                options.insert(1, of_type.value_parser(provider_types::<MetricsProviderKind>()));
                options
            },
            build: build_provider,
            example: "prometheus --type prometheus --url http://prometheus.example.org:9090",
        }),
        register: None,
        update: Update {
            more: "The type does not change. The metrics of a static provider are replaced.",
            options: provider_arguments,
            changes: change_provider,
            example: "static --metric heat 0.9 --metric cost 0.1",
        },
        delete: empty_options,
        retry: false,
    }
}

pub(super) const METRICS_PROVIDER: Resource = provider_resource(
    Kind::MetricsProvider,
    "metricsprovider",
    &["mp"],
    "a metrics provider",
    "metrics providers",
);

pub(super) const GLOBAL_METRICS_PROVIDER: Resource = provider_resource(
    Kind::GlobalMetricsProvider,
    "globalmetricsprovider",
    &["gmp"],
    "a global metrics provider",
    "global metrics providers",
);

/// The option for each field of the types, under the name of the field.
pub(super) fn provider_options() -> [(&'static str, Arg); 8] {
    [
        ("url", text_option("url", "URL", "Address of the server")),
        (
            "metrics",
            weighted_option("metric", "VALUE", "Metric and its value; may be given several times").short('m'),
        ),
        ("table", text_option("table", "NAME", "Table with the metrics")),
        (
            "comparison_column",
            text_option("comparison-column", "NAME", "Column with the names of the metrics"),
        ),
        ("value_column", text_option("value-column", "NAME", "Column with the values of the metrics")),
        ("token", text_option("token", "TOKEN", "Token of the API")),
        ("org", text_option("org", "NAME", "Organization of the bucket")),
        ("bucket", text_option("bucket", "NAME", "Bucket with the metrics")),
    ]
}

fn provider_arguments() -> Vec<Arg> {
    let with_types = |(field, option): (&str, Arg)| {
        let mut types = provider_types::<MetricsProviderKind>();
        types.retain(|of_type| field_of_type(of_type, field).is_some());
        let help = option.get_help().map(ToString::to_string).unwrap_or_default();
        option.help(format!("{help} ({})", types.join(", ")))
    };
    let name = name_argument("Name of the metrics provider");
    std::iter::once(name).chain(provider_options().map(with_types)).collect()
}

fn field_of_type(of_type: &str, field: &str) -> Option<&'static FieldSchema> {
    MetricsProviderKind::fields(of_type)?.iter().find(|known| known.name == field)
}

/// The given fields of a type.
///
/// # Errors
/// The type is unknown, or an option belongs to other types.
fn fields_of(given: &GivenOptions, of_type: &str) -> Result<Map<String, Value>, Failure> {
    if MetricsProviderKind::fields(of_type).is_none() {
        return Err(Failure::failed(format_args!(
            "metrics providers of the type {of_type:?} cannot be changed by this command"
        )));
    }
    let mut fields = Map::new();
    for (field, option) in provider_options() {
        let option = option.get_id().as_str();
        let value = match field_of_type(of_type, field).map(|known| &known.shape) {
            None if given.has_option(option) => {
                return Err(Failure::bad_input(format_args!(
                    "--{option} is not for metrics providers of the type {of_type}"
                )));
            }
            Some(Shape::Map(_)) => {
                let values: Map<String, Value> = given
                    .read_weights(option)?
                    .into_iter()
                    .map(|(name, value)| (name, value.into()))
                    .collect();
                (!values.is_empty()).then(|| values.into())
            }
            _ => given.text_value(option).map(Value::from),
        };
        fields.extend(value.map(|value| (field.to_owned(), value)));
    }
    Ok(fields)
}

fn build_provider(given: &GivenOptions) -> Result<Value, Failure> {
    let of_type = given.text_value("type").unwrap_or_default();
    let fields = fields_of(given, of_type)?;
    let missing: Vec<String> = provider_options()
        .iter()
        .filter(|(field, _)| field_of_type(of_type, field).is_some() && !fields.contains_key(*field))
        .map(|(_, option)| format!("--{}", option.get_id()))
        .collect();
    if !missing.is_empty() {
        return Err(Failure::bad_input(format_args!(
            "a metrics provider of the type {of_type} needs {}",
            missing.join(", ")
        )));
    }
    Ok(json!({
        "metadata": { "name": given.name()? },
        "spec": { "type": of_type, of_type: fields },
    }))
}

fn change_provider(given: &GivenOptions) -> Result<Change, Failure> {
    // Problems that do not depend on the type are reported before the first connection.
    given.read_weights("metric")?;
    let given = given.clone();
    Ok(Change {
        name: None,
        apply: Box::new(move |provider| {
            let of_type = provider["spec"]["type"].as_str().unwrap_or_default().to_owned();
            for (field, value) in fields_of(&given, &of_type)? {
                *value_at_path(provider, &["spec", &of_type, &field]) = value;
            }
            Ok(())
        }),
    })
}

/// krakectl has no commands for roles; these take documents as `madako bootstrap` does.
pub(super) const ROLE: Resource = from_file(
    Kind::Role,
    "role",
    "a role",
    "roles",
    &[Column::new("rules", "/rules")],
    Create { more: FILE_MORE, options: file_options, build: build_from_file, example: "-f role.yaml" },
    "-f role.yaml",
);

pub(super) const ROLE_BINDING: Resource = from_file(
    Kind::RoleBinding,
    "rolebinding",
    "a role binding",
    "role bindings",
    &[Column::new("users", "/users"), Column::new("roles", "/roles")],
    Create { more: FILE_MORE, options: file_options, build: build_from_file, example: "-f rolebinding.yaml" },
    "-f rolebinding.yaml",
);

const FILE_MORE: &str = "FILE contains the document in YAML or JSON, with the name in its metadata.";

const fn from_file(
    kind: Kind,
    word: &'static str,
    one: &'static str,
    many: &'static str,
    columns: &'static [Column],
    create: Create,
    example: &'static str,
) -> Resource {
    Resource {
        kind,
        word,
        aliases: &[],
        one,
        many,
        columns,
        details: &[],
        create: Some(create),
        register: None,
        update: Update { more: FILE_MORE, options: file_options, changes: change_from_file, example },
        delete: empty_options,
        retry: false,
    }
}

fn file_options() -> Vec<Arg> {
    vec![text_option("file", "FILE", "The document; - reads standard input").short('f').required(true)]
}

fn build_from_file(given: &GivenOptions) -> Result<Value, Failure> {
    let file = given.text_value("file").unwrap_or_default();
    let mut documents = read_documents(file)?;
    match documents.len() {
        1 if documents[0]["metadata"]["name"]
            .as_str()
            .is_some_and(|name| !matches!(name, "" | "." | "..")) =>
        {
            Ok(documents.swap_remove(0))
        }
        1 => Err(Failure::bad_input(format_args!(
            "{file}: metadata.name is missing or unusable, expected the name of the resource"
        ))),
        many => Err(Failure::bad_input(format_args!("{file} contains {many} documents, expected one"))),
    }
}

fn change_from_file(given: &GivenOptions) -> Result<Change, Failure> {
    let document = build_from_file(given)?;
    let name = document["metadata"]["name"].as_str().map(str::to_owned);
    let change = Change::new(move |resource| {
        for (field, value) in document.as_object().into_iter().flatten() {
            match value {
                // Fields that only the service sets stay.
                Value::Object(inner) if field == "metadata" => {
                    for (field, value) in inner {
                        *value_at_path(resource, &["metadata", field]) = value.clone();
                    }
                }
                value => *value_at_path(resource, &[field]) = value.clone(),
            }
        }
    });
    Ok(Change { name, ..change })
}
