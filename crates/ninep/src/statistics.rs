//! What a server did, and why.
//!
//! ```text
//! each read, write, choice ─► Counters (atomics, many writers) ─ snapshot ─► Statistics ─► the pool's files, the log
//! ```
//!
//! Counts events only; it measures no times.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a file's bytes go to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Read through the page cache into a buffer and sent from there: two copies. The paper's umfs.
    Copying,
    /// Read from the device into a registered buffer and sent from there: one copy. The paper's dmafs.
    Pool,
    /// Pages of the page cache are passed to the socket: no copy in the server.
    Cached,
}

/// Every way, in the order of the counters.
pub const WAYS: [Way; 3] = [Way::Copying, Way::Pool, Way::Cached];

impl Way {
    /// Name in statistics and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copying => "copying",
            Self::Pool => "pool",
            Self::Cached => "cached",
        }
    }
}

/// Why a file is read this way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The options demand this way for all files.
    Told,
    /// The file system offers no `O_DIRECT`.
    NotOffered,
    /// Too short to open it a second time.
    Small,
    /// The client reads it in short pieces.
    ShortReads,
    /// The requested bytes are in the page cache.
    Hot,
    /// The requested bytes are not in the page cache, and the file is long.
    Cold,
    /// The requested bytes are not in the page cache, and the file would fill too much of it.
    Large,
}

/// Every reason, in the order of the counters.
pub const WHYS: [Why; 7] =
    [Why::Told, Why::NotOffered, Why::Small, Why::ShortReads, Why::Hot, Why::Cold, Why::Large];

impl Why {
    /// Its name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Told => "told",
            Self::NotOffered => "not-offered",
            Self::Small => "small",
            Self::ShortReads => "short-reads",
            Self::Hot => "hot",
            Self::Cold => "cold",
            Self::Large => "large",
        }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts since the server started.
        #[derive(Clone, PartialEq, Eq, Debug, Default)]
        pub struct Statistics {
            $($(#[$doc])* pub $name: u64,)*
            /// Files by way and reason: `[w][y]` counts those of `WAYS[w]` because of `WHYS[y]`.
            pub files: [[u64; WHYS.len()]; WAYS.len()],
            /// Reads answered, by way.
            pub reads: [u64; WAYS.len()],
            pub read_bytes: [u64; WAYS.len()],
        }

        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            files: [[AtomicU64; WHYS.len()]; WAYS.len()],
            reads: [AtomicU64; WAYS.len()],
            read_bytes: [AtomicU64; WAYS.len()],
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Statistics {
                let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
                Statistics {
                    $($name: load(&self.$name),)*
                    files: self.files.each_ref().map(|whys| whys.each_ref().map(load)),
                    reads: self.reads.each_ref().map(load),
                    read_bytes: self.read_bytes.each_ref().map(load),
                }
            }
        }

        impl fmt::Display for Statistics {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(writeln!(f, concat!(stringify!($name), " {}"), self.$name)?;)*
                for (way, (reads, bytes)) in WAYS.iter().zip(self.reads.iter().zip(self.read_bytes)) {
                    writeln!(f, "reads {} {reads} {bytes}", way.name())?;
                }
                for (way, whys) in WAYS.iter().zip(self.files) {
                    for (why, files) in WHYS.iter().zip(whys).filter(|(_, files)| *files > 0) {
                        writeln!(f, "files {} {} {files}", way.name(), why.name())?;
                    }
                }
                Ok(())
            }
        }
    };
}

counters! {
    clients,
    connected,
    /// Clients refused because there were too many.
    turned_away,
    /// Clients refused because their user or address had too many.
    turned_away_by_user,
    /// Sessions ended by protocol violations.
    violations,
    /// Clients disconnected because they stalled.
    stalled,
    /// Attaches that were refused.
    refused,
    requests,
    /// Requests answered with an error.
    errors,
    /// Writes that bypassed the page cache.
    direct_writes,
    cached_writes,
    written_bytes,
    ahead,
    /// Reads answered from blocks read ahead.
    ahead_used,
    /// Blocks read ahead that a change of the file made useless.
    ahead_stale,
    /// Requests that had to wait for a buffer.
    starved,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn file(&self, way: Way, why: Why) {
        Self::add(&self.files[way as usize][why as usize], 1);
    }

    pub(crate) fn read(&self, way: Way, bytes: usize) {
        Self::add(&self.reads[way as usize], 1);
        Self::add(&self.read_bytes[way as usize], bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_and_reasons_index_their_counters() {
        assert!(WAYS.iter().enumerate().all(|(index, way)| *way as usize == index));
        assert!(WHYS.iter().enumerate().all(|(index, why)| *why as usize == index));
        let counters = Counters::default();
        counters.file(Way::Pool, Why::Cold);
        counters.read(Way::Pool, 65_536);
        let text = counters.snapshot().to_string();
        assert!(text.contains("files pool cold 1\n") && text.contains("reads pool 1 65536\n"), "{text}");
    }
}
