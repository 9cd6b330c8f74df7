//! Tests of the comparison of a container with the wanted one.

use std::collections::BTreeMap;

use madako_domain::containers::{Container, ContainerOptions, Mount, ServiceParams};
use madako_domain::node_status::ContainerStatus;
use madako_json::go::RawJson;

use crate::Images;
use crate::outdated::reasons_to_restart;
use crate::wanted::{self, InitialCluster};

fn texts(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| (*item).to_owned()).collect()
}

fn mount(source: &str, read_only: bool) -> Mount {
    Mount { source: source.to_owned(), destination: "/d".to_owned(), read_only, ..Mount::default() }
}

fn variables(items: &[(&str, &str)]) -> BTreeMap<String, String> {
    items.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The differences of a container of rivers with these parameters, where `wanted` are the wanted ones.
fn of(has: ServiceParams, wanted: &ServiceParams) -> Vec<String> {
    let images = Images::default();
    let status =
        ContainerStatus { running: true, image: images.tools.clone(), builtin: has, ..Default::default() };
    let options = ContainerOptions::read(&RawJson::default()).unwrap();
    let found = reasons_to_restart(Container::Rivers, &status, wanted, &options, &images);
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn arguments_differ_by_number_and_order() {
    let with = |args: &[&str]| ServiceParams { args: texts(args), ..ServiceParams::default() };
    for (has, wanted, expected) in [
        (&["a", "b"][..], &["a", "b"][..], &[][..]),
        (&["b", "a"], &["a", "b"], &["the arguments are in another order"]),
        (&["a", "a"], &["a"], &["the argument a is not wanted"]),
        (&["a"], &["a", "a"], &["the argument a is missing"]),
        (&["a", "b"], &["a", "c"], &["the argument c is missing", "the argument b is not wanted"]),
    ] {
        assert_eq!(of(with(has), &with(wanted)), expected, "{has:?} {wanted:?}");
    }
}

#[test]
fn mounts_differ_by_paths_access_and_order_alone() {
    let with = |binds: Vec<Mount>| ServiceParams { binds, ..ServiceParams::default() };
    let labelled =
        Mount { propagation: "shared".to_owned(), selinux_label: "z".to_owned(), ..mount("/a", true) };
    assert_eq!(of(with(vec![labelled]), &with(vec![mount("/a", true)])), [""; 0]);
    assert_eq!(
        of(with(vec![mount("/a", false)]), &with(vec![mount("/a", true)])),
        ["the mount /a:/d:ro is missing", "the mount /a:/d:rw is not wanted"]
    );
    let (one, two) = (mount("/a", true), mount("/b", true));
    assert_eq!(
        of(with(vec![one.clone(), two.clone()]), &with(vec![two, one])),
        ["the mounts are in another order"]
    );
}

#[test]
fn variables_are_named_without_their_values() {
    let with = |env| ServiceParams { env, ..ServiceParams::default() };
    let found = of(
        with(variables(&[("CHANGED", "secret-1"), ("EXTRA", "secret-2")])),
        &with(variables(&[("CHANGED", "secret-3"), ("LACKS", "secret-4")])),
    );
    assert_eq!(
        found,
        [
            "the variable CHANGED has another value",
            "the variable EXTRA is not wanted",
            "the variable LACKS is missing",
        ]
    );
}

#[test]
fn the_image_and_the_parameters_of_the_operator_count() {
    let images = Images::default();
    let builtin = ServiceParams::default();
    let extra = ServiceParams { args: texts(&["--x"]), ..ServiceParams::default() };
    let status = ContainerStatus { running: true, image: "old:1".to_owned(), extra, ..Default::default() };
    let options = ContainerOptions::read(&RawJson::default()).unwrap();
    let found = reasons_to_restart(Container::Rivers, &status, &builtin, &options, &images);
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    let image = format!("the image is old:1, and {} is wanted", images.tools);
    assert_eq!(found, [image.as_str(), "the argument --x is not wanted"]);
}

#[test]
fn arguments_of_the_first_start_of_etcd_do_not_count() {
    let images = Images::default();
    let members = texts(&["10.0.0.1"]);
    let mut builtin = wanted::etcd_parameters("10.0.0.1", InitialCluster::New(&members));
    builtin.args.push("--initial-election-tick-advance=false".to_owned());
    let mut status =
        ContainerStatus { running: true, image: images.etcd.clone(), builtin, ..Default::default() };
    let options = ContainerOptions::read(&RawJson::default()).unwrap();
    let wanted = wanted::etcd_parameters("10.0.0.1", InitialCluster::None);
    assert_eq!(reasons_to_restart(Container::Etcd, &status, &wanted, &options, &images), []);
    status.builtin.args.swap(0, 1);
    let found = reasons_to_restart(Container::Etcd, &status, &wanted, &options, &images);
    assert_eq!(
        found.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["the arguments are in another order"]
    );
}
