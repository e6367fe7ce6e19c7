//! What a transfer asks for, in the form in which it crosses to the service.
//!
//! ```text
//! Request ─ fits a short slot? ─► Short: four words; the queue adds a tag and stores them
//!                    └─ no ─────► Long: the request itself, encoded when it is submitted
//! ```
//!
//! So a transfer is encoded where it is described: there the compiler knows the operation, and submitting does not ask for it again.

use std::borrow::Cow;

use memferry_transfer::wire::{self, ShortSlot};
use memferry_transfer::{Request, Terms};

#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// A short slot with the tag 0.
    Short(ShortSlot),
    Long(Box<Request>),
}

impl Work {
    #[inline]
    pub(crate) fn of(request: Request) -> Self {
        match wire::encode_short(0, &request) {
            Some(slot) => Self::Short(slot),
            None => Self::Long(Box::new(request)),
        }
    }

    /// The request; a short one is decoded.
    #[inline]
    pub(crate) fn request(&self) -> Cow<'_, Request> {
        match self {
            Self::Short(slot) => {
                Cow::Owned(wire::decode_short_request(slot).expect("a slot that this program encoded"))
            }
            Self::Long(request) => Cow::Borrowed(request),
        }
    }

    /// Changes the request, which may then need another form.
    #[inline]
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Request)) {
        let mut request = self.request().into_owned();
        change(&mut request);
        *self = Self::of(request);
    }

    /// Changes the terms of the request.
    #[inline]
    pub(crate) fn change_terms(&mut self, change: impl FnOnce(&mut Terms)) {
        self.change(|request| change(&mut request.terms));
    }
}
