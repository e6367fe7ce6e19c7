//! What the kernel tells a lane about memory: whose it is, whether anything lies there, whether a device may hold it.
//!
//! ```text
//! range ─┬─ PROCMAP_QUERY ─► one private, anonymous mapping that may be read (and written)?
//!        ├─ PAGEMAP_SCAN ──► nothing there yet, not even swapped out?
//!        └─ status ────────► no page of the process pinned or locked, for a device or otherwise?
//! ```
//!
//! Linux 6.11 and later; where a question is not answered, the answer is no.

use crate::system::{self, Descriptor};

/// Which memory the lane may be asked about.
#[derive(Clone, Copy)]
pub(crate) struct Files {
    maps: Descriptor,
    pages: Descriptor,
    status: Descriptor,
}

/// What `PROCMAP_QUERY` takes and gives.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    access: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_bytes: u32,
    build_bytes: u32,
    name: u64,
    build: u64,
}
const QUERY: usize = 0xc068_6611;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const SHARED: u64 = 8;

#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    region_count: u64,
    most_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    wanted: u64,
}
const SCAN: usize = 0xc060_6610;
const PRESENT_OR_SWAPPED: u64 = 1 << 3 | 1 << 4;

impl Files {
    /// Opens them; `None` where the kernel does not show them or cannot be asked.
    pub(crate) fn open() -> Option<Self> {
        let open = |path| system::open(path, libc::O_RDONLY).ok();
        let files = Self {
            maps: open(c"/proc/self/maps")?,
            pages: open(c"/proc/self/pagemap")?,
            status: open(c"/proc/self/status")?,
        };
        let own = std::ptr::from_ref(&files).addr();
        if files.mapping(own).is_some() && !files.is_empty(own, 1) && files.pinned().is_some() {
            return Some(files);
        }
        files.close();
        None
    }

    pub(crate) fn close(self) {
        [self.maps, self.pages, self.status].into_iter().for_each(system::close);
    }

    /// The mapping around an address, and the beginning of its name.
    fn mapping(&self, address: usize) -> Option<(Query, [u8; 128])> {
        let mut name = [0u8; 128];
        let mut query =
            Query { size: size_of::<Query>() as u64, address: address as u64, ..Query::default() };
        (query.name, query.name_bytes) = (name.as_mut_ptr().addr() as u64, name.len() as u32);
        // SAFETY: the request takes this structure, and writes the name it points to.
        unsafe { system::control(self.maps, QUERY, &mut query) }.ok()?;
        Some((query, name))
    }

    /// Whether a range lies in one private, anonymous mapping that may be read, and written if so asked.
    pub(crate) fn is_private(&self, from: usize, end: usize, written: bool) -> bool {
        let wanted = if written { READABLE | WRITABLE } else { READABLE };
        self.mapping(from).is_some_and(|(mapping, name)| {
            let sound = mapping.access & (wanted | SHARED) == wanted && mapping.inode == 0;
            sound && mapping.end as usize >= end && !name.starts_with(b"[stack]")
        })
    }

    /// Whether no page of a range is there, in memory or swapped out.
    pub(crate) fn is_empty(&self, from: usize, bytes: usize) -> bool {
        let page = from & !(system::PAGE - 1);
        let mut region = [0u64; 3];
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: page as u64,
            end: (from + bytes).next_multiple_of(system::PAGE) as u64,
            regions: region.as_mut_ptr().addr() as u64,
            region_count: 1,
            most_pages: 1,
            any_of: PRESENT_OR_SWAPPED,
            wanted: PRESENT_OR_SWAPPED,
            ..Scan::default()
        };
        // SAFETY: the request takes this structure, and writes the one region it points to.
        unsafe { system::control(self.pages, SCAN, &mut scan) == Ok(0) }
    }

    /// Whether the kernel says of no page that it is locked or pinned. What a device reads and writes is not seen by whoever
    /// guards addresses.
    pub(crate) fn is_unpinned(&self) -> bool {
        self.pinned() == Some(0)
    }

    fn pinned(&self) -> Option<u64> {
        let mut text = [0u8; 4096];
        let read = system::read(self.status, &mut text, true).ok()?;
        let text = text.get(..read)?;
        Some(value(text, b"\nVmLck:")?.wrapping_add(value(text, b"\nVmPin:")?))
    }
}

/// The number after a name in the text of a status file.
pub(crate) fn value(text: &[u8], name: &[u8]) -> Option<u64> {
    let at = text.windows(name.len()).position(|window| window == name)?;
    let rest = text.get(at + name.len()..)?;
    let digits =
        rest.iter().skip_while(|byte| byte.is_ascii_whitespace()).take_while(|byte| byte.is_ascii_digit());
    digits.fold(None, |sum: Option<u64>, digit| {
        Some(sum.unwrap_or(0).wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
    })
}
