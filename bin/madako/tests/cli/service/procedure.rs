//! Test support: repair procedures with shell scripts as commands. Each script has the directory of the test's files in
//! `$D`, and the machine in `$1`; a machine is healthy while the file `healthy-ADDRESS` exists.

use serde_json::{Value, json};

use crate::program::Files;

/// A procedure of one step for machines that are unreachable.
pub(crate) struct Procedure<'a> {
    pub(crate) machine_types: &'a [&'a str],
    pub(crate) reset: &'a str,
    pub(crate) success: Option<&'a str>,
    /// Duration of the watch after the repair command.
    pub(crate) watch_seconds: u32,
}

impl Procedure<'_> {
    /// Writes the scripts; returns the section `repair` of a cluster or a template.
    pub(crate) fn written(&self, files: &Files) -> Value {
        let command = |name: &str, text: &str| {
            let script = files.write(name, format!("D='{}'\n{text}\n", files.path("")));
            json!(["/bin/sh", script])
        };
        let check = "if [ -e \"$D/healthy-$1\" ]; then echo true; else echo false; fi";
        let step =
            json!({"repair_command": command("reset.sh", self.reset), "watch_seconds": self.watch_seconds});
        let mut operation = json!({
            "operation": "unreachable",
            "health_check_command": command("check.sh", check),
            "repair_steps": [step],
        });
        if let Some(success) = self.success {
            operation["success_command"] = command("success.sh", success);
        }
        let procedure = json!({"machine_types": self.machine_types, "repair_operations": [operation]});
        json!({ "repair_procedures": [procedure] })
    }
}
