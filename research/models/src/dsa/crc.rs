//! CRC-32C as the device computes it (appendix A).
//!
//! The appendix pads data to a multiple of the CRC's size. The model does not (assumed): the padding is iSCSI's, from which the text was taken, and
//! Intel's software path for the same operation computes the CRC of the bytes alone.

/// 0x11EDC6F41 (appendix A), without its highest bit, the lowest power first.
const POLYNOMIAL: u32 = 0x82F6_3B78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
};

/// How seed, data and result are taken: the operation-specific flags (8.3.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Manner {
    /// Seed and result are neither inverted nor in standard bit order.
    pub(super) as_is: bool,
    /// Bit 7 of each byte is the first.
    pub(super) data_as_is: bool,
}

/// Continues a CRC over `bytes`.
pub(super) fn crc(manner: Manner, seed: u32, bytes: &[u8]) -> u32 {
    let start = if manner.as_is { seed.reverse_bits() } else { !seed };
    let end = bytes.iter().fold(start, |crc, byte| {
        let byte = if manner.data_as_is { byte.reverse_bits() } else { *byte };
        TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8
    });
    if manner.as_is { end.reverse_bits() } else { !end }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of RFC 3720, appendix B.4.
    #[test]
    fn equals_the_vectors_of_iscsi() {
        let plain = |bytes: &[u8]| crc(Manner::default(), 0, bytes);
        assert_eq!(plain(&[0; 32]), 0x8A91_36AA);
        assert_eq!(plain(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(plain(&core::array::from_fn::<u8, 32, _>(|at| at as u8)), 0x46DD_794E);
        assert_eq!(plain(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn continues_from_a_seed_in_each_manner() {
        let bytes: [u8; 100] = core::array::from_fn(|at| (at * 37) as u8);
        for manner in [(false, false), (true, false), (false, true), (true, true)] {
            let manner = Manner { as_is: manner.0, data_as_is: manner.1 };
            let (first, rest) = bytes.split_at(33);
            assert_eq!(crc(manner, crc(manner, 5, first), rest), crc(manner, 5, &bytes));
        }
    }
}
