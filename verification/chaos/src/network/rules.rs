//! Writes the rules for `nft` that drop packets, and parses its output.
//!
//! The rules are on the bridge between the namespaces, not in the namespaces of nodes: the sender is notified of a
//! packet that its own machine drops, and of no packet that is lost on the way. Rules match only the addresses of the
//! network with faults, and only IPv4, so that nodes keep resolving each other's hardware addresses, as machines behind
//! a router do.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use serde_json::Value;

use super::{DroppedShare, LOSS_PERCENT};

const TABLE: &str = "bridge madako";
/// The chain that every packet between two namespaces passes.
const CHAIN: &str = "pass";

/// The command that prints the counters.
pub(super) const COUNTERS: [&str; 6] = ["nft", "--json", "list", "counters", "table", TABLE];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FaultyNode {
    pub(super) host: u8,
    pub(super) address: Ipv4Addr,
    pub(super) cut: bool,
    pub(super) loss: bool,
}

/// The device of the wire to a node.
pub(super) fn bridge_port(host: u8) -> String {
    format!("n{host}")
}

fn counter_name(host: u8, loses: DroppedShare) -> String {
    match loses {
        DroppedShare::All => format!("cut_{host}"),
        DroppedShare::Some => format!("loss_{host}"),
    }
}

/// The rules without faults: counters for each node, and an empty chain.
pub(super) fn empty_rules(hosts: impl Iterator<Item = u8>) -> String {
    let mut text = format!("table {TABLE} {{\n");
    for host in hosts {
        for loses in [DroppedShare::All, DroppedShare::Some] {
            // Writing to a string does not fail.
            let _ = writeln!(text, " counter {} {{ }}", counter_name(host, loses));
        }
    }
    text + &format!(" chain {CHAIN} {{ type filter hook forward priority 0; policy accept; }}\n}}\n")
}

/// All rules, replacing all former ones. nft applies them atomically.
pub(super) fn nft_rules(hits: &[FaultyNode]) -> String {
    let mut text = format!("flush chain {TABLE} {CHAIN}\n");
    for FaultyNode { host, address, cut, loss } in hits {
        let port = bridge_port(*host);
        let both =
            [format!("iifname {port} ip saddr {address}"), format!("oifname {port} ip daddr {address}")];
        for way in both {
            if *cut {
                let counter = counter_name(*host, DroppedShare::All);
                let _ = writeln!(text, "add rule {TABLE} {CHAIN} {way} counter name {counter} drop");
            }
            if *loss {
                let (counter, chance) = (
                    counter_name(*host, DroppedShare::Some),
                    format!("numgen random mod 100 < {LOSS_PERCENT}"),
                );
                let _ = writeln!(text, "add rule {TABLE} {CHAIN} {way} {chance} counter name {counter} drop");
            }
        }
    }
    text
}

/// Packets dropped around a node so far; `None`: the output lacks the counter.
pub(super) fn count_dropped(counters: &str, host: u8, loses: DroppedShare) -> Option<u64> {
    let name = counter_name(host, loses);
    let answer: Value = serde_json::from_str(counters).ok()?;
    let counters = answer["nftables"].as_array()?.iter().map(|one| &one["counter"]);
    let counter = counters.into_iter().find(|counter| counter["name"] == name.as_str())?;
    counter["packets"].as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIT: FaultyNode =
        FaultyNode { host: 3, address: Ipv4Addr::new(198, 18, 0, 3), cut: false, loss: false };

    #[test]
    fn the_table_has_counters_for_each_node() {
        assert_eq!(
            empty_rules([2, 3].into_iter()),
            "table bridge madako {\n counter cut_2 { }\n counter loss_2 { }\n counter cut_3 { }\n counter loss_3 { }\n \
             chain pass { type filter hook forward priority 0; policy accept; }\n}\n"
        );
    }

    #[test]
    fn cut_node_loses_all_packets_in_both_directions() {
        assert_eq!(
            nft_rules(&[HIT, FaultyNode { host: 2, cut: true, ..HIT }]),
            "flush chain bridge madako pass\n\
             add rule bridge madako pass iifname n2 ip saddr 198.18.0.3 counter name cut_2 drop\n\
             add rule bridge madako pass oifname n2 ip daddr 198.18.0.3 counter name cut_2 drop\n"
        );
    }

    #[test]
    fn lost_and_cut_packets_have_separate_counters() {
        let text = nft_rules(&[FaultyNode { cut: true, loss: true, ..HIT }]);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines.len(), 4, "{text}");
        for pair in lines.chunks(2) {
            assert!(pair[0].ends_with(" counter name cut_3 drop") && !pair[0].contains("numgen"), "{text}");
            assert!(pair[1].ends_with(" numgen random mod 100 < 10 counter name loss_3 drop"), "{text}");
        }
        assert_eq!(nft_rules(&[]), "flush chain bridge madako pass\n");
    }

    #[test]
    fn packet_counters_are_parsed() {
        let answer = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
            {"counter": {"family": "bridge", "name": "cut_3", "table": "madako", "packets": 7, "bytes": 420}},
            {"counter": {"family": "bridge", "name": "loss_3", "table": "madako", "packets": 1, "bytes": 60}}]}"#;
        assert_eq!(count_dropped(answer, 3, DroppedShare::All), Some(7));
        assert_eq!(count_dropped(answer, 3, DroppedShare::Some), Some(1));
        for (answer, host) in [(answer, 4), ("", 3), ("{\"nftables\": []}", 3)] {
            assert_eq!(count_dropped(answer, host, DroppedShare::All), None);
        }
    }
}
