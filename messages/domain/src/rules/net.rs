//! Parses addresses and subnets as Go's `net` package does, which CKE uses.

use std::net::IpAddr;

/// True if `net.ParseIP` accepts the text: IPv4 without leading zeros, or IPv6 without a zone.
pub(super) fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// True if `net.ParseCIDR` accepts the text: an address and the length of its prefix. Host bits may be set.
pub(super) fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        return false;
    };
    // Go accepts leading zeros in the length of the prefix and reads it as decimal.
    !bits.is_empty()
        && bits.bytes().all(|c| c.is_ascii_digit())
        && bits.parse::<u32>().is_ok_and(|bits| bits <= if address.is_ipv4() { 32 } else { 128 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_go() {
        for good in ["10.0.0.1", "0.0.0.0", "::", "2001:db8::1", "::ffff:1.2.3.4", "1:2:3:4:5:6:7::"] {
            assert!(is_address(good), "{good}");
        }
        for bad in [
            "",
            "10.0.0",
            "10.0.0.01",
            "10.0.0.256",
            "fe80::1%eth0",
            " 10.0.0.1",
            "10.0.0.1/8",
            "1:2:3:4:5:6:7::8",
        ] {
            assert!(!is_address(bad), "{bad}");
        }
    }

    #[test]
    fn subnets_are_those_of_go() {
        for good in ["10.68.0.0/16", "10.68.0.5/16", "0.0.0.0/0", "10.0.0.0/08", "fd00::/108", "::/128"] {
            assert!(is_cidr(good), "{good}");
        }
        for bad in [
            "",
            "10.68.0.0",
            "10.68.0.0/",
            "10.68.0.0/33",
            "10.68.0.0/+8",
            "10.68.0.0/-1",
            "/16",
            "a/16",
            "::/129",
        ] {
            assert!(!is_cidr(bad), "{bad}");
        }
    }
}
