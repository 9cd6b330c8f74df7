//! The schemas of CKE's inputs (its `docs/cluster.md`, `docs/sabakan-integration.md`; types of release line 1.30).

pub use crate::limits::MAX_COUNT;
use crate::limits::MAX_SECONDS;
use crate::strict::walk::Kind::{self, OmitEmpty};
use crate::strict::walk::Schema;

const TEXTS: Kind = Kind::List(&Kind::Text);
const COUNT: Kind = Kind::Whole(0, MAX_COUNT);
const POSITIVE_COUNT: Kind = Kind::Whole(1, MAX_COUNT);
const SECONDS: Kind = Kind::Whole(0, MAX_SECONDS);
const POSITIVE_SECONDS: Kind = Kind::Whole(1, MAX_SECONDS);

/// A cluster configuration, or a template of one.
pub static CLUSTER: Schema = Schema {
    fields: &[
        ("name", Kind::Text),
        ("nodes", Kind::List(&Kind::Object(&NODE))),
        ("taint_control_plane", Kind::Bool),
        ("control_plane_tolerations", TEXTS),
        ("service_subnet", Kind::Text),
        ("dns_servers", TEXTS),
        ("dns_service", Kind::Text),
        ("reboot", Kind::Object(&REBOOT)),
        ("repair", Kind::Object(&REPAIR)),
        ("options", Kind::Object(&OPTIONS)),
    ],
};

pub(crate) static NODE: Schema = Schema {
    fields: &[
        ("address", Kind::Text),
        ("hostname", Kind::Text),
        ("user", Kind::Text),
        ("control_plane", Kind::Bool),
        ("annotations", Kind::Map(&Kind::Text)),
        ("labels", Kind::Map(&Kind::Text)),
        ("taints", Kind::List(&Kind::Object(&TAINT))),
    ],
};

/// The schema of a node's taint.
pub static TAINT: Schema = Schema {
    fields: &[
        ("key", Kind::Text),
        ("value", OmitEmpty(&Kind::Text)),
        ("effect", Kind::Text),
        ("timeAdded", OmitEmpty(&Kind::Text)),
    ],
};

/// Settings of graceful reboots.
pub static REBOOT: Schema = Schema {
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
        ("protected_namespaces", OmitEmpty(&Kind::Object(&LABEL_SELECTOR))),
    ],
};

/// The schema of the section `repair`.
pub static REPAIR: Schema = Schema {
    fields: &[
        ("repair_procedures", Kind::List(&Kind::Object(&REPAIR_PROCEDURE))),
        ("max_concurrent_repairs", OmitEmpty(&COUNT)),
        ("protected_namespaces", OmitEmpty(&Kind::Object(&LABEL_SELECTOR))),
        ("evict_retries", OmitEmpty(&COUNT)),
        ("evict_interval", OmitEmpty(&SECONDS)),
        ("eviction_timeout_seconds", OmitEmpty(&POSITIVE_SECONDS)),
    ],
};

static REPAIR_PROCEDURE: Schema = Schema {
    fields: &[("machine_types", TEXTS), ("repair_operations", Kind::List(&Kind::Object(&REPAIR_OPERATION)))],
};

static REPAIR_OPERATION: Schema = Schema {
    fields: &[
        ("operation", Kind::Text),
        ("repair_steps", Kind::List(&Kind::Object(&REPAIR_STEP))),
        ("health_check_command", TEXTS),
        ("command_timeout_seconds", OmitEmpty(&SECONDS)),
        ("success_command", OmitEmpty(&TEXTS)),
        ("success_command_timeout", OmitEmpty(&SECONDS)),
    ],
};

static REPAIR_STEP: Schema = Schema {
    fields: &[
        ("repair_command", TEXTS),
        ("command_timeout_seconds", OmitEmpty(&SECONDS)),
        ("command_retries", OmitEmpty(&COUNT)),
        ("command_interval", OmitEmpty(&SECONDS)),
        ("need_drain", OmitEmpty(&Kind::Bool)),
        ("watch_seconds", OmitEmpty(&SECONDS)),
    ],
};

static LABEL_SELECTOR: Schema = Schema {
    fields: &[
        ("matchLabels", OmitEmpty(&Kind::Map(&Kind::Text))),
        ("matchExpressions", OmitEmpty(&Kind::List(&Kind::Object(&LABEL_REQUIREMENT)))),
    ],
};

static LABEL_REQUIREMENT: Schema =
    Schema { fields: &[("key", Kind::Text), ("operator", Kind::Text), ("values", OmitEmpty(&TEXTS))] };

/// Options of the components.
pub static OPTIONS: Schema = Schema {
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
pub static SERVICE: Schema = service!();
static ETCD: Schema = service!(("volume_name", Kind::Text));
static API_SERVER: Schema = service!(
    ("audit_log_enabled", Kind::Bool),
    ("audit_log_policy", Kind::Text),
    ("audit_log_path", Kind::Text)
);
static SCHEDULER: Schema = service!(("config", OmitEmpty(&Kind::FreeForm)));
static PROXY: Schema = service!(("disable", OmitEmpty(&Kind::Bool)), ("config", OmitEmpty(&Kind::FreeForm)));
static KUBELET: Schema = service!(
    ("boot_taints", Kind::List(&Kind::Object(&TAINT))),
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

/// Variables of the registry's query.
pub static QUERY_VARIABLES: Schema = Schema {
    fields: &[("having", Kind::Object(&MACHINE_PARAMS)), ("notHaving", Kind::Object(&MACHINE_PARAMS))],
};

static MACHINE_PARAMS: Schema = Schema {
    fields: &[
        ("labels", Kind::List(&Kind::Object(&MACHINE_LABEL))),
        // GraphQL's Int has 32 bits.
        ("racks", Kind::List(&Kind::Whole(i32::MIN as i64, i32::MAX as i64))),
        ("roles", TEXTS),
        ("states", TEXTS),
        ("minDaysBeforeRetire", Kind::Whole(i32::MIN as i64, i32::MAX as i64)),
    ],
};

static MACHINE_LABEL: Schema = Schema { fields: &[("name", Kind::Text), ("value", Kind::Text)] };
