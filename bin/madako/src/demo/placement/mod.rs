//! Placement in the demo: clusters whose metrics wander, and applications that go where they fit best.

pub(crate) mod tell;
