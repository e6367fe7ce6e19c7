//! Stands in for the engine's kernels over slices.
use memferry_transfer::CacheHint;
pub(crate) fn copy(destination: &mut [u8], source: &[u8], _: CacheHint) {
    destination.copy_from_slice(source);
}
pub(crate) fn fill(destination: &mut [u8], byte: u8) {
    destination.fill(byte);
}
pub(crate) fn zero(destination: &mut [u8]) {
    destination.fill(0);
}
