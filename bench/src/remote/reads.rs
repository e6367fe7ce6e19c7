//! Part `reads`: how fast memory of another node is read, and the processor time of the node that reads.

use memferry::Rights;

use super::nodes::{Nodes, Reach, Way};
use super::twin::{self, Copies, Twin};
use super::{Scene, nodes};
use crate::BenchError;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::service::ucx::warm_up;

const ROUNDS: usize = 7;
const MIB: u64 = 1 << 20;
/// Chunks of the link that are under way at a time, at most.
const CHUNKS: usize = 32;
/// Minimum rate relative to the twin, and of direct reads relative to UCX's get.
const OVER_TWIN: Target = Target::AtLeast(0.9);
const OVER_UCX: Target = Target::AtLeast(0.9);

struct Size {
    name: &'static str,
    bytes: u64,
    count: usize,
    /// Requests at a time: enough for as many chunks as the link has under way.
    window: usize,
    /// Chunks of these requests under way.
    chunks: usize,
}

const SIZES: [Size; 2] = [
    Size { name: "1 MiB", bytes: MIB, count: 256, window: 8, chunks: CHUNKS },
    Size { name: "64 MiB", bytes: 64 * MIB, count: 8, window: 4, chunks: CHUNKS },
];

/// What one round gave: MiB/s, and for the longer size seconds of processor time for each GiB.
#[derive(Default)]
struct Figures {
    ucx: Vec<f64>,
    twin: Vec<f64>,
    twin_all: Vec<f64>,
    ours: Vec<f64>,
    direct: Vec<f64>,
    processor_client: Vec<f64>,
    processor_node: Vec<f64>,
    processor_ucx: Vec<f64>,
}

/// The sides that take turns.
#[derive(Clone, Copy)]
enum Side {
    Ucx,
    Twin,
    TwinAll,
    Ours,
    Direct,
}

const SIDES: [Side; 5] = [Side::Ucx, Side::Twin, Side::TwinAll, Side::Ours, Side::Direct];

pub(super) fn measure(run: &Run, scene: &Scene<'_>) -> Result<Vec<Row>, BenchError> {
    let program = twin::program(run)?;
    let longest = SIZES.iter().map(|size| size.bytes).max().unwrap_or(0);
    let nodes = Nodes::start(run, Way::Ucx(scene.ucx, scene.transport))?;
    let mut reach = Reach::open(&nodes, longest, Rights::READ)?;
    let mut direct = Reach::open(&nodes, longest, Rights::READ | Rights::DIRECT)?;
    let mut twin = Twin::start(scene, &program, longest, Copies::One)?;
    twin.read(longest, 1, CHUNKS)?;
    let mut twin_all = Twin::start(scene, &program, longest, Copies::All)?;
    twin_all.read(longest, 1, CHUNKS)?;
    let rounds = run.part("remote reads", ROUNDS);
    let mut figures: [Figures; SIZES.len()] = Default::default();
    for round in 0..rounds {
        for (size, figures) in SIZES.iter().zip(&mut figures) {
            for turn in 0..SIDES.len() {
                match SIDES[(turn + round) % SIDES.len()] {
                    Side::Ucx => ask_ucx(scene, size, figures)?,
                    Side::Twin => {
                        let seconds = twin.read(size.bytes, size.count, size.chunks)?;
                        figures.twin.push(size.rate(seconds));
                    }
                    Side::TwinAll => {
                        let seconds = twin_all.read(size.bytes, size.count, size.chunks)?;
                        figures.twin_all.push(size.rate(seconds));
                    }
                    Side::Ours => ask_link(&nodes, &mut reach, size, figures)?,
                    Side::Direct => {
                        direct.stream(size.bytes, size.window, size.window)?;
                        figures.direct.push(size.rate(direct.stream(size.bytes, size.count, size.window)?));
                    }
                }
            }
        }
        run.round_done();
    }
    Ok(SIZES.iter().zip(&figures).flat_map(|(size, figures)| rows(scene, size, figures)).collect())
}

impl Size {
    /// In MiB/s, of seconds for all.
    fn rate(&self, seconds: f64) -> f64 {
        self.mib() / seconds
    }

    fn mib(&self) -> f64 {
        (self.bytes * self.count as u64) as f64 / MIB as f64
    }

    /// Milliseconds for each GiB, of seconds for all.
    fn each_gib(&self, seconds: f64) -> f64 {
        seconds * 1e3 / (self.mib() / 1024.0)
    }
}

fn ask_ucx(scene: &Scene<'_>, size: &Size, figures: &mut Figures) -> Result<(), BenchError> {
    let (report, seconds) = scene.ucx.perftest(scene.transport, ("ucp_get", size.bytes, size.count))?;
    figures.ucx.push(report.mib_per_s);
    let part = size.count as f64 / (size.count + warm_up(size.count)) as f64;
    figures.processor_ucx.push(size.each_gib(seconds * part));
    Ok(())
}

fn ask_link(nodes: &Nodes, reach: &mut Reach, size: &Size, figures: &mut Figures) -> Result<(), BenchError> {
    // The first ones find threads asleep.
    reach.stream(size.bytes, size.window, size.window)?;
    let node = reach.processor_seconds(nodes)?;
    let client = nodes::own_processor_seconds();
    let seconds = reach.stream(size.bytes, size.count, size.window)?;
    figures.ours.push(size.rate(seconds));
    let client = nodes::own_processor_seconds() - client;
    let node = reach.processor_seconds(nodes)? - node;
    figures.processor_client.push(size.each_gib(client));
    figures.processor_node.push(size.each_gib(client + node));
    Ok(())
}

fn rows(scene: &Scene<'_>, size: &Size, figures: &Figures) -> Vec<Row> {
    let title = format!("{}, {}", scene.title, size.name);
    let row =
        |what: &str, unit, target, values: &[f64]| Row::new(format!("{title}: {what}"), unit, target, values);
    let against = |theirs: &[f64]| -> Vec<f64> {
        figures.ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
    };
    let direct: Vec<f64> =
        figures.direct.iter().zip(&figures.ucx).map(|(direct, theirs)| direct / theirs).collect();
    let mut rows = vec![
        row("UCX's get", "MiB/s", Target::None, &figures.ucx),
        row("twin with the owner's copy", "MiB/s", Target::None, &figures.twin),
        row("twin with all copies of the links", "MiB/s", Target::None, &figures.twin_all),
        row("read, checked at the owner", "MiB/s", Target::None, &figures.ours),
        row("read against the twin", "ratio", OVER_TWIN, &against(&figures.twin)),
        row("read against the twin with all copies", "ratio", Target::None, &against(&figures.twin_all)),
        row("read against UCX's get", "ratio", Target::None, &against(&figures.ucx)),
        row("direct read", "MiB/s", Target::None, &figures.direct),
        row("direct read against UCX's get", "ratio", OVER_UCX, &direct),
    ];
    if size.bytes > MIB {
        rows.extend([
            row("CPU of the client", "ms/GiB", Target::None, &figures.processor_client),
            row("CPU of client, service and link", "ms/GiB", Target::None, &figures.processor_node),
            row("CPU of UCX's get, the end that asks", "ms/GiB", Target::None, &figures.processor_ucx),
        ]);
    }
    rows
}
