//! What a transfer asks for, in the form in which it crosses to the service.
//!
//! ```text
//! Request ─ fits a short slot? ─► four words; the queue adds a tag and stores them
//!                    └─ no ─────► the request itself, encoded when it is submitted
//! ```
//!
//! So a transfer is encoded where it is described: there the compiler knows the operation, and submitting does not ask for it again.

use std::borrow::Cow;

use memferry_transfer::wire::{self, Plain, ShortSlot};
use memferry_transfer::{Request, Terms};

/// Words only, without an enum's tag: a transfer is often moved right after it was made, and a copy that reads tag and padding in other
/// pieces than they were written in waits for the cache.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// A short slot with the tag 0, unless there is a `long` request.
    short: ShortSlot,
    long: Option<Box<Request>>,
}

impl Work {
    #[inline(always)]
    pub(crate) fn of(request: Request) -> Self {
        match wire::encode_short(0, &request) {
            Some(short) => Self { short, long: None },
            None => Self { short: ShortSlot::default(), long: Some(Box::new(request)) },
        }
    }

    /// The short slot, with a tag.
    #[inline]
    pub(crate) fn short(&self, tag: u32) -> Option<ShortSlot> {
        let [header, first, second, third] = self.short;
        self.long.is_none().then_some([wire::with_tag(header, tag), first, second, third])
    }

    /// The request, if it is a copy without terms.
    #[inline(always)]
    pub(crate) fn plain_copy(&self) -> Option<Plain> {
        wire::decode_plain(&self.short).filter(|plain| plain.copies && self.long.is_none())
    }

    /// The request; a short one is decoded.
    #[inline]
    pub(crate) fn request(&self) -> Cow<'_, Request> {
        match &self.long {
            None => {
                Cow::Owned(wire::decode_short_request(&self.short).expect("a slot that this program encoded"))
            }
            Some(request) => Cow::Borrowed(request),
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
