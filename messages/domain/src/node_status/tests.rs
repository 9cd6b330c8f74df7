use time::macros::datetime;

use super::*;
use crate::certificate::Validity;
use crate::containers::Container;

const WHOLE: &str = r#"{
  "config_version": "2",
  "nodes": {
    "10.0.0.1": {
      "reachable": true,
      "containers": {
        "etcd": {"running": true, "image": "etcd:3.5.15",
          "builtin": {"extra_args": ["--name=10.0.0.1"], "extra_binds": null, "extra_env": null}, "extra": null},
        "rivers": {"running": true, "image": "haproxy", "builtin": null, "extra": null, "foreign": true}
      },
      "etcd_data": true, "etcd_mark": true, "etcd_empty": false, "etcd_other_volume": false,
      "etcd_certificates": {"server.crt": {"not_before": "2026-01-01T00:00:00Z", "not_after": "2027-01-01T00:00:00Z"}}
    },
    "10.0.0.2": {"reachable": false, "containers": null, "etcd_data": false, "etcd_mark": false}
  },
  "etcd": {"healthy": true, "members": [
    {"id": "18446744073709551615", "name": "10.0.0.1", "peer_urls": ["https://10.0.0.1:2380"], "learner": false,
      "in_sync": true, "version": "3.5.15"},
    {"id": "1", "name": "", "peer_urls": ["https://10.0.0.2:2380"], "learner": true, "in_sync": false}
  ]},
  "bootstrap": {"status": "completed", "targets": ["10.0.0.1"]},
  "etcd_image_version": "3.5.16-rc.1"
}"#;

#[test]
fn a_status_is_read_as_a_whole() {
    let status = status_from_yaml(WHOLE).unwrap();
    assert_eq!(status.config_version, ConfigVersion::Two);
    let node = &status.nodes["10.0.0.1"];
    assert!(node.runs(Container::Etcd) && node.has_data() && !node.is_foreign(Container::Etcd));
    assert_eq!(node.containers["etcd"].builtin.args, ["--name=10.0.0.1"]);
    assert!(node.is_foreign(Container::Rivers) && !node.runs(Container::Rivers));
    let validity = Validity { from: datetime!(2026-01-01 0:00 UTC), to: datetime!(2027-01-01 0:00 UTC) };
    assert_eq!(node.etcd_certificates["server.crt"].validity, Some(validity));
    assert_eq!(status.nodes["10.0.0.2"], NodeStatus::default());
    let etcd = status.etcd.unwrap();
    assert_eq!(etcd.members.iter().map(|member| member.id).collect::<Vec<_>>(), [u64::MAX, 1]);
    assert_eq!(etcd.members.iter().map(EtcdMember::address).collect::<Vec<_>>(), ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(etcd.members[0].version, Some("3.5.15".parse().unwrap()));
    let bootstrap = status.bootstrap.unwrap();
    assert_eq!((bootstrap.status, bootstrap.targets), (RecordStatus::Completed, vec!["10.0.0.1".to_owned()]));
    assert!(status.etcd_image_version > etcd.members[0].version);
}

#[test]
fn lists_and_maps_may_be_null_and_optional_fields_absent() {
    let status = status_from_yaml(
        r#"{"config_version": "1", "nodes": null, "etcd": {"healthy": false, "members": null}, "bootstrap": null}"#,
    )
    .unwrap();
    assert_eq!((status.config_version, status.nodes.len()), (ConfigVersion::One, 0));
    assert_eq!(status.etcd, Some(EtcdStatus::default()));
    assert_eq!((status.bootstrap, status.etcd_image_version), (None, None));
    let node =
        "{config_version: '2', nodes: {a: {reachable: true, etcd_data: true, etcd_other_volume: etcd-old}}}";
    let node = &status_from_yaml(node).unwrap().nodes["a"];
    assert!(node.has_data() && node.etcd_other_volume && node.etcd_empty.is_none());
}

#[test]
fn wrong_and_unknown_fields_are_refused_with_the_expected_value() {
    for (from, to, parts) in [
        (r#""2""#, "2", &["config_version: got the number 2, expected \"1\" or \"2\", in quotes"][..]),
        (r#""2""#, r#""3""#, &["config_version: got \"3\", expected \"1\" or \"2\""]),
        (r#""config_version": "2","#, "", &["config_version: expected \"1\" or \"2\""]),
        (
            r#""reachable": true"#,
            r#""reachable": "yes""#,
            &["nodes[10.0.0.1].reachable: got \"yes\", expected true"],
        ),
        (
            r#""reachable": true"#,
            r#""reachabel": true"#,
            &["nodes[10.0.0.1].reachabel: got an unknown field"],
        ),
        (
            r#""2027-01-01T00:00:00Z""#,
            r#""2027""#,
            &[
                "nodes[10.0.0.1].etcd_certificates[server.crt].not_after: got \"2027\", expected a time such as",
            ],
        ),
        (
            r#""running": true"#,
            r#""running": 1"#,
            &["nodes[10.0.0.1].containers[etcd].running: got the number 1"],
        ),
        (
            r#"["--name=10.0.0.1"]"#,
            "{}",
            &["containers[etcd].builtin.extra_args: got an object, expected a list"],
        ),
        (
            r#""id": "1""#,
            r#""id": 1"#,
            &["etcd.members[1].id: got the number 1, expected the id of a member"],
        ),
        (r#""id": "1""#, r#""id": "0x1""#, &["etcd.members[1].id: got \"0x1\", expected the id of a member"]),
        (r#""id": "1","#, "", &["etcd.members[1].id: expected the id of a member"]),
        (
            r#""id": "1""#,
            r#""id": "18446744073709551616""#,
            &["etcd.members[1].id: got \"18446744073709551616\""],
        ),
        (
            r#""learner": true"#,
            r#""learner": "true""#,
            &["etcd.members[1].learner: got \"true\", expected true or"],
        ),
        (
            r#""version": "3.5.15""#,
            r#""version": "new""#,
            &["etcd.members[0].version: got \"new\", expected a version"],
        ),
        (
            r#""completed""#,
            r#""done""#,
            &["bootstrap.status: got \"done\", expected new, running, cancelled or"],
        ),
        (
            r#""etcd_other_volume": false"#,
            r#""etcd_other_volume": 1"#,
            &["etcd_other_volume: got the number 1"],
        ),
        (r#""etcd_image_version""#, r#""etcd_image""#, &["etcd_image: got an unknown field"]),
    ] {
        assert!(WHOLE.contains(from), "{from}");
        let error = status_from_yaml(&WHOLE.replacen(from, to, 1)).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }
    for text in ["", "[]", "{}", "{\"config_version\": \"2\"}", "{"] {
        status_from_yaml(text).unwrap_err();
    }
}

#[test]
fn the_node_of_a_member_is_its_name_or_the_host_of_its_first_url() {
    let member = |name: &str, urls: &[&str]| EtcdMember {
        id: 7,
        name: name.to_owned(),
        peer_urls: urls.iter().map(|url| (*url).to_owned()).collect(),
        ..EtcdMember::default()
    };
    for (name, urls, address) in [
        ("a", &["https://10.0.0.1:2380"][..], "a"),
        ("", &["https://10.0.0.1:2380", "https://10.0.0.2:2380"], "10.0.0.1"),
        ("", &["https://[fd00::1]:2380/"], "fd00::1"),
        ("", &["https://10.0.0.1"], "7"),
        ("", &[], "7"),
    ] {
        assert_eq!(member(name, urls).address(), address);
    }
}

#[test]
fn versions_are_compared_by_their_numbers() {
    let version = |text: &str| text.parse::<EtcdVersion>().unwrap();
    assert!(version("3.5.9") < version("3.5.15") && version("3.4.27") < version("3.5.0"));
    assert_eq!(version("3.6.0-rc.1"), version("3.6.0"));
    assert_eq!(version("3.5.15").to_string(), "3.5.15");
    for text in ["", "v3", "3.", "3.x", "-1"] {
        assert!(text.parse::<EtcdVersion>().is_err(), "{text}");
    }
}
