//! Tests of kubeconfigs: accepted forms, and messages that name all problems without repeating values.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use madako_kubernetes::{ApiServerAccess, MAX_FILE_BYTES};
use tempfile::TempDir;

use crate::pki::Authority;
use crate::server::{kubeconfig, restrict};

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        restrict(&path);
        path
    }

    fn wrong(&self, text: &str) -> String {
        ApiServerAccess::read(&self.write("kubeconfig", text)).unwrap_err().to_string()
    }
}

const SERVER: &str = "https://10.0.0.1:6443";

#[test]
fn tokens_and_certificates_are_taken_inline_and_from_files() {
    let files = Files::new();
    let authority = Authority::new();
    let pair = authority.client("madako", "people");
    files.write("ca.crt", &authority.pem());
    files.write("client.crt", &pair.certificate);
    files.write("client.key", &pair.key);
    files.write("token", "a-secret-token");
    let inline = |text: &str| STANDARD.encode(text);
    let ca_inline = format!("{{certificate-authority-data: {}}}", inline(&authority.pem()));
    let pair_inline = format!(
        "{{client-certificate-data: {}, client-key-data: {}}}",
        inline(&pair.certificate),
        inline(&pair.key)
    );
    let absolute = format!("{{tokenFile: {}}}", files.0.path().join("token").display());
    for (cluster, user) in [
        ("{certificate-authority: ca.crt}", "{token: a-secret-token}"),
        ("{certificate-authority: ca.crt}", "{tokenFile: token}"),
        (ca_inline.as_str(), absolute.as_str()),
        (ca_inline.as_str(), pair_inline.as_str()),
        (
            "{certificate-authority: ca.crt, tls-server-name: kubernetes}",
            "{client-certificate: client.crt, client-key: client.key}",
        ),
    ] {
        let access = ApiServerAccess::read(&files.write("kubeconfig", &kubeconfig(SERVER, cluster, user)));
        let access = access.unwrap_or_else(|error| panic!("{cluster} {user}: {error}"));
        assert_eq!(access.server(), SERVER);
        let shown = format!("{access:?}");
        assert!(!shown.contains("secret") && !shown.contains(&inline(&pair.key)), "{shown}");
    }
    // JSON is YAML, and a user without credentials sends anonymous requests.
    let json = r#"{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "b", "user": ""}}],
        "clusters": [{"name": "b", "cluster": {"server": "http://10.0.0.1:8080"}}]}"#;
    ApiServerAccess::read(&files.write("kubeconfig", json)).unwrap();
}

#[test]
fn every_problem_is_named_and_no_secret_is_repeated() {
    let files = Files::new();
    let (ours, other) = (Authority::new(), Authority::new());
    files.write("ca.crt", &ours.pem());
    files.write("client.crt", &ours.client("madako", "people").certificate);
    files.write("client.key", &other.client("madako", "people").key);
    files.write("hunter2.pem", "hunter2");
    let token = "{token: hunter2}";
    let fine = "{certificate-authority: ca.crt}";
    for (text, found) in [
        (kubeconfig("", fine, token), vec!["clusters[ours].cluster.server"]),
        (kubeconfig("10.0.0.1:6443", fine, token), vec!["clusters[ours].cluster.server", "https"]),
        (
            kubeconfig("https://me:hunter2@10.0.0.1", fine, token),
            vec!["clusters[ours].cluster.server", "without user"],
        ),
        (
            kubeconfig("http://10.0.0.1:8080", fine, token),
            vec!["clusters[ours].cluster.server", "credentials"],
        ),
        (kubeconfig(SERVER, "{insecure-skip-tls-verify: true}", token), vec!["insecure-skip-tls-verify"]),
        (kubeconfig(SERVER, "{proxy-url: \"http://hunter2@proxy\"}", token), vec!["proxy-url"]),
        (
            kubeconfig(SERVER, "{certificate-authority: gone.crt}", token),
            vec!["certificate-authority", "gone.crt"],
        ),
        (
            kubeconfig(SERVER, "{certificate-authority: hunter2.pem}", token),
            vec!["certificate-authority", "as PEM"],
        ),
        (
            kubeconfig(SERVER, "{certificate-authority-data: \"hunter2!\"}", token),
            vec!["certificate-authority-data", "base64"],
        ),
        (kubeconfig(SERVER, fine, "{exec: {command: hunter2}}"), vec!["users[us].user.exec", "no programs"]),
        (kubeconfig(SERVER, fine, "{auth-provider: {name: hunter2}}"), vec!["users[us].user.auth-provider"]),
        (
            kubeconfig(
                SERVER,
                fine,
                "{token: t, as: hunter2, as-uid: x, as-groups: [x], as-user-extra: {x: [y]}}",
            ),
            vec!["user.as:", "user.as-uid", "user.as-groups", "user.as-user-extra", "as the user itself"],
        ),
        (kubeconfig(SERVER, fine, "{tokenFile: gone}"), vec!["users[us].user.tokenFile", "gone"]),
        (kubeconfig(SERVER, fine, "{token: \"hunter2\\n\"}"), vec!["users[us].user.token", "header"]),
        (
            kubeconfig(SERVER, fine, "{client-certificate: client.crt}"),
            vec!["users[us].user.client-key", "both"],
        ),
        (
            kubeconfig(SERVER, fine, "{client-key: client.key}"),
            vec!["users[us].user.client-certificate", "both"],
        ),
        (
            kubeconfig(SERVER, fine, "{client-certificate: client.crt, client-key: client.key}"),
            vec!["users[us].user.client-certificate", "belongs to it"],
        ),
        (
            kubeconfig(SERVER, fine, "{client-certificate: client.crt, client-key: hunter2.pem}"),
            vec!["users[us].user.client-certificate"],
        ),
        (kubeconfig(SERVER, fine, "{exec: {}, tokenFile: gone}"), vec!["user.exec", "user.tokenFile"]),
        (
            kubeconfig(SERVER, fine, token).replace("current-context: main", "current-context: other"),
            vec!["current-context", "other"],
        ),
        (kubeconfig(SERVER, fine, token).replace("current-context: main\n", ""), vec!["current-context"]),
        (
            kubeconfig(SERVER, fine, token).replace("cluster: ours,", "cluster: other,"),
            vec!["contexts[main].context.cluster"],
        ),
        (
            kubeconfig(SERVER, fine, token).replace("user: us}", "user: other}"),
            vec!["contexts[main].context.user"],
        ),
        (
            "users: [{name: us, user: {token: [hunter2]}}]".to_owned(),
            vec!["YAML or JSON of a kubeconfig", "line 1"],
        ),
        ("hunter2".to_owned(), vec!["YAML or JSON of a kubeconfig"]),
        (" ".repeat(usize::try_from(MAX_FILE_BYTES).unwrap() + 1), vec!["at most 1048576 bytes"]),
    ] {
        let error = files.wrong(&text);
        assert!(error.starts_with("kubeconfig /"), "{error}");
        assert!(found.iter().all(|found| error.contains(found)), "{found:?} in: {error}");
        assert!(!error.replace("hunter2.pem", "").contains("hunter2"), "{error}");
    }
    let error = ApiServerAccess::read(&files.0.path().join("gone")).unwrap_err().to_string();
    assert!(error.contains("a file that can be read"), "{error}");
}

#[test]
fn credentials_that_others_can_read_are_refused() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let files = Files::new();
    let authority = Authority::new();
    let pair = authority.client("madako", "people");
    files.write("client.crt", &pair.certificate);
    let key = files.write("client.key", &pair.key);
    let open =
        |path: &PathBuf, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let path = files.write("kubeconfig", &kubeconfig(SERVER, "{}", "{token: hunter2}"));
    for (mode, refused) in [(0o600, false), (0o640, false), (0o644, true), (0o602, true)] {
        open(&path, mode);
        assert_eq!(ApiServerAccess::read(&path).is_err(), refused, "{mode:o}");
        let link = files.0.path().join(format!("link-{mode:o}"));
        symlink(&path, &link).unwrap();
        assert_eq!(ApiServerAccess::read(&link).is_err(), refused, "{mode:o}");
    }
    // A kubeconfig without a secret of its own may be readable for others; the key that it names may not.
    let user = "{client-certificate: client.crt, client-key: client.key}";
    std::fs::write(&path, kubeconfig(SERVER, "{}", user)).unwrap();
    open(&path, 0o644);
    ApiServerAccess::read(&path).unwrap();
    open(&key, 0o644);
    let error = ApiServerAccess::read(&path).unwrap_err().to_string();
    assert!(error.contains("users[us].user.client-key") && error.contains("0644"), "{error}");
}
