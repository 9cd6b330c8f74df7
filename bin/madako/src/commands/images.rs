//! `madako images`: names of container images, in ckecli's order.

use madako_supervisor::config::Config;

use crate::cli::Global;
use crate::failure::Failure;
use crate::output::{OutputArgs, Table, print, show};

/// Images of CKE's release that Madako does not run yet, after those of etcd and the tools.
const OTHERS: [&str; 5] = [
    "ghcr.io/cybozu/kubernetes:1.30.5.1",
    "ghcr.io/cybozu/pause:3.9.0.6",
    "ghcr.io/cybozu/coredns:1.11.3.1",
    "ghcr.io/cybozu/unbound:1.21.1.1",
    "ghcr.io/cybozu/unbound_exporter:0.4.6.2",
];

/// Lists the names of the container images of a cluster.
///
/// The images of etcd and of the tools are those of the configuration section `images`. The others are those of CKE,
/// which a node needs as soon as the service runs Kubernetes on it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako images\n  madako images -o json")]
pub(crate) struct Args {
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let images = Config::load(global.config.as_deref())?.operations.settings.images;
    let all: Vec<&str> = [images.etcd.as_str(), images.tools.as_str()].into_iter().chain(OTHERS).collect();
    let Some(format) = args.output.output else {
        return print(&all.iter().map(|image| format!("{image}\n")).collect::<String>());
    };
    show(format, &all, |all| {
        let mut table = Table::new(["IMAGE"]);
        for image in all {
            table.row([(*image).to_owned()]);
        }
        table.text()
    })
}
