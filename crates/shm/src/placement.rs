//! Where the pages of a frame come from: how large they are, and on which NUMA node they lie.
//!
//! ```text
//! memfd ─ ftruncate ─ mmap ─ mbind(MPOL_BIND, node) ─ fallocate ─► every page on that node, or an error
//! ```
//!
//! The policy is set on a shared mapping, so it belongs to the file and holds for the pages the kernel allocates next,
//! whoever causes it. It does not move pages that are there already, and it does not choose a node: that is the
//! caller's, who knows which CPUs will touch the memory.

use std::io;

use thiserror::Error;

use crate::frame::Pages;
use crate::mapping::Mapping;

/// Where the kernel says which nodes there are.
const ONLINE: &str = "/sys/devices/system/node/online";
/// Flag of mbind(2): refuse where a page lies elsewhere already.
const MPOL_MF_STRICT: libc::c_uint = 1;
/// Nodes a mask can name here: as many as Linux can be built for.
const MOST_NODES: u32 = 1024;

/// What a frame is made of. `Pages` converts into it: those pages, anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// The size of its pages.
    pub pages: Pages,
    /// The NUMA node all of them must lie on; anywhere when `None`.
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
#[derive(Debug, Error)]
pub enum BindError {
    /// The machine has no such node.
    #[error("there is no memory node {node}; this machine has nodes {online}")]
    NoSuchNode {
        /// The node asked for.
        node: u32,
        /// Those there are, as the kernel lists them: `0-1,4`.
        online: String,
    },
    /// The kernel would not bind it.
    #[error("cannot bind pages to node {node}: {source}")]
    System {
        /// The node asked for.
        node: u32,
        /// The error of mbind(2).
        source: io::Error,
    },
}

/// The nodes that are online, as the kernel lists them: `0-1,4`. A kernel without NUMA has node 0.
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

/// Makes `node` the only one that pages allocated for `mapping` from now on may lie on.
///
/// # Errors
/// [`BindError`].
pub fn bind(mapping: &Mapping, node: u32) -> Result<(), BindError> {
    let online = online_nodes();
    if node >= MOST_NODES || !lists(&online, node) {
        return Err(BindError::NoSuchNode { node, online });
    }
    let mut mask = [0 as libc::c_ulong; MOST_NODES as usize / libc::c_ulong::BITS as usize];
    mask[(node / libc::c_ulong::BITS) as usize] = 1 << (node % libc::c_ulong::BITS);
    // SAFETY: M1: the range is mapped; the call changes where its future pages come from, not what is in it, and only
    // reads the mask, which has one bit less than the count it takes.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            mapping.pointer(),
            mapping.length_bytes(),
            libc::MPOL_BIND,
            mask.as_ptr(),
            MOST_NODES as libc::c_ulong + 1,
            MPOL_MF_STRICT,
        )
    };
    if done == 0 { Ok(()) } else { Err(BindError::System { node, source: io::Error::last_os_error() }) }
}

/// The node that the page at `offset` of `mapping` lies on.
///
/// # Errors
/// `InvalidInput` for an offset outside; those of move_pages(2); `ENOENT` for a page that this process has not touched.
pub fn node_of(mapping: &Mapping, offset: u64) -> io::Result<u32> {
    if offset >= mapping.length_bytes() as u64 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let page = mapping.pointer().wrapping_add(offset as usize);
    let mut status: libc::c_int = 0;
    // SAFETY: without a list of nodes the call moves nothing: it reads one address and writes one number, both ours.
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
    fn lists_of_nodes_are_read_as_the_kernel_writes_them() {
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
            // Containers may forbid mbind(2), and kernels may be built without it.
            Err(AllocateError::Node(BindError::System { source, .. })) => {
                return eprintln!("pages cannot be bound here: {source}");
            }
            allocated => allocated.unwrap(),
        };
        for offset in (0..64 << 10).step_by(4096) {
            // A page that was never touched is in no page table, though the file has it.
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
    fn a_node_that_is_not_there_is_named_with_those_that_are() {
        for node in [MOST_NODES - 1, MOST_NODES, u32::MAX] {
            let refused = allocate_placed(4096, Placement::on_node(node)).unwrap_err();
            assert!(matches!(refused, AllocateError::Node(BindError::NoSuchNode { .. })));
            let expected =
                format!("there is no memory node {node}; this machine has nodes {}", online_nodes());
            assert_eq!(refused.to_string(), expected);
        }
    }
}
