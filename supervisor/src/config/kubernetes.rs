//! The section `kubernetes`: access to the cluster's API server, and whether operations act on the components of Kubernetes.

use std::path::Path;

use madako_json::strict::Kind;
use madako_kubernetes::ApiServerAccess;
use madako_operation_runner::{KubernetesMode, MinorUpgrade};
use strum::VariantNames as _;

use super::settings::{ABSOLUTE_PATH, ConfigFindings, read_word, section};

#[derive(Default)]
pub(super) struct GivenKubernetes {
    kubeconfig: Option<String>,
    mode: Option<KubernetesMode>,
    minor_upgrade: Option<MinorUpgrade>,
}

const MODES: Kind = Kind::OneOf(KubernetesMode::VARIANTS);
const MINOR_UPGRADES: Kind = Kind::OneOf(MinorUpgrade::VARIANTS);

section! {
    it: GivenKubernetes = GivenKubernetes::default() => {
        "kubeconfig": ABSOLUTE_PATH => it.kubeconfig;
        "mode": MODES => it.mode, by |mode| Some(read_word(mode));
        "minor_upgrade": MINOR_UPGRADES => it.minor_upgrade, by |word| Some(read_word(word));
    }
}

const KUBECONFIG: &str = "kubernetes.kubeconfig";
const MODE: &str = "kubernetes.mode";

/// Reads the kubeconfig that the section names, and how operations treat Kubernetes. `operates`: operations on nodes are on.
pub(super) fn read_kubernetes(
    given: GivenKubernetes,
    operates: bool,
    findings: &mut ConfigFindings,
) -> (Option<ApiServerAccess>, KubernetesMode, MinorUpgrade) {
    if given.kubeconfig.is_none() && given.mode.is_none() {
        findings.report_missing(KUBECONFIG, "the path of a kubeconfig, or `mode`");
    }
    let mode = given.mode.unwrap_or_default();
    if mode != KubernetesMode::Off && !operates {
        let name: &str = mode.into();
        findings.report(MODE, name, "off, because operations on nodes are off (`operations.mode`)");
    }
    let access = given.kubeconfig.and_then(|path| read_access(&path, findings));
    (access, mode, given.minor_upgrade.unwrap_or_default())
}

fn read_access(path: &str, findings: &mut ConfigFindings) -> Option<ApiServerAccess> {
    let error = match ApiServerAccess::read(Path::new(path)) {
        Ok(access) => return Some(access),
        Err(error) => error,
    };
    for problem in error.problems {
        let place = match problem.field.as_str() {
            "" => format!("{KUBECONFIG} ({path})"),
            inner => format!("{KUBECONFIG} ({path}): {inner}"),
        };
        findings.report(place, problem.got, problem.expected);
    }
    None
}
