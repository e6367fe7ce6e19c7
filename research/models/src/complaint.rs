//! What all models say of software that breaks their rules: the reasons in words, and the list they are kept in.
//!
//! ```text
//! reasons! ──► Reason, Display        Complaint of a model ──push──► Complaints ──list, take──► test or log
//! ```
//!
//! Which rules there are is each model's own matter.

use alloc::vec::Vec;

/// How many complaints are kept; further ones are only counted.
const KEPT: usize = 1024;

/// Declares the reasons with their words.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $words:literal,)+) => {
        /// Why the model complains.
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

/// The complaints of a device.
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

    /// Those that are kept, oldest first.
    pub(crate) fn list(&self) -> &[C] {
        &self.list
    }

    /// How many were not kept since they were last taken.
    pub(crate) const fn left_out(&self) -> u64 {
        self.left_out
    }

    pub(crate) fn take(&mut self) -> Vec<C> {
        self.left_out = 0;
        core::mem::take(&mut self.list)
    }
}
