use super::*;

#[test]
fn a_stored_object_has_zeros_where_it_has_no_field_and_a_missing_key_has_the_defaults() {
    let stored: Constraints =
        serde_json::from_str(r#"{"minimum-workers": 3, "Maximum-Workers": 7}"#).unwrap();
    assert_eq!(stored.control_plane_count, 0);
    assert_eq!((stored.minimum_workers, stored.maximum_workers), (3, 7));
    assert_eq!((Constraints::default().control_plane_count, Constraints::default().minimum_workers), (1, 1));
}
