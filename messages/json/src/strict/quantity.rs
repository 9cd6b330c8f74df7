//! Validates durations in Go's notation, and quantities in Kubernetes' notation.

/// True if Go's `time.ParseDuration` accepts the text: `0`, or numbers with units, such as `1h30m` or `-1.5s`.
pub(super) fn is_duration(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if unsigned == "0" {
        return true;
    }
    let mut rest = unsigned;
    // Nanoseconds; Go refuses 2^63 and more.
    let mut total = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        if !is_plain_number(number) {
            return false;
        }
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let nanoseconds = match unit {
            "ns" => 1.0,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return false,
        };
        total += number.parse::<f64>().map_or(f64::INFINITY, |number| number * nanoseconds);
        rest = after;
    }
    !unsigned.is_empty() && total < 9.223_372_036_854_775e18
}

/// True if Kubernetes accepts the text as a quantity: a number with an SI suffix, a power of two, or an exponent.
pub(super) fn is_quantity(text: &str) -> bool {
    let text = text.trim();
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let exponent = || {
        let power = suffix.strip_prefix(['e', 'E'])?;
        let digits = power.strip_prefix(['+', '-']).unwrap_or(power);
        Some(!digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()) && digits.len() <= 9)
    };
    let suffixes = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    is_plain_number(number) && (suffixes.contains(&suffix) || exponent() == Some(true))
}

/// True for digits with at most one point and at least one digit.
fn is_plain_number(text: &str) -> bool {
    text.bytes().filter(|c| *c == b'.').count() <= 1 && text.bytes().any(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::{is_duration, is_quantity};

    #[test]
    fn durations_are_those_of_go() {
        for good in ["0", "1s", "1h30m", "-1.5h", "+5ms", ".5s", "1.s", "10\u{b5}s", "2562047h"] {
            assert!(is_duration(good), "{good}");
        }
        for bad in ["", "1", "s", "1 s", "1d", "-", ".s", "1.2.3s", "1s ", "2562048h"] {
            assert!(!is_duration(bad), "{bad}");
        }
    }

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for good in ["0", "100Mi", "1.5G", "1e3", "1E-3", "500m", "-1", "1.", "5k", "3E"] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in ["", "Mi", "1MiB", "1K", "ten", "1e", "1.2.3", "1 Mi"] {
            assert!(!is_quantity(bad), "{bad}");
        }
    }
}
