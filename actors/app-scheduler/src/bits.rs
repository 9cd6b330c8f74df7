//! Sets of positions in a list, one bit a position.

/// A set of numbers below a fixed size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BitSet(Vec<u64>);

impl BitSet {
    /// The numbers below `size` that satisfy a predicate.
    pub(crate) fn from_predicate(size: usize, mut holds: impl FnMut(usize) -> bool) -> Self {
        let mut bits = Self(vec![0; size.div_ceil(64)]);
        for number in (0..size).filter(|number| holds(*number)) {
            bits.0[number / 64] |= 1 << (number % 64);
        }
        bits
    }

    pub(crate) fn intersect(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own &= other;
        }
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own |= other;
        }
    }

    pub(crate) fn contains(&self, number: usize) -> bool {
        self.0.get(number / 64).is_some_and(|word| word & (1 << (number % 64)) != 0)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The members in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            let mut word = *word;
            std::iter::from_fn(move || {
                let bit = word.trailing_zeros() as usize;
                if word == 0 {
                    return None;
                }
                word &= word - 1;
                Some(at * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_set_returns_its_members() {
        let even = BitSet::from_predicate(130, |number| number % 2 == 0);
        let mut thirds = BitSet::from_predicate(130, |number| number % 3 == 0);
        assert_eq!(even.count(), 65);
        assert!(even.contains(128) && !even.contains(129) && !even.contains(1_000));
        thirds.intersect(&even);
        assert_eq!(thirds.iter().collect::<Vec<_>>(), (0..130).step_by(6).collect::<Vec<_>>());
        thirds.add_all(&even);
        assert_eq!(thirds, even);
        assert_eq!(BitSet::from_predicate(0, |_| true).iter().count(), 0);
    }
}
