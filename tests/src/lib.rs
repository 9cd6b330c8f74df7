//! Nothing: what crosses crates is tested by the binaries in `tests/`.
