//! Tests of the placement commands on the service itself: roles loaded into etcd, client certificates, everything from
//! creation to deletion.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};

use super::etcd::RealEtcd;
use super::keys::Keys;
use super::site::leader_after;
use super::stage::{Serve, eventually};
use crate::program::{Answer, Files, free_port, madako};

type Authority = CertifiedIssuer<'static, KeyPair>;

const ROLES: &str = "\
{api: core, kind: Role, metadata: {name: all}, rules: [{api: '', namespaces: [''], resources: [''], verbs: [create, list, get, update, delete]}]}
---
{api: core, kind: RoleBinding, metadata: {name: admin}, roles: [all], users: ['system:admin']}
";
const MANIFEST: &str = "{apiVersion: v1, kind: ConfigMap, metadata: {name: echo}}";

fn authority() -> Authority {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// The files of a certificate for this address and this name, and of its key.
fn issued(files: &Files, authority: &Authority, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let certificate = params.signed_by(&key, authority).unwrap().pem();
    let file = |kind: &str, text: String| {
        let path = files.write(&format!("{name}-{kind}.pem"), text);
        super::security::only_for_its_owner(&path);
        path
    };
    (file("cert", certificate), file("key", key.serialize_pem()))
}

/// A user of the API: path of the configuration with which the program runs as that user.
struct ApiUser(String);

impl ApiUser {
    fn with(files: &Files, authority: &Authority, name: &str, port: u16) -> Self {
        let (cert, key) = issued(files, authority, name);
        let ca = files.path("ca.pem");
        let text = format!(
            "api_url: https://127.0.0.1:{port}\nuser: {name}\n\
             tls: {{enabled: true, client_ca: {ca}, client_cert: '{cert}', client_key: '{key}'}}\n"
        );
        Self(files.write(&format!("{name}.yaml"), text))
    }

    async fn runs(&self, args: &[&str]) -> Answer {
        madako(&[args, &["--config", &self.0, "-o", "json"]].concat()).await
    }

    async fn does(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.runs(args).await.calm()).unwrap()
    }
}

#[tokio::test]
async fn user_with_a_role_and_a_certificate_can_use_the_api() {
    let Some(etcd) = RealEtcd::start(&[]).await else { return };
    let (files, ours, port) = (Files::new(), authority(), free_port());
    let ca = files.write("ca.pem", ours.pem());
    let (cert, key) = issued(&files, &ours, "server");
    let config = files.write(
        "config.yml",
        format!(
            "{}placement: {{api: {{host: 127.0.0.1, port: {port}, \
             tls: {{enabled: true, cert: {cert}, key: {key}, client_ca: {ca}}}}}}}\n",
            etcd.settings()
        ),
    );
    let _serve = Serve::start(&config, "5s", "1s").await;
    let admin = ApiUser::with(&files, &ours, "system:admin", port);
    let message = admin.runs(&["kube", "app", "list"]).await.refused(1);
    assert!(message.contains("403"), "the user has no role yet: {message}");
    madako(&["--config", &config, "bootstrap", &files.write("roles.yaml", ROLES)]).await.calm();
    assert_eq!(admin.does(&["kube", "app", "list"]).await, json!([]));
    let other = ApiUser::with(&files, &ours, "somebody", port);
    assert!(other.runs(&["kube", "app", "list"]).await.refused(1).contains("403"));

    let provider =
        admin.does(&["core", "gmp", "create", "static", "--type", "static", "-m", "heat", "0.5"]).await;
    assert_eq!(provider["spec"]["static"]["metrics"], json!({"heat": 0.5}));
    let metric = &["core", "gm", "create", "heat", "--gmp-name", "static", "--min", "0", "--max", "1"];
    assert_eq!(admin.does(metric).await["spec"]["max"], json!(1.0));
    let message = admin.runs(metric).await.refused(1);
    assert!(message.contains("409"), "{message}");

    let manifest = files.write("echo.yaml", MANIFEST);
    let made = admin.does(&["kube", "app", "create", "echo", "-f", &manifest, "-L", "location is DE"]).await;
    assert_eq!(made["metadata"]["namespace"], "system:admin");
    let wrong = &["kube", "app", "create", "echo2", "-f", &manifest, "-L", "location iss DE", "-l", "a b=c"];
    let message = admin.runs(wrong).await.refused(2);
    for field in ["\n  metadata.labels: ", "\n  spec.constraints.cluster.labels[0]: "] {
        assert!(message.contains(field), "{field:?} is not in {message}");
    }
    let changed = admin.does(&["kube", "app", "update", "echo", "-l", "a=b", "--backoff", "2"]).await;
    assert_eq!(
        (&changed["metadata"]["labels"], &changed["spec"]["backoff"]),
        (&json!({"a": "b"}), &json!(2))
    );
    assert_eq!(changed["spec"]["constraints"]["cluster"]["labels"], json!(["location is DE"]));
    assert_eq!(admin.does(&["kube", "app", "get", "echo"]).await["metadata"]["uid"], made["metadata"]["uid"]);

    let role = files.write("role.yaml", "{api: core, kind: Role, metadata: {name: r}, rules: []}");
    admin.does(&["core", "role", "create", "-f", &role]).await;
    let role = files.write("role.yaml", "metadata: {name: r, labels: {a: b}}");
    assert_eq!(
        admin.does(&["core", "role", "update", "-f", &role]).await["metadata"]["labels"],
        json!({"a": "b"})
    );
    admin.runs(&["core", "role", "delete", "r"]).await.calm();
    assert!(admin.runs(&["core", "role", "get", "r"]).await.refused(1).contains("404 NOT_FOUND_ERROR"));
}

#[tokio::test]
async fn follower_instance_shows_the_last_decision_and_names_the_leader() {
    let Some(etcd) = RealEtcd::start(&[]).await else { return };
    let files = Files::new();
    let user = "{strategy: {static: {enabled: true, name: testing}}}";
    let placement = format!("placement: {{api: {{authorization: always-allow, authentication: {user}}}}}\n");
    let config = files.write("config.yml", format!("{}{placement}", etcd.settings()));
    let mut clients = Vec::new();
    let services = [Serve::start(&config, "5s", "1s").await, Serve::start(&config, "5s", "1s").await];
    for (index, service) in services.iter().enumerate() {
        let text = format!("api_url: http://{}\nuser: testing\n", service.http);
        clients.push(files.write(&format!("client{index}.yaml"), text));
    }
    let (leader, _) = leader_after(&services.iter().collect::<Vec<_>>(), 0).await;
    let follower = &clients[1 - leader];
    let manifest = files.write("echo.yaml", MANIFEST);
    let create = &["kube", "app", "create", "echo", "-f", &manifest, "--config", follower];
    madako(create).await.calm();
    let explain = &["kube", "app", "explain", "echo", "-o", "json", "--config"];
    let explained = eventually("the decision is explained", async || {
        let answer = madako(&[&explain[..], &[follower.as_str()]].concat()).await;
        // Before the first stored decision, a follower only knows which instance schedules.
        (answer.code == 0).then(|| answer.json())
    })
    .await;
    assert_eq!(explained["last"]["outcome"], "degraded", "{explained}");
    assert_eq!(explained["decision"], Value::Null);
    let candidates = Keys::at(&etcd.endpoint(), None).candidates().await;
    assert_eq!(explained["leader"], candidates[0].value_str().unwrap());
    let document = madako(&[&explain[..], &[clients[leader].as_str()]].concat()).await.json();
    assert_eq!(
        (&document["decision"]["outcome"], &document["last"]["outcome"]),
        (&json!("degraded"), &json!("degraded"))
    );
    // Only the scheduling instance knows the changes that would alter a decision; a follower names that instance.
    let question = [&explain[..], &[follower.as_str(), "--without", "a"]].concat();
    let message = madako(&question).await.refused(1);
    assert!(message.contains(&format!("on {}", candidates[0].value_str().unwrap())), "{message}");
}
