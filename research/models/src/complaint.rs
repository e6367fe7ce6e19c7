//! Complaints: a model's reports of software that breaks the device's rules.
//!
//! ```text
//! reasons! ──► Reason, Display        Complaint of a model ──push──► Complaints ──list, take──► test or log
//! ```
//!
//! Each model declares its own rules.

use alloc::vec::Vec;

/// Stored complaints; further ones are only counted.
const KEPT: usize = 1024;

/// Declares the `Reason` enum, each variant with its message.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $words:literal,)+) => {
        /// A rule that software broke.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)+
        }

        impl core::fmt::Display for Reason {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $words,)+
                })
            }
        }
    };
}
pub(crate) use reasons;

/// Complaints of one device.
#[derive(Clone, Debug)]
pub(crate) struct Complaints<C> {
    list: Vec<C>,
    left_out: u64,
}

impl<C> Default for Complaints<C> {
    fn default() -> Self {
        Self { list: Vec::new(), left_out: 0 }
    }
}

impl<C> Complaints<C> {
    pub(crate) fn push(&mut self, complaint: C) {
        if self.list.len() < KEPT {
            self.list.push(complaint);
        } else {
            self.left_out += 1;
        }
    }

    /// The stored complaints, oldest first.
    pub(crate) fn list(&self) -> &[C] {
        &self.list
    }

    /// Complaints not stored since the last `take`.
    pub(crate) const fn left_out(&self) -> u64 {
        self.left_out
    }

    pub(crate) fn take(&mut self) -> Vec<C> {
        self.left_out = 0;
        core::mem::take(&mut self.list)
    }
}
