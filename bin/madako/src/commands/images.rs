//! `madako images`: names of container images. Without a subcommand, in ckecli's order and form.

use std::collections::BTreeMap;
use std::str::FromStr;

use clap::Subcommand;
use madako_domain::images::{
    ChosenImage, FoundImage, GivenImages, ImageName, choose_image, is_image, list_found,
};
use madako_domain::keys;
use madako_domain::limits::MAX_IMAGE;
use madako_operation_runner::images::images_on_nodes;
use madako_protocol::store::Store;
use madako_supervisor::clock::SystemClock;
use madako_supervisor::config::Config;
use serde::Serialize;
use time::OffsetDateTime;

use super::kubernetes::plan;
use super::ops::collected::gather_states;
use crate::access::{decode, get_entry, modify_entry, open_configured_store};
use crate::cli::Global;
use crate::failure::Failure;
use crate::limits::NODES_PAUSE;
use crate::list::{AsList, Cell, List, ListArgs, Tone};
use crate::output::{OutputArgs, Table, describe_change, print_note, print_text, show_value};

/// Lists the names of the container images of a cluster, and sets them.
///
/// The service takes an image from the first of these sources that names one: the key madako/images, which `madako
/// images set` writes; the section `images` of the configuration; the containers of the control plane nodes, if all
/// have one image; CKE's own image. Without a subcommand, the command prints the images as ckecli does. That form asks
/// no node, so it shows CKE's own image where only the containers on the nodes have another one. `madako images list` asks the nodes.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  madako images\n  madako images -o json\n  madako images list\n  madako images set \
                        etcd=registry.example.com/etcd:3.5.16\n  madako images adopt"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the image of each name, and its source: key, configuration, nodes or default.
    ///
    /// The command connects to every node, as `madako ops plan` does. If no image is given and the containers of control
    /// plane nodes have different ones, the source is unclear: the service starts no container with that image, and the
    /// command lists the nodes.
    ///
    /// Exit codes: 0: each image is known; 1: an image is unclear, or the nodes cannot be asked.
    #[command(after_help = "Examples:\n  madako images list\n  madako images list -o wide")]
    List(ListArgs),
    /// Stores images in the key madako/images, and prints the old and the new image of each name.
    ///
    /// Other names keep their images. NAME= without an image removes the name from the key. The leader restarts containers
    /// with a new image of etcd or of the tools, and with `kubernetes.mode: act` those of Kubernetes.
    ///
    /// If a cluster is stored, the command refuses an image of Kubernetes that breaks the version policy, as `madako kube plan`
    /// does, or whose version is not known, and stores nothing. It connects to every node for this. With --force, it asks no node; the leader still starts no
    /// component at a version that the policy forbids.
    #[command(
        after_help = "Examples:\n  madako images set etcd=registry.example.com/etcd:3.5.16\n  madako images set tools= pause="
    )]
    Set {
        /// A name (etcd, tools, kubernetes, pause, coredns, unbound, `unbound_exporter`) and its image
        #[arg(value_name = "NAME=IMAGE", required = true)]
        images: Vec<Assignment>,
        /// Stores the images without asking for the versions of Kubernetes
        #[arg(long)]
        force: bool,
    },
    /// Stores the images that all control plane nodes have: of etcd, of the tools and of Kubernetes.
    ///
    /// The command connects to every node. Images that the key madako/images already names stay unchanged. The command
    /// stores nothing if a control plane node does not answer, or if the nodes have different images and the key names
    /// none.
    #[command(after_help = "Example:\n  madako images adopt")]
    Adopt,
}

/// `NAME=IMAGE`, or `NAME=`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) name: ImageName,
    pub(crate) image: Option<String>,
}

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || ImageName::ALL.map(|name| name.name()).join(", ");
        let (name, image) = text.split_once('=').ok_or("expected NAME=IMAGE, or NAME= to remove the name")?;
        let name = name.parse().map_err(|_| format!("expected one of {} before the =", names()))?;
        if !image.is_empty() && !is_image(image) {
            return Err(format!(
                "expected the name of an image with at most {MAX_IMAGE} characters after the ="
            ));
        }
        Ok(Self { name, image: (!image.is_empty()).then(|| image.to_owned()) })
    }
}

pub(crate) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    match &args.command {
        None => print_all(args, global).await,
        Some(Command::List(args)) => list_images(args, global).await,
        Some(Command::Set { images, force }) => {
            let store = crate::access::open_store(global)?;
            if !force {
                refuse_skew(images, &store, global).await?;
            }
            set_images(images, &store).await
        }
        Some(Command::Adopt) => adopt_images(global).await,
    }
}

async fn print_all(args: &Args, global: &Global) -> Result<(), Failure> {
    let config = Config::load(global.config.as_deref())?;
    let key = stored_images(&open_configured_store(&config)?).await?;
    let configured = &config.operations.settings.configured_images;
    let all: Vec<String> = ImageName::ALL
        .into_iter()
        .map(|name| match choose_image(name, &key, configured, &FoundImage::new()) {
            ChosenImage::Image(image, _) => image,
            ChosenImage::Unclear(_) => unreachable!("no node was asked"),
        })
        .collect();
    let Some(format) = args.output.output else {
        return print_text(&all.iter().map(|image| format!("{image}\n")).collect::<String>());
    };
    show_value(format, &all, |all| {
        let mut table = Table::new(["IMAGE"]);
        for image in all {
            table.add_row([image.clone()]);
        }
        table.to_text()
    })
}

/// The images of the key.
async fn stored_images(store: &dyn Store) -> Result<GivenImages, Failure> {
    match get_entry(store, keys::IMAGES).await? {
        None => Ok(GivenImages::default()),
        Some(entry) => decode(keys::IMAGES, &entry),
    }
}

/// The image of a name that the key does not have.
const NO_IMAGE: &str = "none";

/// The source of an image of which the nodes have several.
const UNCLEAR: &str = "unclear";

/// An image in the output.
#[derive(PartialEq, Serialize)]
struct ImageRow {
    name: &'static str,
    /// `None`: the nodes have several.
    image: Option<String>,
    source: &'static str,
    /// The images of control plane nodes, with their addresses.
    nodes: FoundImage,
}

async fn list_images(args: &ListArgs, global: &Global) -> Result<(), Failure> {
    let mut unclear_images = Vec::new();
    let shown = async || {
        let rows = collect_rows(global).await?;
        unclear_images = rows.iter().filter(|row| row.image.is_none()).map(describe_unclear_image).collect();
        Ok(rows)
    };
    args.show(list_columns(), &SystemClock, NODES_PAUSE, shown).await?;
    if unclear_images.is_empty() { Ok(()) } else { Err(Failure::failed(unclear_images.join("; "))) }
}

async fn collect_rows(global: &Global) -> Result<Vec<ImageRow>, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let gathered = gather_states(global).await?;
    if let Some(why) = gathered.state.fault_of(keys::IMAGES) {
        return Err(Failure::failed(format_args!(
            "the stored value of {} cannot be read: {why}",
            keys::IMAGES
        )));
    }
    let (cluster, status) = (&gathered.inputs.cluster, &gathered.inputs.status);
    let configured = &config.operations.settings.configured_images;
    let row = |name: ImageName| {
        let nodes = images_on_nodes(name, cluster, status);
        let (image, source) = match choose_image(name, &gathered.state.images, configured, &nodes) {
            ChosenImage::Image(image, source) => (Some(image), source.name()),
            ChosenImage::Unclear(_) => (None, UNCLEAR),
        };
        ImageRow { name: name.name(), image, source, nodes }
    };
    Ok(ImageName::ALL.into_iter().map(row).collect())
}

pub(crate) fn list_columns() -> List {
    List::new(&["NAME", "IMAGE", "SOURCE"], &["NODES"])
}

impl AsList for Vec<ImageRow> {
    fn list(&self, _: OffsetDateTime) -> List {
        let mut list = list_columns();
        for row in self {
            let tone = if row.source == UNCLEAR { Tone::Bad } else { Tone::Plain };
            list.add(vec![
                row.name.into(),
                row.image.as_deref().unwrap_or("-").into(),
                Cell::new(row.source).with_tone(tone),
                list_found(&row.nodes).into(),
            ]);
        }
        list
    }
}

fn describe_unclear_image(row: &ImageRow) -> String {
    let name = row.name;
    format!(
        "the control plane nodes have different images of {name} ({}): run madako images set {name}=IMAGE",
        list_found(&row.nodes)
    )
}

/// Refuses images of Kubernetes that break the version policy. Without a cluster, nothing runs.
async fn refuse_skew(images: &[Assignment], store: &dyn Store, global: &Global) -> Result<(), Failure> {
    let is_of_kubernetes = images.iter().any(|assignment| assignment.name == ImageName::Kubernetes);
    if !is_of_kubernetes || get_entry(store, keys::CLUSTER).await?.is_none() {
        return Ok(());
    }
    let refused = |failure: Failure| match failure {
        Failure::Failed(error) => Failure::Failed(
            error.context("the images were not stored; --force stores them without this check"),
        ),
        other => other,
    };
    Box::pin(plan::refuse_skew(global, images)).await.map_err(refused)
}

/// Stores the images, and prints the old and the new one of each name.
async fn set_images(images: &[Assignment], store: &dyn Store) -> Result<(), Failure> {
    let changed = modify_entry(store, keys::IMAGES, |entry| {
        let mut stored: GivenImages = match entry {
            None => GivenImages::default(),
            Some(entry) => decode(keys::IMAGES, entry)?,
        };
        let mut changed = String::new();
        for Assignment { name, image } in images {
            let old = match image {
                Some(image) => stored.0.insert(*name, image.clone()),
                None => stored.0.remove(name),
            };
            let shown = |image: &Option<String>| image.clone().unwrap_or_else(|| NO_IMAGE.to_owned());
            changed += &describe_change(name.name(), &shown(&old), &shown(image));
        }
        Ok((serde_json::to_vec(&stored)?, changed))
    })
    .await?;
    print_text(&changed)
}

async fn adopt_images(global: &Global) -> Result<(), Failure> {
    let gathered = gather_states(global).await?;
    let (cluster, status) = (&gathered.inputs.cluster, &gathered.inputs.status);
    let answers = |address: &str| status.nodes.get(address).is_some_and(|node| node.reachable);
    let silent: Vec<&str> =
        cluster.control_plane().map(|node| &*node.address).filter(|address| !answers(address)).collect();
    if !silent.is_empty() {
        return Err(Failure::failed(format_args!(
            "no image was stored, because these control plane nodes do not answer: {}",
            silent.join(", ")
        )));
    }
    let images: BTreeMap<ImageName, FoundImage> =
        ImageName::ALL.into_iter().map(|name| (name, images_on_nodes(name, cluster, status))).collect();
    let store = crate::access::open_store(global)?;
    let adopted = modify_entry(&store, keys::IMAGES, |entry| {
        let mut stored: GivenImages = match entry {
            None => GivenImages::default(),
            Some(entry) => decode(keys::IMAGES, entry)?,
        };
        let mut adopted = Vec::new();
        let missing: Vec<_> = images.iter().filter(|(name, _)| !stored.0.contains_key(*name)).collect();
        for (name, found) in missing {
            match choose_image(*name, &GivenImages::default(), &GivenImages::default(), found) {
                ChosenImage::Unclear(nodes) => {
                    let row = ImageRow { name: name.name(), image: None, source: UNCLEAR, nodes };
                    return Err(Failure::failed(format_args!(
                        "no image was stored: {}",
                        describe_unclear_image(&row)
                    )));
                }
                ChosenImage::Image(image, _) if !found.is_empty() => {
                    adopted.push(format!("{name}={image}"));
                    stored.0.insert(*name, image);
                }
                ChosenImage::Image(..) => {}
            }
        }
        Ok((serde_json::to_vec(&stored)?, adopted))
    })
    .await?;
    if adopted.is_empty() {
        print_note("nothing to adopt: no node has a container with an image that the key lacks");
        return Ok(());
    }
    print_text(&adopted.iter().map(|image| format!("{image}\n")).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_names_an_image_or_removes_a_name() {
        let read = |text: &str| text.parse::<Assignment>();
        let etcd =
            |image: Option<&str>| Assignment { name: ImageName::Etcd, image: image.map(str::to_owned) };
        assert_eq!(read("etcd=a:1").unwrap(), etcd(Some("a:1")));
        assert_eq!(read("etcd=").unwrap(), etcd(None));
        for text in ["etcd", "etc=a", "=a", "etcd=a b", "etcd=--x"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
