//! Group `gpu`: copies between host memory and memory of an NVIDIA GPU.
//!
//! ```text
//! this process: client ─ service, a child ─ engine process, a child ─ driver        C twin: driver, nothing between
//! parts: long      64 KiB to 64 MiB: the service beside the twin
//!        pieces    lists of scattered pieces of 8 KiB, several at a time
//!        first     a new client's first copy
//!        tenants   two clients that saturate the engine, under `weighted`
//!        manners   lists by kernel, batch and single calls: streams of the engine, without a service
//!        detours   copies in host memory by the GPU, beside a CPU
//! ```
//!
//! The driver is `libcuda.so.1`, or the library that `MEMFERRY_BENCH_CUDA_LIBRARY` names. Without it, or without a GPU, no row is
//! measured. The first GPU is used, and of its memory less than 1 GiB.

mod alone;
mod long;
mod pieces;
mod tenants;
mod twin;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use memferry::{Client, Frame};
use memferry_engine_cuda::{Device, Driver, LIBRARY, Options};

use crate::BenchError;
use crate::children::{ENGINE, Role, Service};
use crate::rows::Row;
use crate::run::Run;
use crate::timing::random_bytes;

const LIBRARY_VARIABLE: &str = "MEMFERRY_BENCH_CUDA_LIBRARY";
/// Memory of the GPU for clients.
const MEMORY: u64 = 192 << 20;
/// A GPU takes seconds to begin.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Direction {
    Up,
    Down,
}

impl Direction {
    const BOTH: [Self; 2] = [Self::Up, Self::Down];

    fn name(self) -> &'static str {
        match self {
            Self::Up => "to the GPU",
            Self::Down => "from the GPU",
        }
    }

    /// Source and destination.
    fn ends<T>(self, host: T, device: T) -> (T, T) {
        match self {
            Self::Up => (host, device),
            Self::Down => (device, host),
        }
    }
}

type Part = (&'static str, fn(&Run, &Path) -> Result<Vec<Row>, BenchError>);

const PARTS: [Part; 6] = [
    ("long", long::measure),
    ("pieces", pieces::measure),
    ("first", long::first),
    ("tenants", tenants::measure),
    ("manners", alone::manners),
    ("detours", alone::detours),
];

/// Measures the selected parts of the group.
pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.refuse_unknown(PARTS.iter().map(|(name, _)| *name))?;
    let library = std::env::var_os(LIBRARY_VARIABLE).map_or_else(|| PathBuf::from(LIBRARY), PathBuf::from);
    let selected = PARTS.iter().filter(|(name, _)| run.wants(name));
    match gpu(&library) {
        Ok(name) => run.say(&format!("GPU: {name}")),
        Err(why) => {
            return Ok(selected
                .map(|(name, _)| Row::not_measured(name, &format!("no GPU: {why}")))
                .collect());
        }
    }
    let mut rows = Vec::new();
    for (_, part) in selected {
        rows.extend(part(run, &library)?);
    }
    Ok(rows)
}

fn gpu(library: &Path) -> Result<String, BenchError> {
    let driver = Driver::load(library)?;
    let device = Device::open(&driver, 0)?;
    Ok(format!("{}, driver for CUDA {}", device.name(), driver.version()))
}

/// Becomes the engine process at this socket.
pub(crate) fn engine(words: &[String]) -> Result<(), BenchError> {
    crate::children::end_with_parent()?;
    let fixed = ["engine", "--name", ENGINE, "--memory"].map(str::to_owned);
    let words = fixed.into_iter().chain([MEMORY.to_string()]).chain(words.iter().cloned());
    Ok(memferry_engine_cuda::run(&Options::parse_from(words))?)
}

/// A service with its engine, ended on drop.
struct Stage {
    _engine: Role,
    service: Service,
}

impl Stage {
    fn start(run: &Run, library: &Path) -> Result<Self, BenchError> {
        let service = Service::start_with_engine(run)?;
        let text = |path: &Path| path.to_str().map(str::to_owned).ok_or("a path is not UTF-8");
        let socket = text(service.socket())?;
        let library = text(library)?;
        let words = ["--cuda-engine", "--", "--socket", &socket, "--library", &library];
        let stage = Self { _engine: Role::start(None, &words)?, service };
        let client = stage.client()?;
        let began = Instant::now();
        while let Err(error) = client.frame(1).home(ENGINE).alloc() {
            if began.elapsed() > PATIENCE {
                return Err(format!("the engine gives no memory: {error}").into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(stage)
    }

    fn client(&self) -> Result<Client, BenchError> {
        Ok(Client::connect(self.service.socket())?)
    }
}

/// Random bytes in host memory, and as many in memory of the GPU.
fn frames(client: &Client, bytes: u64) -> Result<(Frame, Frame), BenchError> {
    let near = client.frame(bytes).alloc()?;
    near.write(0, &random_bytes(bytes as usize, 23))?;
    Ok((near, client.frame(bytes).home(ENGINE).alloc()?))
}
