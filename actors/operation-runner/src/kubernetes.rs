//! Kubernetes on the nodes: the containers that should run with their arguments and files, and the differences of those
//! that run. The values are CKE's; `docs/decisions/kubernetes-beside-cke.md` lists the intended differences.
//!
//! # Guarantees
//! - All functions are pure: cluster, options, images and issued certificates are arguments.
//! - A container that CKE 1.30 made for the same cluster is as wanted while its image is the wanted one.
//! - A reason why a container is outdated names the image, argument, mount, variable or field of a file. It contains no
//!   value of a variable or of a field, which may be secrets.
//!
//! # Does not
//! Keep the objects of Kubernetes, or stop an API server with care: its clients notice the end of their connections.

pub mod certificates;
pub mod command;
pub mod configuration;
pub mod decide;
pub mod deprecated;
pub mod encryption;
pub mod files;
pub mod held;
pub mod kubeconfig;
pub(crate) mod load;
pub mod minor_upgrade;
pub mod objects;
pub mod operation;
pub mod options;
pub mod outdated;
pub mod params;
pub mod paths;
pub mod plan;
pub(crate) mod renewal;
pub(crate) mod rollout;
pub mod rotation;
pub(crate) mod row;
pub mod shown;
pub mod status;
pub(crate) mod stop;
pub mod versions;
