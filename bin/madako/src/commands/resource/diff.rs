//! `madako resource diff`: the fields that an apply of the resources would change.

use madako_domain::authority::Authority;
use madako_domain::component::Component;
use madako_domain::objects::{FoundObject, Manifest};
use madako_operation_runner::kubernetes::objects::decide::wanted_resources;
use madako_operation_runner::kubernetes::objects::webhooks::{
    keep_present_certificate, needed_certificate, needs_authority, with_authority,
};
use madako_protocol::authorities::Authorities;
use madako_protocol::components::Components;
use serde::Serialize;
use serde_json::Value;

use super::status::NO_SERVER;
use crate::cli::Global;
use crate::commands::ops::collected::{self, GatheredStates};
use crate::failure::Failure;
use crate::output::{Format, Table, show_value};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// The differences of a resource.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct ResourceDifference {
    key: String,
    /// The reason for which the differences are not known.
    error: Option<String>,
    fields: Vec<FieldDifference>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct FieldDifference {
    path: String,
    /// `None`: the field does not exist. The values of Secrets are hidden.
    has: Option<String>,
    wanted: Option<String>,
}

pub(super) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let differences = find_differences(global).await?;
    show_value(args.output, &differences, |all| difference_table(all))?;
    if differences.is_empty() { Ok(()) } else { Err(Failure::Different) }
}

/// The resources that an apply would change, or whose dry run failed.
async fn find_differences(global: &Global) -> Result<Vec<ResourceDifference>, Failure> {
    let GatheredStates { inputs, ports, .. } = collected::gather_kubernetes(global).await?;
    inputs.kubernetes_options()?;
    let user = &inputs.kubernetes()?.resources;
    let answers = inputs.status.kubernetes.as_ref();
    let serves = |address: &String| answers.is_some_and(|it| it.is_healthy(Component::ApiServer, address));
    let servers: Vec<String> =
        inputs.cluster.control_plane().map(|node| node.address.clone()).filter(serves).collect();
    let found = answers.and_then(|answers| answers.objects.as_ref());
    let found = found.ok_or_else(|| Failure::failed(NO_SERVER))?;
    let mut differences = Vec::new();
    for (key, why) in &user.faults {
        let error = Some(format!("its definition cannot be read: {why}"));
        differences.push(ResourceDifference { key: key.clone(), error, fields: Vec::new() });
    }
    let (components, authorities) = (&*ports.runner.components, &*ports.runner.authorities);
    for resource in wanted_resources(&inputs.settings.images.dns, user, found) {
        let difference = compare_resource(components, authorities, &servers, &resource.manifest).await;
        differences.extend(difference.is_different().then_some(difference));
    }
    Ok(differences)
}

impl ResourceDifference {
    fn is_different(&self) -> bool {
        self.error.is_some() || !self.fields.is_empty()
    }
}

async fn compare_resource(
    components: &dyn Components,
    authorities: &dyn Authorities,
    servers: &[String],
    manifest: &Manifest,
) -> ResourceDifference {
    let key = manifest.name().key.to_string();
    let failed = |why: String| ResourceDifference { key: key.clone(), error: Some(why), fields: Vec::new() };
    let present = match components.read_object(servers, manifest.name()).await {
        FoundObject::Exists(present) => present,
        FoundObject::Missing => Value::Null,
        FoundObject::KindUnknown => return failed("the API server does not know the kind".to_owned()),
        FoundObject::Unread(why) => return failed(why),
    };
    let manifest = match fill_in_certificates(authorities, manifest, &present).await {
        Ok(manifest) => manifest,
        Err(why) => return failed(why),
    };
    match components.dry_run_apply(servers, &manifest).await {
        Ok(applied) => {
            let hides = manifest.name().key.kind == "Secret";
            let mut fields = Vec::new();
            differing_fields(&mut fields, "", Some(&present), Some(&applied), hides);
            ResourceDifference { key: key.clone(), error: None, fields }
        }
        Err(error) => failed(error.to_string()),
    }
}

/// The manifest as an apply would send it. An apply issues a new pair for a webhook; here the present one stays.
async fn fill_in_certificates(
    authorities: &dyn Authorities,
    manifest: &Manifest,
    present: &Value,
) -> Result<Manifest, String> {
    if needs_authority(manifest) {
        let certificate = authorities.certificate(Authority::KubernetesWebhook).await;
        return with_authority(manifest, &certificate.map_err(|error| error.to_string())?);
    }
    match needed_certificate(manifest) {
        Some(_) => keep_present_certificate(manifest, present),
        None => Ok(manifest.clone()),
    }
}

/// Fields that each write of the API server changes.
const SERVER_MANAGED_FIELDS: [&str; 6] = [
    ".metadata.creationTimestamp",
    ".metadata.generation",
    ".metadata.managedFields",
    ".metadata.resourceVersion",
    ".metadata.uid",
    ".status",
];

/// Fields of a Secret without a part of it: an annotation of kubectl has the whole Secret.
const PUBLIC: [&str; 3] = [".type", ".metadata.labels", ".metadata.annotations.cke.cybozu.com/"];

fn differing_fields(
    fields: &mut Vec<FieldDifference>,
    path: &str,
    has: Option<&Value>,
    wanted: Option<&Value>,
    hides: bool,
) {
    if has == wanted || SERVER_MANAGED_FIELDS.contains(&path) {
        return;
    }
    let child = |name: &str| format!("{path}.{name}");
    match (has, wanted) {
        (Some(Value::Object(has)), Some(Value::Object(wanted))) => {
            let added = wanted.keys().filter(|name| !has.contains_key(*name));
            for name in has.keys().chain(added) {
                differing_fields(fields, &child(name), has.get(name), wanted.get(name), hides);
            }
        }
        (Some(Value::Array(has)), Some(Value::Array(wanted))) => {
            for index in 0..has.len().max(wanted.len()) {
                let path = format!("{path}[{index}]");
                differing_fields(fields, &path, has.get(index), wanted.get(index), hides);
            }
        }
        (has, wanted) => {
            let is_private = hides && !PUBLIC.into_iter().any(|prefix| path.starts_with(prefix));
            let shown = |value: &Value| if is_private { "(hidden)".to_owned() } else { value.to_string() };
            let of = |value: Option<&Value>| value.filter(|value| !value.is_null()).map(shown);
            let path = if path.is_empty() { "(the object)" } else { path };
            fields.push(FieldDifference { path: path.to_owned(), has: of(has), wanted: of(wanted) });
        }
    }
}

fn difference_table(differences: &[ResourceDifference]) -> String {
    let mut table = Table::new(["RESOURCE", "FIELD", "HAS", "WANTED"]);
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    for ResourceDifference { key, error, fields } in differences {
        if let Some(why) = error {
            table.add_row([key.clone(), "not compared".to_owned(), String::new(), why.clone()]);
        }
        for FieldDifference { path, has, wanted } in fields {
            table.add_row([key.clone(), path.clone(), value(has), value(wanted)]);
        }
    }
    table.to_text()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use madako_datacenter_sim::nodes::{SimulatedNodes, UnsignedAuthorities};
    use madako_domain::resource::{ANNOTATION_INJECT_CA, ANNOTATION_ISSUE_CERT};
    use madako_operation_runner::kubernetes::objects::webhooks::with_certificate;
    use madako_protocol::objects::Objects as _;
    use madako_protocol::permit::Permit;
    use madako_supervisor::clock::SystemClock;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    const SERVER: &str = "10.0.0.1";

    fn manifest(api_version: &str, kind: &str, annotation: &str, value: &str) -> Value {
        let metadata = json!({"name": "a", "annotations": {annotation: value}});
        json!({"apiVersion": api_version, "kind": kind, "metadata": metadata})
    }

    fn differences(
        has: &Value,
        wanted: &Value,
        hides: bool,
    ) -> Vec<(String, Option<String>, Option<String>)> {
        let mut fields = Vec::new();
        differing_fields(&mut fields, "", Some(has), Some(wanted), hides);
        fields.into_iter().map(|field| (field.path, field.has, field.wanted)).collect()
    }

    #[test]
    fn each_differing_field_is_named_except_those_of_the_api_server() {
        let has = json!({"metadata": {"uid": "1", "labels": {"a": "b"}}, "spec": {"x": [1, 2]}, "status": 1});
        let wanted = json!({"metadata": {"uid": "2", "labels": {}}, "spec": {"x": [1, 3, 4]}, "status": 2});
        let text = |text: &str| Some(text.to_owned());
        let expected = [
            (".metadata.labels.a".to_owned(), text("\"b\""), None),
            (".spec.x[1]".to_owned(), text("2"), text("3")),
            (".spec.x[2]".to_owned(), None, text("4")),
        ];
        assert_eq!(differences(&has, &wanted, false), expected);
        assert_eq!(differences(&has, &has, false), []);
    }

    #[test]
    fn values_of_secrets_are_hidden() {
        let with = |value: &str, label: &str| {
            let annotations = json!({"kubectl.kubernetes.io/last-applied-configuration": value});
            let metadata = json!({"labels": {"a": label}, "annotations": annotations});
            json!({"metadata": metadata, "data": {"p": value}, "stringData": {"q": value}})
        };
        let (has, wanted) = (with("hunter1", "x"), with("hunter2", "y"));
        let shown = differences(&has, &wanted, true);
        let text = format!("{shown:?}");
        assert!(!text.contains("hunter") && text.contains(r#"Some("\"y\"")"#) && shown.len() == 4, "{text}");
        let unannotated = json!({"metadata": {"labels": {"a": "y"}}, "data": {}, "stringData": {}});
        let text = format!("{:?}", differences(&unannotated, &wanted, true));
        assert!(!text.contains("hunter") && text.contains(".metadata.annotations"), "{text}");
        let created = differences(&Value::Null, &wanted, true);
        assert_eq!(created, [("(the object)".to_owned(), None, Some("(hidden)".to_owned()))]);
    }

    #[tokio::test(start_paused = true)]
    async fn applied_certificates_of_webhooks_are_not_a_difference() {
        let nodes = SimulatedNodes::new(1);
        nodes.add_api_server(SERVER);
        let components = nodes.components_port();
        let life = Duration::from_secs(3600);
        let authorities = UnsignedAuthorities::new(Arc::new(SystemClock), life);
        let mut secret = manifest("v1", "Secret", ANNOTATION_ISSUE_CERT, "hook");
        secret["metadata"]["namespace"] = json!("default");
        let mut hook = manifest(
            "admissionregistration.k8s.io/v1",
            "ValidatingWebhookConfiguration",
            ANNOTATION_INJECT_CA,
            "true",
        );
        hook["webhooks"] = json!([{"name": "x"}]);
        let [secret, hook] = [secret, hook].map(|content| Manifest::new(content).unwrap());
        let servers = [SERVER.to_owned()];
        let compare = async |manifest| compare_resource(&*components, &authorities, &servers, manifest).await;
        assert!(compare(&secret).await.is_different() && compare(&hook).await.is_different());
        let issued = authorities.issue(&needed_certificate(&secret).unwrap()).await.unwrap();
        let trusted = authorities.certificate(Authority::KubernetesWebhook).await.unwrap();
        let permit = Permit::give(1, Instant::now() + life);
        for applied in [with_certificate(&secret, &issued).unwrap(), with_authority(&hook, &trusted).unwrap()]
        {
            nodes.apply_object(&permit, &servers, &applied).await.unwrap();
        }
        for manifest in [&secret, &hook] {
            let difference = compare(manifest).await;
            assert!(!difference.is_different(), "{difference:?}");
        }
        let other = with_authority(&hook, "another authority").unwrap();
        nodes.apply_object(&permit, &servers, &other).await.unwrap();
        assert_eq!(compare(&hook).await.fields[0].path, ".webhooks[0].clientConfig.caBundle");
    }
}
