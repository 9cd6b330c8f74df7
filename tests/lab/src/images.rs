//! The images of a lab's machines: archives that the script `images.sh` makes of programs of the host and of
//! `scripts/set-up`.

use std::path::{Path, PathBuf};

use crate::keeper::Keeper;
use crate::limits::IMAGE_WITHIN;
use crate::tool::{LabError, run};

/// The name of the image with Debian's etcd.
pub const ETCD_IMAGE: &str = "madako-lab/etcd:3.4";
/// The name of the tools image that `make tools-image` makes.
pub const TOOLS_IMAGE: &str = concat!("madako-tools:", env!("CARGO_PKG_VERSION"));
/// The name of the image with the components of Kubernetes and kubectl.
pub const KUBERNETES_IMAGE: &str = "madako-lab/kubernetes:1.34.4";
/// The same objects, linked as the next patch release.
pub const NEXT_KUBERNETES_IMAGE: &str = "madako-lab/kubernetes:1.34.5";
/// The earlier minor release, of `scripts/set-up long`.
pub const PREVIOUS_KUBERNETES_IMAGE: &str = "madako-lab/kubernetes:1.33.13";
/// The image of pods' sandboxes, which containerd's configuration names.
pub const PAUSE_IMAGE: &str = "madako-lab/pause:1";
pub const COREDNS_IMAGE: &str = "madako-lab/coredns:1";
/// Debian's unbound.
pub const UNBOUND_IMAGE: &str = "madako-lab/unbound:1";
/// A stand-in with the arguments and the port of CKE's.
pub const UNBOUND_EXPORTER_IMAGE: &str = "madako-lab/unbound_exporter:1";
/// Answers HTTP requests to port 8080 with the name of the pod.
pub const ECHO_IMAGE: &str = "madako-lab/echo:1";

/// A file with images, for the engine that loads it on each machine.
#[derive(Debug, Clone)]
pub(crate) enum Archive {
    Docker(PathBuf),
    /// The images of pods.
    Containerd(PathBuf),
}

/// The directory of cargo's builds, where `make tools-image` and `scripts/set-up` write too.
fn target_directory() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |set| root.join(set))
}

/// The archive of the tools image that `make tools-image` made.
#[must_use]
pub fn tools_archive() -> Option<PathBuf> {
    Some(target_directory().join("image/madako-tools.tar")).filter(|archive| archive.is_file())
}

/// A program that `scripts/set-up lab` built, such as `kubernetes/kubectl`.
///
/// # Errors
/// It is not built.
pub fn built_program(name: &str) -> Result<PathBuf, LabError> {
    let program = target_directory().join("tools").join(name);
    if program.is_file() {
        return Ok(program);
    }
    Err(LabError::Unavailable(format!("{} is missing: run scripts/set-up lab long", program.display())))
}

/// Makes the archive of etcd under a name.
pub(crate) async fn make_etcd(keeper: &Keeper, name: &str) -> Result<Archive, LabError> {
    make(keeper, "etcd", "etcd", &[Path::new(name)]).await.map(Archive::Docker)
}

/// Makes the archives of Kubernetes and of pods.
pub(crate) async fn make_kubernetes(keeper: &Keeper) -> Result<[Archive; 2], LabError> {
    let program = built_program("kubernetes/kubernetes")?;
    let pods = built_program("pods/coredns")?;
    let pods = pods.parent().unwrap_or(&pods);
    let kubernetes =
        make(keeper, "kubernetes", "kubernetes", &[Path::new(KUBERNETES_IMAGE), &program]).await?;
    let pods = make(keeper, "pods", "pods", &[pods]).await?;
    Ok([Archive::Docker(kubernetes), Archive::Containerd(pods)])
}

/// Makes the archive of [`NEXT_KUBERNETES_IMAGE`].
pub(crate) async fn make_next_kubernetes(keeper: &Keeper) -> Result<PathBuf, LabError> {
    let program = built_program("kubernetes/next/kubernetes")?;
    make(keeper, "kubernetes", "next-kubernetes", &[Path::new(NEXT_KUBERNETES_IMAGE), &program]).await
}

/// Makes the archive of [`PREVIOUS_KUBERNETES_IMAGE`].
pub(crate) async fn make_previous_kubernetes(keeper: &Keeper) -> Result<PathBuf, LabError> {
    let program = built_program("kubernetes_previous/kubernetes")?;
    make(keeper, "kubernetes", "previous-kubernetes", &[Path::new(PREVIOUS_KUBERNETES_IMAGE), &program]).await
}

/// Runs the script for an archive in the lab's directory.
async fn make(keeper: &Keeper, images: &str, file: &str, words: &[&Path]) -> Result<PathBuf, LabError> {
    let archive = keeper.directory().join(file).with_extension("tar");
    let mut command = keeper.images();
    command.arg(images).arg(&archive).args(words);
    run(&format!("the images of {images}"), &mut command, IMAGE_WITHIN).await?;
    Ok(archive)
}
