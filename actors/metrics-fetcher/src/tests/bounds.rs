use proptest::prelude::*;

use madako_domain::placement::core::MetricSpec;
use madako_domain::placement::object_value::Object;

use super::store::{global, metric_with};
use crate::bounds::{check_bounds, normalize};

fn spec(min: f64, max: f64, allowed: &[i64]) -> MetricSpec {
    match metric_with(&global("m"), "p", "m", min, max, allowed) {
        Object::GlobalMetric(metric) => metric.spec,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_value_is_normalized_between_its_bounds() {
    for (min, max, value, normalized) in [
        (0.0, 5.0, 0.0, 0.0),
        (0.0, 5.0, 5.0, 1.0),
        (0.0, 5.0, 1.25, 0.25),
        (-10.0, 10.0, 0.0, 0.5),
        (-2.0, -1.0, -1.5, 0.5),
        (-1.7e308, 1.7e308, 0.0, 0.5),
        (-1.7e308, 1.7e308, 1.7e308, 1.0),
        (0.0, 5e-324, 5e-324, 1.0),
    ] {
        assert_eq!(normalize(&spec(min, max, &[]), value), Ok(normalized), "{value} between {min} and {max}");
    }
}

#[test]
fn a_value_beyond_the_bounds_or_not_allowed_is_refused_with_both() {
    let refused = |spec: &MetricSpec, value: f64| normalize(spec, value).unwrap_err();
    assert_eq!(refused(&spec(0.0, 5.0, &[]), 5.000_1), "its value 5.0001 is not between 0 and 5");
    assert_eq!(refused(&spec(0.0, 5.0, &[]), -0.1), "its value -0.1 is not between 0 and 5");
    assert_eq!(refused(&spec(0.0, 5.0, &[]), f64::NAN), "its value NaN is not between 0 and 5");
    assert_eq!(refused(&spec(0.0, 5.0, &[1, 2]), 1.5), "its value 1.5 is none of 1, 2");
    let many: Vec<i64> = (0..100).collect();
    assert_eq!(
        refused(&spec(0.0, 500.0, &many), 200.0),
        "its value 200 is none of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."
    );
    assert_eq!(normalize(&spec(0.0, 4.0, &[1, 2]), 1.0), Ok(0.25));
}

#[test]
fn a_definition_that_no_value_can_meet_is_wrong() {
    for (min, max, allowed, why) in [
        (5.0, 5.0, &[][..], "its minimum 5 is not below its maximum 5"),
        (6.0, 5.0, &[], "its minimum 6 is not below its maximum 5"),
        (0.0, 5.0, &[6, -1], "none of its allowed values lies between 0 and 5"),
    ] {
        assert_eq!(check_bounds(&spec(min, max, allowed)), Err(why.to_owned()));
    }
    let mut endless = spec(0.0, 5.0, &[]);
    for (min, max) in [(f64::NAN, 1.0), (0.0, f64::INFINITY), (f64::NEG_INFINITY, 0.0)] {
        (endless.min, endless.max) = (min, max);
        assert!(check_bounds(&endless).is_err());
    }
    assert_eq!(check_bounds(&spec(0.0, 5.0, &[6, 5])), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn normalized_values_lie_between_0_and_1_in_the_same_order(
        mut points in prop::collection::vec(prop_oneof![-1e3..1e3, prop::num::f64::NORMAL], 4)
    ) {
        points.sort_by(f64::total_cmp);
        let spec = spec(points[0], points[3], &[]);
        prop_assume!(check_bounds(&spec).is_ok());
        let low = normalize(&spec, points[1]).unwrap();
        let high = normalize(&spec, points[2]).unwrap();
        prop_assert!((0.0..=1.0).contains(&low) && low <= high && high <= 1.0, "{low} {high}");
    }
}
