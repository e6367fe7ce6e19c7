//! Regions: the parts of frames that transfers and grants name, and their encoding as operands of requests.

use std::borrow::Cow;
use std::ops::Range;

use memferry_transfer::{Count2d, Plane, Span};

use super::Frame;

/// Part of a [`Frame`], or all of it: an operand of transfers and grants. A call that takes a region also takes a frame or
/// a reference to one. A region keeps its frame alive.
///
/// ```
/// use memferry::{Client, copy, fill, Pattern};
///
/// let client = Client::embedded()?;
/// let frame = client.frame(4096).alloc()?;
/// let mut queue = client.queue(4)?;
/// queue.run(fill(&frame, Pattern::Byte(1)))?;
/// queue.run(copy(frame.slice(..16), frame.slice(4080..)))?;
/// assert_eq!(frame.slice(16..=31).length(), 16);
/// // The bounds of a slice are checked by the transfer.
/// assert!(queue.run(fill(frame.slice(4000..5000), Pattern::Byte(2))).is_err());
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Region {
    frame: Frame,
    start: u64,
    end: u64,
}

impl Region {
    pub(super) fn new(frame: Frame, start: u64, end: u64) -> Self {
        Self { frame, start, end }
    }

    /// The frame that the region is part of.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The offset of the first byte in the frame.
    pub fn offset(&self) -> u64 {
        self.start
    }

    /// The length in bytes; 0 if the region ends before it begins.
    #[inline]
    pub fn length(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// The bounds as given, which may be inverted.
    #[inline]
    pub fn bounds(&self) -> Range<u64> {
        self.start..self.end
    }

    #[inline]
    pub(crate) fn into_frame(self) -> Frame {
        self.frame
    }

    /// The operand of a request. If the region leaves a window, its offset becomes `u64::MAX`, so that the service refuses it as
    /// out of bounds.
    #[inline]
    pub(crate) fn span(&self) -> Span {
        self.span_if(self.start.max(self.end) <= self.frame.length())
    }

    /// As [`span`](Self::span), for `length` bytes from the region's start, which may be more than the region has.
    #[inline]
    pub(crate) fn span_for(&self, length: u64) -> Span {
        let end = self.start.checked_add(length);
        self.span_if(end.is_some_and(|end| end <= self.frame.length()))
    }

    /// As [`span`](Self::span), for the bytes of a 2-D walk that counts from the region's start.
    pub(crate) fn span_for_walk(&self, count: &Count2d, plane: &Plane) -> Span {
        let start = self.start.checked_add(plane.start);
        let extent = start.map(|start| Plane { start, ..*plane }.extent(count));
        self.span_if(match extent {
            Some(Ok(Some(extent))) => extent.first + extent.length <= self.frame.length(),
            Some(Ok(None)) => true,
            Some(Err(_)) | None => false,
        })
    }

    #[inline]
    fn span_if(&self, inside: bool) -> Span {
        span_if(&self.frame, self.start, inside)
    }
}

/// The operand at an offset of a frame; of a window, only if the operand is `inside`.
#[inline]
fn span_if(frame: &Frame, start: u64, inside: bool) -> Span {
    let offset = match frame.window() {
        None => start,
        Some(base) if inside => base.saturating_add(start),
        Some(_) => u64::MAX,
    };
    Span::new(frame.handle(), offset)
}

/// Part of a [`Frame`] in a list of [`scatter_gather`](crate::scatter_gather). Unlike a [`Region`] it may borrow the frame: in lists of
/// many pieces, counting references is most of what a piece costs. [`Frame::piece`] makes one. Other transfers take regions.
///
/// ```
/// use memferry::{Client, Piece, scatter_gather};
///
/// let client = Client::embedded()?;
/// let frame = client.frame(4096).alloc()?;
/// frame.write(0, b"abcd")?;
/// let reversed: Vec<Piece> = (0..4).rev().map(|at| frame.piece(at..at + 1)).collect();
/// client.queue(2)?.run(scatter_gather(reversed, [frame.piece(100..104)]))?;
/// let mut text = [0; 4];
/// frame.read(100, &mut text)?;
/// assert_eq!(&text, b"dcba");
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Piece<'a> {
    frame: Cow<'a, Frame>,
    start: u64,
    end: u64,
}

impl<'a> Piece<'a> {
    pub(super) fn new(frame: &'a Frame, Range { start, end }: Range<u64>) -> Self {
        Self { frame: Cow::Borrowed(frame), start, end }
    }

    /// The bounds as given, which may be inverted.
    #[inline]
    pub(crate) fn bounds(&self) -> Range<u64> {
        self.start..self.end
    }

    #[inline]
    pub(crate) fn span(&self) -> Span {
        span_if(&self.frame, self.start, self.start.max(self.end) <= self.frame.length())
    }

    #[inline]
    pub(crate) fn into_frame(self) -> Cow<'a, Frame> {
        self.frame
    }
}

/// What a list of [`scatter_gather`](crate::scatter_gather) takes: a [`Piece`], and everything that becomes a [`Region`].
///
/// ```
/// use memferry::{Client, Frame, ListItem, Transfer, scatter_gather};
///
/// fn gather<'a>(blocks: Vec<impl ListItem<'a>>, whole: &Frame, bytes: u64) -> Transfer {
///     scatter_gather(blocks, [whole.piece(..bytes)])
/// }
///
/// let client = Client::embedded()?;
/// let (blocks, whole) = (client.frame(4096).alloc()?, client.frame(4096).alloc()?);
/// let pieces = [5_u64, 9].map(|number| blocks.piece(number * 32..(number + 1) * 32));
/// assert_eq!(client.queue(2)?.run(gather(pieces.to_vec(), &whole, 64))?.bytes_done, 64);
/// # Ok::<(), memferry::Error>(())
/// ```
pub trait ListItem<'a> {
    /// The item as a piece.
    fn into_piece(self) -> Piece<'a>;
}

impl<'a> ListItem<'a> for Piece<'a> {
    #[inline]
    fn into_piece(self) -> Self {
        self
    }
}

impl<'a, T: Into<Region>> ListItem<'a> for T {
    #[inline]
    fn into_piece(self) -> Piece<'a> {
        let Region { frame, start, end } = self.into();
        Piece { frame: Cow::Owned(frame), start, end }
    }
}

impl From<Frame> for Region {
    #[inline]
    fn from(frame: Frame) -> Self {
        let end = frame.length();
        Self { frame, start: 0, end }
    }
}

impl From<&Frame> for Region {
    #[inline]
    fn from(frame: &Frame) -> Self {
        frame.clone().into()
    }
}

impl From<&Self> for Region {
    #[inline]
    fn from(region: &Self) -> Self {
        region.clone()
    }
}
