//! The section `repair` in CKE's stored form, with uninterpreted numbers.

#![allow(unreachable_pub, reason = "the macro makes public types")]

use crate::kubernetes::selector::LabelSelector;
use crate::schema::{COUNT, POSITIVE_SECONDS, SECONDS, TEXTS};
use madako_json::go::go_object;
use madako_json::strict::HasKind as _;
use madako_json::strict::Kind::{self, OmitEmpty};

go_object! {
    #[derive(Debug, Clone, Default)]
    pub struct Stored {
        pub procedures: Vec<StoredProcedure> = "repair_procedures";
        pub max_concurrent: Option<i64> = "max_concurrent_repairs", is OmitEmpty(&COUNT);
        pub protected_namespaces: Option<LabelSelector> = "protected_namespaces", is OmitEmpty(&LabelSelector::KIND);
        pub evict_retries: Option<i64> = "evict_retries", is OmitEmpty(&COUNT);
        pub evict_interval: Option<i64> = "evict_interval", is OmitEmpty(&SECONDS);
        pub eviction_timeout: Option<i64> = "eviction_timeout_seconds", is OmitEmpty(&POSITIVE_SECONDS);
        ..drop typed
    }
}

go_object! {
    #[derive(Debug, Clone, Default)]
    pub struct StoredProcedure {
        pub machine_types: Vec<String> = "machine_types";
        pub operations: Vec<StoredOperation> = "repair_operations";
        ..drop typed
    }
}

go_object! {
    #[derive(Debug, Clone, Default)]
    pub struct StoredOperation {
        pub name: String = "operation";
        pub steps: Vec<StoredStep> = "repair_steps";
        pub health_check: Vec<String> = "health_check_command";
        pub timeout: Option<i64> = "command_timeout_seconds", is OmitEmpty(&SECONDS);
        pub success: Vec<String> = "success_command", is OmitEmpty(&TEXTS);
        pub success_timeout: Option<i64> = "success_command_timeout", is OmitEmpty(&SECONDS);
        ..drop typed
    }
}

go_object! {
    #[derive(Debug, Clone, Default)]
    pub struct StoredStep {
        pub command: Vec<String> = "repair_command";
        pub timeout: Option<i64> = "command_timeout_seconds", is OmitEmpty(&SECONDS);
        pub retries: Option<i64> = "command_retries", is OmitEmpty(&COUNT);
        pub interval: Option<i64> = "command_interval", is OmitEmpty(&SECONDS);
        pub need_drain: bool = "need_drain", is OmitEmpty(&Kind::Bool);
        pub watch: Option<i64> = "watch_seconds", is OmitEmpty(&SECONDS);
        ..drop typed
    }
}
