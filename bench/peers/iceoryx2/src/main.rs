//! Messages by iceoryx2 between two processes: each end copies its bytes into a loaned sample, sends it, and reads every byte of the answer.
//!
//! ```text
//! pong NAME BYTES          answers each message with one as long, until its input ends
//! ping NAME BYTES          for each line of its input, a count: so many round trips; prints nanoseconds of one way, half of a round trip
//! ```
//!
//! Both ends poll. Start each on a CPU of its own.

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;

type Failure = Box<dyn std::error::Error>;

/// Bytes read at a time: they fit the first-level cache.
const PAGE: usize = 4096;
/// Time for the other end to appear, and for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// One end: sends on one service and receives on the other.
struct End {
    publisher: Publisher<ipc::Service, [u8], ()>,
    subscriber: Subscriber<ipc::Service, [u8], ()>,
    own: Vec<u8>,
    page: [u8; PAGE],
}

impl End {
    fn new(name: &str, [to, from]: [&str; 2], bytes: usize) -> Result<Self, Failure> {
        let node = NodeBuilder::new().create::<ipc::Service>()?;
        let open = |end: &str| -> Result<_, Failure> {
            let name = ServiceName::new(&format!("{name}/{end}"))?;
            Ok(node.service_builder(&name).publish_subscribe::<[u8]>().open_or_create()?)
        };
        let publisher = open(to)?.publisher_builder().initial_max_slice_len(bytes).create()?;
        let subscriber = open(from)?.subscriber_builder().create()?;
        Ok(Self { publisher, subscriber, own: random(bytes), page: [0; PAGE] })
    }

    fn send(&self) -> Result<usize, Failure> {
        let sample = self.publisher.loan_slice_uninit(self.own.len())?;
        Ok(sample.write_from_slice(&self.own).send()?)
    }

    /// Receives a message and reads it, if there is one.
    fn receive(&mut self) -> Result<bool, Failure> {
        let Some(sample) = self.subscriber.receive()? else { return Ok(false) };
        for piece in sample.payload().chunks(PAGE) {
            self.page[..piece.len()].copy_from_slice(piece);
            black_box(&self.page);
        }
        Ok(true)
    }

    fn wait(&mut self) -> Result<(), Failure> {
        let started = Instant::now();
        let mut looks = 0_u32;
        while !self.receive()? {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 16) && started.elapsed() > PATIENCE {
                return Err("the other end does not answer".into());
            }
        }
        Ok(())
    }
}

/// Bytes without lines of zeros.
fn random(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn pong(name: &str, bytes: usize) -> Result<(), Failure> {
    let mut end = End::new(name, ["answers", "questions"], bytes)?;
    std::thread::spawn(|| {
        let _ = std::io::stdin().lock().lines().count();
        std::process::exit(0);
    });
    println!("ready");
    loop {
        if end.receive()? {
            end.send()?;
        }
    }
}

fn ping(name: &str, bytes: usize) -> Result<(), Failure> {
    let mut end = End::new(name, ["questions", "answers"], bytes)?;
    let started = Instant::now();
    while end.send()? == 0 {
        if started.elapsed() > PATIENCE {
            return Err("there is no other end".into());
        }
    }
    end.wait()?;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let count: u32 = line?.trim().parse()?;
        let started = Instant::now();
        for _ in 0..count {
            end.send()?;
            end.wait()?;
        }
        println!("{}", started.elapsed().as_nanos() as f64 / f64::from(count.max(1)) / 2.0);
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    set_log_level(LogLevel::Error);
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pong", name, bytes] => pong(name, bytes.parse()?),
        ["ping", name, bytes] => ping(name, bytes.parse()?),
        _ => Err("usage: ping|pong NAME BYTES".into()),
    }
}
