//! The section `repair` in CKE's stored form, with uninterpreted numbers.

#![allow(unreachable_pub, reason = "the macro makes public types")]

use crate::kubernetes::selector::LabelSelector;
use madako_json::go::go_object;

go_object! {
    #[derive(Debug, Clone, Default)]
    pub struct Stored {
        pub procedures: Vec<StoredProcedure> = "repair_procedures";
        pub max_concurrent: Option<i64> = "max_concurrent_repairs";
        pub protected_namespaces: Option<LabelSelector> = "protected_namespaces";
        pub evict_retries: Option<i64> = "evict_retries";
        pub evict_interval: Option<i64> = "evict_interval";
        pub eviction_timeout: Option<i64> = "eviction_timeout_seconds";
        ..drop
    }
}

go_object! {
    #[derive(Debug, Clone, Default)]
    pub struct StoredProcedure {
        pub machine_types: Vec<String> = "machine_types";
        pub operations: Vec<StoredOperation> = "repair_operations";
        ..drop
    }
}

go_object! {
    #[derive(Debug, Clone, Default)]
    pub struct StoredOperation {
        pub name: String = "operation";
        pub steps: Vec<StoredStep> = "repair_steps";
        pub health_check: Vec<String> = "health_check_command";
        pub timeout: Option<i64> = "command_timeout_seconds";
        pub success: Vec<String> = "success_command";
        pub success_timeout: Option<i64> = "success_command_timeout";
        ..drop
    }
}

go_object! {
    #[derive(Debug, Clone, Default)]
    pub struct StoredStep {
        pub command: Vec<String> = "repair_command";
        pub timeout: Option<i64> = "command_timeout_seconds";
        pub retries: Option<i64> = "command_retries";
        pub interval: Option<i64> = "command_interval";
        pub need_drain: bool = "need_drain";
        pub watch: Option<i64> = "watch_seconds";
        ..drop
    }
}
