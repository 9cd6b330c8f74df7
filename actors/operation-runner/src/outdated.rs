//! The differences between a container and the wanted one, by the rules of CKE: arguments with their order, mounts with
//! their order, environment, image, and for some components a file. For etcd, the arguments of the first start do not
//! count.

use std::collections::BTreeMap;
use std::fmt;

use madako_domain::containers::{Container, ContainerOptions, Mount, ServiceParams};
use madako_domain::node_status::ContainerStatus;

use crate::input::Images;
use crate::wanted::is_outdated;

/// Arguments of etcd that count only at the first start of a member begin so.
const FIRST_START: &str = "--initial-";

/// A difference of a running container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outdated {
    Image {
        has: String,
        wanted: String,
    },
    ArgumentMissing(String),
    ArgumentNotWanted(String),
    ArgumentOrder,
    MountMissing(String),
    MountNotWanted(String),
    MountOrder,
    /// A value of `None`: the variable is absent.
    Variable {
        name: String,
        has: Option<String>,
        wanted: Option<String>,
    },
    /// The node has no file of that path, or one of another form.
    FileUnreadable(String),
    /// The keys with which an API server encrypts Secrets changed after its start.
    EncryptionKeys,
    /// A field of a file, with the objects that it is in.
    Field {
        file: String,
        field: String,
    },
}

impl fmt::Display for Outdated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image { has, wanted } => write!(f, "the image is {has}, and {wanted} is wanted"),
            Self::ArgumentMissing(argument) => write!(f, "the argument {argument} is missing"),
            Self::ArgumentNotWanted(argument) => write!(f, "the argument {argument} is not wanted"),
            Self::ArgumentOrder => f.write_str("the arguments are in another order"),
            Self::MountMissing(mount) => write!(f, "the mount {mount} is missing"),
            Self::MountNotWanted(mount) => write!(f, "the mount {mount} is not wanted"),
            Self::MountOrder => f.write_str("the mounts are in another order"),
            // The value of a variable may be a secret.
            Self::Variable { name, has: None, .. } => write!(f, "the variable {name} is missing"),
            Self::Variable { name, wanted: None, .. } => write!(f, "the variable {name} is not wanted"),
            Self::Variable { name, .. } => write!(f, "the variable {name} has another value"),
            Self::FileUnreadable(path) => write!(f, "the file {path} is missing or unreadable"),
            Self::EncryptionKeys => f.write_str("the encryption keys changed after its start"),
            // So may the value of a field.
            Self::Field { file, field } => write!(f, "the field {field} of {file} differs"),
        }
    }
}

/// All differences of a container; none if it is as wanted.
pub(crate) fn reasons_to_restart(
    container: Container,
    status: &ContainerStatus,
    builtin: &ServiceParams,
    options: &ContainerOptions,
    images: &Images,
) -> Vec<Outdated> {
    if !is_outdated(container, status, builtin, options, images) {
        return Vec::new();
    }
    let counts = |argument: &str| container != Container::Etcd || !argument.starts_with(FIRST_START);
    find_differences(status, images.image_of(container), [builtin, options.extra(container)], counts)
}

/// The differences of image and parameters; `wanted` are the built-in parameters and those of the operator. Arguments
/// that do not count are left out.
pub(crate) fn find_differences(
    status: &ContainerStatus,
    image: &str,
    [builtin, extra]: [&ServiceParams; 2],
    counts: impl Fn(&str) -> bool,
) -> Vec<Outdated> {
    let mut found = Vec::new();
    if status.image != image {
        found.push(Outdated::Image { has: status.image.clone(), wanted: image.to_owned() });
    }
    for (has, wanted) in [(&status.builtin, builtin), (&status.extra, extra)] {
        // The parameters of most containers are as wanted.
        if has.is_same_service(wanted) {
            continue;
        }
        compare_arguments(&counts, has, wanted, &mut found);
        compare_mounts(&has.binds, &wanted.binds, &mut found);
        compare_variables(&has.env, &wanted.env, &mut found);
    }
    found
}

fn compare_arguments(
    counts: impl Fn(&str) -> bool,
    has: &ServiceParams,
    wanted: &ServiceParams,
    found: &mut Vec<Outdated>,
) {
    let counts = |argument: &&String| counts(argument);
    let has: Vec<&String> = has.args.iter().filter(counts).collect();
    let wanted: Vec<&String> = wanted.args.iter().filter(counts).collect();
    let (missing, unwanted) = (subtract_elements(&wanted, &has), subtract_elements(&has, &wanted));
    if missing.is_empty() && unwanted.is_empty() && has != wanted {
        found.push(Outdated::ArgumentOrder);
    }
    found.extend(missing.into_iter().map(|argument| Outdated::ArgumentMissing(argument.clone())));
    found.extend(unwanted.into_iter().map(|argument| Outdated::ArgumentNotWanted(argument.clone())));
}

fn compare_mounts(has: &[Mount], wanted: &[Mount], found: &mut Vec<Outdated>) {
    let text = |mount: &Mount| {
        let access = if mount.read_only { "ro" } else { "rw" };
        format!("{}:{}:{access}", mount.source, mount.destination)
    };
    let (has, wanted): (Vec<String>, Vec<String>) =
        (has.iter().map(text).collect(), wanted.iter().map(text).collect());
    let (missing, unwanted) = (subtract_elements(&wanted, &has), subtract_elements(&has, &wanted));
    if missing.is_empty() && unwanted.is_empty() && has != wanted {
        found.push(Outdated::MountOrder);
    }
    found.extend(missing.into_iter().map(Outdated::MountMissing));
    found.extend(unwanted.into_iter().map(Outdated::MountNotWanted));
}

fn compare_variables(
    has: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
    found: &mut Vec<Outdated>,
) {
    let names: std::collections::BTreeSet<&String> = has.keys().chain(wanted.keys()).collect();
    let differs = names.into_iter().filter(|name| has.get(*name) != wanted.get(*name));
    found.extend(differs.map(|name| Outdated::Variable {
        name: name.clone(),
        has: has.get(name).cloned(),
        wanted: wanted.get(name).cloned(),
    }));
}

/// The elements of one list that the other has less often.
fn subtract_elements<T: Clone + PartialEq>(one: &[T], other: &[T]) -> Vec<T> {
    let mut rest = other.to_vec();
    let mut left = Vec::new();
    for element in one {
        match rest.iter().position(|candidate| candidate == element) {
            Some(index) => drop(rest.remove(index)),
            None => left.push(element.clone()),
        }
    }
    left
}
