//! What is built for users who have no working tree: Debian packages, and an installation below a prefix.
//!
//! ```text
//! cargo build --release, maturin ──► Built ──► tree: each package's files ──► dpkg-buildpackage ──► lintian    (./x package)
//!                                                                      └────► a prefix                         (./x install)
//! Debian packages ──► chroot: fresh Debian 12 and 13      (./x test --full packages)
//! licences: the crates that a program contains ──► one file of notices
//! ```
//!
//! Nothing is uploaded.

pub(crate) mod build;
pub(crate) mod chroot;
pub(crate) mod debian;
pub(crate) mod guest;
pub(crate) mod licences;
pub(crate) mod tree;
pub(crate) mod wheel;
