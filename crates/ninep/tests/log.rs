//! What clients can write into the server's log.

mod harness;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use harness::{Served, is_over};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static WARNINGS: AtomicU64 = AtomicU64::new(0);

/// Counts warnings about connections.
struct Counting;

impl Subscriber for Counting {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().ends_with("::connection")
    }

    fn event(&self, _event: &Event<'_>) {
        WARNINGS.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

#[test]
fn violations_cannot_fill_the_log() {
    const CLIENTS: u64 = 100;
    tracing::subscriber::set_global_default(Counting).unwrap();
    let started = Instant::now();
    let Some(served) = Served::new() else { return };
    for _ in 0..CLIENTS {
        let mut client = served.raw();
        // A message of no length.
        client.send_bytes(&[0; 7]).unwrap();
        assert!(is_over(&mut client));
    }
    assert_eq!(served.running().statistics().violations, CLIENTS);
    let lines = WARNINGS.load(Ordering::Relaxed);
    assert!((1..=started.elapsed().as_secs() + 1).contains(&lines), "{lines} lines");
}
