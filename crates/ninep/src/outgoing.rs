//! An encoded answer on its way to a client.

use memferry_pool::BufferView;

use crate::handover::Handover;

pub(crate) struct Outgoing {
    pub(crate) head: Vec<u8>,
    pub(crate) body: Body,
}

/// The file data after an answer's head.
pub(crate) enum Body {
    Nothing,
    View(BufferView),
    Handover(Handover),
}
