//! Finds machines that claim the same address. Only one machine can have it, and the registry does not show which.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::machine::Machine;

/// Serials by shared address.
#[must_use]
pub fn shared_addresses(machines: &[Machine]) -> BTreeMap<String, BTreeSet<String>> {
    let mut claims: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for machine in machines {
        if let Some(address) = machine.address() {
            claims.entry(address).or_default().insert(&machine.spec.serial);
        }
    }
    let owned = |serials: BTreeSet<&str>| serials.into_iter().map(str::to_owned).collect();
    let shared = claims.into_iter().filter(|(_, serials)| serials.len() > 1);
    shared.map(|(address, serials)| (address.to_owned(), owned(serials))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn machine(serial: &str, addresses: &[&str]) -> Machine {
        let date = "2026-01-01T00:00:00Z";
        let spec = json!({"serial": serial, "ipv4": addresses, "registerDate": date, "retireDate": date});
        serde_json::from_value(json!({"spec": spec, "status": {"state": "HEALTHY"}})).unwrap()
    }

    #[test]
    fn only_the_first_address_is_claimed_and_repeated_machines_count_once() {
        let machines = [
            machine("a", &["10.0.0.1", "10.0.0.9"]),
            machine("b", &["10.0.0.2", "10.0.0.1"]),
            machine("c", &["10.0.0.2"]),
            machine("d", &["10.0.0.3"]),
            machine("d", &["10.0.0.3"]),
            machine("e", &[]),
        ];
        let shared = shared_addresses(&machines);
        let expected = BTreeSet::from(["b".to_owned(), "c".to_owned()]);
        assert_eq!(shared, BTreeMap::from([("10.0.0.2".to_owned(), expected)]));
    }
}
