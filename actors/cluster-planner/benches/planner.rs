//! Cost of plans, and its growth.
//!
//! `cargo bench -p madako-cluster-planner --bench planner` prints a table and writes the plot
//! `docs/benchmarks/planner.svg`; with `-- 90000` it measures only cases with that number, without a plot. Machines
//! come from a seeded generator: 3 roles, 40 machines a rack. The measured part is the call of `plan` on one thread,
//! without making its input and freeing its result: in wall-clock time, and in CPU time of the thread, which other
//! processes disturb less.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark's output is its table")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use madako_cluster_planner::{DEFAULT_RETIRE_WAIT, LeaderStage, PlanInput, plan};
use madako_domain::cluster::{Cluster, LABEL_ROLE, LABEL_WEIGHT, Node, Taint};
use madako_domain::constraints::Constraints;
use madako_domain::machine::{Bmc, Machine, MachineLabel, MachineSpec, MachineState, MachineStatus};
use madako_domain::plan::Action;
use madako_domain::template::Template;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rustix::time::{ClockId, clock_gettime};
use time::OffsetDateTime;

/// Timed runs of each case after one untimed run; the median of this many varies by a few percent.
const RUNS: usize = 15;
const SEED: u64 = 3;
const MACHINES_IN_RACK: usize = 40;
const CONTROL_PLANE: u32 = 5;
/// Roles and their weights; machines have them in the same proportion.
const ROLES: [(&str, usize); 3] = [("compute", 6), ("storage", 3), ("gpu", 1)];

fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_700_000_000).expect("a time within range")
}

fn make_machines(count: usize) -> Vec<Machine> {
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    // Not in the order of addresses; they lie in memory in the order of reading.
    let mut order: Vec<usize> = (0..count).collect();
    for index in (1..count).rev() {
        order.swap(index, random.random_range(0..=index));
    }
    order
        .into_iter()
        .map(|index| {
            let (rack, index_in_rack) = (index / MACHINES_IN_RACK, index % MACHINES_IN_RACK);
            let role = match index_in_rack % 10 {
                0..6 => ROLES[0].0,
                6..9 => ROLES[1].0,
                _ => ROLES[2].0,
            };
            let registered = now() - time::Duration::days(random.random_range(0..1_500));
            let label = |name: &str, value: &str| MachineLabel { name: name.into(), value: value.into() };
            Machine {
                spec: MachineSpec {
                    serial: format!("{:012x}", random.random::<u64>() >> 16),
                    labels: vec![label("product", "R6525"), label("datacenter", "dc1")],
                    rack: rack as i64,
                    index_in_rack: index_in_rack as i64,
                    role: role.to_owned(),
                    ipv4: vec![
                        format!("10.{}.{}.{}", rack / 256, rack % 256, index_in_rack + 4),
                        format!("10.{}.{}.{}", 64 + rack / 256, rack % 256, index_in_rack + 4),
                    ],
                    register_date: registered,
                    retire_date: registered + time::Duration::days(1_825),
                    bmc: Bmc { bmc_type: "iDRAC".to_owned() },
                },
                status: MachineStatus { state: MachineState::Healthy, duration: 86_400.0 },
            }
        })
        .collect()
}

fn make_template() -> Template {
    let node = |control_plane, role: &str, weight: Option<usize>| {
        let mut labels = BTreeMap::from([(LABEL_ROLE.to_owned(), role.to_owned())]);
        labels.extend(weight.map(|weight| (LABEL_WEIGHT.to_owned(), format!("{weight}.0"))));
        Node { user: "cybozu".to_owned(), control_plane, labels, ..Node::default() }
    };
    let mut nodes = vec![node(true, ROLES[0].0, None)];
    nodes.extend(ROLES.iter().map(|(role, weight)| node(false, role, Some(*weight))));
    Template::new(Cluster {
        name: "bench".to_owned(),
        service_subnet: "10.254.0.0/16".to_owned(),
        nodes,
        ..Cluster::default()
    })
    .expect("a valid template")
}

struct BenchmarkCase {
    what: &'static str,
    machines: usize,
    workers: usize,
    /// The project's promised maximum; `None`: there is none.
    limit: Option<Duration>,
}

struct Measurement {
    case: BenchmarkCase,
    wall: Duration,
    least: Duration,
    median: Duration,
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn measure_plan(case: BenchmarkCase) -> Measurement {
    let template = make_template();
    let machines = make_machines(case.machines);
    let node_taints: BTreeMap<String, Vec<Taint>> = BTreeMap::new();
    let under_repair = BTreeSet::new();
    let constraints = Constraints {
        control_plane_count: CONTROL_PLANE,
        minimum_workers: u32::try_from(case.workers).expect("a count of workers"),
        ..Constraints::default()
    };
    let input = PlanInput {
        template: &template,
        constraints: &constraints,
        machines: &machines,
        current: None,
        node_taints: &node_taints,
        under_repair: &under_repair,
        now: now(),
        retire_wait: DEFAULT_RETIRE_WAIT,
        template_changed: false,
        moment: LeaderStage::Running,
    };
    let first = plan(&input).expect("enough machines");
    let (input, expected) = match case.what {
        INITIAL => (input, Some(Action::Initialize)),
        NOTHING => (PlanInput { current: first.cluster.as_ref(), ..input }, None),
        _ => {
            let current = first.cluster.as_ref();
            (PlanInput { current, template_changed: true, ..input }, Some(Action::Regenerate))
        }
    };
    let runs = (0..=RUNS).map(|_| {
        let (started, began) = (Instant::now(), thread_cpu_time());
        let made = black_box(plan(black_box(&input)));
        let took = (started.elapsed(), thread_cpu_time() - began);
        assert_eq!(made.expect("a plan").action, expected);
        took
    });
    let (mut wall, mut core): (Vec<Duration>, Vec<Duration>) = runs.skip(1).unzip();
    wall.sort_unstable();
    core.sort_unstable();
    Measurement { case, wall: wall[RUNS / 2], least: core[0], median: core[RUNS / 2] }
}

const INITIAL: &str = "initial plan";
const NOTHING: &str = "nothing to do";
const TEMPLATE: &str = "changed template";

fn main() {
    let only: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let limit = |milliseconds| Some(Duration::from_millis(milliseconds));
    let case = |what, machines, workers, limit| BenchmarkCase { what, machines, workers, limit };
    let sizes = [1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000];
    let cases = sizes
        .map(|size| case(INITIAL, size, size * 3 / 10, if size == 10_000 { limit(20) } else { None }))
        .into_iter()
        .chain([case(INITIAL, 100_000, 90_000, limit(400))])
        .chain(
            sizes
                .map(|size| case(NOTHING, size, size * 3 / 10, if size == 10_000 { limit(2) } else { None })),
        )
        .chain(sizes.map(|size| case(TEMPLATE, size, size * 3 / 10, None)));
    println!("| {:<16} | machines | workers | median, wall | median, core | least, core |   limit |", "");
    println!("|{:-<18}|---------:|--------:|-------------:|-------------:|------------:|--------:|", "");
    let mut all = Vec::new();
    let wanted = |case: &BenchmarkCase| {
        only.is_empty() || [case.machines, case.workers].iter().any(|n| only.contains(n))
    };
    for case in cases.filter(wanted) {
        let measured = measure_plan(case);
        let BenchmarkCase { what, machines, workers, limit } = &measured.case;
        println!(
            "| {what:<16} | {machines:>8} | {workers:>7} | {:>12} | {:>12} | {:>11} | {:>7} |",
            format_time(measured.wall),
            format_time(measured.median),
            format_time(measured.least),
            limit.map(format_time).unwrap_or_default()
        );
        all.push(measured);
    }
    if !only.is_empty() {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks/planner.svg");
    match std::fs::create_dir_all(path.parent().expect("a path within the project"))
        .and_then(|()| std::fs::write(&path, draw_plot(&all)))
    {
        Ok(()) => println!("\nplot: docs/benchmarks/planner.svg"),
        Err(error) => {
            eprintln!("cannot write the plot: {error}");
            std::process::exit(1);
        }
    }
}

fn format_time(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1e3;
    if milliseconds < 9.95 { format!("{milliseconds:.2} ms") } else { format!("{milliseconds:.0} ms") }
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 440.0;
const MARGIN: f64 = 60.0;
/// Powers of ten: machines from 1,000 to 100,000, times from 10 µs to 1 s.
const X: (f64, f64) = (3.0, 5.0);
const Y: (f64, f64) = (-5.0, 0.0);

fn x_of_machines(machines: f64) -> f64 {
    MARGIN + (machines.log10() - X.0) / (X.1 - X.0) * (WIDTH - MARGIN - 170.0)
}

fn y_of_seconds(seconds: f64) -> f64 {
    HEIGHT - MARGIN - (seconds.log10() - Y.0) / (Y.1 - Y.0) * (HEIGHT - MARGIN - 40.0)
}

/// A plot with logarithmic axes: each kind of plan, and `n log n` through its first point.
fn draw_plot(all: &[Measurement]) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>Time of a plan by the number of machines</title>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"22\" font-size=\"15\">Time of a plan by the number of machines \
         (30 % of them workers), one core</text>\n"
    );
    let left = x_of_machines(1e3);
    let right = x_of_machines(1e5);
    for (seconds, name) in
        [(1e-5, "10 µs"), (1e-4, "100 µs"), (1e-3, "1 ms"), (1e-2, "10 ms"), (1e-1, "100 ms"), (1.0, "1 s")]
    {
        let at = y_of_seconds(seconds);
        let _ = writeln!(
            svg,
            "<path d=\"M{left:.1} {at:.1}H{right:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            left - 6.0,
            at + 4.0
        );
    }
    for (machines, name) in [(1e3, "1,000"), (1e4, "10,000"), (1e5, "100,000")] {
        let at = x_of_machines(machines);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {:.1}V{:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>",
            y_of_seconds(1.0),
            y_of_seconds(1e-5),
            y_of_seconds(1e-5) + 18.0
        );
    }
    for (what, colour) in [(INITIAL, "#1f77b4"), (TEMPLATE, "#d62728"), (NOTHING, "#2ca02c")] {
        let of_kind = |measured: &&Measurement| {
            measured.case.what == what && measured.case.workers == measured.case.machines * 3 / 10
        };
        let points: Vec<(f64, f64)> = all
            .iter()
            .filter(of_kind)
            .map(|measured| (measured.case.machines as f64, measured.median.as_secs_f64()))
            .collect();
        let (first, last) = (points[0], points[points.len() - 1]);
        let line = |points: &[(f64, f64)]| {
            let points = points
                .iter()
                .map(|(n, seconds)| format!("{:.1},{:.1}", x_of_machines(*n), y_of_seconds(*seconds)));
            points.collect::<Vec<_>>().join(" ")
        };
        let reference: Vec<(f64, f64)> =
            points.iter().map(|(n, _)| (*n, first.1 * (n * n.log2()) / (first.0 * first.0.log2()))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"#999\" stroke-dasharray=\"4 4\"/>\n\
             <polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            line(&reference),
            line(&points)
        );
        for (n, seconds) in &points {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                x_of_machines(*n),
                y_of_seconds(*seconds)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{what}: {}</text>",
            right + 8.0,
            y_of_seconds(last.1) + 4.0,
            format_time(Duration::from_secs_f64(last.1))
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{left:.1}\" y=\"{:.1}\" fill=\"#666\">dashed: n log n through the first point; \
         machines on the horizontal axis, both axes logarithmic</text>\n</svg>",
        HEIGHT - 12.0
    );
    svg
}
