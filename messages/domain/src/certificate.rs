//! Certificates on nodes, as far as operations need them: their text, their validity, and the time of their renewal.
//!
//! Does not: parse certificates; the port to the authorities does.

use time::OffsetDateTime;

use crate::limits::{RENEWED_BEFORE, RENEWED_PART};

/// The time in which a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Begin (X.509: `notBefore`).
    pub from: OffsetDateTime,
    /// End (X.509: `notAfter`).
    pub to: OffsetDateTime,
}

impl Validity {
    /// True if the certificate must be issued anew: it is not valid yet, or less than a third of its life or 30 days are
    /// left, whichever is shorter.
    #[must_use]
    pub fn must_renew(&self, now: OffsetDateTime) -> bool {
        let least = RENEWED_BEFORE.min((self.to - self.from) / RENEWED_PART);
        now < self.from || self.to - now < least
    }
}

/// A certificate in a file of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeCertificate {
    /// Content of the file; empty if only the validity is known.
    pub text: String,
    /// `None`: the text is not a certificate, or it has not been read yet.
    pub validity: Option<Validity>,
}

#[cfg(test)]
mod tests {
    use time::Duration;
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_certificate_is_renewed_in_its_last_third_or_its_last_30_days() {
        let from = datetime!(2026-01-01 0:00 UTC);
        for (life, left, expected) in [
            (Duration::days(365), Duration::days(30), false),
            (Duration::days(365), Duration::days(30) - Duration::SECOND, true),
            (Duration::days(90), Duration::days(30), false),
            (Duration::days(90), Duration::days(30) - Duration::SECOND, true),
            (Duration::hours(3), Duration::hours(1), false),
            (Duration::hours(3), Duration::hours(1) - Duration::SECOND, true),
            (Duration::days(3650), Duration::days(31), false),
            (Duration::days(365), -Duration::days(1), true),
            (Duration::days(365), Duration::days(365), false),
            (Duration::days(365), Duration::days(366), true),
        ] {
            let validity = Validity { from, to: from + life };
            assert_eq!(validity.must_renew(validity.to - left), expected, "{life}, {left} left");
        }
    }
}
