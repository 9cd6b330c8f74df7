//! Tests on a corpus of documents that CKE accepts or refuses, with Madako's verdict and messages.

use std::fmt::Write as _;

use crate::cluster::Cluster;
use crate::template::Template;
use madako_json::input::{InputError, Warning};

const FILES: [(&str, &str); 2] =
    [("nodes", include_str!("corpus/nodes.txt")), ("options", include_str!("corpus/options.txt"))];

struct Case {
    name: &'static str,
    form: &'static str,
    cke_accepts: bool,
    we_accept: bool,
    why: Option<&'static str>,
    text: String,
}

fn cases(file: &'static str) -> Vec<Case> {
    file.split("\n=== ").skip(1).map(case).collect()
}

fn case(text: &'static str) -> Case {
    let (head, text) = text.split_once("\n---").expect("a case has a text");
    let mut lines = head.lines();
    let (form, name) = lines.next().and_then(|line| line.split_once(": ")).expect("form and name");
    let (mut cke, mut ours, mut why) = (None, None, None);
    for line in lines {
        match line.split_once(": ") {
            Some(("cke", verdict)) => cke = Some(verdict == "accepts"),
            Some(("ours", verdict)) => ours = Some(verdict == "accepts"),
            Some(("why", reason)) => why = Some(reason),
            _ => panic!("{name}: {line}"),
        }
    }
    let cke_accepts = cke.expect("every case has CKE's verdict");
    let (form, raw) = form.strip_prefix("raw-").map_or((form, false), |form| (form, true));
    let mut text = text.trim().to_owned() + "\n";
    let address =
        |last: &str| if form == "cluster" { format!(", address: 10.0.0.{last}") } else { String::new() };
    let base = [
        ("name:", "name: cluster\n".to_owned()),
        (
            "nodes:",
            format!(
                "nodes: [{{user: cybozu, control_plane: true{}}}, {{user: cybozu{}}}]\n",
                address("1"),
                address("2")
            ),
        ),
        ("service_subnet:", "service_subnet: 10.68.0.0/16\n".to_owned()),
    ];
    for (key, line) in base {
        if !raw && !text.lines().any(|line| line.starts_with(key)) {
            text += &line;
        }
    }
    Case { name, form, cke_accepts, we_accept: ours.unwrap_or(cke_accepts), why, text }
}

fn read(case: &Case) -> Result<(Cluster, Vec<Warning>), InputError> {
    if case.form == "template" {
        Template::from_yaml(&case.text).map(|template| (template.cluster().clone(), template.warnings()))
    } else {
        Cluster::from_yaml(&case.text).map(|cluster| (cluster.clone(), cluster.warnings()))
    }
}

#[test]
fn verdicts_are_those_of_cke_or_differ_for_a_reason() {
    let mut wrong = String::new();
    for case in FILES.into_iter().flat_map(|(_, file)| cases(file)) {
        assert_eq!(
            case.we_accept != case.cke_accepts,
            case.why.is_some(),
            "{}: a difference has a reason",
            case.name
        );
        match read(&case) {
            Ok(_) if !case.we_accept => writeln!(wrong, "accepted: {}", case.name).unwrap(),
            Err(error) if case.we_accept => writeln!(wrong, "refused: {}: {error}", case.name).unwrap(),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn warnings_and_errors_of_each_case() {
    for (name, file) in FILES {
        let mut text = String::new();
        for case in cases(file) {
            match read(&case) {
                Ok((_, warnings)) if warnings.is_empty() => continue,
                Ok((_, warnings)) => {
                    writeln!(text, "{}", case.name).unwrap();
                    warnings.iter().for_each(|warning| writeln!(text, "  warning: {warning}").unwrap());
                }
                Err(error) => {
                    writeln!(text, "{}", case.name).unwrap();
                    error.problems.iter().for_each(|problem| writeln!(text, "  {problem}").unwrap());
                }
            }
        }
        insta::assert_snapshot!(name, text);
    }
}

#[test]
fn accepted_documents_survive_yaml_and_json() {
    for case in FILES.into_iter().flat_map(|(_, file)| cases(file)).filter(|case| case.we_accept) {
        let (cluster, _) = read(&case).unwrap();
        let text = cluster.to_yaml().unwrap();
        let again = Case { text, ..case };
        let json = |cluster: &Cluster| serde_json::to_value(cluster).unwrap();
        assert_eq!(json(&read(&again).unwrap().0), json(&cluster), "{}: {}", again.name, again.text);
        let stored: Cluster = serde_json::from_str(&serde_json::to_string(&cluster).unwrap()).unwrap();
        assert_eq!(stored, cluster, "{}", again.name);
    }
}

#[test]
fn accepted_typed_documents_pass_the_check_of_stored_values() {
    for case in FILES.into_iter().flat_map(|(_, file)| cases(file)).filter(|case| case.we_accept) {
        let (cluster, _) = read(&case).unwrap();
        if case.form == "template" {
            Template::new(cluster).unwrap();
        } else {
            cluster.check().unwrap();
        }
    }
}
