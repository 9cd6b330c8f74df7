//! Tests that printing a scenario is the inverse of reading it, in each form.

use std::net::IpAddr;

use super::*;

fn any_target() -> impl Strategy<Value = Target> {
    prop_oneof![
        any::<u32>().prop_map(Target::Rack),
        any::<IpAddr>().prop_map(Target::Address),
        Just(Target::Instance(InstanceTarget::Leader)),
        any::<u32>().prop_map(|number| Target::Instance(InstanceTarget::Number(number))),
        any::<u32>().prop_map(Target::Store),
        Just(Target::Registry),
        "[a-z]([a-z0-9-]{0,20}[a-z0-9])?".prop_map(Target::Provider),
        proptest::sample::select(&ACTORS[..]).prop_map(Target::Actor),
        any::<IpAddr>().prop_map(Target::Kubelet),
        any::<IpAddr>().prop_map(Target::ApiServer),
    ]
}

/// A span within all bounds, that ends in any unit.
fn any_span() -> impl Strategy<Value = Span> {
    prop_oneof![
        (1_000..365 * 86_400_000_u64).prop_map(Span::from_millis),
        (1..86_400_u64).prop_map(Span::from_seconds),
        (1..=365_u64).prop_map(Span::from_days),
    ]
}

/// Any fault that is possible in some world.
fn any_fault() -> impl Strategy<Value = Fault> {
    let when = (0..3_u8, any_span());
    let parts = (proptest::sample::select(Act::ALL), any_target(), when, any_span(), any::<bool>());
    parts.prop_filter_map("the act suits no such target", |(act, target, (when, span), lasts_for, given)| {
        let when = match when {
            0 => FaultTimes::At(span),
            1 => FaultTimes::Every(span),
            _ => FaultTimes::Random { mean: span },
        };
        let lasts = match (fault_length(act, target.kind()), when) {
            (FaultLength::Once, _) => None,
            (FaultLength::While, FaultTimes::At(_)) => given.then_some(lasts_for),
            (FaultLength::While, FaultTimes::Every(pause)) => {
                Some(lasts_for).filter(|lasts| *lasts < pause).or(Some(Span::from_millis(500)))
            }
            (FaultLength::While, FaultTimes::Random { .. }) => Some(lasts_for),
        };
        suitable_targets(act).contains(&target.kind()).then_some(Fault { when, act, target, lasts })
    })
}

/// Words of the language and others, in any order.
fn any_words() -> impl Strategy<Value = String> {
    let words = [
        "kill",
        "pause",
        "panic",
        "cut",
        "reset",
        "rack=12",
        "rack=",
        "10.0.0.4",
        "instance=leader",
        "store=1",
        "registry",
        "provider=p",
        "actor=http",
        "at",
        "every",
        "random",
        "mean",
        "for",
        "2h",
        "30m",
        "1d",
        "0s",
        "",
        "\u{b5}s",
        "=",
        "rack=99999999999",
    ];
    proptest::collection::vec(proptest::sample::select(words.to_vec()), 0..9)
        .prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn printed_fault_parses_to_itself(fault in any_fault()) {
        prop_assert_eq!(Fault::parse(&fault.to_string()), Ok(fault.clone()), "{}", fault);
    }

    #[test]
    fn parsed_faults_survive_printing_and_parsing(text in any_words()) {
        if let Ok(fault) = Fault::parse(&text) {
            let printed = fault.to_string();
            prop_assert_eq!(Fault::parse(&printed).map(|fault| fault.to_string()), Ok(printed));
        }
    }

    #[test]
    fn parsing_never_panics(text in any::<String>(), words in any_words()) {
        let _ = (Fault::parse(&text), Scenario::parse(&text), Span::parse(&text));
        let _ = Scenario::parse(&format!("name: a\nfaults:\n- {text}\n- {{do: {words}}}\n"));
    }

    #[test]
    fn printed_span_parses_to_itself(span in any_span()) {
        prop_assert_eq!(Span::parse(&span.to_string()), Some(span));
    }

    #[test]
    fn scenario_in_json_parses_to_itself(
        faults in proptest::collection::vec(any_fault(), 0..5),
        requests in 1..10_000_000_u32,
        at_least in any::<[u16; 5]>(),
        calm in proptest::option::of(any_span()),
    ) {
        let (store, operations) = (Store::Etcd, Operations::Kubernetes);
        let world = World { instances: 9, racks: 1_000, machines: 2_000, store, operations, ..World::default() };
        let clients = vec![Client { kind: ClientKind::Registry, rate: Rate::per_thousand_seconds(requests) }];
        let [leader_changes, commits, refused_writes, failed_client_calls, _] = at_least.map(u64::from);
        let at_least = Counts { leader_changes, commits, refused_writes, failed_client_calls, faults: 0 };
        let expect = Expectations { calm_within: calm, at_least };
        let mut scenario = Scenario { name: "any".to_owned(), world, clients, faults: Vec::new(), expect };
        for fault in faults {
            // A fault whose target is not in this world is refused and skipped.
            let _ = scenario.add(fault);
        }
        let json = serde_json::to_string_pretty(&scenario).unwrap();
        prop_assert_eq!(Scenario::parse(&json), Ok(scenario), "{}", json);
    }
}

#[test]
fn one_line_forms_survive_parsing_and_printing() {
    for line in [
        "kill rack=12 at 2h for 30m",
        "kill instance=leader every 10m for 30s",
        "cut 10.0.0.4 random mean 1h for 5m",
        "cut fd00::4 at 0s",
        "panic actor=leader every 1m",
        "kill kubelet=10.0.0.4 every 1m",
        "kill kube-apiserver=fd00::4 at 1h",
        "compact store=3 at 1d12h",
        "corrupt provider=prometheus at 1m30.5s for 0.25s",
    ] {
        let fault: Fault = line.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(fault.to_string(), line);
    }
    assert_eq!("  kill  rack=1 at 90s".parse::<Fault>().unwrap().to_string(), "kill rack=1 at 1m30s");
}
