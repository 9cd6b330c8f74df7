//! Checks a value against its metric's bounds, and normalizes it.

use madako_domain::placement::core::MetricSpec;

use crate::limits::LISTED;

/// Checks that a definition allows any value.
///
/// # Errors
/// The contradiction in the definition.
pub fn check_bounds(spec: &MetricSpec) -> Result<(), String> {
    let (min, max) = (spec.min, spec.max);
    if !(min.is_finite() && max.is_finite()) {
        return Err("its minimum and maximum are not both finite".to_owned());
    }
    if min >= max {
        return Err(format!("its minimum {min} is not below its maximum {max}"));
    }
    let allows = |allowed: &i64| (min..=max).contains(&to_float(*allowed));
    if !spec.allowed_values.is_empty() && !spec.allowed_values.iter().any(allows) {
        return Err(format!("none of its allowed values lies between {min} and {max}"));
    }
    Ok(())
}

/// Maps a value to the range from 0 to 1. The definition passed [`check_bounds`].
///
/// # Errors
/// The metric does not allow the value.
pub fn normalize(spec: &MetricSpec, value: f64) -> Result<f64, String> {
    let (min, max) = (spec.min, spec.max);
    if !(min..=max).contains(&value) {
        return Err(format!("its value {value} is not between {min} and {max}"));
    }
    #[expect(clippy::float_cmp, reason = "allowed values are whole numbers")]
    let allows = |allowed: &i64| to_float(*allowed) == value;
    if !spec.allowed_values.is_empty() && !spec.allowed_values.iter().any(allows) {
        let listed: Vec<String> = spec.allowed_values.iter().take(LISTED).map(ToString::to_string).collect();
        let more = if spec.allowed_values.len() > LISTED { ", ..." } else { "" };
        return Err(format!("its value {value} is none of {}{more}", listed.join(", ")));
    }
    // Halves, since the difference of two finite numbers may be infinite. Halving loses precision only for numbers so
    // small that their difference is finite.
    let normalized = if (max - min).is_finite() {
        (value - min) / (max - min)
    } else {
        (value / 2.0 - min / 2.0) / (max / 2.0 - min / 2.0)
    };
    Ok(normalized.clamp(0.0, 1.0))
}

#[expect(clippy::cast_precision_loss, reason = "beyond 2^53 no value could tell the difference either")]
fn to_float(whole: i64) -> f64 {
    whole as f64
}
