//! What a server did, and why it did it that way.
//!
//! ```text
//! each read, write, choice ─► Counters (atomics, many writers) ─ snapshot ─► Statistics ─► the pool's files, the log
//! ```
//!
//! Counts only; times are for whoever measures.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a file's bytes go to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Read through the page cache into a buffer, sent from there: two copies. The paper's umfs.
    Copying,
    /// Read from the device into a registered buffer, sent from there: one copy. The paper's dmafs.
    Pool,
    /// Pages of the page cache are handed to the socket: no copy here.
    Cached,
}

/// Every way, in the order of the counters.
pub const WAYS: [Way; 3] = [Way::Copying, Way::Pool, Way::Cached];

impl Way {
    /// Its name in statistics and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copying => "copying",
            Self::Pool => "pool",
            Self::Cached => "cached",
        }
    }
}

/// Why a file is read in its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The server was told to use it for all.
    Told,
    /// The file system offers no `O_DIRECT`.
    NotOffered,
    /// Too short to be worth opening it a second time.
    Small,
    /// It is read in short pieces.
    ShortReads,
    /// What is wanted is in the page cache already.
    Hot,
    /// What is wanted is not in the page cache, and the file is long.
    Cold,
    /// What is wanted is not in the page cache, and the file would take too much of it.
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
            /// Files by way and reason: those of `WAYS[w]` because of `WHYS[y]` at `[w][y]`.
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
    /// Clients that were turned away because there were too many.
    turned_away,
    /// Sessions that ended because of what the client sent.
    violations,
    /// Clients that were cut off because they did not read or finish what they began.
    stalled,
    /// Attaches that were refused.
    refused,
    requests,
    /// Requests answered by an error.
    errors,
    /// Writes past the page cache.
    direct_writes,
    cached_writes,
    written_bytes,
    ahead,
    /// Reads answered from them.
    ahead_used,
    /// Blocks read ahead that the file's change made useless.
    ahead_stale,
    /// Times a request waited for a buffer.
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
    fn ways_and_reasons_stand_where_their_counters_are() {
        assert!(WAYS.iter().enumerate().all(|(index, way)| *way as usize == index));
        assert!(WHYS.iter().enumerate().all(|(index, why)| *why as usize == index));
        let counters = Counters::default();
        counters.file(Way::Pool, Why::Cold);
        counters.read(Way::Pool, 65_536);
        let text = counters.snapshot().to_string();
        assert!(text.contains("files pool cold 1\n") && text.contains("reads pool 1 65536\n"), "{text}");
    }
}
