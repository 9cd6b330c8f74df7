//! The section `repair` of the configuration file: when the repair queue holds a rack back. CKE has no such setting.

use std::time::Duration;

use madako_domain::repair::hold::{HoldSettings, Label};
use madako_json::strict::Kind;

use super::settings::{is_span, read_span, section};
use crate::limits::MAX_LABEL;

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

section! {
    it: (bool, HoldSettings) = (true, HoldSettings::default()) => {
        in "hold" {
            "enabled": Kind::Bool => it.0;
            "label": LABEL => it.1.label, by |label| Some(Label::from(label.text()?.to_owned()));
            "count": COUNT => it.1.count;
            "within": WITHIN => it.1.within, by read_span;
        }
    }
}

impl From<(bool, HoldSettings)> for Repair {
    fn from((is_enabled, settings): (bool, HoldSettings)) -> Self {
        Self { hold: is_enabled.then(|| settings.clone()), settings }
    }
}

const LABEL: Kind = Kind::Checked("`rack`, or the name of a label with at most 63 bytes", |label| {
    !label.is_empty() && label.len() <= MAX_LABEL
});
/// One machine is not an event, and no site has more than a million machines.
const COUNT: Kind = Kind::Whole(2, 1_000_000);
/// Sabakan detects an outage machine by machine within seconds, and failures a day apart have different causes.
const WITHIN: Kind = Kind::Checked("a duration from 1s to 24h, such as 10m", |text| {
    is_span(text, &(Duration::from_secs(1)..=Duration::from_secs(24 * 3600)))
});
