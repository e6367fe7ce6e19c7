//! Enums for register fields of several bits.
//!
//! ```text
//! bits ── from_bits ──► variant ── into_bits ──► the same bits
//! ```
//!
//! Every bit pattern has a variant, including the reserved ones, so that decoding and encoding a register preserves its
//! value. The driver has to know which variants it may write.

use core::fmt;

/// Declares an enum whose variants cover every bit pattern of a field, with the text of each variant.
macro_rules! field {
    ($(#[$doc:meta])* $name:ident, $mask:literal { $($(#[$vdoc:meta])* $variant:ident = $value:literal => $words:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$vdoc])* $variant = $value,)+
        }

        impl $name {
            /// Every variant, by rising value.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            pub const fn into_bits(self) -> u8 {
                self as u8
            }

            /// Decodes the field; ignores bits above it.
            pub const fn from_bits(bits: u8) -> Self {
                Self::ALL[(bits & $mask) as usize]
            }
        }

        const _: () = {
            assert!($name::ALL.len() == $mask + 1);
            let mut bits = 0;
            while bits <= $mask {
                assert!($name::ALL[bits as usize] as u8 == bits);
                bits += 1;
            }
        };

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $words,)+
                })
            }
        }
    };
}

field! {
    /// How the address advances from one element to the next (CCR; paper, section 2.3.2.2).
    AddressingMode, 3 {
        /// The address does not change. Not supported from memory to memory.
        Constant = 0 => "constant address",
        /// The address advances by the element size.
        PostIncrement = 1 => "post-increment",
        /// The address advances by the element index, counted from the element's last byte.
        SingleIndex = 2 => "single index",
        /// Like `SingleIndex`, with the frame index after the last element of a frame.
        DoubleIndex = 3 => "double index",
    }
}

impl AddressingMode {
    /// Whether the mode uses the element index.
    pub const fn is_indexed(self) -> bool {
        matches!(self, Self::SingleIndex | Self::DoubleIndex)
    }
}

field! {
    /// Size of an element (CSDP).
    DataType, 3 {
        /// Elements of one byte.
        Bits8 = 0 => "8-bit elements",
        /// Elements of two bytes.
        Bits16 = 1 => "16-bit elements",
        /// Elements of four bytes.
        Bits32 = 2 => "32-bit elements",
        /// Reserved: must not be written.
        Reserved = 3 => "reserved element size",
    }
}

impl DataType {
    /// Element size in bytes; `None` for the reserved value.
    pub const fn bytes(self) -> Option<u32> {
        match self {
            Self::Bits8 => Some(1),
            Self::Bits16 => Some(2),
            Self::Bits32 => Some(4),
            Self::Reserved => None,
        }
    }
}

field! {
    /// Largest burst on a port (CSDP).
    BurstSize, 3 {
        /// One access for each element, or for each port width if packed.
        Single = 0 => "no bursts",
        /// Bursts of 16 bytes.
        Bytes16 = 1 => "16-byte bursts",
        /// Bursts of 32 bytes.
        Bytes32 = 2 => "32-byte bursts",
        /// Bursts of 64 bytes.
        Bytes64 = 3 => "64-byte bursts",
    }
}

impl BurstSize {
    /// Burst size in bytes; `None` without bursts.
    pub const fn bytes(self) -> Option<u32> {
        match self {
            Self::Single => None,
            Self::Bytes16 => Some(16),
            Self::Bytes32 => Some(32),
            Self::Bytes64 => Some(64),
        }
    }
}

field! {
    /// Whether the channel waits until a write has reached its target (CSDP; paper, section 2.3.2.2).
    WriteMode, 3 {
        /// Each write completes before the next one is issued.
        NonPosted = 0 => "non-posted writes",
        /// Writes do not wait for one another.
        Posted = 1 => "posted writes",
        /// The channel waits only for the last write of the transfer.
        LastNonPosted = 2 => "posted writes, the last one non-posted",
        /// Undefined: must not be written.
        Undefined = 3 => "undefined write mode",
    }
}

field! {
    /// Origin of the next block's address in a linked list (SRC_VALID and DEST_VALID of CDP).
    AddressSource, 3 {
        /// The descriptor has no address: the block continues where the previous one ended.
        Continue = 0 => "continues where the last block ended",
        /// The descriptor holds the address.
        Reload = 1 => "is in the next descriptor",
        /// The descriptor has no address: the block starts where the previous one started.
        Reuse = 2 => "starts where the last block started",
        /// Undefined: must not be written.
        Undefined = 3 => "is undefined",
    }
}

field! {
    /// Layout of the next descriptor (NEXT_DESCRIPTOR_TYPE of CDP, and the top bits of a descriptor's second word).
    DescriptorType, 7 {
        /// Undefined: must not be written.
        Undefined0 = 0 => "undefined descriptor type 0",
        /// Every register of the channel.
        Type1 = 1 => "descriptor type 1",
        /// Addresses, sizes and indexes.
        Type2 = 2 => "descriptor type 2",
        /// Addresses and the number of elements.
        Type3 = 3 => "descriptor type 3",
        /// Undefined: must not be written.
        Undefined4 = 4 => "undefined descriptor type 4",
        /// Undefined: must not be written.
        Undefined5 = 5 => "undefined descriptor type 5",
        /// Undefined: must not be written.
        Undefined6 = 6 => "undefined descriptor type 6",
        /// Undefined: must not be written.
        Undefined7 = 7 => "undefined descriptor type 7",
    }
}

field! {
    /// Whether the channel follows a linked list (CDP).
    TransferMode, 3 {
        /// One block, described by the registers.
        Normal = 0 => "one block",
        /// Blocks described by a list of descriptors of type 1, 2 or 3.
        LinkedList = 1 => "a linked list of blocks",
        /// Undefined: must not be written.
        Undefined2 = 2 => "undefined transfer mode 2",
        /// Undefined: must not be written.
        Undefined3 = 3 => "undefined transfer mode 3",
    }
}

field! {
    /// Threads reserved for high priority channels (GCR). Every variant but `None` reserves write thread 0.
    ThreadReservation, 3 {
        /// No thread is reserved.
        None = 0 => "no thread reserved for high priority",
        /// Read thread 0 and write thread 0.
        One = 1 => "read thread 0 and write thread 0 reserved for high priority",
        /// Read threads 0 and 1, and write thread 0.
        Two = 2 => "read threads 0-1 and write thread 0 reserved for high priority",
        /// Read threads 0 to 2, and write thread 0.
        Three = 3 => "read threads 0-2 and write thread 0 reserved for high priority",
    }
}

field! {
    /// Division of the FIFO pool between low and high priority channels (GCR).
    FifoBudget, 3 {
        /// The pool is not divided.
        Shared = 0 => "FIFO pool shared",
        /// Three quarters for low priority.
        Low75 = 1 => "75% of the FIFO pool for low priority",
        /// A quarter for low priority.
        Low25 = 2 => "25% of the FIFO pool for low priority",
        Low50 = 3 => "50% of the FIFO pool for low priority",
    }
}

field! {
    /// Standby of the read and write ports (MIDLEMODE of OCP_SYSCONFIG).
    MidleMode, 3 {
        /// Standby only when all channels are disabled.
        ForceStandby = 0 => "force standby",
        NoStandby = 1 => "no standby",
        /// Standby also when no request is pending.
        SmartStandby = 2 => "smart standby",
        /// Reserved: must not be written.
        Reserved = 3 => "reserved standby mode",
    }
}

field! {
    /// Idle of the configuration port (SIDLEMODE of OCP_SYSCONFIG).
    SidleMode, 3 {
        /// The device always acknowledges idle requests.
        ForceIdle = 0 => "force idle",
        NoIdle = 1 => "no idle",
        /// The device acknowledges idle requests when it is inactive.
        SmartIdle = 2 => "smart idle",
        /// Reserved: must not be written.
        Reserved = 3 => "reserved idle mode",
    }
}
