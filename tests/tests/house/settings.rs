//! Compares the settings and defaults in the operator's guide with the service, and checks that the examples in the
//! documents are valid.
//!
//! An example is a fenced block whose first line names its kind: `yaml config`, `yaml template`, `yaml constraints`,
//! `yaml scenario` or `json variables`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use madako_domain::constraints::Constraints;
use madako_domain::images::ImageName;
use madako_domain::machine::QueryVariables;
use madako_domain::obstacle;
use madako_domain::template::Template;
use madako_faults::Scenario;
use madako_json::strict::{Kind, Schema};
use madako_protocol::event::PlanBlockedBy;
use madako_supervisor::config::{Config, ConfigError, Placement, StoreChoice, schema};

use crate::repository::{text, texts};
use crate::{nothing, one};

/// Loads a configuration as the service does.
fn load(config: &str) -> Result<Config, ConfigError> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    file.write_all(config.as_bytes()).expect("the temporary file can be written");
    Config::load(Some(file.path()))
}

/// Every setting of the service.
fn known_settings() -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    add_settings(schema(), "", &mut known);
    assert!(known.contains("endpoints") && known.contains("embedded.listen"), "{known:?}");
    assert!(known.contains("placement.scheduler.stickiness"), "{known:?}");
    known
}

fn add_settings(schema: &Schema, section: &str, known: &mut BTreeSet<String>) {
    for (name, kind) in schema.fields {
        match kind {
            Kind::Object(schema) => add_settings(schema, &format!("{section}{name}."), known),
            Kind::Unused => {}
            _ => drop(known.insert(format!("{section}{name}"))),
        }
    }
}

/// The defaults of a service without any settings.
fn defaults() -> BTreeMap<String, String> {
    let config = load("").expect("nothing has to be set");
    let StoreChoice::Embedded(embedded) = &config.store else { panic!("the default is the embedded store") };
    BTreeMap::from([
        ("prefix".to_owned(), config.prefix.clone()),
        ("timeout".to_owned(), format!("{}s", config.timeout.as_secs())),
        ("embedded.data-dir".to_owned(), embedded.data_dir.display().to_string()),
        ("embedded.listen".to_owned(), embedded.listen.to_string()),
    ])
    .into_iter()
    .chain(placement_defaults())
    .chain(hold_defaults(&config))
    .chain(operation_defaults(&config))
    .collect()
}

fn hold_defaults(config: &Config) -> impl Iterator<Item = (String, String)> + use<> {
    let hold = config.repair.hold.as_ref().expect("it is on in the service");
    [
        ("enabled", "true".to_owned()),
        ("label", hold.label.to_string()),
        ("count", hold.count.to_string()),
        ("within", format!("{}s", hold.within.as_secs())),
    ]
    .map(|(name, default)| (format!("repair.hold.{name}"), default))
    .into_iter()
}

fn operation_defaults(config: &Config) -> impl Iterator<Item = (String, String)> + use<> {
    assert!(config.operations.settings.configured_images.0.is_empty());
    ImageName::ALL
        .map(|name| (format!("images.{name}"), name.default_image().to_owned()))
        .into_iter()
        .chain(backup_defaults())
}

/// The schedule is read as with keys for operations, which only the defaults do not need.
fn backup_defaults() -> impl Iterator<Item = (String, String)> {
    let keys = tempfile::tempdir().expect("a temporary directory can be made");
    let file = |name: &str, text: &str| {
        let path = keys.path().join(name);
        std::fs::write(&path, text).expect("a temporary file can be written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode can be set");
        path.display().to_string()
    };
    let (ssh, pki) = (file("ssh", SSH_KEY), file("pki", PKI_KEY));
    let text = format!("ssh: {{key_file: {ssh}}}\npki: {{key_file: {pki}}}\netcd_backup: {{every: 6h}}");
    let schedule = load(&text).expect("the interval is enough").operations.backup.expect("it has a section");
    [
        ("etcd_backup.dir", schedule.dir),
        ("etcd_backup.keep", schedule.keep.to_string()),
        ("etcd_backup.prove", schedule.prove.to_string()),
    ]
    .map(|(name, default)| (name.to_owned(), default))
    .into_iter()
}

const PKI_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";
const SSH_KEY: &str = "-----BEGIN OPENSSH PRIVATE KEY-----\n\
    b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n\
    QyNTUxOQAAACDBGymq6p0Mjal+nlsgItFUuAk4LvYLTdWUINOKeLAbvQAAAIib0FYim9BW\n\
    IgAAAAtzc2gtZWQyNTUxOQAAACDBGymq6p0Mjal+nlsgItFUuAk4LvYLTdWUINOKeLAbvQ\n\
    AAAEAvlo1nmO2Wor4E+QbRgdlwc89DZAPtK3ObeiTLAVqFVsEbKarqnQyNqX6eWyAi0VS4\n\
    CTgu9gtN1ZQg04p4sBu9AAAAAAECAwQF\n\
    -----END OPENSSH PRIVATE KEY-----\n";

fn placement_defaults() -> BTreeMap<String, String> {
    // Without keys nothing is encrypted, so that there is no default.
    let Placement { controllers, api, scheduler, metrics, encryption: _ } =
        load("placement: {}").expect("nothing has to be set").placement.expect("it has a section");
    let seconds = |duration: Duration| duration.as_secs_f64().to_string();
    [
        ("controllers", controllers.to_string()),
        ("metrics_interval", format!("{}s", metrics.interval.as_secs())),
        ("metric_max_age", format!("{}s", metrics.max_age.as_secs())),
        ("api.max_request_bytes", api.settings.body_bytes.to_string()),
        ("api.etcd.retry_transactions", api.settings.retry_transactions.to_string()),
        ("api.docs.problem_base_url", api.settings.problem_base_url.clone()),
        ("api.authentication.allow_anonymous", api.settings.allow_anonymous.to_string()),
        ("api.authentication.cors_origin", api.settings.cors_origin.clone()),
        ("api.insecure", api.insecure.to_string()),
        ("scheduler.reschedule_after", seconds(scheduler.reschedule_after)),
        ("scheduler.stickiness", scheduler.stickiness.to_string()),
        ("scheduler.debounce", seconds(scheduler.debounce)),
        ("scheduler.max_moves.percent", scheduler.max_moves.percent.to_string()),
        ("scheduler.max_moves.at_least", scheduler.max_moves.at_least.to_string()),
        (
            "scheduler.automatic_cluster_creation.deletion_retention",
            seconds(scheduler.cluster_creation.deletion_retention),
        ),
    ]
    .into_iter()
    .map(|(name, default)| (format!("placement.{name}"), default))
    .collect()
}

/// First and second cells of the table below the heading `## title`, without the marks of code.
fn table(guide: &str, title: &str) -> BTreeMap<String, String> {
    let mut sections = guide.split("\n## ");
    let section =
        sections.find_map(|section| section.strip_prefix(title)?.strip_prefix('\n')).unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(name, rest)| {
        let second = rest.split('|').next().unwrap_or_default();
        (name.to_owned(), second.trim().trim_matches('`').to_owned())
    })
    .collect()
}

/// The differences between the guide's table and the service.
fn differences(guide: &str, known: &BTreeSet<String>, defaults: &BTreeMap<String, String>) -> Vec<String> {
    let table = table(guide, "Settings");
    let missing = known.iter().filter(|name| !table.contains_key(*name));
    let mut findings: Vec<String> = missing.map(|name| format!("{name}: not in the table")).collect();
    for (name, default) in &table {
        if !known.contains(name) {
            findings.push(format!("{name}: in the table, unknown to the service"));
        } else if let Some(real) = defaults.get(name)
            && real != default
        {
            findings.push(format!("{name}: the table says \"{default}\", the default is \"{real}\""));
        }
    }
    findings
}

/// The section about reasons for no plan.
const BLOCKED: &str = "When nothing happens";

/// The differences between the reasons that a section of the guide explains and those of the program.
fn unexplained_reasons(guide: &str, heading: &str, reasons: &[&str]) -> Vec<String> {
    // The first row is the table's head.
    let mut explained = table(guide, heading);
    explained.retain(|name, _| !["reason", "rule"].contains(&name.as_str()));
    let missing = reasons.iter().filter(|reason| !explained.contains_key(**reason));
    let mut findings: Vec<String> = missing.map(|reason| format!("{reason}: not explained")).collect();
    let gone = explained.keys().filter(|reason| !reasons.contains(&reason.as_str()));
    findings.extend(gone.map(|reason| format!("{reason}: explained, never given")));
    findings
}

/// Kind and text of each example.
fn examples(document: &str) -> Vec<(&str, String)> {
    let mut found = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if let Some(kind) = line.trim_start().strip_prefix("```") {
            let body: Vec<&str> =
                lines.by_ref().take_while(|line| !line.trim_start().starts_with("```")).collect();
            found.push((kind, body.join("\n")));
        }
    }
    found
}

/// The problem of an example; unknown kinds are not checked.
fn fault(kind: &str, example: &str) -> Option<String> {
    match kind {
        "yaml config" => load(example).err().map(|error| error.to_string()),
        "yaml template" => Template::from_yaml(example).err().map(|error| error.to_string()),
        "yaml constraints" => Constraints::from_yaml(example).err().map(|error| error.to_string()),
        "yaml scenario" => Scenario::parse(example).err().map(|error| error.to_string()),
        "json variables" => QueryVariables::from_json(example).err().map(|error| error.to_string()),
        _ => None,
    }
}

/// Examples that the service would refuse.
fn invalid_examples(documents: &BTreeMap<String, String>) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, document) in documents {
        for (kind, example) in examples(document) {
            findings.extend(fault(kind, &example).map(|why| format!("{path}: {kind}: {why}")));
        }
    }
    findings
}

#[test]
fn guide_lists_every_setting_and_its_default() {
    nothing(&differences(&text("docs/GUIDE.md"), &known_settings(), &defaults()));
}

#[test]
fn a_difference_between_guide_and_service_is_found() {
    let known = BTreeSet::from(["prefix".to_owned(), "embedded.listen".to_owned()]);
    let defaults = BTreeMap::from([("prefix".to_owned(), "/cke/".to_owned())]);
    let guide = "# Guide\n## Settings\n| Key | Default | Meaning |\n|---|---|---|\n| `prefix` | `/cke/` | Keys. |\n\
        | `embedded.listen` | | Where. |\n## Metrics\n| `other` | x |\n";
    let find = |guide: &str| differences(guide, &known, &defaults);
    nothing(&find(guide));
    one(
        &find(&guide.replace("| `embedded.listen` | | Where. |\n", "")),
        &["embedded.listen", "not in the table"],
    );
    one(&find(&guide.replace("`/cke/`", "`/madako/`")), &["prefix", "/madako/", "/cke/"]);
    one(&find(&guide.replace("## Metrics\n", "")), &["other", "unknown"]);
}

#[test]
fn the_guide_explains_every_reason_why_nothing_is_planned_and_every_obstacle() {
    let guide = text("docs/GUIDE.md");
    nothing(&unexplained_reasons(&guide, BLOCKED, PlanBlockedBy::NAMES));
    nothing(&unexplained_reasons(&guide, "What is stuck", &obstacle::RULES));
}

#[test]
fn a_reason_that_is_not_explained_is_found() {
    let guide = "# Guide\n## When nothing happens\n| `reason` | What |\n|---|---|\n| `no-url` | none |\n";
    nothing(&unexplained_reasons(guide, BLOCKED, &["no-url"]));
    one(&unexplained_reasons(guide, BLOCKED, &["no-url", "disabled"]), &["disabled", "not explained"]);
    one(&unexplained_reasons(guide, BLOCKED, &[]), &["no-url", "never given"]);
}

#[test]
fn examples_in_documents_are_valid() {
    let documents = texts(".", ".md");
    let kinds: BTreeSet<&str> =
        documents.values().flat_map(|document| examples(document)).map(|(kind, _)| kind).collect();
    for kind in ["yaml config", "yaml template", "yaml constraints", "yaml scenario", "json variables"] {
        assert!(kinds.contains(kind), "no document has an example of the kind '{kind}' any more: {kinds:?}");
    }
    nothing(&invalid_examples(&documents));
}

#[test]
fn an_example_that_the_service_refuses_is_found() {
    let document = |kind: &str, example: &str| {
        BTreeMap::from([("docs/GUIDE.md".to_owned(), format!("# Guide\n```{kind}\n{example}\n```\n"))])
    };
    nothing(&invalid_examples(&document("yaml config", "endpoints: [http://127.0.0.1:2379]")));
    nothing(&invalid_examples(&document("yaml", "nonsense: 1")));
    for (kind, example, found) in [
        ("yaml config", "endpoint: [http://127.0.0.1:2379]", "endpoint"),
        ("yaml template", "name: cluster\nnodes: []\nservice_subnet: 10.68.0.0/16", "nodes"),
        ("yaml constraints", "control-plane-count: many", "control-plane-count"),
        ("yaml scenario", "name: a\nfaults: [{at: 1m, do: panic, target: registry}]", "line 2"),
        ("json variables", "{\"having\": {\"role\": [\"cs\"]}}", "role"),
    ] {
        one(&invalid_examples(&document(kind, example)), &["docs/GUIDE.md", kind, found]);
    }
}
