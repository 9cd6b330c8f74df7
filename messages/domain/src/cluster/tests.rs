use crate::cluster::Cluster;
use crate::template::Template;

const MINIMAL: &str = "
name: cluster
nodes:
- user: cybozu
  control_plane: true
- user: cybozu
  control_plane: false
service_subnet: 10.68.0.0/16
";

#[test]
fn defaults_are_written_down_as_ckecli_does() {
    let template = Template::from_yaml(MINIMAL).unwrap();
    assert_eq!(
        template.cluster().options.text(),
        Some(
            r#"{"etcd":{"volume_name":"etcd-cke"},"kubelet":{"cri_endpoint":"/run/containerd/containerd.sock"}}"#
        )
    );
    let given = format!("{MINIMAL}options: {{etcd: {{volume_name: a}}, kubelet: {{cri_endpoint: /b}}}}");
    let template = Template::from_yaml(&given).unwrap();
    assert_eq!(
        template.cluster().options.text(),
        Some(r#"{"etcd":{"volume_name":"a"},"kubelet":{"cri_endpoint":"/b"}}"#)
    );
}

#[test]
fn stored_template_may_have_unknown_fields_but_no_invalid_fields() {
    let stored = |options: &str| -> Cluster {
        let text = format!(
            r#"{{"name":"c","service_subnet":"10.0.0.0/8","x-new":1.0,"options":{options},
                "nodes":[{{"user":"a","control_plane":true,"x-new":[1]}},{{"user":"a"}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    };
    let template = Template::new(stored(r#"{"x-new":{"a":1e400},"Kubelet":{"Extra_Args":["-x"]}}"#)).unwrap();
    assert_eq!(
        template.cluster().options.text(),
        Some(
            r#"{"x-new":{"a":1e400},"Kubelet":{"Extra_Args":["-x"],"cri_endpoint":"/run/containerd/containerd.sock"},"etcd":{"volume_name":"etcd-cke"}}"#
        )
    );
    let error =
        Template::new(stored(r#"{"kubelet":{"cri_endpoint":"","Extra_Args":"-x"},"etcd":5}"#)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "template is not valid; options.kubelet.extra_args: got a text, expected a list of texts; \
         options.etcd: got the number 5, expected an object; \
         options.kubelet.cri_endpoint: got \"\", expected the path of the runtime's socket, or no such field"
    );
}

#[test]
fn all_problems_are_reported_together_without_secrets() {
    let error = Template::from_yaml(
        "nodez: []
nodes:
- {usr: cybozu, control_plane: true}
- {user: cybozu, labels: {cke.cybozu.com/weight: '0'}, control_plan: no}
- 5
options:
  kubelet: {extra_env: {PASSWORD: 12345}, extra_args: --token=secret, cri_endpoint: ''}
reboot: {command_retries: -1}
service_subnet: 10.0.0.0/8
",
    )
    .unwrap_err();
    let message: Vec<_> = error.problems.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(message.join("\n"), @r#"
    nodez: got an unknown field, expected a known field such as "nodes"
    nodes[0].usr: got an unknown field, expected a known field such as "user"
    nodes[1].control_plan: got an unknown field, expected a known field such as "control_plane"
    nodes[2]: got the number 5, expected an object
    options.kubelet.extra_env[PASSWORD]: got a number, expected a text: put it in quotes
    options.kubelet.extra_args: got a text, expected a list of texts
    reboot.command_retries: got the number -1, expected a whole number from 0 to 2147483647
    nodes[1].labels[cke.cybozu.com/weight]: got "0", expected a finite number above 0
    name: expected a name
    nodes[0].user: expected the user for SSH
    options.kubelet.cri_endpoint: got "", expected the path of the runtime's socket, or no such field
    "#);
}

#[test]
fn the_depth_and_size_of_yaml_input_are_bounded() {
    let levels = |count| format!("a: {}{}", "[".repeat(count), "]".repeat(count));
    // Each level holds ten of the previous level.
    let aliases: String = (b'a'..b'k')
        .map(|level| {
            let (this, next) = (level as char, (level + 1) as char);
            format!("{next}: &{next} [{}]\n", vec![format!("*{this}"); 10].join(","))
        })
        .collect();
    for (text, expected) in [
        (levels(100), "got more than 64 levels of nesting at line 1"),
        (levels(100_000), "got recursion limit exceeded at line 1"),
        (format!("{{\"a\": {}", "[".repeat(100_000)), "got recursion limit exceeded at line 1"),
        (format!("a: &a [1]\n{aliases}"), "got more content, aliases included, than the limit (line 1"),
        ("a: &a [*a]".to_owned(), "got an alias inside its own anchor at line 1, column 8"),
        (" ".repeat(madako_json::strict::MAX_TEXT_BYTES + 1), "got 134217729 bytes"),
    ] {
        let message = Cluster::from_yaml(&text).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn yaml_is_as_ckecli_prints_it() {
    let cluster: Cluster = serde_json::from_str(
        r#"{"name":"c","nodes":[{"address":"10.0.0.1","user":"u","labels":{"b":"6.0","a":"on","n":"no"},"taints":[{"key":"k","effect":"NoExecute"}]}],
            "options":{"kubelet":{"config":{"maxPods":110.0,"factor":0.5,"big":18446744073709551615}},"kube-api":{"audit_log_policy":"a: b\nc: d\n"}}}"#,
    )
    .unwrap();
    insta::assert_snapshot!(cluster.to_yaml().unwrap(), @r#"
    control_plane_tolerations: []
    dns_servers: []
    dns_service: ""
    name: c
    nodes:
    - address: "10.0.0.1"
      annotations: {}
      control_plane: false
      hostname: ""
      labels:
        a: "on"
        b: "6.0"
        "n": "no"
      taints:
      - effect: NoExecute
        key: k
      user: u
    options:
      kube-api:
        audit_log_policy: |
          a: b
          c: d
      kubelet:
        config:
          big: 18446744073709551615
          factor: 0.5
          maxPods: 110
    service_subnet: ""
    taint_control_plane: false
    "#);
}
