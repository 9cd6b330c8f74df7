//! Empty: the tests across crates are in `tests/`.
