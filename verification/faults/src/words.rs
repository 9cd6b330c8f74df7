//! Builds one fault from its words, which come from a scenario file or from `--fault`.

use std::net::IpAddr;

use madako_json::input::Problems;
use madako_json::strict::{Path, nearest_name};
use strum::VariantNames as _;

use crate::fault::{
    ACTORS, ACTORS_OF_OPERATIONS, ACTORS_OF_PLACEMENT, Fault, FaultTimes, InstanceTarget, Target, TargetKind,
};
use crate::name::{OWN_NAME, is_own_name, parse_name, quote_shortened};
use crate::scenario::World;
use crate::span::{Span, WRITTEN};
use crate::suits::{
    FaultLength, acts_on, fault_length, needs_nodes, suitable_targets, words_of_suitable_targets,
};

/// No run is longer.
const LONGEST: Span = Span::from_days(365);
/// A fault that begins more often is a state, not an event.
const LEAST_PAUSE: Span = Span::from_seconds(1);
/// Processes of a busy machine do not notice a shorter fault.
const LEAST_LASTS: Span = Span::from_millis(100);

/// The words before the address of a component of Kubernetes.
const KUBELET: &str = "kubelet";
const API_SERVER: &str = "kube-apiserver";

/// The words of one fault, from a file or a line.
#[derive(Debug, Default)]
pub(crate) struct FaultWords<'a> {
    pub(crate) act: Option<&'a str>,
    pub(crate) target: Option<&'a str>,
    pub(crate) at: Option<&'a str>,
    pub(crate) every: Option<&'a str>,
    /// Outer `None`: no `random`; inner value: its mean.
    pub(crate) random: Option<Option<&'a str>>,
    pub(crate) lasts: Option<&'a str>,
}

/// The fault that the words describe. Problems are noted below `path`.
pub(crate) fn build_fault(words: &FaultWords<'_>, path: Path<'_>, problems: &mut Problems) -> Option<Fault> {
    let act = match parse_name(words.act.unwrap_or_default()) {
        Ok(act) => Some(act),
        Err(expected) => {
            problems.add(path.field("do"), words.act.map(quote_shortened).unwrap_or_default(), expected);
            None
        }
    };
    let target = match parse_target(words.target.unwrap_or_default()) {
        Ok(target) => Some(target),
        Err(expected) => {
            problems.add(
                path.field("target"),
                words.target.map(quote_shortened).unwrap_or_default(),
                expected,
            );
            None
        }
    };
    let when = read_times(words, &path, problems);
    let lasts = match words.lasts {
        Some(text) => parse_span(text, LEAST_LASTS, &path.field("for"), problems).map(Some),
        None => Some(None),
    };
    let (act, target) = (act?, target?);
    if !suitable_targets(act).contains(&target.kind()) {
        let expected = format!(
            "{} for {act} (to {} suits {})",
            words_of_suitable_targets(act),
            target.kind(),
            acts_on(target.kind())
        );
        problems.add(path.field("target"), target.to_string(), expected);
        return None;
    }
    let fault = Fault { when: when?, act, target, lasts: lasts? };
    check_for(&fault, &path, problems).then_some(fault)
}

/// True if the duration suits the act and the interval of the beginnings.
fn check_for(fault: &Fault, path: &Path<'_>, problems: &mut Problems) -> bool {
    let (got, expected) = match (fault_length(fault.act, fault.target.kind()), fault.when, fault.lasts) {
        (FaultLength::Once, _, Some(span)) => {
            let expected =
                format!("no such field: {} of {} strikes once and is over", fault.act, fault.target);
            (span.to_string(), expected)
        }
        (FaultLength::While, FaultTimes::Every(pause), Some(span)) if span >= pause => {
            (span.to_string(), format!("less than {pause}, after which it begins again"))
        }
        (FaultLength::While, when, None) if when.is_repeated() => {
            (String::new(), format!("{WRITTEN}, since a fault that repeats must end"))
        }
        _ => return true,
    };
    problems.add(path.field("for"), got, expected);
    false
}

fn read_times(words: &FaultWords<'_>, path: &Path<'_>, problems: &mut Problems) -> Option<FaultTimes> {
    match (words.at, words.every, words.random) {
        (Some(at), None, None) => {
            parse_span(at, Span::from_millis(0), &path.field("at"), problems).map(FaultTimes::At)
        }
        (None, Some(every), None) => {
            parse_span(every, LEAST_PAUSE, &path.field("every"), problems).map(FaultTimes::Every)
        }
        (None, None, Some(mean)) => {
            let random = path.field("random");
            let path = random.field("mean");
            let Some(mean) = mean else {
                problems.add(path, "", WRITTEN);
                return None;
            };
            parse_span(mean, LEAST_PAUSE, &path, problems).map(|mean| FaultTimes::Random { mean })
        }
        (at, every, random) => {
            let given = [(at.is_some(), "at"), (every.is_some(), "every"), (random.is_some(), "random")];
            let given: Vec<&str> = given.iter().filter(|(given, _)| *given).map(|(_, name)| *name).collect();
            problems.add(*path, given.join(" and "), "exactly one of at, every and random");
            None
        }
    }
}

pub(crate) fn parse_span(text: &str, least: Span, path: &Path<'_>, problems: &mut Problems) -> Option<Span> {
    let expected = match Span::parse(text) {
        Some(span) if (least..=LONGEST).contains(&span) => return Some(span),
        Some(_) => format!("from {least} to {LONGEST}"),
        None => WRITTEN.to_owned(),
    };
    problems.add(*path, quote_shortened(text), expected);
    None
}

/// Parses a target; the error describes the expected form.
fn parse_target(text: &str) -> Result<Target, String> {
    /// The words before the sign; an address and the registry have none.
    const WORDS: [&str; 8] =
        ["rack", "instance", "store", "provider", "actor", "registry", KUBELET, API_SERVER];
    if text == "registry" {
        return Ok(Target::Registry);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Target::Address(address));
    }
    let (word, value) = text.split_once('=').unwrap_or((text, ""));
    match word {
        "rack" => parse_number(value).map(Target::Rack).ok_or_else(|| "rack=N, such as rack=12".to_owned()),
        "instance" if value == "leader" => Ok(Target::Instance(InstanceTarget::Leader)),
        "instance" => parse_number(value)
            .map(|number| Target::Instance(InstanceTarget::Number(number)))
            .ok_or_else(|| "instance=leader, or instance=N, such as instance=1".to_owned()),
        "store" => {
            parse_number(value).map(Target::Store).ok_or_else(|| "store=N, such as store=1".to_owned())
        }
        "provider" if is_own_name(value) => Ok(Target::Provider(value.to_owned())),
        "provider" => Err(format!("provider=NAME with {OWN_NAME}")),
        "actor" => ACTORS.into_iter().find(|actor| *actor == value).map(Target::Actor).ok_or_else(|| {
            let near = nearest_name(value, ACTORS.into_iter()).map(|near| format!("; {near:?}, perhaps"));
            format!("actor=NAME with one of {}{}", ACTORS.join(", "), near.unwrap_or_default())
        }),
        KUBELET => parse_address(value, KUBELET).map(Target::Kubelet),
        API_SERVER => parse_address(value, API_SERVER).map(Target::ApiServer),
        _ => {
            let near = nearest_name(word, WORDS.into_iter()).map(|near| format!("; {near:?}, perhaps"));
            Err(format!("one of {}{}", TargetKind::VARIANTS.join(", "), near.unwrap_or_default()))
        }
    }
}

/// The address of a target with this word before the sign.
fn parse_address(text: &str, word: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("{word}=ADDRESS, such as {word}=10.0.0.4"))
}

/// A number in a target: digits without leading zeros, so that each number has one form.
fn parse_number(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|digit| digit.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

/// Checks that a world has the target of a fault; the error describes the expected range.
pub(crate) fn check_target_exists(fault: &Fault, world: &World) -> Result<(), String> {
    if needs_nodes(fault.act, fault.target.kind()) && !world.runs_operations() {
        return Err(format!(
            "operations: act in this world: without nodes, {} of machines has no effect",
            fault.act
        ));
    }
    match &fault.target {
        Target::Rack(number) => {
            check_number_in_range(*number, (0, world.racks), "a rack of this world", "rack")
        }
        Target::Instance(InstanceTarget::Number(number)) => {
            check_number_in_range(*number, (1, world.instances), "an instance of this world", "instance")
        }
        Target::Store(number) => check_number_in_range(
            *number,
            (1, world.store.members()),
            "a member of this world's store",
            "store",
        ),
        Target::Provider(_) if !world.places_applications() => {
            Err("clusters or applications in this world: without them no metrics are asked for".to_owned())
        }
        Target::Actor(actor) if ACTORS_OF_PLACEMENT.contains(actor) && !world.places_applications() => {
            Err("clusters or applications in this world: without them this actor does not run".to_owned())
        }
        Target::Actor(actor) if ACTORS_OF_OPERATIONS.contains(actor) && !world.runs_operations() => {
            Err("operations: act in this world: without operations on nodes this actor does not run"
                .to_owned())
        }
        Target::Kubelet(_) | Target::ApiServer(_) if !world.runs_kubernetes() => {
            Err("operations: kubernetes in this world: otherwise no component of Kubernetes runs on a node"
                .to_owned())
        }
        Target::Address(_)
        | Target::Instance(InstanceTarget::Leader)
        | Target::Registry
        | Target::Provider(_)
        | Target::Actor(_)
        | Target::Kubelet(_)
        | Target::ApiServer(_) => Ok(()),
    }
}

/// Checks that a number is one of `count` from `first`; the error describes the expected range.
fn check_number_in_range(
    number: u32,
    (first, count): (u32, u32),
    of: &str,
    word: &str,
) -> Result<(), String> {
    match count {
        _ if number >= first && number - first < count => Ok(()),
        0 => Err(format!("{of}, which has none")),
        1 => Err(format!("{of}, which is {word}={first} alone")),
        _ => Err(format!("{of}, {word}={first} to {word}={}", first + (count - 1))),
    }
}
