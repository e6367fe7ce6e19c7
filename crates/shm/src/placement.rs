//! Page size and NUMA node of a frame.
//!
//! ```text
//! memfd ─ ftruncate ─ mmap ─ mbind(MPOL_BIND, node) ─ fallocate ─► every page on that node, or an error
//! ```
//!
//! The policy is set on a shared mapping, so it belongs to the file: it holds for every page that Linux allocates next,
//! in any process. It does not move present pages. The caller chooses the node, because it knows which CPUs will use the
//! memory.

use std::io;

use thiserror::Error;

use crate::mapping::Mapping;

/// The kernel's list of online memory nodes.
const ONLINE: &str = "/sys/devices/system/node/online";
/// Flag of mbind(2): fail if a present page lies on another node.
const MPOL_MF_STRICT: libc::c_uint = 1;
/// Bits of a node mask: Linux supports at most this number of nodes.
const MAX_NODES: u32 = 1024;

/// The page size of a frame.
///
/// ```
/// use memferry_shm::placement::{Pages, Placement};
///
/// assert_eq!(Placement::from(Pages::Huge), Placement { pages: Pages::Huge, node: None });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pages {
    /// The machine's ordinary pages.
    #[default]
    Ordinary,
    /// Huge pages of the machine's default huge size, from its pool.
    Huge,
}

/// Page size and NUMA node of a frame. `Pages` converts into a placement on any node.
///
/// ```
/// use memferry_shm::{frame, placement::Placement};
///
/// assert_eq!(Placement::default().node, None, "any node");
/// let missing = frame::allocate_placed(4096, Placement::on_node(1023)).unwrap_err();
/// assert!(missing.to_string().contains("1023"), "{missing}");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    pub pages: Pages,
    /// The NUMA node on which all pages must lie; any node when `None`.
    pub node: Option<u32>,
}

impl Placement {
    /// Ordinary pages on one node.
    pub fn on_node(node: u32) -> Self {
        Self { pages: Pages::Ordinary, node: Some(node) }
    }
}

impl From<Pages> for Placement {
    fn from(pages: Pages) -> Self {
        Self { pages, node: None }
    }
}

/// Why pages cannot be bound to a node.
///
/// ```
/// use memferry_shm::placement::{BindError, online_nodes};
///
/// let error = BindError::NoSuchNode { node: 9, online: online_nodes() };
/// assert!(error.to_string().starts_with("there is no memory node 9"));
/// ```
#[derive(Debug, Error)]
pub enum BindError {
    #[error("there is no memory node {node}; this machine has nodes {online}")]
    NoSuchNode {
        node: u32,
        /// The online nodes as Linux lists them, for example `0-1,4`.
        online: String,
    },
    #[error("cannot bind pages to node {node}: {source}")]
    System {
        node: u32,
        /// The error of mbind(2).
        source: io::Error,
    },
}

/// The online nodes as Linux lists them, for example `0-1,4`; `0` where Linux has no NUMA support.
pub fn online_nodes() -> String {
    std::fs::read_to_string(ONLINE).map_or_else(|_| "0".to_owned(), |list| list.trim().to_owned())
}

fn lists(online: &str, node: u32) -> bool {
    online.split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            (Ok(first), Ok(last)) => (first..=last).contains(&node),
            _ => false,
        }
    })
}

/// Binds pages that are allocated for `mapping` from now on to `node`.
///
/// # Errors
/// [`BindError`].
pub fn bind(mapping: &Mapping, node: u32) -> Result<(), BindError> {
    let online = online_nodes();
    if node >= MAX_NODES || !lists(&online, node) {
        return Err(BindError::NoSuchNode { node, online });
    }
    let mut mask = [0 as libc::c_ulong; MAX_NODES as usize / libc::c_ulong::BITS as usize];
    mask[(node / libc::c_ulong::BITS) as usize] = 1 << (node % libc::c_ulong::BITS);
    // SAFETY: M1: the range is mapped. The call sets the policy of its future pages and changes no contents. It reads
    // one bit less than the count says: exactly the mask.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            mapping.pointer(),
            mapping.length_bytes(),
            libc::MPOL_BIND,
            mask.as_ptr(),
            MAX_NODES as libc::c_ulong + 1,
            MPOL_MF_STRICT,
        )
    };
    if done == 0 { Ok(()) } else { Err(BindError::System { node, source: io::Error::last_os_error() }) }
}

/// The node on which the page at `offset` of `mapping` lies.
///
/// # Errors
/// `InvalidInput` for an offset beyond the end; `ENOENT` for a page that this process has not accessed; those of
/// move_pages(2).
pub fn node_of(mapping: &Mapping, offset: u64) -> io::Result<u32> {
    if offset >= mapping.length_bytes() as u64 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let page = mapping.pointer().wrapping_add(offset as usize);
    let mut status: libc::c_int = 0;
    // SAFETY: without a list of nodes the call moves no page. It reads one address and writes one number, both local.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            1 as libc::c_ulong,
            &raw const page,
            std::ptr::null::<libc::c_int>(),
            &raw mut status,
            0,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(status).map_err(|_| io::Error::from_raw_os_error(-status))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::frame::{AllocateError, allocate_placed};

    #[test]
    fn reads_node_lists_as_linux_writes_them() {
        for (list, node, there) in
            [("0", 0, true), ("0", 1, false), ("0-1,4", 1, true), ("0-1,4", 3, false), ("0-1,4", 4, true)]
        {
            assert_eq!(lists(list, node), there, "{node} in {list}");
        }
        assert!(!lists("", 0) && !lists("x-y", 0));
    }

    #[test]
    fn a_frame_bound_to_a_node_lies_there() {
        let (_fd, mapping) = match allocate_placed(64 << 10, Placement::on_node(0)) {
            // Containers can forbid mbind(2), and Linux can be built without it.
            Err(AllocateError::Node(BindError::System { source, .. })) => {
                return eprintln!("pages cannot be bound here: {source}");
            }
            allocated => allocated.unwrap(),
        };
        for offset in (0..64 << 10).step_by(4096) {
            // The page tables lack a page that was never accessed, although the file has it.
            mapping.write(offset, &[1]).unwrap();
            assert_eq!(node_of(&mapping, offset).unwrap(), 0);
        }
        let address = format!("{:x} ", mapping.pointer() as usize);
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
        let line = maps.lines().find(|line| line.starts_with(&address)).unwrap();
        assert!(line.contains("bind:0") && line.contains("N0=16"), "{line}");
        assert!(node_of(&mapping, 64 << 10).is_err());
    }

    #[test]
    fn the_error_lists_the_online_nodes() {
        for node in [MAX_NODES - 1, MAX_NODES, u32::MAX] {
            let refused = allocate_placed(4096, Placement::on_node(node)).unwrap_err();
            assert!(matches!(refused, AllocateError::Node(BindError::NoSuchNode { .. })));
            let expected =
                format!("there is no memory node {node}; this machine has nodes {}", online_nodes());
            assert_eq!(refused.to_string(), expected);
        }
    }
}
