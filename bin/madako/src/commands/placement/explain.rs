//! `madako kube app explain`: the reasons for an application's cluster, and the changes that would move it.

mod sentences;
mod text;

use madako_console::USUAL_WIDTH;
use madako_domain::placement::decision::Decision;
use madako_domain::placement::fit::UnmetConstraint;
use madako_protocol::ports::Clock as _;
use madako_supervisor::clock::SystemClock;
use serde::Deserialize;
use serde_json::Value;
use time::OffsetDateTime;

pub(super) use self::sentences::describe_wait;
use self::text::{TextLayout, format_text};
use super::client::{Answer, ApiClient, Request};
use super::given::GivenOptions;
use super::{CommandScope, Settings};
use crate::failure::Failure;
use crate::list::Surface;
use crate::output::{Format, print_text, show_value};

/// The parts of an explanation that the table shows.
#[derive(Deserialize)]
pub(super) struct ExplanationView {
    /// The current decision; `None`: the instance does not schedule.
    pub(super) decision: Option<Decision>,
    pub(super) last: Option<Decision>,
    /// The host of the scheduling instance, from another one.
    leader: Option<String>,
    pub(super) clusters: Vec<Candidate>,
    clouds: Vec<Candidate>,
}

#[derive(Deserialize)]
pub(super) struct Candidate {
    target: Target,
    pub(super) current: bool,
    dropped: Option<Dropped>,
    metrics: Vec<Metric>,
    base: Option<f64>,
    pub(super) score: Option<f64>,
}

#[derive(Deserialize)]
struct Target {
    namespace: Option<String>,
    name: String,
}

#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
enum Dropped {
    Unmet {
        unmet: Vec<UnmetConstraint>,
    },
    WaitsForMetric {
        metric: String,
    },
    FailingMetrics {
        metric: String,
    },
    WithoutMetrics,
    LeftOut,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Metric {
    metric: String,
    weight: f64,
    value: Option<f64>,
    normalized: Option<f64>,
    age: Option<f64>,
    oscillates: bool,
    range: Option<(f64, f64)>,
    #[serde(default, with = "time::serde::rfc3339::option")]
    since: Option<OffsetDateTime>,
    note: Option<String>,
}

/// The request for an explanation of an application.
pub(super) fn explanation_request(place: &CommandScope, name: &str) -> Request {
    let subject = format!("the explanation of {}", place.name_of_resource(name));
    Request::new("GET", place.path_segments(&[name, "explain"]), subject)
}

/// # Errors
/// The answer is not an explanation.
pub(super) fn read_view(request: &Request, answer: Answer) -> Result<ExplanationView, Failure> {
    serde_json::from_value(answer.body).map_err(|error| {
        Failure::failed(format_args!(
            "the API's answer about {} is not an explanation: {error}",
            request.subject
        ))
    })
}

pub(super) async fn run(
    settings: &Settings,
    place: &CommandScope,
    given: &GivenOptions,
    format: Format,
) -> Result<(), Failure> {
    let name = given.name()?;
    let mut request = explanation_request(place, name);
    for option in ["with", "without"] {
        request.query.extend(given.text_values(option).into_iter().map(|text| (option, text)));
    }
    let answer = ApiClient::new(settings)?.send(&request).await?;
    match format {
        Format::Table => {
            let surface = Surface::for_output();
            let layout = TextLayout {
                width: surface.width.unwrap_or(USUAL_WIDTH),
                has_colours: surface.has_colours,
                is_whole: given.is_flag_set("candidates"),
                now: SystemClock.now(),
            };
            print_text(&format_text(&place.name_of_resource(name), &read_view(&request, answer)?, layout))
        }
        format => show_value(format, &answer.body, |_: &Value| String::new()),
    }
}

impl Candidate {
    fn unmet_constraints(&self) -> &[UnmetConstraint] {
        match &self.dropped {
            Some(Dropped::Unmet { unmet }) => unmet,
            _ => &[],
        }
    }
}

impl Target {
    fn key(&self) -> (Option<&str>, &str) {
        (self.namespace.as_deref(), &self.name)
    }
}
