//! Repair procedures whose commands are shell scripts among the files of a test. Each script knows their directory as `$D`, and the
//! machine as `$1`; a machine is healthy as long as there is a file `healthy-ADDRESS`.

use serde_json::{Value, json};

use crate::program::Files;

/// A procedure of one step for machines that are unreachable.
pub(crate) struct Procedure<'a> {
    /// The types of machines that it is for.
    pub(crate) machine_types: &'a [&'a str],
    /// The repair command.
    pub(crate) reset: &'a str,
    /// What is done once the machine is healthy.
    pub(crate) success: Option<&'a str>,
    /// How long the machine is watched after the repair command.
    pub(crate) watch_seconds: u32,
}

impl Procedure<'_> {
    /// Writes the scripts, and gives what a cluster or a template has at `repair`.
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
