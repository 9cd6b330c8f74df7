//! Tests that a placement command sends the same request as krakectl with the same words.
//!
//! `krakectl.txt` has the requests of krakectl itself (commit `92f86489`); it is in the directory of the resources'
//! tests.

use std::collections::BTreeSet;

use madako_domain::placement::core::MetricsProviderKind;
use madako_domain::placement::kind::Kind;
use madako_domain::placement::object_value::Object;
use madako_json::krake::schema::Shape;
use madako_json::krake::tagged::Variants;
use serde_json::{Value, json};

use super::*;
use crate::cli::{self, Cli};

const SENT: &str = include_str!("../../../../../messages/domain/src/placement/tests/krakectl.txt");

/// Parses a line, split at blanks outside apostrophes.
fn command(line: &str) -> ResourceCommand {
    let mut words = vec!["madako".to_owned()];
    for (place, part) in line.split('\'').enumerate() {
        if place % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    match Cli::read(words) {
        Ok(Cli { command: cli::Command::Placement(Command::Resource(command)), .. }) => command,
        Ok(other) => panic!("{line}: {other:?}"),
        Err(error) => panic!("{line}: {error}"),
    }
}

fn created(line: &str) -> Result<(Kind, Value), Failure> {
    let command = command(line);
    let how = command.resource.creation_of_verb(command.verb).expect("it creates");
    Ok((command.resource.kind, (how.build)(&command.given)?))
}

/// The document after an update.
fn changed(line: &str, document: &Value) -> Result<Value, Failure> {
    let command = command(line);
    assert_eq!(command.verb, Verb::Update, "{line}");
    let mut document = document.clone();
    ((command.resource.update.changes)(&command.given)?.apply)(&mut document)?;
    Ok(document)
}

fn object(kind: Kind, document: &Value) -> Object {
    Object::from_request(kind, &document.to_string())
        .unwrap_or_else(|error| panic!("{document}: {error}"))
        .value
}

/// The files that the commands name, as in the recording.
fn files() -> tempfile::TempDir {
    let files = tempfile::tempdir().unwrap();
    for (name, content) in [
        ("app.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: it}\n"),
        (
            "kubeconfig.yaml",
            "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
             contexts: [{name: other, context: {cluster: x, user: z}}, {name: it, context: {cluster: here, user: me}}]\n\
             users: [{name: me, user: {token: x}}, {name: z, user: {}}]\n\
             clusters: [{name: here, cluster: {server: 'https://127.0.0.1:6443'}}]\n",
        ),
        (
            "tosca.yaml",
            "tosca_definitions_version: tosca_simple_yaml_1_0\n\
             topology_template: {outputs: {kubeconfig: {value: x}}}\n",
        ),
    ] {
        std::fs::write(files.path().join(name), content).unwrap();
    }
    files
}

/// The command for each POST of the recording, in its order. `@` is the directory of the files.
const CREATES: &[&str] = &[
    "kube app create it -n testing -f @/app.yaml -l a=b -L 'location is DE' -R x.y -M 'load > 5' --backoff 2 \
     --backoff_delay 3 --backoff_limit 4 --auto-cluster-create --hook-complete --hook-shutdown 10",
    "kube app create it -f @/app.yaml",
    "kube cluster register -n testing -k @/kubeconfig.yaml -l a=b --metric heat 1 --global-metric load 0.5 -R x.y \
     --backoff 2 --backoff_delay 3 --backoff_limit 4",
    "kubernetes cluster register -k @/kubeconfig.yaml -c it",
    "kube cluster create it -n testing -f @/tosca.yaml -l a=b --inherit-labels --metric heat 1 --global-metric load 0.5 \
     --inherit-metrics -R x.y --backoff 2 --backoff-delay 3 --backoff-limit 4 -L 'location is DE' -M 'load > 5'",
    "infra provider register it -n testing --type im --url http://x --username u --password p",
    "infra cloud register it --type openstack --infra-provider i --url http://x --username u --password p --project q \
     --domain-name e --domain-id d --metric heat 1 --global-metric load 2 -l a=b",
    "infra gc register it --type openstack --global-infra-provider i --url http://x --username u --password p \
     --project q --global-metric load 2",
    "os project create it --auth-url http://x --user-id u --password p --project-id q --template t -l a=b --metric heat 1",
    "os project create it --auth-url http://x --application-credential a b --template t",
    "os cluster create it -n testing --master-count 2 --node-count 1 --metric heat 1 -l a=b -L 'location is DE'",
    "os cluster create it",
    "core gmp create it --type prometheus --url http://x",
    "core gmp create it --type kafka --url http://x --comparison-column a --value-column b --table t",
    "core gmp create it --type static -m heat 0.5",
    "core gmp create it --type influx --url http://x --token t --org o --bucket b",
    "core metric create it --mp-name p --min 0 --max 1 --metric-name m --allowed-values 2 1",
    "core metric create it --mp-name p --min 0 --max 1",
    "core mp create it --type prometheus --url http://x",
    "core mp create it --type kafka --url http://x --comparison-column a --value-column b --table t",
    "core mp create it --type static -m heat 0.5",
    "core mp create it --type influx --url http://x --token t --org o --bucket b",
    "infra ip register it --type im --url http://x --username u --password p --token t",
    "infra gip register it --type im --url http://x --username u --password p --token t",
    "core gm create it --gmp-name p --min 0 --max 1 --metric-name m --allowed-values 1 2",
    "core gm create it --gmp-name p --min 0 --max 1",
];

#[test]
fn create_commands_send_the_documents_of_krakectl() {
    let files = files();
    let lines: Vec<&str> = SENT.lines().collect();
    let posts: Vec<_> = lines.chunks(2).filter(|pair| pair[0].starts_with("POST ")).collect();
    assert_eq!(posts.len(), CREATES.len());
    for (pair, line) in posts.iter().zip(CREATES) {
        let (kind, document) = created(&line.replace('@', files.path().to_str().unwrap())).unwrap();
        let mut theirs: Value = serde_json::from_str(pair[1]).unwrap();
        if kind == Kind::MagnumCluster {
            // krakectl puts the constraints into a field that is never read.
            let constraints = theirs["metadata"]["constraints"].take();
            theirs["metadata"].as_object_mut().unwrap().remove("constraints");
            if constraints["project"]["labels"] != json!([]) {
                theirs["spec"]["constraints"] = constraints;
            }
        }
        assert_eq!(pair[0].split(' ').nth(2), Some(kind.name()), "{line}");
        assert_eq!(object(kind, &document), object(kind, &theirs), "{line}: {document}");
        let place = CommandScope { kind, namespace: kind.namespaced().then(|| "me".to_owned()) };
        let path = pair[0].split(' ').nth(1).unwrap().replace("/testing/", "/me/");
        assert_eq!(format!("/{}", place.path_segments(&[]).join("/")), path, "{line}");
    }
}

#[test]
fn options_after_the_values_of_the_shutdown_hook_are_separate() {
    let files = files();
    for (options, seconds, strategy, hooks) in [
        ("-f @/app.yaml --hook-shutdown 5 -o json", 5, None, json!(["shutdown"])),
        ("--hook-shutdown 5 -f @/app.yaml", 5, None, json!(["shutdown"])),
        ("--hook-shutdown -f @/app.yaml", 60, None, json!(["shutdown"])),
        ("--hook-shutdown 5 give_up -f @/app.yaml", 5, Some("give_up"), json!(["shutdown"])),
        ("--hook-shutdown 5 delete 2 -f @/app.yaml", 5, Some("delete"), json!(["shutdown"])),
        ("--hook-shutdown 5 --hook-complete -f @/app.yaml", 5, None, json!(["complete", "shutdown"])),
    ] {
        let line = format!("kube app create it {options}").replace('@', files.path().to_str().unwrap());
        let (_, document) = created(&line).unwrap();
        let spec = &document["spec"];
        assert_eq!(spec["shutdown_grace_time"], json!(seconds), "{options}");
        assert_eq!(spec["shutdown_failure_strategy"].as_str(), strategy, "{options}");
        assert_eq!(spec["hooks"], hooks, "{options}");
    }
}

#[test]
fn update_changes_only_given_fields() {
    let application = json!({
        "metadata": {"name": "it", "labels": {"a": "b", "c": "d"}},
        "spec": {
            "manifest": [{"kind": "Pod"}], "tosca": {}, "csar": null, "hooks": ["complete"],
            "constraints": {"migration": true, "cluster": {"labels": ["a is b"], "custom_resources": ["x.y"], "metrics": ["m > 1"]}},
            "backoff": 5, "backoff_delay": 6, "backoff_limit": 7,
        },
        "status": {"state": "RUNNING"},
    });
    let cluster = json!({
        "metadata": {"name": "it", "labels": {"a": "b"}},
        "spec": {"metrics": [{"name": "heat", "weight": 1.0, "namespaced": true}], "custom_resources": ["x.y"],
                 "constraints": {"cloud": {"labels": ["a is b"], "metrics": []}}, "backoff": 5},
    });
    let cloud = json!({
        "metadata": {"name": "it", "labels": {"a": "b"}},
        "spec": {"type": "openstack", "openstack": {"url": "u", "metrics": [], "infrastructure_provider": {"name": "i", "namespaced": true},
                 "auth": {"type": "password", "password": {"user": {"username": "u", "password": "old"}, "project": {"name": "p"}}}}},
    });
    let provider = json!({"metadata": {"name": "it"}, "spec": {"type": "im", "im": {"url": "u", "username": null, "password": "old"}}});
    let magnum =
        json!({"metadata": {"name": "it"}, "spec": {"node_count": 1, "metrics": [], "constraints": null}});
    let metric = json!({"metadata": {"name": "it"},
        "spec": {"min": 0.0, "max": 1.0, "allowed_values": [1], "provider": {"name": "p", "metric": "m"}}});
    let fixed =
        json!({"metadata": {"name": "it"}, "spec": {"type": "static", "static": {"metrics": {"heat": 1.0}}}});
    let influx = json!({"metadata": {"name": "it"}, "spec": {"type": "influx", "influx": {"url": "u", "token": "old", "org": "o", "bucket": "b"}}});
    for (line, before, changes) in [
        (
            "kube app update it --remove-existing-labels -l e=f=g",
            &application,
            vec![("/metadata/labels", json!({"e": "f=g"}))],
        ),
        ("kube app update it -l a=z", &application, vec![("/metadata/labels/a", json!("z"))]),
        (
            "kube app update it -L 'c is d' -R u.v -R w.x -M 'n < 2' --disable-migration",
            &application,
            vec![
                ("/spec/constraints/cluster/labels", json!(["c is d"])),
                ("/spec/constraints/cluster/custom_resources", json!(["u.v", "w.x"])),
                ("/spec/constraints/cluster/metrics", json!(["m > 1", "n < 2"])),
                ("/spec/constraints/migration", json!(false)),
            ],
        ),
        (
            "kube app update it --remove-existing-metric-constraints --backoff_limit -1",
            &application,
            vec![("/spec/constraints/cluster/metrics", json!([])), ("/spec/backoff_limit", json!(-1))],
        ),
        (
            "kube app update it --hook-shutdown 10 give_up 3",
            &application,
            vec![
                ("/spec/hooks", json!(["shutdown"])),
                ("/spec/shutdown_grace_time", json!(10)),
                ("/spec/shutdown_failure_strategy", json!("give_up")),
                ("/spec/shutdown_retry_count", json!(3)),
            ],
        ),
        (
            "kube app update it --url http://x/it.csar",
            &application,
            vec![("/spec/manifest", json!([])), ("/spec/csar", json!("http://x/it.csar"))],
        ),
        (
            "kube cluster update it --metric heat 1 --global-metric load 2 -L 'c is d'",
            &cluster,
            vec![
                (
                    "/spec/metrics",
                    json!([{"name": "heat", "weight": 1.0, "namespaced": true},
                                         {"name": "load", "weight": 2.0, "namespaced": false}]),
                ),
                ("/spec/constraints/cloud/labels", json!(["a is b", "c is d"])),
            ],
        ),
        ("kube cluster update it --remove-existing-metrics", &cluster, vec![("/spec/metrics", json!([]))]),
        (
            "infra cloud update it --password new --global-infra-provider j -l c=d",
            &cloud,
            vec![
                ("/metadata/labels", json!({"c": "d"})),
                ("/spec/openstack/infrastructure_provider", json!({"name": "j", "namespaced": false})),
                ("/spec/openstack/auth/password/user/password", json!("new")),
            ],
        ),
        ("infra provider update it --username me", &provider, vec![("/spec/im/username", json!("me"))]),
        (
            "os cluster update it --node-count 3 -L 'a is b'",
            &magnum,
            vec![
                ("/spec/node_count", json!(3)),
                ("/spec/constraints", json!({"project": {"labels": ["a is b"]}})),
            ],
        ),
        (
            "core metric update it --min -0.5 --allowed-values --mp-name q",
            &metric,
            vec![
                ("/spec/min", json!(-0.5)),
                ("/spec/allowed_values", json!([])),
                ("/spec/provider/name", json!("q")),
            ],
        ),
        ("core gmp update it -m cost 2", &fixed, vec![("/spec/static/metrics", json!({"cost": 2.0}))]),
        ("core mp update it --token new", &influx, vec![("/spec/influx/token", json!("new"))]),
    ] {
        let mut expected = before.clone();
        for (pointer, value) in changes {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            expected.pointer_mut(parent).unwrap()[name] = value;
        }
        assert_eq!(changed(line, before).unwrap(), expected, "{line}");
    }
}

#[test]
fn contradictory_options_are_refused_before_a_request() {
    let files = files();
    for (line, part) in [
        ("kube app create it", "--file or --url"),
        ("kube app create it --url http://x/it.tar", ".yaml, .yml, .zip or .csar"),
        ("kube app create it -f @/none.yaml", "cannot be read"),
        ("kube app create it -f @/app.yaml -l a", "--label: got \"a\", expected KEY=VALUE"),
        (
            "kube app create it -f @/app.yaml --hook-shutdown soon",
            "got \"soon\" as SECONDS, expected a whole number",
        ),
        (
            "kube app create it -f @/app.yaml --hook-shutdown 5 giveup",
            "got \"giveup\" as STRATEGY, expected give_up or delete",
        ),
        ("kube app create .. -f @/app.yaml", "NAME: got \"..\", expected the name of a resource"),
        (
            "kube cluster create it -f @/tosca.yaml --metric heat nan",
            "--metric heat: got \"nan\", expected a finite",
        ),
        ("kube cluster register -k @/kubeconfig.yaml -c none", "contexts has no entry \"none\""),
        ("kube cluster register -k @/kubeconfig.yaml -c other", "clusters has no entry \"x\""),
        ("kube cluster register -k @/app.yaml", "no current-context"),
        (
            "core mp create it --type kafka --url http://x --table t",
            "needs --comparison-column, --value-column",
        ),
        (
            "core mp create it --type static --url http://x",
            "--url is not for metrics providers of the type static",
        ),
        ("core role create -f @/tosca.yaml", "metadata.name is missing or unusable"),
    ] {
        let failure = created(&line.replace('@', files.path().to_str().unwrap())).unwrap_err();
        let message = failure.message().unwrap();
        assert_eq!(failure.exit_code(), 2, "{line}: {message}");
        assert!(message.contains(part), "{line}: {part:?} is not in {message}");
    }
    let prometheus = json!({"spec": {"type": "prometheus", "prometheus": {"url": "u"}}});
    let message = changed("core mp update it --bucket b", &prometheus).unwrap_err().message().unwrap();
    assert!(message.contains("--bucket is not for"), "{message}");
}

#[test]
fn commands_offer_each_type_of_the_domain() {
    let mut compared = Vec::new();
    for resource in words::GROUPS.iter().flat_map(|group| group.resources) {
        let spec = resource.kind.schema().fields.iter().find(|field| field.name == "spec");
        let Some(Shape::Tagged(variants)) = spec.map(|spec| &spec.shape) else { continue };
        let how = resource.create.as_ref().or(resource.register.as_ref()).unwrap();
        let options = (how.options)();
        let option = options.iter().find(|option| option.get_id() == "type").unwrap();
        let values = option.get_possible_values();
        let offered: Vec<&str> = values.iter().map(clap::builder::PossibleValue::get_name).collect();
        let known: Vec<&str> = variants.iter().map(|(of_type, _)| *of_type).collect();
        assert_eq!(offered, known, "--type of {}", resource.word);
        compared.push(resource.word);
    }
    assert_eq!(compared.len(), 6, "{compared:?}");
}

#[test]
fn each_field_of_a_metrics_provider_has_an_option() {
    let variants = MetricsProviderKind::VARIANTS.iter();
    let fields = |(of_type, _): &(&'static str, _)| MetricsProviderKind::fields(of_type).unwrap();
    let fields: BTreeSet<&str> = variants.flat_map(fields).map(|field| field.name).collect();
    let options: BTreeSet<&str> = core::provider_options().iter().map(|(field, _)| *field).collect();
    assert_eq!(options, fields);
}

#[test]
fn unknown_command_words_are_refused() {
    for line in [
        "kube",
        "kube app",
        "kube app lst",
        "kube app list -a -n me",
        "kube app create it --wait gone",
        "kube app create it --enable-migration --disable-migration",
        "kube cluster retry it",
        "infra cloud register it --type openstack --url u --username u --project p",
        "infra cloud update it --infra-provider a --global-infra-provider b",
        "infra provider register it --type magic --url u",
        "core metric create it --mp-name p --min 0 --max much",
        "core globalmetric list --namespace n",
    ] {
        let words = std::iter::once("madako").chain(line.split_whitespace());
        assert_eq!(Cli::read(words).expect_err(line).exit_code(), 2, "{line}");
    }
}

#[test]
fn certificates_that_a_kubeconfig_names_are_put_into_it() {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("ca.pem"), "the authority").unwrap();
    let config = "current-context: it\ncontexts: [{name: it, context: {cluster: here, user: me}}]\n\
                  users: [{name: me, user: {token: x}}]\n\
                  clusters: [{name: here, cluster: {server: 'https://a', certificate-authority: ca.pem}}]\n";
    let path = files.path().join("config");
    std::fs::write(&path, config).unwrap();
    let (_, document) = created(&format!("kube cluster register -k {}", path.display())).unwrap();
    let cluster = &document["spec"]["kubeconfig"]["clusters"][0]["cluster"];
    assert_eq!(
        cluster,
        &json!({"server": "https://a", "certificate-authority-data": "dGhlIGF1dGhvcml0eQ=="})
    );
    std::fs::remove_file(files.path().join("ca.pem")).unwrap();
    let message =
        created(&format!("kube cluster register -k {}", path.display())).unwrap_err().message().unwrap();
    assert!(message.contains("ca.pem of the kubeconfig cannot be read"), "{message}");
}

#[test]
fn variables_are_put_in_place_of_their_names() {
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("pod.yaml");
    let pod = "kind: Pod\nspec: {containers: [{env: [{name: A, value: host}, {name: B, value: other}, \
               {name: C, valueFrom: {}}], args: [host]}]}\n";
    std::fs::write(&path, pod).unwrap();
    let (_, document) = created(&format!("kube app create it -f {} -i host=a=b", path.display())).unwrap();
    let container = &document["spec"]["manifest"][0]["spec"]["containers"][0];
    let values: Vec<_> = container["env"].as_array().unwrap().iter().map(|entry| &entry["value"]).collect();
    assert_eq!(values, [&json!("a=b"), &json!("other"), &Value::Null]);
    assert_eq!(container["args"], json!(["host"]));
}

#[test]
fn debug_output_hides_passwords() {
    let command = command("infra provider register it --type im --url u --password hunter2");
    assert!(!format!("{command:?}").contains("hunter2"));
}
