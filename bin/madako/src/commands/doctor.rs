//! `madako doctor`: checks everything that the service depends on, and prints the command that repairs each fault.

mod local;
mod outside;

use std::sync::Arc;

use madako_console::push_wrapped;
use madako_protocol::ports::Clock as _;
use madako_supervisor::clock::SystemClock;
use madako_supervisor::config::Config;
use serde::Serialize;

use crate::access::open_configured_store;
use crate::cli::Global;
use crate::failure::Failure;
use crate::list::{Surface, Tone};
use crate::output::{Format, escape_unprintable, show_value};

/// Checks the configuration, the store, the leader, the clock, the registry, certificates, the API server, metrics, nodes and
/// Vault.
///
/// For each check, the command prints that it passed, or the fault and the command that repairs it. The command changes
/// nothing. Run it on the machine of an instance, with the configuration file of that instance.
///
/// Exit codes: 0: nothing is wrong; 5: something is wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako doctor\n  madako doctor --config /etc/cke/config.yml -o json")]
pub(crate) struct Args {
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Good,
    /// Works, and should be looked at.
    Notice,
    Wrong,
    /// Not used, or not to be checked before something else is mended.
    Off,
}

#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    result: Verdict,
    found: String,
    /// The command or the change that repairs the fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    fn passed(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, result: Verdict::Good, found: found.into(), fix: None }
    }

    fn not_applicable(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, result: Verdict::Off, found: found.into(), fix: None }
    }

    fn with_notice(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, result: Verdict::Notice, found: found.into(), fix: Some(fix.into()) }
    }

    fn failed(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, result: Verdict::Wrong, found: found.into(), fix: Some(fix.into()) }
    }
}

pub(crate) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let checks = check_all(global).await?;
    let is_wrong = checks.iter().any(|check| check.result == Verdict::Wrong);
    show_value(args.output, &checks, |checks| checks_to_text(checks, Surface::for_output()))?;
    if is_wrong { Err(Failure::NeedsAttention) } else { Ok(()) }
}

async fn check_all(global: &Global) -> Result<Vec<Check>, Failure> {
    let now = SystemClock.now();
    let path = local::config_path(global);
    let config = match Config::load(global.config.as_deref()) {
        Ok(config) => config,
        Err(error) => {
            let found = Failure::from(error).message().unwrap_or_default();
            let fix = match std::path::Path::new(&path).exists() {
                true => format!("correct the file; madako config check {path} names each problem again"),
                false => {
                    format!("--config FILE names another file; madako config example > {path} writes one")
                }
            };
            return Ok(vec![Check::failed("configuration", found, fix)]);
        }
    };
    let mut checks = vec![local::check_config(&config, global), local::check_data_directory(&config)];
    checks.extend(local::check_own_certificates(&config, now));
    let store = Arc::new(open_configured_store(&config)?);
    let (check, entries) = outside::check_store(&store, &config).await;
    checks.push(check);
    if let Some(entries) = entries {
        checks.extend(outside::check_stored(&entries, &config, now).await);
        checks.push(outside::check_vault(store, &entries).await);
    }
    Ok(checks)
}

/// Columns before the sentence of a check.
const INDENT: usize = 23;

fn checks_to_text(checks: &[Check], surface: Surface) -> String {
    let mut text = String::new();
    for Check { check, result, found, fix } in checks {
        let (word, tone) = match result {
            Verdict::Good => ("good", Tone::Good),
            Verdict::Notice => ("notice", Tone::Notice),
            Verdict::Wrong => ("WRONG", Tone::Bad),
            Verdict::Off => ("off", Tone::Plain),
        };
        let width = surface.width.unwrap_or(usize::MAX);
        let begin = text.len();
        // Several problems of one input have a line each.
        for (place, line) in found.split('\n').enumerate() {
            let first = if place == 0 { format!("{word:<6}  {check:<14} ") } else { " ".repeat(INDENT) };
            push_wrapped(&mut text, &first, &escape_unprintable(line), INDENT, width);
        }
        text.replace_range(begin..begin + word.len(), &tone.paint(word, surface.has_colours));
        if let Some(fix) = fix {
            let first = format!("{:INDENT$}-> ", "");
            push_wrapped(&mut text, &first, &escape_unprintable(fix), first.len(), width);
        }
    }
    text
}
