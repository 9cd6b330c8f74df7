//! The schemas of those of CKE's inputs that no type of this crate declares (its `docs/cluster.md`; types of release
//! line 1.30), and kinds of fields.

use madako_json::strict::Kind::{self, OmitEmpty};
use madako_json::strict::{HasSchema as _, Schema};

use crate::cluster::Taint;
use crate::kubernetes::selector::LabelSelector;
use crate::limits::{MAX_COUNT, MAX_SECONDS};

pub(crate) const TEXTS: Kind = Kind::List(&Kind::Text);
pub(crate) const COUNT: Kind = Kind::Whole(0, MAX_COUNT);
const POSITIVE_COUNT: Kind = Kind::Whole(1, MAX_COUNT);
pub(crate) const SECONDS: Kind = Kind::Whole(0, MAX_SECONDS);
pub(crate) const POSITIVE_SECONDS: Kind = Kind::Whole(1, MAX_SECONDS);
/// GraphQL's Int has 32 bits.
pub(crate) const INT: Kind = Kind::Whole(i32::MIN as i64, i32::MAX as i64);

/// Settings of graceful reboots.
pub(crate) static REBOOT: Schema = Schema {
    fields: &[
        ("reboot_command", TEXTS),
        ("boot_check_command", TEXTS),
        ("max_concurrent_reboots", OmitEmpty(&POSITIVE_COUNT)),
        ("eviction_timeout_seconds", OmitEmpty(&POSITIVE_SECONDS)),
        ("command_timeout_seconds", OmitEmpty(&SECONDS)),
        ("command_retries", COUNT),
        ("command_interval", SECONDS),
        ("evict_retries", COUNT),
        ("evict_interval", SECONDS),
        ("protected_namespaces", OmitEmpty(&Kind::Object(LabelSelector::SCHEMA))),
    ],
};

/// Options of the components.
pub(crate) static OPTIONS: Schema = Schema {
    fields: &[
        ("etcd", Kind::Object(&ETCD)),
        ("rivers", Kind::Object(&SERVICE)),
        ("etcd-rivers", Kind::Object(&SERVICE)),
        ("kube-api", Kind::Object(&API_SERVER)),
        ("kube-controller-manager", Kind::Object(&SERVICE)),
        ("kube-scheduler", Kind::Object(&SCHEDULER)),
        ("kube-proxy", Kind::Object(&PROXY)),
        ("kubelet", Kind::Object(&KUBELET)),
    ],
};

/// The parameters of every component, and its own. Arguments and variables may hold secrets.
macro_rules! service {
    ($($own:expr),*) => {
        Schema {
            fields: &[
                ("extra_args", Kind::List(&Kind::Secret)),
                ("extra_binds", Kind::List(&Kind::Object(&MOUNT))),
                ("extra_env", Kind::Map(&Kind::Secret)),
                $($own,)*
            ],
        }
    };
}

/// The parameters of a component without further ones.
pub(crate) static SERVICE: Schema = service!();
static ETCD: Schema = service!(("volume_name", Kind::Text));
static API_SERVER: Schema = service!(
    ("audit_log_enabled", Kind::Bool),
    ("audit_log_policy", Kind::Text),
    ("audit_log_path", Kind::Text)
);
static SCHEDULER: Schema = service!(("config", OmitEmpty(&Kind::FreeForm)));
static PROXY: Schema = service!(("disable", OmitEmpty(&Kind::Bool)), ("config", OmitEmpty(&Kind::FreeForm)));
static KUBELET: Schema = service!(
    ("boot_taints", Kind::List(&Kind::Object(Taint::SCHEMA))),
    ("cni_conf_file", Kind::Object(&CNI_CONF_FILE)),
    ("config", OmitEmpty(&Kind::FreeForm)),
    ("cri_endpoint", Kind::Text)
);

static CNI_CONF_FILE: Schema = Schema { fields: &[("name", Kind::Text), ("content", Kind::Text)] };

static MOUNT: Schema = Schema {
    fields: &[
        ("source", Kind::Text),
        ("destination", Kind::Text),
        ("read_only", Kind::Bool),
        ("propagation", Kind::Text),
        ("selinux_label", Kind::Text),
    ],
};

pub(crate) static MACHINE_LABEL: Schema = Schema { fields: &[("name", Kind::Text), ("value", Kind::Text)] };
