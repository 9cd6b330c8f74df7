//! The section `repair`: holds beyond CKE's constraints.

use std::time::Duration;

use madako_domain::repair::hold::{HoldSettings, Label};
use madako_json::duration;
use madako_json::input::Problems;

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

pub(super) fn read(mut section: Fields, problems: &mut Problems) -> Repair {
    let hold = section.section("hold", problems).map(|section| read_hold(section, problems));
    section.finish(problems);
    hold.unwrap_or_default()
}

fn read_hold(mut section: Fields, problems: &mut Problems) -> Repair {
    let enabled = section.flag("enabled", problems).unwrap_or(true);
    let mut settings = HoldSettings::default();
    if let Some(label) = section.text("label", problems) {
        if label.is_empty() || label.len() > MAX_LABEL {
            let expected = format!("`rack`, or the name of a label with at most {MAX_LABEL} bytes");
            section.report("label", format!("{} bytes", label.len()), expected, problems);
        }
        settings.label = Label::from(label);
    }
    if let Some(count) = section.number("count", *COUNTS.start(), *COUNTS.end(), problems) {
        settings.count = usize::try_from(count).unwrap_or(usize::MAX);
    }
    if let Some(text) = section.text("within", problems) {
        match duration::parse(&text) {
            Ok(within) if WITHIN.contains(&within) => settings.within = within,
            Ok(_) => section.report("within", format!("{text:?}"), "between 1s and 24h", problems),
            Err(expected) => {
                section.report("within", format!("{text:?}"), expected.to_string(), problems);
            }
        }
    }
    section.finish(problems);
    Repair { hold: enabled.then(|| settings.clone()), settings }
}
