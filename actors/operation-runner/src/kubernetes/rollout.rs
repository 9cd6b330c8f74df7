//! The waves in which kubelets and proxies restart.

/// The nodes of the wave after a good one: twice as many, at most `most`.
#[must_use]
pub fn next_wave(wave: usize, most: usize) -> usize {
    (wave * 2).min(most.max(1))
}
