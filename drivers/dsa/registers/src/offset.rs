//! Offsets in BAR 0 and of portals in BAR 2.
//!
//! The tables of groups, work queues and interrupt permissions are where the OFFSETS register says ([`Tables`]).

use crate::capability::Offsets;

/// VERSION (9.2.1), 32 bits.
pub const VERSION: u32 = 0x00;
/// GENCAP (9.2.2), 64 bits.
pub const GENCAP: u32 = 0x10;
/// WQCAP (9.2.3), 64 bits.
pub const WQCAP: u32 = 0x20;
/// GRPCAP (9.2.4), 64 bits.
pub const GRPCAP: u32 = 0x30;
/// ENGCAP (9.2.5), 64 bits.
pub const ENGCAP: u32 = 0x38;
/// OPCAP (9.2.6), four words of 64 bits.
pub const OPCAP: u32 = 0x40;
/// OFFSETS (9.2.7), two words of 64 bits.
pub const OFFSETS: u32 = 0x60;
/// GENCFG (9.2.8), 32 bits.
pub const GENCFG: u32 = 0x80;
/// GENCTRL (9.2.9), 32 bits.
pub const GENCTRL: u32 = 0x88;
/// GENSTS (9.2.10), 32 bits.
pub const GENSTS: u32 = 0x90;
/// INTCAUSE (9.2.11), 32 bits.
pub const INTCAUSE: u32 = 0x98;
/// CMD (9.2.12), 32 bits.
pub const CMD: u32 = 0xA0;
/// CMDSTATUS (9.2.13), 32 bits.
pub const CMDSTS: u32 = 0xA8;
/// CMDCAP (9.2.14), 64 bits.
pub const CMDCAP: u32 = 0xB0;
/// SWERROR (9.2.15), four words of 64 bits.
pub const SWERR: u32 = 0xC0;
/// EVLCFG (9.2.16), two words of 64 bits.
pub const EVLCFG: u32 = 0xE0;
/// EVLSTATUS (9.2.17), 64 bits.
pub const EVLSTS: u32 = 0xF0;
/// A page of BAR 0 that behaves as the portal of a disabled work queue (9.2.21).
pub const DUMMY_PORTAL: u32 = 0xF000;

/// Bytes from one group's registers to the next group's (9.2.23).
pub const GROUP_BYTES: u32 = 64;
/// The engines of a group, after its four words of work queues.
pub const GROUP_ENGINES: u32 = 32;
/// The flags of a group.
pub const GROUP_FLAGS: u32 = 40;
/// Bytes from one MSI-X permission to the next (9.2.22).
pub const PERMISSION_BYTES: u32 = 8;

/// Where a device has its tables, and how large its work queues' entries are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    pub groups: u32,
    pub queues: u32,
    pub permissions: u32,
    /// Bytes of a work queue's entry: a power of two from 32.
    pub queue_bytes: u32,
}

impl Tables {
    /// The tables of a device whose OFFSETS and WQCAP say so.
    pub const fn new(offsets: Offsets, queue_bytes: u32) -> Self {
        Self {
            groups: offsets.groups() as u32 * Offsets::UNIT,
            queues: offsets.queues() as u32 * Offsets::UNIT,
            permissions: offsets.permissions() as u32 * Offsets::UNIT,
            queue_bytes,
        }
    }

    /// Word `word` of the work queues of a group: bits of queues `64 * word` and up.
    pub const fn group_queues(&self, group: u32, word: u32) -> u32 {
        self.groups.wrapping_add(group * GROUP_BYTES + 8 * word)
    }

    pub const fn group_engines(&self, group: u32) -> u32 {
        self.groups.wrapping_add(group * GROUP_BYTES + GROUP_ENGINES)
    }

    pub const fn group_flags(&self, group: u32) -> u32 {
        self.groups.wrapping_add(group * GROUP_BYTES + GROUP_FLAGS)
    }

    /// The 32-bit word `word` of a work queue's entry.
    pub const fn queue(&self, queue: u32, word: u32) -> u32 {
        self.queues.wrapping_add(queue.wrapping_mul(self.queue_bytes)).wrapping_add(4 * word)
    }

    pub const fn permission(&self, vector: u32) -> u32 {
        self.permissions.wrapping_add(vector * PERMISSION_BYTES)
    }
}

/// Kind of a work queue's portal (3.3, figure 9-2; the order of the four pages is Linux's `idxd`'s).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Portal {
    /// Takes descriptors until the work queue is full.
    Unlimited,
    /// Takes descriptors until the work queue's threshold, if it is shared.
    Limited,
    /// As `Unlimited`; interrupts come from the interrupt message storage.
    UnlimitedIms,
    /// As `Limited`; interrupts come from the interrupt message storage.
    LimitedIms,
}

impl Portal {
    /// All portals of a work queue, by rising offset.
    pub const ALL: [Self; 4] = [Self::Unlimited, Self::Limited, Self::UnlimitedIms, Self::LimitedIms];

    pub const fn is_limited(self) -> bool {
        matches!(self, Self::Limited | Self::LimitedIms)
    }

    /// Whether its interrupts come from the interrupt message storage.
    pub const fn is_ims(self) -> bool {
        matches!(self, Self::UnlimitedIms | Self::LimitedIms)
    }
}

/// Offset in BAR 2 of a work queue's portal.
pub const fn portal(queue: u32, portal: Portal) -> u64 {
    let page = queue as u64 * 4 + portal as u64;
    page * crate::PAGE_BYTES
}

/// The work queue and portal at an offset in BAR 2. Bits 11 to 6 are ignored, bits 5 to 0 must be zero (9.3).
pub const fn locate_portal(offset: u64) -> Option<(u64, Portal)> {
    if offset & 63 != 0 {
        return None;
    }
    let page = offset / crate::PAGE_BYTES;
    Some((page / 4, Portal::ALL[(page % 4) as usize]))
}
