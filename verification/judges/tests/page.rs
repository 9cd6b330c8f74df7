//! Tests that docs/chaos.md lists the promises and the exemptions of the code, with the same words and bounds.

use madako_judges::{Exemption, Promise};

#[test]
fn document_lists_all_promises_and_exemptions() {
    let page = include_str!("../../../docs/chaos.md");
    let table = |head: &str| -> Vec<&str> {
        let rows = page.lines().skip_while(|line| *line != head).skip(2);
        rows.take_while(|line| line.starts_with('|')).collect()
    };
    let promises: Vec<String> =
        Promise::ALL.iter().map(|promise| format!("| `{}` | {} |", promise.name(), promise.text())).collect();
    assert_eq!(table("| Promise | Text |"), promises);
    let exemption = |exemption: &Exemption| {
        let most = exemption.max_per_hour();
        let longest = match exemption.longest_use().map(|longest| longest.as_secs()) {
            None => "a moment".to_owned(),
            Some(seconds) if seconds < 60 => format!("{seconds}s"),
            Some(seconds) => format!("{}m", seconds / 60),
        };
        format!("| `{}` | {longest} | {most} | {} |", exemption.name(), exemption.reason())
    };
    let exemptions: Vec<String> = Exemption::ALL.iter().map(exemption).collect();
    assert_eq!(table("| Exemption | Longest | Most uses an hour | Why |"), exemptions);
}
