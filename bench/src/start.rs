//! Group `start`: what it costs to start a transfer through the service, against a system call and against the socket.
//!
//! The service runs in a process of its own. A round measures each thing once, one after the other, so that drift meets all
//! of them; a row is the median over rounds. "Moved and touched" means that the client then reads the bytes.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memferry::{Channel, Client, Frame, Handle, Pattern, Transfer};
use memferry_broker::config::ServiceConfig;
use memferry_broker::daemon::{DaemonOptions, serve as serve_on};

use crate::rows::{Row, Target};
use crate::{BenchError, placement};

const ROUNDS: usize = 41;
const BATCH: usize = 32;

/// Is the service of a measurement.
pub(crate) fn serve(socket: &Path) -> Result<(), BenchError> {
    let options = DaemonOptions {
        socket: socket.to_owned(),
        mode: 0o600,
        service: ServiceConfig::default(),
        grace: Duration::ZERO,
        sandbox: true,
    };
    Ok(serve_on(&options, || println!("ready"))?)
}

/// A service in another process, ended on drop.
struct Service {
    child: Child,
    socket: std::path::PathBuf,
}

impl Service {
    fn start() -> Result<Self, BenchError> {
        use std::io::BufRead;
        let socket = std::env::temp_dir().join(format!("memferry-bench-{}.sock", std::process::id()));
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--serve")
            .arg(&socket)
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output of the service")?;
        let mut line = String::new();
        std::io::BufReader::new(output).read_line(&mut line)?;
        let service = Self { child, socket };
        if line.trim() != "ready" {
            return Err("the service did not start".into());
        }
        placement::keep_process_to(service.child.id(), 1)?;
        Ok(service)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Nanoseconds each of `count` calls took, on average.
fn each_ns(count: usize, mut call: impl FnMut()) -> f64 {
    let started = Instant::now();
    for _ in 0..count {
        call();
    }
    started.elapsed().as_nanos() as f64 / count as f64
}

struct Bench {
    client: Client,
    channel: Channel,
    source: Frame,
    destination: Frame,
}

impl Bench {
    fn nop_round_trip(&mut self) {
        let ticket = self.channel.submit(Transfer::nop());
        let _ = ticket.map(|ticket| self.channel.wait(ticket, None));
    }

    /// Submits a batch; returns the nanoseconds a submission took and those from the first submission to the last completion.
    fn nop_batch(&mut self) -> (f64, f64) {
        let started = Instant::now();
        for _ in 0..BATCH {
            let _ = self.channel.stage(Transfer::nop());
        }
        self.channel.publish();
        let submitted = started.elapsed().as_nanos() as f64 / BATCH as f64;
        let mut taken = 0;
        while taken < BATCH {
            taken += usize::from(self.channel.poll().is_some());
        }
        (submitted, started.elapsed().as_nanos() as f64 / BATCH as f64)
    }

    fn copy_and_touch(&mut self, length: u64) {
        let transfer = Transfer::copy(&self.source.range(0, length), &self.destination.range(0, length));
        let ticket = transfer.ok().and_then(|transfer| self.channel.submit(transfer).ok());
        let _ = ticket.map(|ticket| self.channel.wait(ticket, None));
        let mut bytes = [0; 64];
        let _ = self.destination.read(0, &mut bytes);
        std::hint::black_box(bytes);
    }

    fn over_the_socket(&self) {
        // A command that is refused at once: a message there, a look into the table, a message back.
        let _ = std::hint::black_box(self.client.revoke(Handle::from_bits(0)));
    }
}

/// Measures the group.
pub(crate) fn measure() -> Result<Vec<Row>, BenchError> {
    let service = Service::start()?;
    let _kept = placement::Kept::to(0)?;
    let client = Client::connect(&service.socket)?;
    let (source, destination) = (client.allocate(1 << 16)?, client.allocate(1 << 16)?);
    let channel = client.open_channel(64)?;
    let mut bench = Bench { client, channel, source, destination };
    let fill = bench.channel.submit(Transfer::fill(&bench.source.all(), Pattern::Word(0x9e37_79b9)))?;
    bench.channel.wait(fill, None)?;
    let mut series: [Vec<f64>; 6] = Default::default();
    for _ in 0..ROUNDS {
        for _ in 0..200 {
            bench.nop_round_trip();
        }
        let call = each_ns(2000, || {
            std::hint::black_box(rustix::process::getpid());
        });
        let nop = each_ns(1000, || bench.nop_round_trip());
        let batches: Vec<_> = (0..50).map(|_| bench.nop_batch()).collect();
        let median = |values: Vec<f64>| {
            let mut values = values;
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let submit = median(batches.iter().map(|(submit, _)| *submit).collect());
        let batch = median(batches.iter().map(|(_, batch)| *batch).collect());
        let small = each_ns(1000, || bench.copy_and_touch(64));
        let socket = each_ns(50, || bench.over_the_socket());
        let values = [submit, batch, nop / call, small / call, socket / nop, call];
        series.iter_mut().zip(values).for_each(|(series, value)| series.push(value));
    }
    let [submit, batch, nop, small, socket, call] = &series;
    Ok(vec![
        Row::new("getpid", "ns", Target::None, call),
        Row::new("submit, client side, of a batch of 32", "ns", Target::AtMost(10.0), submit),
        Row::new("NOP in batches of 32, each, end to end", "ns", Target::AtMost(25.0), batch),
        Row::new("NOP round trip, both awake, against getpid", "ratio", Target::AtMost(1.5), nop),
        Row::new("64 B moved and touched, against getpid", "ratio", Target::AtMost(2.2), small),
        Row::new(
            "a request over the socket, against a NOP through the ring",
            "ratio",
            Target::AtLeast(20.0),
            socket,
        ),
    ])
}
