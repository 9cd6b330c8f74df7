//! The section `repair`: holds beyond CKE's constraints.

use std::time::Duration;

use madako_domain::repair::hold::{HoldSettings, Label};

use super::document::Fields;
use crate::limits::MAX_LABEL;

/// Bounds of `repair.hold.count`: one machine is no event, and no site has more than a million machines.
const COUNTS: std::ops::RangeInclusive<u64> = 2..=1_000_000;

/// Bounds of `repair.hold.within`: sabakan detects an outage machine by machine within seconds, and failures a day
/// apart have different causes.
const WITHIN: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// `None`: no rack is held.
    pub hold: Option<HoldSettings>,
    /// The settings, also while holds are disabled.
    pub settings: HoldSettings,
}

impl Default for Repair {
    fn default() -> Self {
        Self { hold: Some(HoldSettings::default()), settings: HoldSettings::default() }
    }
}

pub(super) fn read(mut section: Fields) -> Repair {
    let hold = section.section("hold").map(read_hold);
    section.finish();
    hold.unwrap_or_default()
}

fn read_hold(mut section: Fields) -> Repair {
    let enabled = section.flag("enabled").unwrap_or(true);
    let mut settings = HoldSettings::default();
    if let Some(label) = section.text("label") {
        if label.is_empty() || label.len() > MAX_LABEL {
            let expected = format!("`rack`, or the name of a label with at most {MAX_LABEL} bytes");
            section.report("label", format!("{} bytes", label.len()), expected);
        }
        settings.label = Label::from(label);
    }
    settings.count = section.number("count", COUNTS).unwrap_or(settings.count);
    settings.within = section.span("within", WITHIN, "between 1s and 24h").unwrap_or(settings.within);
    section.finish();
    Repair { hold: enabled.then(|| settings.clone()), settings }
}
