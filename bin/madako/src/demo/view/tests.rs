//! Tests of the demo's live view on screens of several sizes.

use std::sync::Arc;
use std::time::Duration;

use madako_domain::plan::{Action, Change, ChangeKind, Plan, PlanReason};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::KeyCommand;
use super::super::happenings::HappeningClass;
use super::super::picture::ActorLine;
use super::super::placement::{BoundApplication, ClusterView, PlacementOverview};
use super::*;

fn cell(role: &str, state: MachineState, part: Option<Part>) -> MachineCell {
    MachineCell { role: role.to_owned(), state, part }
}

fn guests(names: &[&str]) -> Vec<BoundApplication> {
    names
        .iter()
        .map(|name| BoundApplication { name: (*name).to_owned(), settled: *name == "ledger" })
        .collect()
}

/// Five clusters; `munich` has more applications than fit on a small screen, and one application fits no cluster.
fn landscape() -> PlacementOverview {
    let place = |name: &str, state: &str, applications: &[&str]| ClusterView {
        name: name.to_owned(),
        location: "europe".to_owned(),
        state: state.to_owned(),
        score: (state == "ONLINE").then_some(0.75),
        metrics: ["free", "green", "network"].map(|metric| (metric.to_owned(), Some(62.2))).to_vec(),
        applications: guests(applications),
    };
    PlacementOverview {
        places: vec![
            place("lisbon", "OFFLINE", &[]),
            place("munich", "ONLINE", &["ledger", "mail", "search", "shop", "training", "video"]),
            place("osaka", "CONNECTING", &["games"]),
            place("oslo", "ONLINE", &["chat"]),
            place("pune", "ONLINE", &["sensors"]),
        ],
        unbound: guests(&["backup"]),
    }
}

/// A demo of 6 racks after its first plan, which chose many machines.
fn picture() -> ScreenState {
    let mut picture = ScreenState {
        elapsed: Duration::from_secs(12),
        http: "127.0.0.1:10180".to_owned(),
        etcd: "127.0.0.1:23790".to_owned(),
        seed: 7,
        placement: "127.0.0.1:10180".to_owned(),
        retire_wait: Duration::from_secs(10),
        reschedule_after: Duration::from_secs(15),
        metrics_interval: Duration::from_secs(2),
        landscape: Arc::new(landscape()),
        epoch: Some(3),
        revision: 9,
        control_plane: 1,
        workers: 2,
        ..ScreenState::default()
    };
    for rack in 0..6 {
        let cells = [
            cell("boot", MachineState::Healthy, None),
            cell("compute", MachineState::Healthy, Some(Part::ControlPlane)),
            cell("storage", MachineState::Unhealthy, Some(Part::Worker)),
            cell("gpu", MachineState::Healthy, Some(Part::Worker)),
            cell("compute", MachineState::Healthy, None),
            cell("compute", MachineState::Retired, None),
        ];
        picture.racks.insert(rack, cells.to_vec());
    }
    for (name, depth) in [
        ("http", 0),
        ("leader", 0),
        ("reign", 0),
        ("sabakan-poller", 1),
        ("cluster-planner", 1),
        ("metrics-fetcher", 1),
        ("app-scheduler", 1),
    ] {
        let restarts = u64::from(name == "leader") * 2;
        picture.actors.push(ActorLine {
            name: name.to_owned(),
            depth,
            state: "running".to_owned(),
            restarts,
        });
    }
    let fired = |n: u32| {
        Reason::new(Action::Initialize, Outcome::Fired, PlanReason::NoCluster)
            .with_address(&format!("10.0.0.{n}"))
    };
    let others = Action::ALL.iter().copied().filter(|action| *action != Action::Initialize);
    let not_fired =
        others.map(|action| Reason::new(action, Outcome::NotFired, PlanReason::After(Action::Initialize)));
    let change = Change { change: ChangeKind::Add, address: "10.0.0.1".to_owned(), part: Part::Worker };
    picture.last_plan = Some(Arc::new(Plan {
        action: Some(Action::Initialize),
        changes: vec![change],
        reasons: (1..=33).map(fired).chain(not_fired).collect(),
        ..Plan::default()
    }));
    for n in 0..50 {
        let named: Vec<String> = (0..6).map(|m| format!("add 10.69.{n}.{m} (control-plane)")).collect();
        let text = format!("planned initialize in 0.2 ms: {} and 27 more", named.join(", "));
        let class = HappeningClass { kind: HappeningKind::Plan, subject: None, begins: true };
        picture.happenings.add(Duration::from_secs(n), class, text);
    }
    let class = HappeningClass { kind: HappeningKind::Leader, subject: None, begins: true };
    picture.happenings.add(Duration::from_secs(70), class, "leads (epoch 3)".to_owned());
    picture
}

fn screen(picture: &ScreenState, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, picture)).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| row(y).trim_end().to_owned()).collect()
}

/// Usual sizes, and whether clusters and the last plan both fit.
const SIZES: [(u16, u16, bool); 4] = [(80, 24, false), (120, 30, true), (80, 40, true), (160, 50, true)];

/// A screen, and the screen after Tab.
fn screens(width: u16, height: u16) -> [String; 2] {
    [false, true].map(|plan_first| screen(&ScreenState { plan_first, ..picture() }, width, height).join("\n"))
}

#[test]
fn every_usual_screen_size_shows_the_legend_and_the_keys() {
    for (width, height, both) in SIZES {
        let [first, after_tab] = screens(width, height);
        for expected in [
            "12 s  leader 1 since the start (epoch 3)  revision 9",
            " C control plane  c s g worker  . unused  b boot  ",
            "u unhealthy",
            "x unreachable",
            "r retired (worker leaves after 10 s)",
            "? help",
            "http 127.0.0.1:10180",
            "etcd 127.0.0.1:23790",
            "seed 7",
            "1 control plane, 2 workers",
            "rack 0 ",
            "rack 5 ",
            "leader             running       2 restarts",
            "  cluster-planner  running",
            "  app-scheduler    running",
            "what happened",
            "  49 s  planned initialize in 0.2 ms: ",
            "70 s  leads (epoch 3)",
        ] {
            for screen in [&first, &after_tab] {
                assert!(screen.contains(expected), "no {expected:?} on {width}x{height}\n{screen}");
            }
        }
        for expected in [
            "5 clusters, 10 applications",
            "metrics every 2 s",
            "offline        -  free 62 green 62 network 62",
            "online      0.75  free 62 green 62 network 62  ledger* mail",
            "  games",
            "bound to none: backup",
        ] {
            assert!(first.contains(expected), "no {expected:?} on {width}x{height}\n{first}");
        }
        for expected in [
            "last plan: initialize, 1 change",
            " fired     initialize: 10.0.0.1: ",
            " not-fired remove-non-existent-nodes: ",
        ] {
            assert!(after_tab.contains(expected), "no {expected:?} on {width}x{height}\n{after_tab}");
        }
        assert_eq!(first == after_tab, both, "on {width}x{height}\n{first}\n{after_tab}");
        let reported = first.contains("Tab: plan") && after_tab.contains("Tab: clusters");
        assert_eq!(reported, !both, "a key is for what has no room\n{first}\n{after_tab}");
    }
}

#[test]
fn separate_address_of_the_api_is_shown() {
    let elsewhere = ScreenState { placement: "127.0.0.1:4711".to_owned(), ..picture() };
    assert!(screen(&elsewhere, 80, 24).join("\n").contains("placement API 127.0.0.1:4711"));
    assert!(!screen(&picture(), 80, 24).join("\n").contains("placement API"));
}

#[test]
fn list_that_does_not_fit_shows_the_number_of_missing_items() {
    for (width, height, _) in SIZES {
        let [_, after_tab] = screens(width, height);
        assert!(after_tab.contains(" more reasons"), "{after_tab}");
    }
    let rows = screen(&picture(), 160, 120).join("\n");
    assert!(!rows.contains(" more reasons"), "{rows}");
    assert_eq!(rows.matches(" not-fired ").count(), 8, "every rule is there\n{rows}");
    let [small, _] = screens(80, 24);
    assert!(small.contains("ledger* mail search +3\n"), "{small}");
    assert!(rows.contains("ledger* mail search shop training video "), "{rows}");
}

#[test]
fn no_room_is_left_empty_while_something_is_not_shown() {
    for (width, height, _) in SIZES {
        for screen in screens(width, height) {
            let rows: Vec<&str> = screen.lines().collect();
            let top = rows.iter().position(|row| row.contains("what happened")).unwrap();
            // Events fill their panel; the plan beside it may end a line earlier.
            let blank = rows[top..].iter().filter(|row| row.trim_matches([' ', '│']).is_empty()).count();
            assert!(blank <= 1, "{blank} empty lines\n{screen}");
        }
    }
}

#[test]
fn short_plan_leaves_its_space_to_the_list_of_events() {
    let mut picture = picture();
    picture.last_plan = None;
    picture.plan_first = true;
    let rows = screen(&picture, 80, 24);
    let at = |what: &str| rows.iter().position(|row| row.contains(what)).unwrap();
    assert_eq!(at("what happened") - at("last plan"), 2, "{}", rows.join("\n"));
}

#[test]
fn recently_placed_application_is_highlighted() {
    let mut picture = picture();
    let cyan = |picture: &ScreenState| -> Vec<String> {
        let lines = places::draw_clusters(picture, 80);
        let spans = lines.iter().flat_map(|line| &line.spans);
        spans.filter(|span| span.style.fg == Some(Color::Cyan)).map(|span| span.content.to_string()).collect()
    };
    assert!(cyan(&picture).is_empty());
    picture.placed.insert("mail".to_owned(), Duration::from_secs(5));
    picture.placed.insert("chat".to_owned(), Duration::from_secs(1));
    assert_eq!(cyan(&picture), ["mail"]);
}

#[test]
fn long_sentence_wraps_without_losing_a_word() {
    let sentence = "one two threeandmuchlongerthanaline four";
    for width in 6..60 {
        let lines = wrap_with_heading(" h ", sentence, width, Style::new());
        assert!(lines.iter().all(|line| line.width() <= width), "{width}: {lines:?}");
        let text: String = lines.iter().map(|line| line.to_string()[3..].to_owned()).collect();
        assert_eq!(text.replace(' ', ""), sentence.replace(' ', ""), "{width}");
    }
}

#[test]
fn a_small_screen_causes_no_failure() {
    for (width, height) in [(1, 1), (20, 5), (30, 8), (40, 3), (5, 60)] {
        screen(&ScreenState::default(), width, height);
        screen(&picture(), width, height);
        screen(&ScreenState { shows_help: true, ..picture() }, width, height);
    }
}

#[test]
fn a_small_screen_shows_racks_or_clusters_and_the_newest_events() {
    let shown = |plan_first, width, height| {
        screen(&ScreenState { plan_first, ..picture() }, width, height).join("\n")
    };
    let racks = shown(false, 30, 8);
    for expected in
        ["madako demo", "1 control plane, 2 workers", " rack 1 ", "+4", "70 s  leads (epoch 3)", "? help"]
    {
        assert!(racks.contains(expected), "no {expected:?}\n{racks}");
    }
    let clusters = shown(true, 58, 12);
    for expected in ["lisbon", "munich", "70 s  leads (epoch 3)"] {
        assert!(clusters.contains(expected), "no {expected:?}\n{clusters}");
    }
}

#[test]
fn machines_have_the_letter_of_their_state_and_racks_use_the_width() {
    let narrow = screen(&picture(), 80, 24).join("\n");
    assert!(narrow.contains(" rack 0  b   C   su  g   .   .r "), "{narrow}");
    let wide = screen(&picture(), 160, 50).join("\n");
    assert!(wide.contains(" rack 0  b        C        su       g        .        .r "), "{wide}");
}

#[test]
fn each_event_has_a_line_in_the_colour_of_its_kind() {
    let mut picture = picture();
    picture.remember("you cut the power of rack 1".to_owned());
    let area = Rect { x: 0, y: 0, width: 60, height: 3 };
    let lines = draw_happenings(&picture, area);
    assert!(lines.iter().all(|line| line.width() <= 60), "{lines:?}");
    assert!(lines[0].to_string().ends_with('…'), "{lines:?}");
    let colours: Vec<Option<Color>> = lines.iter().map(|line| line.style.fg).collect();
    assert_eq!(colours, [Some(Color::Green), None, Some(Color::Magenta)]);
    // An older line is reached with the arrows.
    picture.scroll_events(2);
    let rows = screen(&picture, 80, 24).join("\n");
    assert!(rows.contains("what happened, 2 newer below") && !rows.contains("you cut the power"), "{rows}");
}

#[test]
fn the_help_names_every_key_on_a_small_screen() {
    let rows = screen(&ScreenState { shows_help: true, ..picture() }, 80, 24).join("\n");
    for key in [
        "k       cuts",
        "b       breaks",
        "l       stops",
        "f       lets",
        "space",
        "PgUp",
        "Tab",
        "q, Ctrl-C",
    ] {
        assert!(rows.contains(key), "{key}: {rows}");
    }
}

#[test]
fn the_help_scrolls_on_a_small_screen_to_its_last_line_and_no_further() {
    let small = Rect { x: 0, y: 0, width: 30, height: 8 };
    let mut picture = picture();
    picture.apply_command(KeyCommand::Help);
    let shown = |picture: &ScreenState| screen(picture, 30, 8).join("\n");
    let first = shown(&picture);
    assert!(first.contains("cuts the power") && first.contains("more lines below"), "{first}");
    picture.apply_command(KeyCommand::Scroll(-1));
    picture.limit_help(most_scrolled(&picture, small));
    assert_ne!(shown(&picture), first);
    picture.apply_command(KeyCommand::Newest);
    picture.limit_help(most_scrolled(&picture, small));
    let last = shown(&picture);
    assert!(last.contains("ever.") && !last.contains("more lines below"), "{last}");
    // One key goes back one line, however often the help was scrolled at its end.
    picture.apply_command(KeyCommand::Scroll(1));
    assert!(shown(&picture).contains("1 more line below"), "{}", shown(&picture));
    assert_eq!(picture.scrolled_to, None, "the events stay");
    picture.apply_command(KeyCommand::Help);
    picture.apply_command(KeyCommand::Help);
    assert_eq!(shown(&picture), first, "it begins with its first line again");
}
