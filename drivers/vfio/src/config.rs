//! The device's configuration space, as VFIO shows it.
//!
//! ```text
//! header ── capability list ─► PCI Express: relaxed ordering          behind: the device's own, by `read` and `write`
//! ```
//!
//! VFIO lets bits of the header and of known capabilities be written by a list of its own, and drops other writes without an error. What no
//! capability covers can be written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// PCI's command register: memory accesses, bus master, INTx off. Drivers poll.
const COMMAND: u64 = 4;
const MEMORY_SPACE: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;
const INTX_DISABLE: u16 = 1 << 10;
const STATUS: u64 = 6;
const HAS_CAPABILITIES: u16 = 1 << 4;
const FIRST_CAPABILITY: u64 = 0x34;
/// Capabilities lie behind the header, on multiples of four.
const HEADER_BYTES: u64 = 0x40;
const MOST_CAPABILITIES: usize = 48;
const PCI_EXPRESS: u8 = 0x10;
/// In the PCI Express capability.
const DEVICE_CONTROL: u64 = 8;
const RELAXED_ORDERING: u16 = 1 << 4;

/// Configuration space, from an offset on in the device's file.
#[derive(Debug)]
pub struct Configuration {
    device: File,
    offset: u64,
}

impl Configuration {
    /// The bytes of the device's file from `offset` on.
    ///
    /// # Errors
    /// If the file cannot be opened once more.
    pub fn new(device: &File, offset: u64) -> io::Result<Self> {
        Ok(Self { device: device.try_clone()?, offset })
    }

    /// Reads so many bytes.
    ///
    /// # Errors
    /// Those of the call.
    pub fn read<const BYTES: usize>(&self, at: u64) -> io::Result<[u8; BYTES]> {
        let mut bytes = [0; BYTES];
        self.device.read_exact_at(&mut bytes, self.offset + at)?;
        Ok(bytes)
    }

    /// Reads a field of 16 bits.
    ///
    /// # Errors
    /// Those of the call.
    pub fn read16(&self, at: u64) -> io::Result<u16> {
        self.read(at).map(u16::from_le_bytes)
    }

    /// Writes bytes. VFIO may drop them without an error.
    ///
    /// # Errors
    /// Those of the call.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.device.write_all_at(bytes, self.offset + at)
    }

    /// Sets and clears bits of the command register.
    fn command(&self, set: u16, clear: u16) -> io::Result<()> {
        let command = self.read16(COMMAND)? & !clear | set;
        self.write(COMMAND, &command.to_le_bytes())
    }

    /// Lets the registers be accessed, and keeps the device from accessing memory and from interrupting.
    pub(crate) fn enable_registers(&self) -> io::Result<()> {
        self.command(MEMORY_SPACE | INTX_DISABLE, BUS_MASTER)
    }

    /// Lets the device access memory: in order, since a completion that passes the bytes before it would report them too early.
    pub(crate) fn enable_master(&self) -> io::Result<()> {
        if let Some(express) = self.capability(PCI_EXPRESS)? {
            let control = self.read16(express + DEVICE_CONTROL)?;
            self.write(express + DEVICE_CONTROL, &(control & !RELAXED_ORDERING).to_le_bytes())?;
        }
        self.command(BUS_MASTER, 0)
    }

    /// Where a capability lies; `None` if the device has none of that number.
    fn capability(&self, number: u8) -> io::Result<Option<u64>> {
        if self.read16(STATUS)? & HAS_CAPABILITIES == 0 {
            return Ok(None);
        }
        let [mut next] = self.read(FIRST_CAPABILITY)?;
        // A list that never ends is the device's fault.
        for _ in 0..MOST_CAPABILITIES {
            let at = u64::from(next & !3);
            if at < HEADER_BYTES {
                break;
            }
            let [found, following] = self.read(at)?;
            if found == number {
                return Ok(Some(at));
            }
            next = following;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Configuration space in a file, some way in.
    fn space(values: &[(u64, &[u8])]) -> Configuration {
        let file: File =
            rustix::fs::memfd_create("configuration", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
        file.set_len(8192).unwrap();
        let space = Configuration::new(&file, 4096).unwrap();
        values.iter().for_each(|(at, bytes)| space.write(*at, bytes).unwrap());
        space
    }

    /// Capabilities 1 at 0x40, 5 at 0x80, and PCI Express at 0x90 with all bits of device control set.
    const LIST: [(u64, &[u8]); 5] = [
        (STATUS, &[0x10, 0]),
        (FIRST_CAPABILITY, &[0x42]),
        (0x40, &[1, 0x80]),
        (0x80, &[5, 0x90]),
        (0x90, &[0x10, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF]),
    ];

    #[test]
    fn a_master_keeps_the_order_of_its_writes() {
        let space = space(&LIST);
        space.write(COMMAND, &[0x44, 0x01]).unwrap();
        space.enable_registers().unwrap();
        assert_eq!(space.read16(COMMAND).unwrap(), 0x0542, "no master before it is one");
        assert_eq!(space.read16(0x98).unwrap(), 0xFFFF);
        space.enable_master().unwrap();
        assert_eq!((space.read16(COMMAND).unwrap(), space.read16(0x98).unwrap()), (0x0546, 0xFFEF));
    }

    #[test]
    fn lists_of_capabilities_may_be_absent_or_broken() {
        let absent = space(&LIST[1..]);
        assert_eq!(absent.capability(PCI_EXPRESS).unwrap(), None, "the status says that there is none");
        let other = space(&LIST[..4]);
        other.enable_master().unwrap();
        assert_eq!((other.read16(COMMAND).unwrap(), other.read16(0x98).unwrap()), (BUS_MASTER, 0));
        for broken in [&[5, 0x80], &[5, 0x40], &[5, 0x08], &[5, 0xFF]] {
            let space = space(&[LIST[0], LIST[1], LIST[2], (0x80, broken)]);
            assert_eq!(space.capability(PCI_EXPRESS).unwrap(), None, "{broken:x?}");
        }
        assert_eq!(space(&LIST).capability(5).unwrap(), Some(0x80));
    }

    #[test]
    fn a_file_that_ends_is_an_error() {
        let short = Configuration { device: File::open("/dev/null").unwrap(), offset: 0 };
        assert!(short.read16(COMMAND).is_err() && short.enable_master().is_err());
    }
}
