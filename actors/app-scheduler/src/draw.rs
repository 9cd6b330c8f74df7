//! Seeded generator for ties, names and identities.
//!
//! Guarantees: a draw depends on the seed and its purpose, not on other draws: an application that appears or
//! disappears changes no other draw.

#[derive(Debug, Clone)]
pub(crate) struct SeededDraw(u64);

impl SeededDraw {
    /// `purpose` names the draw, for example an application's uid.
    pub(crate) fn new(seed: u64, purpose: &str) -> Self {
        // FNV-1a: the texts are short, and the generator below mixes its output.
        let hash = purpose.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self(hash ^ seed.rotate_left(32))
    }

    /// Next number (SplitMix64).
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub(crate) fn number_below(&mut self, bound: usize) -> usize {
        // The product's upper half: all numbers are equally likely within one part in 2^32.
        let product = u128::from(self.next()) * (bound as u128);
        usize::try_from(product >> 64).unwrap_or(0)
    }

    /// A random identity (UUID version 4).
    pub(crate) fn next_uuid(&mut self) -> String {
        let (high, low) = (self.next(), self.next());
        let high = (high & 0xffff_ffff_ffff_0fff) | 0x4000;
        let low = (low & 0x3fff_ffff_ffff_ffff) | 0x8000_0000_0000_0000;
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_depends_on_seed_and_purpose_alone() {
        let draw = |seed, purpose: &str| SeededDraw::new(seed, purpose).next();
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_ne!(draw(1, "a"), draw(2, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
    }

    #[test]
    fn the_generator_is_splitmix64() {
        let mut draw = SeededDraw(0);
        let published = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
        assert_eq!([draw.next(), draw.next(), draw.next()], published);
    }

    #[test]
    fn draws_are_spread_evenly() {
        let mut counts = [0_u32; 10];
        for number in 0..10_000 {
            counts[SeededDraw::new(7, &format!("application {number}")).number_below(10)] += 1;
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
        assert_eq!(SeededDraw::new(7, "none").number_below(0), 0);
    }

    #[test]
    fn drawn_identities_have_the_form_of_a_uuid() {
        let uuid = SeededDraw::new(3, "cluster").next_uuid();
        assert_eq!(uuid.len(), 36);
        assert_eq!(&uuid[14..15], "4");
        assert!(matches!(&uuid[19..20], "8" | "9" | "a" | "b"), "{uuid}");
    }
}
