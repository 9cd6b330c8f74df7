//! Uids of new resources: UUIDs of version 4 from a seeded generator.

use std::sync::{Mutex, PoisonError};

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

#[derive(Debug)]
pub struct UidSource(Mutex<ChaCha12Rng>);

impl UidSource {
    /// A source with a fixed sequence per seed. Two instances must not share a seed.
    #[must_use]
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(Mutex::new(ChaCha12Rng::from_seed(seed)))
    }

    #[must_use]
    pub fn draw(&self) -> String {
        let mut bytes = [0; 16];
        // No code panics while the generator is locked, and a partial draw would do no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(&mut bytes);
        format_uuid(bytes)
    }
}

/// The text of a UUID of version 4 and variant 1 (RFC 9562, 5.4).
fn format_uuid(mut bytes: [u8; 16]) -> String {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::with_capacity(36);
    for (place, byte) in bytes.into_iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        for half in [byte >> 4, byte & 0x0f] {
            text.push(char::from(b"0123456789abcdef"[usize::from(half)]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_have_the_form_of_version_4_and_differ() {
        assert_eq!(format_uuid([0; 16]), "00000000-0000-4000-8000-000000000000");
        assert_eq!(format_uuid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        let (one, same) = (UidSource::from_seed([7; 32]), UidSource::from_seed([7; 32]));
        let drawn = one.draw();
        assert_eq!(drawn, same.draw());
        assert_ne!(drawn, one.draw());
    }
}
