//! Part `tenants`: two clients that always have requests outstanding, one of them more than the other.

use std::path::Path;
use std::time::{Duration, Instant};

use memferry::{Client, Frame, PolicyKind, PolicySettings, Queue, copy};

use super::{Stage, frames};
use crate::BenchError;
use crate::rows::{Row, Target};
use crate::run::Run;

const ROUNDS: usize = 9;
const FRAME_BYTES: u64 = 16 << 20;
const REQUEST: u64 = 1 << 20;
/// Requests that each has outstanding.
const DEPTHS: [usize; 2] = [6, 24];
const WARM_UP: Duration = Duration::from_millis(20);
const INTERVAL: Duration = Duration::from_millis(300);

struct Tenant {
    _client: Client,
    queue: Queue,
    near: Frame,
    far: Frame,
    outstanding: usize,
    next: u64,
    bytes: u64,
}

impl Tenant {
    fn new(stage: &Stage) -> Result<Self, BenchError> {
        let client = stage.client()?;
        let (near, far) = frames(&client, FRAME_BYTES)?;
        let queue = client.queue(64)?;
        Ok(Self { _client: client, queue, near, far, outstanding: 0, next: 0, bytes: 0 })
    }

    fn turn(&mut self, depth: usize) -> Result<(), BenchError> {
        while let Some(ended) = self.queue.poll() {
            self.bytes += ended?.bytes_done;
            self.outstanding -= 1;
        }
        while self.outstanding < depth {
            let range = self.next..self.next + REQUEST;
            let _ticket = self.queue.submit(copy(self.near.slice(range.clone()), self.far.slice(range)))?;
            self.next = (self.next + REQUEST) % FRAME_BYTES;
            self.outstanding += 1;
        }
        Ok(())
    }
}

/// Bytes that each moved in the interval, under the policy.
fn interval(admin: &Client, tenants: &mut [Tenant; 2], policy: PolicyKind) -> Result<[f64; 2], BenchError> {
    admin.set_policy(PolicySettings::of(policy))?;
    for duration in [WARM_UP, INTERVAL] {
        tenants.iter_mut().for_each(|tenant| tenant.bytes = 0);
        let began = Instant::now();
        while began.elapsed() < duration {
            for (tenant, depth) in tenants.iter_mut().zip(DEPTHS) {
                tenant.turn(depth)?;
            }
        }
    }
    let moved = [tenants[0].bytes as f64, tenants[1].bytes as f64];
    for tenant in tenants {
        while tenant.outstanding > 0 {
            tenant.queue.wait_any().transpose().ok_or("a transfer was lost")??;
            tenant.outstanding -= 1;
        }
    }
    Ok(moved)
}

/// Shares of two tenants whose weights are equal.
pub(super) fn measure(run: &Run, library: &Path) -> Result<Vec<Row>, BenchError> {
    let stage = Stage::start(run, library)?;
    let admin = stage.client()?;
    let mut tenants = [Tenant::new(&stage)?, Tenant::new(&stage)?];
    let mut columns: [Vec<f64>; 3] = Default::default();
    for _ in 0..run.part("tenants", ROUNDS) {
        let shared = interval(&admin, &mut tenants, PolicyKind::Shared)?;
        let weighted = interval(&admin, &mut tenants, PolicyKind::Weighted)?;
        columns[0].push(weighted[1] / weighted[0]);
        columns[1].push(shared[1] / shared[0]);
        columns[2].push((weighted[0] + weighted[1]) / INTERVAL.as_secs_f64() * 1e-9);
        run.round_done();
    }
    let [weighted, shared, rate] = columns;
    let what = "two tenants with 6 and 24 copies of 1 MiB outstanding";
    let off = weighted.iter().map(|ratio| 100.0 * (ratio.max(1.0 / ratio) - 1.0)).collect::<Vec<_>>();
    Ok(vec![
        Row::new(format!("{what}, weighted 1:1: off by"), "%", Target::AtMost(5.0), &off),
        Row::new(format!("{what}, shared: bytes of the second / first"), "x", Target::None, &shared),
        Row::new(format!("{what}, weighted: both"), "GB/s", Target::None, &rate),
    ])
}
